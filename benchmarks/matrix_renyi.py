"""Matrix mechanisms by Rényi divergences: the deterministic rival of our bounds, "remove".

    python -m benchmarks.matrix_renyi

For integer orders a, E X^a = b^-a sum over counts n_1 + ... + n_b = a of a!/prod n_j! times
exp(1/2 (n^T G n - sum n_j G_jj)): with bands a dynamic program over the bins whose state is the
counts of the last few bins (Schuchardt & Kalinin 2026, 2601.21636, compute such moments; of their
bounds this is the one by Rényi divergences, not that by conditional composition). The chain is not
closed to a circle and counts are at most `_COUNT`: both favour the rival, by nothing that is seen
(larger counts change no digit).
"""

import pathlib
import sys
import time

import jax
import numpy as np
from jax.scipy.special import gammaln

import jaxdp

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tests" / "matrix"))
import matrix_truth as truth

_BINS, _STEPS, _BANDS = 100, 1000, 4
_COUNT = {8.0: 10, 4.0: 14}
_ORDERS = {8.0: 120, 4.0: 40}
_DELTAS = (1e-4, 1e-5, 1e-8)


def _log_sum(x: np.ndarray) -> np.ndarray:
    top = np.maximum(np.max(x, axis=0), -1e300)
    with np.errstate(divide="ignore"):  # (no such counts)
        return top + np.log(np.sum(np.exp(x - top), axis=0))


def log_moments(entries: np.ndarray, bins: int, orders: int, most: int) -> np.ndarray:
    """log E X^a for a = 0 ... orders; `entries` of the covariance by distance, the last not 0."""
    reach, k = len(entries) - 1, np.arange(most + 1)
    factorials = np.asarray(gammaln(np.arange(max(orders, most) + 1) + 1.0))
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
            parts.append(_log_sum(moved) + own[count])
        state = np.stack(parts, axis=reach - 1)
    a = np.arange(orders + 1)
    return _log_sum(state.reshape(-1, orders + 1)) + factorials[: orders + 1] - a * np.log(bins)


def epsilon(moments: np.ndarray, delta: float) -> float:
    """The least over integer orders (Canonne, Kamath & Steinke 2020, Proposition 12)."""
    a = np.arange(2, len(moments))
    renyi = moments[2:] / (a - 1.0)
    return float(np.min(renyi + np.log1p(-1.0 / a) - (np.log(delta) + np.log(a)) / (a - 1.0)))


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
