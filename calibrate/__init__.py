"""calibrate: the inverse of jaxdp — parameters from privacy targets."""

from calibrate._batch import batch as batch
from calibrate._diffusion import ornstein_uhlenbeck as ornstein_uhlenbeck
from calibrate._diffusion import ornstein_uhlenbeck_renyi as ornstein_uhlenbeck_renyi
from calibrate._distributed import gdl_decay as gdl_decay
from calibrate._minimize import Minimum as Minimum
from calibrate._minimize import minimize as minimize
from calibrate._schedule import LearnedSchedule as LearnedSchedule
from calibrate._schedule import schedule as schedule
from calibrate._shortfall import Shortfall as Shortfall
from calibrate._solve import Solution as Solution
from calibrate._solve import Status as Status
from calibrate._solve import solve as solve
from calibrate._solve_integer import solve_integer as solve_integer
