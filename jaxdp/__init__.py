"""jaxdp: a JAX-native, differentiable, certified accountant for differential privacy."""

from jaxdp._conversions import epsilon_delta_to_gdp as epsilon_delta_to_gdp
from jaxdp._conversions import gdp_to_delta as gdp_to_delta
from jaxdp._conversions import gdp_to_epsilon as gdp_to_epsilon
from jaxdp._conversions import pure_to_delta as pure_to_delta
from jaxdp._conversions import pure_to_renyi as pure_to_renyi
from jaxdp._conversions import pure_to_zcdp as pure_to_zcdp
from jaxdp._conversions import renyi_to_delta as renyi_to_delta
from jaxdp._conversions import renyi_to_epsilon as renyi_to_epsilon
from jaxdp._conversions import renyi_to_zcdp as renyi_to_zcdp
from jaxdp._conversions import zcdp_to_delta as zcdp_to_delta
from jaxdp._conversions import zcdp_to_epsilon as zcdp_to_epsilon
from jaxdp._conversions import zcdp_to_renyi as zcdp_to_renyi
from jaxdp._mechanisms import ApproximateDP as ApproximateDP
from jaxdp._mechanisms import Brownian as Brownian
from jaxdp._mechanisms import Composed as Composed
from jaxdp._mechanisms import Gaussian as Gaussian
from jaxdp._mechanisms import Laplace as Laplace
from jaxdp._mechanisms import Mechanism as Mechanism
from jaxdp._mechanisms import OrnsteinUhlenbeck as OrnsteinUhlenbeck
from jaxdp._mechanisms import PoissonSampled as PoissonSampled
from jaxdp._mechanisms import RandomizedResponse as RandomizedResponse
from jaxdp._mechanisms import Repeated as Repeated
from jaxdp._queries import advantage as advantage
from jaxdp._queries import delta as delta
from jaxdp._queries import epsilon as epsilon
from jaxdp._queries import hockey_stick as hockey_stick
from jaxdp._queries import log_delta as log_delta
from jaxdp._queries import renyi as renyi
from jaxdp._queries import tradeoff as tradeoff

__version__ = "0.1.0"
