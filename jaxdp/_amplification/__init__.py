"""Amplification of privacy by iteration, by mixing and by diffusion."""

from jaxdp._amplification._constant_iteration import (
    ConstantNoisyIteration as ConstantNoisyIteration,
)
from jaxdp._amplification._diffusion import Diffusion as Diffusion
from jaxdp._amplification._diffusion import IntrinsicSensitivity as IntrinsicSensitivity
from jaxdp._amplification._hierarchy import HierarchicalRelease as HierarchicalRelease
from jaxdp._amplification._hierarchy import dominates_gaussian as dominates_gaussian
from jaxdp._amplification._iteration import NoisyIteration as NoisyIteration
from jaxdp._amplification._kernels import MixingCoefficients as MixingCoefficients
from jaxdp._amplification._kernels import coupling_bound as coupling_bound
from jaxdp._amplification._kernels import kernel_power as kernel_power
from jaxdp._amplification._kernels import mixing_coefficients as mixing_coefficients
from jaxdp._amplification._laplace_iteration import LaplaceIteration as LaplaceIteration
from jaxdp._amplification._mixing import Dobrushin as Dobrushin
from jaxdp._amplification._mixing import Doeblin as Doeblin
from jaxdp._amplification._mixing import PrivacyPair as PrivacyPair
from jaxdp._amplification._mixing import UltraMixing as UltraMixing
from jaxdp._amplification._mixing import amplify_by_mixing as amplify_by_mixing
from jaxdp._amplification._mixing import delta_after_mixing as delta_after_mixing
from jaxdp._amplification._mixing import dobrushin_epsilon as dobrushin_epsilon
from jaxdp._amplification._projected_sgd import NoisyProjectedSGD as NoisyProjectedSGD
