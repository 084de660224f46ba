"""Pictures of privacy, from any mechanism: each function draws on an Axes and returns it.

They need matplotlib, which is the extra `plot`, and load it when they are called. Everything that
is drawn is certified as the queries are: curves are upper bounds on delta and epsilon and lower
bounds on an attack's errors; where a bound from below is known too, the bracket is shaded.
Colours can be told apart by the colour-blind, and curves that coincide by their markers.

* `profile`: delta against epsilon;
* `tradeoff`: the errors that every attack makes, and its advantage;
* `epsilon_over_steps`: what a run has spent as it goes on;
* `brackets`: certified intervals for epsilon, of several mechanisms or methods;
* `loss_distribution`: the privacy loss with the record and without it;
* `schedule`: the parameters of a run, step by step;
* `compare`: several mechanisms in one of the pictures above;
* `lines`: curves of your own, told apart in the same way;
* `samplers`: the noise that each way of drawing batches takes.

Example:
  >>> import jaxdp, jaxdp.plot
  >>> ax = jaxdp.plot.profile(jaxdp.Gaussian(1.0))
  >>> ax.get_yscale()
  'log'
"""

from jaxdp.plot._compare import brackets as brackets
from jaxdp.plot._compare import compare as compare
from jaxdp.plot._compare import lines as lines
from jaxdp.plot._curves import epsilon_over_steps as epsilon_over_steps
from jaxdp.plot._curves import profile as profile
from jaxdp.plot._curves import tradeoff as tradeoff
from jaxdp.plot._laws import loss_distribution as loss_distribution
from jaxdp.plot._laws import schedule as schedule
from jaxdp.plot._samplers import samplers as samplers

__all__ = [
    "profile",
    "tradeoff",
    "epsilon_over_steps",
    "brackets",
    "loss_distribution",
    "schedule",
    "compare",
    "lines",
    "samplers",
]
