"""Matrix mechanisms by Rényi divergences: the deterministic rival of our bounds, "remove".

    python -m benchmarks.matrix_renyi

For integer orders a, E X^a = b^-a sum over counts n_1 + ... + n_b = a of a!/prod n_j! times
exp(1/2 (n^T G n - sum n_j G_jj)): with bands a dynamic program over the bins whose state is the
counts of the last few bins (Schuchardt & Kalinin 2026, 2601.21636, compute such moments; of their
bounds this is the one by Rényi divergences, not that by conditional composition). The chain is not
closed to a circle and counts are at most `_COUNT`: both favour the rival. (At sigma 4 larger counts
change no digit; at sigma 8 and 1e-8 they still raise it.)
"""

import time

import jax
import numpy as np
from scipy.special import gammaln, logsumexp

import jaxdp
from benchmarks.matrix import truth

_BINS, _STEPS, _BANDS = 100, 1000, 4
_COUNT = {8.0: 20, 4.0: 14}
_ORDERS = {8.0: 90, 4.0: 40}
_DELTAS = (1e-4, 1e-5, 1e-8)


def log_moments(entries: np.ndarray, bins: int, orders: int, most: int) -> np.ndarray:
    """log E X^a for a = 0 ... orders; `entries` of the covariance by distance, the last not 0."""
    reach, k = len(entries) - 1, np.arange(most + 1)
    factorials = gammaln(np.arange(max(orders, most) + 1) + 1.0)
    own = 0.5 * entries[0] * k * (k - 1.0) - factorials[: most + 1]
    state = np.full((most + 1,) * reach + (orders + 1,), -np.inf)
    state[(0,) * (reach + 1)] = 0.0  # the counts of the last bins, oldest first, and their sum
    for _ in range(bins):
        parts = []
        for count in range(most + 1):
            moved = np.full_like(state, -np.inf)
            moved[..., count:] = state[..., : orders + 1 - count]
            for distance in range(1, reach + 1):
                shape = [1] * (reach + 1)
                shape[reach - distance] = most + 1
                moved = moved + (entries[distance] * count * k).reshape(shape)
            parts.append(logsumexp(moved, axis=0) + own[count])
        state = np.stack(parts, axis=reach - 1)
    a = np.arange(orders + 1)
    return (
        logsumexp(state.reshape(-1, orders + 1), axis=0)
        + factorials[: orders + 1]
        - a * np.log(bins)
    )


def epsilon(moments: np.ndarray, delta: float) -> float:
    """The least over integer orders."""
    a = np.arange(2, len(moments))
    return float(np.min(jaxdp.renyi_to_epsilon(moments[2:] / (a - 1.0), a, delta)))


def main() -> None:
    """Print both bounds."""
    column = np.pad(truth.square_root(_BANDS), (0, _STEPS - _BANDS))
    print("| sigma | delta | by Rényi divergences | our upper bound | CPU s of the moments |")
    print("|---|---|---|---|---|")
    for sigma, most in _COUNT.items():
        gram = truth.gram(truth.toeplitz(column, _STEPS), _BINS) / sigma**2
        middle = _BINS // 2
        start = time.process_time()
        entries = gram[middle, middle : middle + _BANDS]
        moments = log_moments(entries, _BINS, _ORDERS[sigma], most)
        spent = time.process_time() - start
        run = jaxdp.MatrixMechanism(
            truth.square_root(_BANDS), sigma, num_steps=_STEPS, num_bins=_BINS
        )
        for delta in _DELTAS:
            ours = float(jaxdp.epsilon(run, delta, direction="remove"))
            theirs = epsilon(moments, delta)
            print(
                f"| {sigma:g} | {delta:g} | {theirs:.3f} | {ours:.3f} | {spent:.1f} |", flush=True
            )


if __name__ == "__main__":
    with jax.enable_x64(True):
        main()
