"""Distributed and repeated noise, and pairs of distributions given in full."""

from jaxdp._noise._additive import AdditiveNoise as AdditiveNoise
from jaxdp._noise._bounds import gdl_epsilon_floor as gdl_epsilon_floor
from jaxdp._noise._bounds import skellam_renyi_bound as skellam_renyi_bound
from jaxdp._noise._continuous import GammaDifference as GammaDifference
from jaxdp._noise._continuous import LaplaceSum as LaplaceSum
from jaxdp._noise._discrete import DiscreteGaussian as DiscreteGaussian
from jaxdp._noise._discrete import DiscreteLaplace as DiscreteLaplace
from jaxdp._noise._discrete import GeneralizedDiscreteLaplace as GeneralizedDiscreteLaplace
from jaxdp._noise._discrete import Skellam as Skellam
from jaxdp._noise._distributed import PartialNoise as PartialNoise
from jaxdp._noise._distributed import noise_share as noise_share
from jaxdp._noise._finite_pairs import FinitePair as FinitePair
from jaxdp._noise._finite_pairs import PostProcessed as PostProcessed
from jaxdp._noise._loss_distribution import LossDistribution as LossDistribution
from jaxdp._noise._negative_binomial import NegativeBinomial as NegativeBinomial
from jaxdp._noise._repeated import repeated_noise_renyi as repeated_noise_renyi
from jaxdp._noise._vectors import DiscreteGaussianVector as DiscreteGaussianVector
from jaxdp._noise._vectors import SkellamVector as SkellamVector
