"""calibrate: the inverse of jaxdp, from privacy targets to the parameters that meet them.

* `solve`: one parameter, the least noisy that meets (epsilon, delta), with implicit gradients;
  `solve_integer`: the fewest steps, or the most; `batch`: millions of targets, on all devices.
* `dp_sgd`: the noise multiplier of a training, from records, batch size and epochs;
  `compare_samplers`: of every way of drawing its batches, side by side.
* `minimize`: several parameters at once, under a loss; `schedule`: the noise of every step;
  `strategy`: the bands of correlated noise.
* `ornstein_uhlenbeck`, `ornstein_uhlenbeck_renyi`, `gdl_decay`: single designs.

Every value that is returned was itself certified to meet its target, and `message` says what
came of the rest.

Example:
  >>> import calibrate, jaxdp
  >>> calibrate.solve(jaxdp.Gaussian, epsilon=1.0, delta=1e-5)
  Solution(value=3.73063, epsilon=1.0, delta=1e-05, status=SOLVED)
  >>> steps = lambda count, sigma: jaxdp.Repeated(jaxdp.Gaussian(sigma), count)
  >>> int(calibrate.solve_integer(steps, epsilon=1.0, delta=1e-5, args=(50.0,)).value)
  179
"""

from calibrate._batch import batch as batch
from calibrate._compare import SCHEMES as SCHEMES
from calibrate._compare import Comparison as Comparison
from calibrate._compare import Sampler as Sampler
from calibrate._compare import compare_samplers as compare_samplers
from calibrate._diffusion import ornstein_uhlenbeck as ornstein_uhlenbeck
from calibrate._diffusion import ornstein_uhlenbeck_renyi as ornstein_uhlenbeck_renyi
from calibrate._distributed import gdl_decay as gdl_decay
from calibrate._dp_sgd import dp_sgd as dp_sgd
from calibrate._minimize import Minimum as Minimum
from calibrate._minimize import minimize as minimize
from calibrate._schedule import LearnedSchedule as LearnedSchedule
from calibrate._schedule import schedule as schedule
from calibrate._shortfall import Shortfall as Shortfall
from calibrate._solve import Solution as Solution
from calibrate._solve import Status as Status
from calibrate._solve import solve as solve
from calibrate._solve_integer import solve_integer as solve_integer
from calibrate._strategy import LearnedStrategy as LearnedStrategy
from calibrate._strategy import strategy as strategy

__all__ = [
    "solve",
    "Solution",
    "Status",
    "Shortfall",
    "dp_sgd",
    "compare_samplers",
    "Comparison",
    "Sampler",
    "SCHEMES",
    "solve_integer",
    "batch",
    "minimize",
    "Minimum",
    "schedule",
    "LearnedSchedule",
    "strategy",
    "LearnedStrategy",
    "ornstein_uhlenbeck",
    "ornstein_uhlenbeck_renyi",
    "gdl_decay",
]
