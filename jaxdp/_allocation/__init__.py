"""Random allocation and its comparisons."""

from jaxdp._allocation._mechanism import RandomAllocation as RandomAllocation
