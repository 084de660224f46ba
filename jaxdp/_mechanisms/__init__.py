"""Mechanisms and their combinators."""

from jaxdp._mechanisms._base import Average as Average
from jaxdp._mechanisms._base import Base as Base
from jaxdp._mechanisms._base import Direction as Direction
from jaxdp._mechanisms._base import Mechanism as Mechanism
from jaxdp._mechanisms._base import mechanism as mechanism
from jaxdp._mechanisms._base import require_mechanism as require_mechanism
from jaxdp._mechanisms._bracketed import Bracketed as Bracketed
from jaxdp._mechanisms._combinators import Composed as Composed
from jaxdp._mechanisms._combinators import Repeated as Repeated
from jaxdp._mechanisms._custom import CustomMechanism as CustomMechanism
from jaxdp._mechanisms._exchange import DoubleGaussianMixture as DoubleGaussianMixture
from jaxdp._mechanisms._exchange import (
    PoissonSampledGroupReplaceOne as PoissonSampledGroupReplaceOne,
)
from jaxdp._mechanisms._finite import ApproximateDP as ApproximateDP
from jaxdp._mechanisms._finite import RandomizedResponse as RandomizedResponse
from jaxdp._mechanisms._fixed_size import NEIGHBOURS as NEIGHBOURS
from jaxdp._mechanisms._fixed_size import FixedSizeSampled as FixedSizeSampled
from jaxdp._mechanisms._fixed_size import Neighbours as Neighbours
from jaxdp._mechanisms._fixed_size import fixed_size_sampled as fixed_size_sampled
from jaxdp._mechanisms._gaussian import Brownian as Brownian
from jaxdp._mechanisms._gaussian import Gaussian as Gaussian
from jaxdp._mechanisms._gaussian import OrnsteinUhlenbeck as OrnsteinUhlenbeck
from jaxdp._mechanisms._groups import FixedSizeGroup as FixedSizeGroup
from jaxdp._mechanisms._groups import PoissonSampledGroup as PoissonSampledGroup
from jaxdp._mechanisms._guarantees import ConcentratedDP as ConcentratedDP
from jaxdp._mechanisms._laplace import Laplace as Laplace
from jaxdp._mechanisms._mixture import GaussianMixture as GaussianMixture
from jaxdp._mechanisms._parallel import Parallel as Parallel
from jaxdp._mechanisms._poisson_replace import PoissonSampledReplaceOne as PoissonSampledReplaceOne
from jaxdp._mechanisms._replace import replace_one as replace_one
from jaxdp._mechanisms._revealed import Mixture as Mixture
from jaxdp._mechanisms._sampling import PoissonSampled as PoissonSampled
from jaxdp._mechanisms._schedule import Schedule as Schedule
from jaxdp._mechanisms._selection import ExponentialMechanism as ExponentialMechanism
from jaxdp._mechanisms._selection import PermuteAndFlip as PermuteAndFlip
from jaxdp._mechanisms._selection import ReportNoisyMax as ReportNoisyMax
from jaxdp._mechanisms._selection import SparseVector as SparseVector
from jaxdp._mechanisms._truncated import TruncatedPoissonSampled as TruncatedPoissonSampled
from jaxdp._mechanisms._truncated import (
    TruncatedPoissonSampledReplaceOne as TruncatedPoissonSampledReplaceOne,
)
