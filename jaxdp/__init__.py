"""jaxdp: the privacy of mechanisms in JAX, certified and differentiable.

A mechanism is a PyTree of its parameters (`Gaussian`, `Laplace`, `DiscreteGaussian`, ...; your own
is a `CustomMechanism`); others are made of it (`PoissonSampled`, `RandomAllocation`, `Repeated`,
`Composed`, `Schedule`), and `dp_sgd` makes a training run. Questions are functions of a mechanism,
broadcast over arrays, and work under jit, vmap and grad: `epsilon`, `delta`, `epsilon_bounds`,
`tradeoff`, `renyi`, ... What they return is an upper bound on privacy loss, rounding included, and
for the worse of adding and removing a record unless asked otherwise.

Beside them: the package `calibrate` (parameters from targets), `jaxdp.training` (accounting inside
training loops), `jaxdp.plot` (pictures), `jaxdp.interop` (dp_accounting's events), and the command
`jaxdp`.

Example:
  >>> import jaxdp
  >>> step = jaxdp.PoissonSampled(jaxdp.Gaussian(sigma=1.0), sampling_probability=0.01)
  >>> run = jaxdp.Repeated(step, 1000)
  >>> run
  Repeated(mechanism=PoissonSampled(mechanism=Gaussian(sigma=1.0), ...), count=1000)
  >>> 1.828237 <= float(jaxdp.epsilon(run, delta=1e-5)) < 1.8301  # the truth is 1.828237
  True
"""

from jaxdp._allocation import Estimate as Estimate
from jaxdp._allocation import RandomAllocation as RandomAllocation
from jaxdp._allocation import Shuffled as Shuffled
from jaxdp._allocation import cyclic_poisson_sampled as cyclic_poisson_sampled
from jaxdp._allocation import estimate_delta as estimate_delta
from jaxdp._allocation import min_sep_sampled as min_sep_sampled
from jaxdp._amplification import ConstantNoisyIteration as ConstantNoisyIteration
from jaxdp._amplification import Diffusion as Diffusion
from jaxdp._amplification import Dobrushin as Dobrushin
from jaxdp._amplification import Doeblin as Doeblin
from jaxdp._amplification import HierarchicalRelease as HierarchicalRelease
from jaxdp._amplification import IntrinsicSensitivity as IntrinsicSensitivity
from jaxdp._amplification import LaplaceIteration as LaplaceIteration
from jaxdp._amplification import MixingCoefficients as MixingCoefficients
from jaxdp._amplification import NoisyIteration as NoisyIteration
from jaxdp._amplification import NoisyProjectedSGD as NoisyProjectedSGD
from jaxdp._amplification import PrivacyPair as PrivacyPair
from jaxdp._amplification import UltraMixing as UltraMixing
from jaxdp._amplification import amplify_by_mixing as amplify_by_mixing
from jaxdp._amplification import coupling_bound as coupling_bound
from jaxdp._amplification import delta_after_mixing as delta_after_mixing
from jaxdp._amplification import dobrushin_epsilon as dobrushin_epsilon
from jaxdp._amplification import dominates_gaussian as dominates_gaussian
from jaxdp._amplification import kernel_power as kernel_power
from jaxdp._amplification import mixing_coefficients as mixing_coefficients
from jaxdp._builders import dp_sgd as dp_sgd
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
from jaxdp._decomposed import decomposed as decomposed
from jaxdp._group_privacy import group_privacy as group_privacy
from jaxdp._intersection import intersection as intersection
from jaxdp._matrix import MatrixMechanism as MatrixMechanism
from jaxdp._mechanisms import ApproximateDP as ApproximateDP
from jaxdp._mechanisms import Brownian as Brownian
from jaxdp._mechanisms import Composed as Composed
from jaxdp._mechanisms import ConcentratedDP as ConcentratedDP
from jaxdp._mechanisms import CustomMechanism as CustomMechanism
from jaxdp._mechanisms import DoubleGaussianMixture as DoubleGaussianMixture
from jaxdp._mechanisms import ExponentialMechanism as ExponentialMechanism
from jaxdp._mechanisms import FixedSizeGroup as FixedSizeGroup
from jaxdp._mechanisms import FixedSizeSampled as FixedSizeSampled
from jaxdp._mechanisms import Gaussian as Gaussian
from jaxdp._mechanisms import GaussianMixture as GaussianMixture
from jaxdp._mechanisms import Laplace as Laplace
from jaxdp._mechanisms import Mechanism as Mechanism
from jaxdp._mechanisms import Mixture as Mixture
from jaxdp._mechanisms import OrnsteinUhlenbeck as OrnsteinUhlenbeck
from jaxdp._mechanisms import Parallel as Parallel
from jaxdp._mechanisms import PermuteAndFlip as PermuteAndFlip
from jaxdp._mechanisms import PoissonSampled as PoissonSampled
from jaxdp._mechanisms import PoissonSampledGroup as PoissonSampledGroup
from jaxdp._mechanisms import PoissonSampledGroupReplaceOne as PoissonSampledGroupReplaceOne
from jaxdp._mechanisms import PoissonSampledReplaceOne as PoissonSampledReplaceOne
from jaxdp._mechanisms import RandomizedResponse as RandomizedResponse
from jaxdp._mechanisms import Repeated as Repeated
from jaxdp._mechanisms import ReportNoisyMax as ReportNoisyMax
from jaxdp._mechanisms import Schedule as Schedule
from jaxdp._mechanisms import SparseVector as SparseVector
from jaxdp._mechanisms import TruncatedPoissonSampled as TruncatedPoissonSampled
from jaxdp._mechanisms import TruncatedPoissonSampledReplaceOne as TruncatedPoissonSampledReplaceOne
from jaxdp._mechanisms import fixed_size_sampled as fixed_size_sampled
from jaxdp._mechanisms import replace_one as replace_one
from jaxdp._methods import Analytic as Analytic
from jaxdp._methods import Decomposition as Decomposition
from jaxdp._methods import Numerical as Numerical
from jaxdp._methods import PosteriorSampling as PosteriorSampling
from jaxdp._methods import Renyi as Renyi
from jaxdp._noise import AdditiveNoise as AdditiveNoise
from jaxdp._noise import DiscreteGaussian as DiscreteGaussian
from jaxdp._noise import DiscreteGaussianVector as DiscreteGaussianVector
from jaxdp._noise import DiscreteLaplace as DiscreteLaplace
from jaxdp._noise import FinitePair as FinitePair
from jaxdp._noise import GammaDifference as GammaDifference
from jaxdp._noise import GeneralizedDiscreteLaplace as GeneralizedDiscreteLaplace
from jaxdp._noise import LaplaceSum as LaplaceSum
from jaxdp._noise import LossDistribution as LossDistribution
from jaxdp._noise import NegativeBinomial as NegativeBinomial
from jaxdp._noise import PartialNoise as PartialNoise
from jaxdp._noise import PostProcessed as PostProcessed
from jaxdp._noise import Skellam as Skellam
from jaxdp._noise import SkellamVector as SkellamVector
from jaxdp._noise import gdl_epsilon_floor as gdl_epsilon_floor
from jaxdp._noise import noise_share as noise_share
from jaxdp._noise import repeated_noise_renyi as repeated_noise_renyi
from jaxdp._noise import skellam_renyi_bound as skellam_renyi_bound
from jaxdp._privacy_loss import PrivacyLoss as PrivacyLoss
from jaxdp._privacy_loss import privacy_loss as privacy_loss
from jaxdp._queries import advantage as advantage
from jaxdp._queries import delta as delta
from jaxdp._queries import delta_bounds as delta_bounds
from jaxdp._queries import epsilon as epsilon
from jaxdp._queries import epsilon_bounds as epsilon_bounds
from jaxdp._queries import hockey_stick as hockey_stick
from jaxdp._queries import log_delta as log_delta
from jaxdp._queries import renyi as renyi
from jaxdp._queries import tradeoff as tradeoff
from jaxdp._tuning import RepeatAndSelect as RepeatAndSelect

__version__ = "0.1.0"

__all__ = [
    # mechanisms and what is made of them
    "Mechanism",
    "Gaussian",
    "Laplace",
    "RandomizedResponse",
    "ApproximateDP",
    "ConcentratedDP",
    "Brownian",
    "OrnsteinUhlenbeck",
    "DiscreteGaussian",
    "DiscreteGaussianVector",
    "DiscreteLaplace",
    "Skellam",
    "SkellamVector",
    "NegativeBinomial",
    "GeneralizedDiscreteLaplace",
    "GammaDifference",
    "LaplaceSum",
    "PartialNoise",
    "ExponentialMechanism",
    "PermuteAndFlip",
    "ReportNoisyMax",
    "SparseVector",
    "RepeatAndSelect",
    "AdditiveNoise",
    "CustomMechanism",
    "LossDistribution",
    "FinitePair",
    "PostProcessed",
    "Composed",
    "Mixture",
    "Parallel",
    "group_privacy",
    "intersection",
    "decomposed",
    "Repeated",
    "Schedule",
    "PoissonSampled",
    "PoissonSampledGroup",
    "PoissonSampledGroupReplaceOne",
    "PoissonSampledReplaceOne",
    "TruncatedPoissonSampled",
    "TruncatedPoissonSampledReplaceOne",
    "FixedSizeSampled",
    "FixedSizeGroup",
    "fixed_size_sampled",
    "cyclic_poisson_sampled",
    "min_sep_sampled",
    "GaussianMixture",
    "DoubleGaussianMixture",
    "RandomAllocation",
    "MatrixMechanism",
    "Shuffled",
    "replace_one",
    "dp_sgd",
    # questions
    "epsilon",
    "epsilon_bounds",
    "delta",
    "delta_bounds",
    "log_delta",
    "hockey_stick",
    "renyi",
    "tradeoff",
    "advantage",
    "privacy_loss",
    "PrivacyLoss",
    "estimate_delta",
    "Estimate",
    # how they are answered
    "Analytic",
    "Numerical",
    "Renyi",
    "Decomposition",
    "PosteriorSampling",
    # from one notion of privacy to another
    "renyi_to_epsilon",
    "renyi_to_delta",
    "renyi_to_zcdp",
    "zcdp_to_renyi",
    "zcdp_to_epsilon",
    "zcdp_to_delta",
    "gdp_to_delta",
    "gdp_to_epsilon",
    "epsilon_delta_to_gdp",
    "pure_to_renyi",
    "pure_to_zcdp",
    "pure_to_delta",
    # amplification by mixing, iteration and diffusion
    "amplify_by_mixing",
    "delta_after_mixing",
    "mixing_coefficients",
    "kernel_power",
    "dobrushin_epsilon",
    "Dobrushin",
    "Doeblin",
    "UltraMixing",
    "MixingCoefficients",
    "PrivacyPair",
    "coupling_bound",
    "NoisyIteration",
    "ConstantNoisyIteration",
    "LaplaceIteration",
    "NoisyProjectedSGD",
    "Diffusion",
    "IntrinsicSensitivity",
    "HierarchicalRelease",
    "dominates_gaussian",
    # shared and repeated noise
    "noise_share",
    "gdl_epsilon_floor",
    "skellam_renyi_bound",
    "repeated_noise_renyi",
]
