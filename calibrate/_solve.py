"""One-parameter calibration: the least noisy value that meets an (epsilon, delta) target."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from calibrate import _start
from calibrate._recipe import recipe_of
from calibrate._solution import Solution, Status, solution
from jaxdp import _answers, _checks, _chunks, _divergences, _queries, _roots, _x64
from jaxdp._mechanisms import Mechanism, _curve
from jaxdp._methods import Analytic, Method, check_method

# The search runs over log(value); without a bracket, between these values.
_DEFAULT_BRACKET = (1e-15, 1e15)
_TOLERANCE = 1e-10  # of log(value)
_NUMERICAL_TOLERANCE = 1e-6  # the same of a numerical curve, whose grid changes with the value
_POOL = 32  # times so many rows as are searched at a time are handed over together
_NEAR_0 = 1e-4  # epsilons whose root's tolerance may be more than the margin
_CHUNK = 16384  # targets at a time where the curve is a closed form


def solve(
    build: Callable[..., Mechanism],
    *,
    epsilon: ArrayLike,
    delta: ArrayLike,
    args: tuple[Any, ...] = (),
    bracket: tuple[ArrayLike, ArrayLike] | None = None,
    direction: _queries.Directions = "both",
    method: Method | None = None,
    chunk: int | None = None,
) -> Solution:
    """Find the least noisy value > 0 for which build(value, *args) is (epsilon, delta)-DP.

    Newton's method on log(-log delta) against log(value), safeguarded by bisection, in either
    direction of monotonicity (noise scales, where privacy rises; sampling probabilities or step
    counts, where it falls). The value returned was itself evaluated and certified, so that
    `jaxdp.epsilon(build(value, *args), delta)` is at most epsilon, and lies within 1e-9 (relative,
    x64) of the boundary of the certified curve, within about 1e-5 of it where that is numerical.
    Targets and args broadcast elementwise; works under jit, vmap and grad, with implicit
    derivatives with respect to epsilon, delta and args.

    Args:
      build: (value, *args) -> mechanism. Functions that differ in numbers only, a lambda in a loop
        over settings, share one compiled program; `args` does the same for a batch.
      epsilon: target, >= 0 (> 0 if delta is 0). Any shape.
      delta: target in [0, 1); 0 asks for pure DP. Any shape.
      args: PyTrees of real arrays that broadcast against the targets.
      bracket: (low, high), 0 < low < high, within which to search; all positive values by
        default.
      direction: "remove", "add" or "both".
      method: Analytic(), Renyi() or Numerical(); the closed form, else the engine, by default.
      chunk: how many answers to compute at a time; by default what the device has memory for.

    Returns:
      A Solution; an infeasible target has status 1 and value nan, and its message says which
      direction misses it, and by how much.

    Raises:
      ValueError: for known targets or brackets outside their domains. TypeError: if build
        returns no mechanism.

    Example:
      >>> import calibrate, jaxdp
      >>> solution = calibrate.solve(jaxdp.Gaussian, epsilon=1.0, delta=1e-5)
      >>> round(float(solution.value), 5), solution.message
      (3.73063, 'The value meets the target and is at the boundary of doing so.')
    """
    check_target(epsilon, delta, direction)
    check_method(method)
    low, high = check_bracket(bracket)
    lanes = default_chunk(build, tuple(args), method, chunk)
    recipe, inputs = recipe_of(build, tuple(args))
    rows = math.prod(_x64.batch_shape((epsilon, delta, tuple(args), low, high)))
    chunk, many = _pool(rows, lanes) if rows > lanes else (lanes, None)
    up, down, falls, target, achieved, status = _x64.evaluate(
        solve_row,
        epsilon,
        delta,
        inputs,
        low,
        high,
        rounding=ROUNDING,
        chunk=chunk,
        quick=True,
        build=recipe,
        direction=direction,
        bounded=bracket is not None,
        method=method,
        lanes=many,
    )
    value = jnp.where(falls > 0.0, down, up)
    found = value, target, achieved, status
    return solution(found, build, epsilon, delta, tuple(args), (low, high), direction, method)


def most_rows(lanes: int) -> int:
    """How many rows to hand over together, of which so many are searched at a time."""
    return lanes if lanes >= _CHUNK else _POOL * lanes


def _pool(rows: int, lanes: int) -> tuple[int, int]:
    """Of so many rows, how many to hand over together (the last ones filled up), and the lanes."""
    parts = -(-rows // most_rows(lanes))
    return lanes * -(-rows // (parts * lanes)), lanes


def check_bracket(bracket: tuple[ArrayLike, ArrayLike] | None) -> tuple[ArrayLike, ArrayLike]:
    """The ends of the search; ValueError for known ones outside their domain."""
    low, high = _DEFAULT_BRACKET if bracket is None else _checks.pair("bracket", bracket)
    _checks.check("bracket[0]", low, _checks.POSITIVE)
    _checks.check("bracket[1]", high, _checks.POSITIVE)
    ends = _checks.concrete("bracket[0]", low), _checks.concrete("bracket[1]", high)
    if ends[0] is not None and ends[1] is not None and not np.all(ends[0] < ends[1]):
        raise ValueError(
            f"bracket must satisfy bracket[0] < bracket[1], got {_checks.shown(bracket)}"
        )
    return low, high


def default_chunk(
    build: Callable[..., Mechanism],
    args: tuple[Any, ...],
    method: Method | None,
    chunk: int | None = None,
) -> int:
    """How many targets to calibrate at a time, from what build builds: `chunk`, if it is given."""
    chunks, known = [], args
    if not callable(build):
        raise TypeError(f"build must be a function to a mechanism, got {_checks.shown(build)}")

    def probe(value: jax.Array, args: tuple[Any, ...]) -> jax.Array:
        m = require_mechanism(build(value, *args))
        chunks.append(_chunks.chunk_of(m, method, known, chunk) or _CHUNK)
        return value

    jax.eval_shape(probe, 1.0, args)
    return chunks[0]


def require_mechanism(m: Any) -> Mechanism:
    if not isinstance(m, Mechanism):
        raise TypeError(f"build must return a jaxdp mechanism, got {_checks.shown(m)}")
    return m


def check_target(epsilon: ArrayLike, delta: ArrayLike, direction: str) -> None:
    """Raise ValueError for a known target outside its domain."""
    _checks.check_choice("direction", direction, ("remove", "add", "both"))
    _checks.check("epsilon", epsilon, _checks.NON_NEGATIVE)
    _checks.check("delta", delta, _checks.DELTA)
    known = _checks.concrete("epsilon", epsilon), _checks.concrete("delta", delta)
    if known[0] is not None and known[1] is not None and np.any((known[0] == 0) & (known[1] == 0)):
        raise ValueError("epsilon must be > 0 where delta is 0: no noise gives perfect privacy")


def excess_over_target(
    m: Mechanism,
    epsilon: jax.Array,
    delta: jax.Array,
    direction: str | jax.Array,
    method: Method | None = None,
    estimate: str = "",
    aimed: bool = False,
) -> jax.Array:
    """F <= 0 exactly where m is certified to meet the target, with a margin for re-evaluation.

    log(-log delta_target) - log(-log delta): nearly linear in the log of a noise scale. For pure
    DP (delta = 0), the log of the max loss over epsilon. nan outside a mechanism's domain. The
    numerical method has estimates of F, "rough" and "fine", to begin a search with; aimed
    (`_answers.has_aim`), F is positive as well where the bound on epsilon at delta, as its user
    asks for it, is too large.
    """
    chosen = _answers.resolve(require_mechanism(m), method)
    pure = delta == 0.0
    met, off = jnp.asarray(True), jnp.zeros(())
    if estimate:
        log_delta = _answers.log_delta_estimate(m, epsilon, direction, estimate == "fine")
    elif aimed:
        target = jnp.where(pure, 0.5, delta)
        log_delta, found = _answers.aimed(m, epsilon, target, direction, method)
        met, off = _within(jax.lax.stop_gradient(found), epsilon)
    else:
        relative, absolute = chosen._root_error
        before = epsilon - 4.0 * (relative * epsilon + absolute)
        # Met a little before epsilon: its root is read above the least one by so much. (Below 0
        # delta is no longer small; at usual epsilons the margin makes up for it.)
        near = (before >= 0.0) & (epsilon < _NEAR_0)
        log_delta = _answers.log_delta(m, jnp.where(near, before, epsilon), direction, method)
    uncertain = log_delta >= 0.0  # delta = 1
    slack = jnp.isneginf(log_delta)  # delta = 0: nothing to meet
    curve = jnp.log(-jnp.log(jnp.where(pure, 0.5, delta))) - jnp.log(
        -jnp.where(uncertain | slack, -1.0, log_delta)
    )
    curve = jnp.where(slack, -jnp.inf, curve + chosen._margin)
    curve = jnp.where(met | (curve > 0.0), curve, jnp.clip(off, 1e-12, 1.0))
    worst = _curve.largest_loss(m, direction)
    least = jnp.log(jnp.where(pure, worst, 1.0)) - jnp.log(jnp.where(pure, epsilon, 1.0))
    least = jnp.where(m._in_domain(), least + Analytic._margin, jnp.nan)
    return jnp.where(pure, least, jnp.where(uncertain, jnp.inf, curve))


def _within(found: jax.Array, epsilon: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Whether a bound on epsilon is within its target, and the log of how far it is off."""
    aim = epsilon * (1.0 - 1e-11)
    off = jnp.log(jnp.maximum(found, 1e-300)) - jnp.log(jnp.maximum(aim, 1e-300))
    return found <= aim, jnp.where(aim > 0.0, off, jnp.inf)


def epsilon_excess(m, epsilon, delta, direction, method):
    """<= 0 where the bound on epsilon at delta is within the target, as its user will check."""
    pure = delta == 0.0
    found = _answers.epsilons(m, jnp.where(pure, 0.5, delta), direction, method, (1,))[0]
    met, off = _within(found, epsilon)
    return jnp.where(pure | met, 0.0, jnp.maximum(off, 1e-12))


def delta_of_excess(excess: jax.Array, delta: jax.Array, method: Method) -> jax.Array:
    """The certified delta at which `excess_over_target` has this value."""
    pure = delta == 0.0
    target = jnp.log(jnp.where(pure, 0.5, delta))
    log_delta = target * jnp.exp(method._margin - excess) * (1.0 - 1e-14)
    return jnp.where(pure, 0.0, _divergences.exp_up(log_delta))


# How the outputs of `solve_row` go to 32 bits.
ROUNDING: tuple[_x64.Rounding, ...] = ("up", "down", "nearest", "up", "up", "nearest")


class _Constraint(NamedTuple):
    """The target of one row, as a function of log(value)."""

    build: Callable[..., Mechanism]
    target: tuple[jax.Array, jax.Array]
    args: Any
    direction: Any
    method: Method | None
    estimated: bool
    aimed: bool

    def mechanism(self, log_value: jax.Array) -> Mechanism:
        return self.build(jnp.exp(log_value), *self.args)

    def excess(self, log_value, way=None):
        """<= 0 exactly where it is met."""
        way = self.direction if way is None else way
        m = self.mechanism(log_value)
        return excess_over_target(m, *self.target, way, self.method, aimed=self.aimed)

    def estimate(self, log_value, way=None, by="rough"):
        """About that, where a certified value is dear."""
        way, by = self.direction if way is None else way, by if self.estimated else ""
        return excess_over_target(self.mechanism(log_value), *self.target, way, self.method, by)

    def below(self, log_value, way):
        """Whether no loss of that direction exceeds epsilon."""
        worst = _curve.largest_loss(self.mechanism(log_value), way)
        return worst <= self.target[0] * (1.0 - 1e-11)

    def checked(self, log_value):
        """<= 0 where the user's own check holds as well."""
        m = self.mechanism(log_value)
        return epsilon_excess(m, *self.target, self.direction, self.method)


def solve_row(epsilon, delta, args, low, high, build, direction, bounded, method, lanes=None):
    """One calibration, inside the float64 island.

    Returns: the value (to be rounded up, and again to be rounded down), whether privacy falls with
    it, the target epsilon, the certified delta there, the status.
    """
    valid = (epsilon >= 0.0) & _checks.DELTA.contains(delta) & (low > 0.0) & (low < high)
    lowest = require_mechanism(build(jnp.exp(low), *args))
    chosen = _answers.resolve(lowest, method)
    numerical = chosen._reads_laws
    if chosen._exact:
        lanes = None  # a step costs next to nothing
    aims = _answers.has_aim(lowest, chosen)
    row = _Constraint(build, (epsilon, delta), args, direction, method, numerical, aims)
    constants = jax.lax.stop_gradient((row.target, args))
    fixed = row._replace(target=constants[0], args=constants[1])
    a, b = jax.lax.stop_gradient((jnp.log(low), jnp.log(high)))
    # One direction at a time where they can be asked for so (a flag says which), and by one program
    # wherever it is asked for: it takes seconds to trace.
    split = numerical and _answers.in_parts(lowest, direction, chosen)
    rough = jax.jit(fixed.estimate)
    worst = functools.partial(_start.larger, rough) if split else rough
    probed = _start.probe(worst, a, b, numerical, valid, lanes)
    usable, start, slope, met, (ends, values) = probed
    losses = [_curve.largest_loss(fixed.mechanism(x), direction) for x in ends]
    falling = met & ~usable & privacy_falls(losses, values)
    usable |= falling
    start, slope = jnp.where(falling, ends[1], start), jnp.where(falling, 1.0, slope)
    # y = sign * log(value) rises with privacy
    sign = jnp.where(slope > 0.0, -1.0, 1.0)
    end = jnp.where(sign > 0.0, a, b)  # the least noisy end
    excess_at_end: jax.Array | None = None
    if bounded:
        excess_at_end = fixed.excess(end)
        at_end = (usable | met) & (excess_at_end <= 0.0)
    elif numerical:  # it is enough that it seems so: the search looks there
        least = fixed.mechanism(end)
        rarely = _answers.log_unshared(least, fixed.target[0]) <= jnp.log(delta) * (1.0 + 1e-6)
        at_end = (met & (~usable | (falling & least._in_domain()))) | rarely
    else:
        at_end = (usable | met) & (fixed.estimate(end) <= 0.0)
    begin = jnp.where(usable & ~at_end, sign * start, jnp.nan)
    tolerance, parts, floor = _TOLERANCE, None, -jnp.inf
    if numerical:
        tolerance = _NUMERICAL_TOLERANCE
        search = _start.Search(
            lambda y, *way: rough(sign * y, *way),
            lambda y, *way: fixed.estimate(sign * y, *way, by="fine"),
            split,
            lanes,
        )
        begin, slope, worse = _start.estimated(search, begin, sign * slope, aims)
        if split:
            parts = _roots.Parts(
                lambda y, way: fixed.excess(sign * y, way),
                worse,
                lambda y, way: fixed.below(sign * y, way),
            )
    confirm = None if aims or chosen._exact else lambda y: fixed.checked(sign * y)
    looks = confirm is not None or excess_at_end is None
    if looks:  # the search looks at the least noisy end too, where that meets the target
        begin = jnp.where(at_end, sign * end, begin)
        floor = jnp.where(at_end, sign * end - 0.5 * tolerance, -jnp.inf)
    root, excess_at_root = _roots.safe_root_and_value(
        lambda y, target, args: row._replace(target=target, args=args).excess(sign * y),
        begin,
        0.0,
        tolerance,
        slope if numerical else None,
        parts,
        floor,
        confirm,
        lanes,
        (row.target, args),
    )
    if looks:
        at_end = at_end & (root <= sign * end)
    inside = jnp.isfinite(root) & (sign * root >= a) & (sign * root <= b)
    status = _status(valid, at_end, inside)
    log_value = jnp.where(at_end, end, sign * jnp.where(inside, root, 0.0))
    at = excess_at_root if excess_at_end is None else excess_at_end
    found = jnp.where(at_end, at, excess_at_root)
    solved = (status == Status.SOLVED) | (status == Status.SLACK)
    value, achieved = jnp.exp(log_value), delta_of_excess(found, delta, chosen)
    value, achieved = (jnp.where(solved, x, jnp.nan) for x in (value, achieved))
    falls = jnp.where(sign < 0.0, 1.0, 0.0)
    return value, value, falls, epsilon, achieved, status.astype(jnp.float64)


def privacy_falls(first: Sequence[jax.Array], then: Sequence[jax.Array]) -> jax.Array:
    """Whether privacy falls from the first to the last of two values that both meet the target.

    What is known of each says so (its largest loss, how well it is met), and where that is the same
    what is looked at then: a search goes that way, to where it ends.
    """
    return (first[0] < first[1]) | ((first[0] == first[1]) & (then[0] < then[1]))


def _status(valid: jax.Array, at_end: jax.Array, inside: jax.Array) -> jax.Array:
    """Of a row with a valid target: met by the least noisy value, or by one inside, or by none."""
    met = jnp.where(at_end, Status.SLACK, jnp.where(inside, Status.SOLVED, Status.INFEASIBLE))
    return jnp.where(valid, met, Status.INVALID)
