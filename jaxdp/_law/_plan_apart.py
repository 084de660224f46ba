"""A plan for one rare large loss that decides: `_parts` then composes the others beside it alone.

Where losses fall more slowly than any exponential, as those of sampled Gaussian steps do, no tilt
is about epsilon: the tilted law is the bulk, or the largest losses, and delta is less than the
rounding of either. So the n steps are told apart by how many have a loss beyond a cut:

    delta = (none) + n (exactly one, beside n - 1 that have none) + (two or more).

The second is composed, at the tilt at which its own mean is epsilon. The first is at most
e^{n K(t) - t epsilon} sup g for any t, K the cumulant function of the losses up to the cut
(Chernoff), the last C(n, 2) P{beyond}^2; both are next to nothing where the cut is right, and
count in full. (Below they count as 0.) As in `_plan`, nothing here needs to be right.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp._law import _saddle
from jaxdp._law._begins import log_sum_exp
from jaxdp._law._plan_tilt import TiltedLaw, coarse_number
from jaxdp._law._saddle import Atoms, log_price, moments

# The least cut, as a share of epsilon, how far from there to epsilon, in logarithms, others are,
# and tilts for what is below, about one.
_LEAST_SHARE, _BETWEEN = 0.02, np.arange(5.0) / 5.0
_TILTS = np.array([0.75, 0.9, 1.0, 1.15])
_FALL = 1.25  # to so many epsilons, a tail shows how fast it falls
_LESS = 0.7 ** np.arange(7.0)
_NOTHING, _LITTLE = 5.0, 6.0  # -log of shares of delta that count as that
# -log of delta's share of what could be at the tilt, where it comes near rounding, and is nearer.
_NOISE, _HARD = 12.0, 15.5
# Losses beyond so many deviations of the rest count as rare and large.
BULK = 60.0
_LOG_MASS = -22.0  # of what a window may leave out


class Apart(NamedTuple):
    """Whether to; the tilt t (absolute), and the cut, as a loss.

    Without `some` they are 0 and infinity, and say so.
    """

    some: jax.Array
    tilt: jax.Array
    cut: jax.Array


def _cut(
    law: TiltedLaw, given: Atoms, above: jax.Array, log_answer: jax.Array
) -> tuple[jax.Array, ...]:
    """The largest cut at which none is next to nothing, the tilt for that, and if two are as well.

    (The tilted law of the one is largest at the cut, where that is far below epsilon.)
    """
    n, epsilon = law.used[0], law.centre
    loss, log_p, edges = given.loss[0], given.log_p[0], given.edges[0]
    nothing = log_answer - _NOTHING
    enough = 0.5 * (nothing + np.log(2.0)) - jnp.log(n)
    rare = above[1:] <= jnp.exp(jnp.maximum(enough, -700.0))
    least = jnp.min(jnp.where(rare & (edges > 0.0), edges, jnp.inf))
    least = jnp.clip(least, _LEAST_SHARE * epsilon, epsilon)
    cuts = least * (epsilon / least) ** jnp.asarray(_BETWEEN)
    beyond = jnp.abs(loss) > cuts[:, None]
    log_rare = log_sum_exp(jnp.where(beyond, log_p, -jnp.inf))
    log_twice = 2.0 * (log_rare + jnp.log(n)) - np.log(2.0)
    # (About where the mean is epsilon; at large tilts a cell counts with its end.)
    near = ~beyond & (loss > 0.85 * cuts[:, None])
    log_near = log_sum_exp(jnp.where(near, log_p, -jnp.inf)) + jnp.log(n * cuts / epsilon)
    about = jnp.clip(-log_near / cuts, 4.0 / cuts, 800.0 / cuts)
    tilts = about[:, None] * _TILTS
    below = jnp.where(beyond, -jnp.inf, log_p)[:, None]
    ends = jnp.append(edges, edges[-1])
    at = jnp.where(beyond, 0.0, jnp.minimum(jnp.maximum(loss, ends), cuts[:, None]))[:, None]
    log_none = n * log_sum_exp(below + tilts[:, :, None] * at)
    log_none += log_price(tilts) - tilts * (epsilon - law.margin)
    best = jnp.min(log_none, axis=1)
    tilt = jnp.min(jnp.where(log_none <= best[:, None], tilts, jnp.inf), axis=1)
    good = jnp.maximum(best, log_twice) < nothing + 0.1
    cut = jnp.max(jnp.where(good, cuts, 0.0))
    return cut, jnp.max(jnp.where(good & (cuts == cut), tilt, 0.0)), cut > 0.0


def one_apart(law: TiltedLaw, given: Atoms, log_answer: jax.Array) -> tuple[TiltedLaw, Apart]:
    """The law at the tilt for one loss beyond the cut, where there is need, else as it is."""
    n = law.used[0]
    above = _saddle.above(given)[0]
    cut, tilt, good = _cut(law, given, above, log_answer)
    seen = law.log_value - log_price(law.theta)
    some = good & (seen < -_NOISE) & (law.centre > 0.0) & (n >= 2.0)
    # What is so large that P hardly sees it goes to infinity.
    allowed = np.log(law.tolerated) + log_answer - jnp.log(n)
    keep = above > jnp.exp(jnp.maximum(allowed, -700.0))
    highest = jnp.max(jnp.where(keep[:-1], given.edges[0], given.edges[0, 0]))
    some &= highest > law.centre
    loss = given.loss[0]
    held = jnp.where(loss <= highest, given.log_p[0], -jnp.inf)
    beyond = jnp.abs(loss) > cut
    both = jnp.stack([jnp.where(beyond, -jnp.inf, held), jnp.where(beyond, held, -jnp.inf)])
    losses, edges = (jnp.broadcast_to(x, (2, x.shape[-1])) for x in (given.loss, given.edges))
    # The tilt that makes the tail level about epsilon, or less, if its end would have most then.
    tail = jnp.log(above[1:])
    until = given.edges[0] <= _FALL * law.centre
    first = jnp.min(jnp.where(given.edges[0] >= law.centre, given.edges[0], jnp.inf))
    last = jnp.max(jnp.where(until, given.edges[0], -jnp.inf))
    log_first = jnp.max(jnp.where(given.edges[0] >= first, tail, -jnp.inf))
    log_last = jnp.min(jnp.where(until, tail, jnp.inf))
    some &= (last > first) & (log_last > -jnp.inf) & (log_last < log_first)
    level = (log_first - log_last) / jnp.where(some, last - first, 1.0)
    tilts = jnp.where(some, level, 1.0) * _LESS
    away = jnp.where(held > -jnp.inf, loss - law.centre, 0.0)
    sizes = log_sum_exp(both[1] + tilts[:, None] * away)
    theta = coarse_number(jnp.max(jnp.where(sizes <= jnp.min(sizes), tilts, 0.0)))
    counts = jnp.stack([n - 1.0, jnp.ones(())])
    of_both = moments(Atoms(both, losses, counts, edges), theta)
    m = jax.tree.map(lambda x: x[:1], of_both)
    deviation = coarse_number(jnp.maximum(jnp.sqrt(n * m.variance[0]), 1e-12))
    centred = given.loss - m.mean[:, None]
    # What is neither of the bulk nor beyond the cut is left out: it must be next to nothing.
    between = ~beyond & (jnp.abs(centred[0]) > BULK * deviation / jnp.sqrt(n))
    lost = (
        log_sum_exp(jnp.where(between, held + theta * loss, -jnp.inf)) + (n - 1.0) * m.log_norm[0]
    )
    lost += 2.0 * jnp.log(n) + of_both.log_norm[1] - theta * law.centre + log_price(theta)
    # Epsilon is known to what delta is known to: so far below it is the first still to hold.
    margin = jnp.minimum(jnp.minimum(jnp.log(2.0) / theta, 2.0 * deviation), law.margin)
    # (More of it may go where less of delta is above the rounding of all together.)
    some &= lost < log_answer - _LITTLE + jnp.clip(-seen - _HARD, 0.0, _LITTLE)
    apart = law._replace(
        atoms=given._replace(log_p=held[None]),
        theta=theta,
        m=m,
        mean=n * m.mean[0],
        deviation=deviation,
        margin=margin,
        log_mass=jnp.full((), _LOG_MASS),
        log_p=held[None] + theta * given.loss - m.log_norm[:, None],
        centred=centred,
        reaching=centred,
        highest=highest[None],
        sure=jnp.zeros((1,), bool),
    )
    law = jax.tree.map(lambda a, b: jnp.where(some, a, b), apart, law)
    return law, Apart(some, jnp.where(some, tilt, 0.0), jnp.where(some, cut, jnp.inf))


def nothing_apart() -> Apart:
    """What says that none is."""
    return Apart(jnp.asarray(False), jnp.zeros(()), jnp.full((), jnp.inf))
