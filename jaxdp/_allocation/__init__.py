"""Random allocation and its comparisons."""

from jaxdp._allocation._estimate import Estimate as Estimate
from jaxdp._allocation._estimate import estimate_delta as estimate_delta
from jaxdp._allocation._mechanism import RandomAllocation as RandomAllocation
from jaxdp._allocation._shuffle import Shuffled as Shuffled
