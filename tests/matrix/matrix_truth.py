"""Reference values: hockey-stick curves of lognormal averages by quadrature, and by Monte Carlo."""

import numpy as np
import scipy.special as sps

# The trapezoidal rule on the line: for a few bins, exact but for e^{-2 pi^2/h^2} where the
# integrand is smooth; the fewer points, the more dimensions.
POINTS = {1: 1, 2: 161, 3: 49, 4: 33}


def _rule(b):
    nodes = np.linspace(-8.5, 8.5, POINTS[b])
    weights = np.exp(-0.5 * nodes**2)
    return nodes, weights / weights.sum()


def curves(gram, ratios):
    """E (X - g)_+ ("remove") and E (1 - g' X)_+ with g' = g ("add"), for each g of `ratios`.

    X = mean_j exp(Z_j - G_jj/2), Z ~ N(0, G), b <= 4. G >= 0, so that X rises with the first of
    the independent coordinates, over which the integral is in closed form; the trapezoidal rule
    over the others.
    """
    b = len(gram)
    # the first coordinate takes the direction in which the bins move together
    _, vectors = np.linalg.eigh(gram)
    root = np.linalg.cholesky(gram + 1e-13 * np.trace(gram) * np.eye(b))
    turn = root.T @ np.abs(vectors[:, -1])
    turn = np.linalg.qr(np.column_stack([turn, np.eye(b)]))[0][:, :b]
    root = root @ (turn * np.sign(turn[:, 0] @ (root.T @ np.ones(b))))
    nodes, each = _rule(b)
    grids = np.meshgrid(*[nodes] * (b - 1), indexing="ij")
    rest = np.stack([x.ravel() for x in grids]) if b > 1 else np.zeros((0, 1))
    weights = np.ones(rest.shape[1])
    for axis in np.meshgrid(*[each] * (b - 1), indexing="ij") if b > 1 else ():
        weights = weights * axis.ravel()
    slope = root[:, 0]
    assert np.all(slope >= 0.0)
    fixed = root[:, 1:] @ rest - 0.5 * np.diag(gram)[:, None]  # (b, nodes)
    remove, add = [], []
    for g in ratios:
        remove.append(weights @ _above(slope, fixed, g))
        # E (1 - gX)_+ = g E (1/g - X)_+ = g (E (X - 1/g)_+ + 1/g - 1)
        add.append(g * (weights @ _above(slope, fixed, 1.0 / g) + 1.0 / g - 1.0))
    return np.array(remove), np.array(add)


def _above(slope, fixed, g):
    """E over the first coordinate of (X - g)_+, at every node of the others."""
    low, high = np.full(fixed.shape[1], -40.0), np.full(fixed.shape[1], 40.0)
    for _ in range(60):
        middle = 0.5 * (low + high)
        x = np.exp(fixed + slope[:, None] * middle).mean(axis=0)
        low, high = np.where(x < g, middle, low), np.where(x < g, high, middle)
    scale = np.exp(fixed + 0.5 * slope[:, None] ** 2)
    return (scale * sps.ndtr(slope[:, None] - low)).mean(axis=0) - g * sps.ndtr(-low)


def gram(matrix, num_bins):
    """G for sigma = 1, column by column."""
    n = len(matrix)
    members = np.stack([matrix[:, j::num_bins].sum(axis=1) for j in range(num_bins)], axis=1)
    assert members.shape == (n, num_bins)
    return members.T @ members


def toeplitz(column, n):
    """The lower triangular matrix of a first column."""
    matrix = np.zeros((n, n))
    for k, c in enumerate(column):
        matrix += c * np.eye(n, k=-k)
    return matrix


def square_root(n):
    """The first column of the square root of the prefix-sum matrix."""
    return np.cumprod(np.append(1.0, 1.0 - 0.5 / np.arange(1, n)))


def monte_carlo(gram, epsilon, samples, seed, direction="remove", miss=1e-6):
    """An interval for delta at epsilon: samples under the first law, empirical Bernstein."""
    rng = np.random.default_rng(seed)
    b = len(gram)
    root = np.linalg.cholesky(gram + 1e-12 * np.trace(gram) * np.eye(b))
    values = []
    for _ in range(max(samples // 20_000, 1)):
        z = rng.standard_normal((20_000, b)) @ root.T
        if direction == "remove":  # under P the release is shifted by the column of one bin
            z += gram[rng.integers(b, size=len(z))]
        x = np.exp(z - 0.5 * np.diag(gram)).mean(axis=1)
        ratio = np.exp(epsilon) / x if direction == "remove" else np.exp(epsilon) * x
        values.append(np.maximum(1.0 - ratio, 0.0))
    values = np.concatenate(values)
    log = np.log(4.0 / miss)
    half = np.sqrt(2.0 * values.var(ddof=1) * log / len(values)) + 7.0 * log / (3.0 * len(values))
    return values.mean() - half, values.mean() + half
