"""Random allocation and its comparisons."""

from jaxdp._allocation._estimate import Estimate as Estimate
from jaxdp._allocation._estimate import estimate_delta as estimate_delta
from jaxdp._allocation._mechanism import RandomAllocation as RandomAllocation
from jaxdp._allocation._separated import cyclic_poisson_sampled as cyclic_poisson_sampled
from jaxdp._allocation._separated import min_sep_sampled as min_sep_sampled
from jaxdp._allocation._shuffle import Shuffled as Shuffled
