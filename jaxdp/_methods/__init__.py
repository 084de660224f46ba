"""How a query is computed: a closed form, Rényi divergences, the numerical engine, comparisons."""

from jaxdp._methods._analytic import Analytic as Analytic
from jaxdp._methods._base import Method as Method
from jaxdp._methods._base import check_method as check_method
from jaxdp._methods._numerical import Numerical as Numerical
from jaxdp._methods._poisson import Decomposition as Decomposition
from jaxdp._methods._poisson import PosteriorSampling as PosteriorSampling
from jaxdp._methods._renyi import Renyi as Renyi
