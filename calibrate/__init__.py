"""calibrate: the inverse of jaxdp — parameters from privacy targets."""

from calibrate._minimize import Minimum as Minimum
from calibrate._minimize import minimize as minimize
from calibrate._solve import Solution as Solution
from calibrate._solve import Status as Status
from calibrate._solve import solve as solve
