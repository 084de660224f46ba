"""Privacy accounting inside an optimiser: an optax wrapper that carries the accountant."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from jaxdp import _checks
from jaxdp.training._accountant import (
    Accountant,
    FixedAccountant,
    init,
    refuse_settings,
    update,
)
from jaxdp.training._filter import PrivacyFilter

Setting = ArrayLike | Callable[[jax.Array], ArrayLike]


class TrackPrivacyState(NamedTuple):
    """State of `track_privacy`.

    Attributes:
      inner_state: the wrapped transformation's.
      accountant: the steps so far.
      count: number of updates, int32.
    """

    inner_state: Any
    accountant: Any
    count: jax.Array


def track_privacy(
    inner: optax.GradientTransformation,
    *,
    noise_multiplier: Setting | None = None,
    sampling_probability: Setting | None = None,
    accountant: Accountant | PrivacyFilter | None = None,
    batches: str | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Count every update of a differentially private optimiser in its own state.

    Wraps any transformation that clips and adds noise (`optax.contrib.dpsgd`,
    `optax.contrib.differentially_private_aggregate` in a chain, jax_privacy's), and changes nothing
    of it: gradients are neither clipped nor perturbed here, and that the noise is what is
    said here is up to the caller; so is that batches are Poisson samples, drawn anew at every step.
    Batches of a fixed size, cut from a shuffled data set, are not: their epsilon is larger.

    Args:
      inner: the private transformation.
      noise_multiplier: standard deviation of the noise over the clipping norm: a number, or a
        function of the update count (an optax schedule). None for a fixed schedule.
      sampling_probability: with which each record joins a batch: a number, or such a function; 1
        by default. None for a fixed schedule.
      accountant: from `init`, `init_fixed` or `init_filter`; `init()` by default.
      batches: how they are drawn; to be said where there is a sampling probability. Only "poisson"
        is accounted for step by step; of other schemes `jaxdp.dp_sgd` and
        `jaxdp.fixed_size_sampled` make mechanisms for a whole run.

    Returns:
      A transformation whose `update` also accepts `noise_multiplier=` and
      `sampling_probability=`, of one step, in place of those given here.

    Raises:
      ValueError: for known settings outside their domains, settings beside a fixed schedule, or
        batches that are not Poisson's or not said to be. TypeError: if accountant is none.

    Example:
      >>> import jax, jax.numpy as jnp, optax
      >>> from jaxdp import training
      >>> optimiser = training.track_privacy(
      ...     optax.chain(
      ...         optax.contrib.differentially_private_aggregate(
      ...             l2_norm_clip=1.0, noise_multiplier=1.1, key=0),
      ...         optax.sgd(0.1)),
      ...     noise_multiplier=1.1, sampling_probability=0.01, batches="poisson")
      >>> params = {"w": jnp.zeros(3)}
      >>> state = optimiser.init(params)
      >>> per_example = {"w": jnp.ones((8, 3))}
      >>> for _ in range(10):
      ...     updates, state = optimiser.update(per_example, state, params)
      >>> float(training.epsilon(training.accountant_of(state), 1e-5)) > 0
      True
    """
    if batches not in ("poisson", None):
        raise ValueError(
            f"batches must be 'poisson', got {batches!r}: steps on other batches have no account of"
            " their own, jaxdp.dp_sgd and jaxdp.fixed_size_sampled describe whole runs"
        )
    extended = optax.with_extra_args_support(inner)
    start = init() if accountant is None else accountant
    if not isinstance(start, Accountant | PrivacyFilter):
        raise TypeError(f"accountant must be an accountant or a filter, got {type(start).__name__}")
    fixed = isinstance(start, FixedAccountant)
    if fixed:
        refuse_settings(
            noise_multiplier=noise_multiplier, sampling_probability=sampling_probability
        )
    elif noise_multiplier is None:
        raise ValueError("noise_multiplier must be given, unless the accountant's phases are fixed")
    else:
        _check("noise_multiplier", noise_multiplier, _checks.POSITIVE)
        if sampling_probability is not None:
            _check("sampling_probability", sampling_probability, _checks.ANY_RATE)
            _require_batches(batches)

    def init_fn(params):
        return TrackPrivacyState(extended.init(params), start, jnp.zeros((), jnp.int32))

    def update_fn(updates, state, params=None, **extra_args):
        noise = extra_args.pop("noise_multiplier", noise_multiplier)
        rate = extra_args.pop("sampling_probability", sampling_probability)
        updates, inner_state = extended.update(updates, state.inner_state, params, **extra_args)
        if fixed:
            refuse_settings(noise_multiplier=noise, sampling_probability=rate)
            spent = update(state.accountant)
        else:
            if rate is not None:
                _require_batches(batches)
            noise, rate = (x(state.count) if callable(x) else x for x in (noise, rate))
            spent = update(state.accountant, sigma=noise, sampling_probability=rate)
        return updates, TrackPrivacyState(inner_state, spent, optax.safe_increment(state.count))

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def _require_batches(batches: str | None) -> None:
    if batches is None:
        raise ValueError(
            "batches='poisson' must be said with a sampling probability: that every record joins "
            "every batch independently (of batches of a fixed size epsilon is another)"
        )


def _check(name: str, setting: Setting, domain: _checks.Domain) -> None:
    """Raise ValueError for a known number outside its domain; functions are asked later."""
    if not callable(setting):
        _checks.check(name, setting, domain)


def accountant_of(opt_state: Any) -> Any:
    """The accountant in an optimiser's state, wherever `track_privacy` stands in a chain.

    Args:
      opt_state: a state with exactly one `TrackPrivacyState` in it.

    Raises:
      ValueError: if there is none, or more than one.
    """

    def tracked(x: Any) -> bool:
        return isinstance(x, TrackPrivacyState)

    found = [x for x in jax.tree.leaves(opt_state, is_leaf=tracked) if tracked(x)]
    if len(found) != 1:
        raise ValueError(f"opt_state must contain one TrackPrivacyState, got {len(found)}")
    return found[0].accountant
