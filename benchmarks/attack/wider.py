"""More structures: tables, batches, groups, mixtures, releases, and what users state themselves."""

import numpy as np
from mpmath import mp, mpf

import jaxdp
from benchmarks.attack import curves, draw, grammar, laws, pairs
from benchmarks.attack.grammar import Node
from benchmarks.attack.own import LEVEL, node, own

RATE = lambda rng, n: np.minimum(draw.rate(rng, n), 1 - 1e-9)  # noqa: E731
BATCH, RECORDS = 6, 30


def _table(rng, n):
    """Losses and log masses of 4 outcomes, of which Q lacks some mass."""
    losses = rng.uniform(-1.0, 1.0, (n, 4)) * draw.log_uniform(rng, 1e-6, 200.0, n)[:, None]
    p = np.maximum(draw.masses(4)(rng, n), 1e-290)
    log_p = np.log(p / p.sum(axis=1, keepdims=True))
    top = np.max(log_p - losses, axis=1, keepdims=True)
    log_q = top + np.log(np.sum(np.exp(log_p - losses - top), axis=1, keepdims=True))
    kept = -np.log1p(-draw.log_uniform(rng, 1e-11, 0.95, n)[:, None])
    return np.stack([losses + np.where(log_q > -kept, log_q + kept, 0.0), log_p], axis=1)


def _table_law(table) -> laws.Pair:
    losses, log_masses = table
    p = [mp.exp(x) for x in log_masses]
    p = [x / mp.fsum(p) for x in p]
    q = [x * mp.exp(-loss) for x, loss in zip(p, losses, strict=True)]
    return laws.Pair([*p, mpf(0)], [*q, 1 - mp.fsum(q)])


def _shifts(rng, n):
    values = draw.log_uniform(rng, 1e-3, 30.0, 3 * n).reshape(n, 3)
    values[:, 0] = np.where(rng.random(n) < 0.6, 0.0, values[:, 0])
    return values


def _weights(parts):
    def sampler(rng, n):
        return np.maximum(draw.masses(parts)(rng, n), 1e-300)

    return sampler


def _binomial(n: int, q: mpf) -> list[mpf]:
    return [mp.binomial(n, k) * q**k * (1 - q) ** (n - k) for k in range(n + 1)]


def _group(sigma, q, size: int, exchanged: bool) -> laws.Law:
    weights = _binomial(size, q)
    shifts = [mpf(k) / sigma for k in range(size + 1)]
    other = (shifts, weights) if exchanged else ()
    return pairs.Mixtures(shifts, weights, *other)


def _groups(size: int, exchanged: bool) -> Node:
    cls = jaxdp.PoissonSampledGroupReplaceOne if exchanged else jaxdp.PoissonSampledGroup
    return node(
        f"{cls.__name__}, {size}",
        [draw.real(0.05, 1e3, 1.0, 0.5), RATE],
        lambda sigma, q: cls(sigma, q, size),
        lambda sigma, q: _group(sigma, q, size, exchanged),
        f"jaxdp.{cls.__name__}({{0}}, {{1}}, {size})",
        slow=True,
    )


def _fixed_group(sigma) -> laws.Law:
    size, b, n = 3, BATCH, RECORDS
    weights = [mp.binomial(size, j) * mp.binomial(n - size, b - j) for j in range(size + 1)]
    return pairs.Mixtures([2 * mpf(j) / sigma for j in range(size + 1)], weights)


def _truncated(sigma, q) -> laws.Law:
    among = _binomial(RECORDS - 1, q)
    more = range(BATCH, RECORDS)
    tau = mp.fsum(among[s] for s in more)
    kept = q * mp.fsum(among[s] * BATCH / mpf(s + 1) for s in more) / tau
    first = laws.Sampled(curves.Gaussian(1 / sigma), q)
    second = laws.Sampled(curves.Gaussian(2 / sigma), kept)
    fewer = mp.fsum(among[:BATCH])  # (1 - tau may be 1e-150)
    return pairs.Revealed([first, second], [fewer, tau])


def _replaced(sigma) -> laws.Law:
    """Drawn with replacement: how often is revealed, given that the record is drawn at all."""
    among = _binomial(BATCH, 1 / mpf(RECORDS))
    some = 1 - among[0]
    every = [curves.Gaussian(2 * j / sigma) for j in range(1, BATCH + 1)]
    return laws.Sampled(pairs.Revealed(every, among[1:]), some)


def _fixed_response(epsilon, q) -> laws.Pair:
    """The symmetric pair of a fixed-size batch of responses: two losses and an atom at 0."""
    kept, other = 1 / (1 + mp.exp(-epsilon)), 1 / (1 + mp.exp(epsilon))
    p = (1 - q) * other + q * kept
    return laws.Pair([p, other, 1 - p - other], [other, p, 1 - p - other])


def _two_laplaces(a, sensitivity) -> laws.Pair:
    """The sum of two discrete Laplace variables."""
    q = mp.exp(-a)
    reach = int(mp.ceil(1000 / a)) + 24 * int(sensitivity)
    middle = 2 * q * q / (1 - q * q)
    half = [((1 - q) / (1 + q)) ** 2 * q**k * (k + 1 + middle) for k in range(reach)]
    return grammar._tailed(half, int(sensitivity))


TABLE = node(
    "LossDistribution",
    [_table],
    lambda x: jaxdp.LossDistribution(x[..., 0, :], x[..., 1, :]),
    _table_law,
    "jaxdp.LossDistribution(*{0})",
    finite=True,
)


def batches() -> list[Node]:
    """Mixtures of Gaussians, and what batches and groups make of one."""
    sigma = draw.real(0.05, 1e3, 1.0, 0.5)
    exchange = jaxdp.PoissonSampledReplaceOne
    return [
        node(
            "GaussianMixture",
            [sigma, _shifts, _weights(3)],
            jaxdp.GaussianMixture,
            lambda sigma, s, w: pairs.Mixtures([x / sigma for x in s], w),
            "jaxdp.GaussianMixture({0}, {1}, {2})",
            slow=True,
        ),
        node(
            "DoubleGaussianMixture",
            [sigma, _shifts, _weights(3), _shifts, _weights(3)],
            jaxdp.DoubleGaussianMixture,
            lambda sigma, s, w, t, v: pairs.Mixtures(
                [x / sigma for x in s], w, [x / sigma for x in t], v
            ),
            "jaxdp.DoubleGaussianMixture({0}, {1}, {2}, {3}, {4})",
            slow=True,
        ),
        node(
            "PoissonSampledReplaceOne",
            [sigma, draw.rate],
            lambda sigma, q: exchange(jaxdp.Gaussian(sigma), q),
            lambda sigma, q: _group(sigma, q, 1, True),
            "jaxdp.PoissonSampledReplaceOne(jaxdp.Gaussian({0}), {1})",
            slow=True,
        ),
        _groups(4, False),
        _groups(3, True),
        node(
            "FixedSizeGroup",
            [sigma],
            lambda sigma: jaxdp.FixedSizeGroup(sigma, BATCH, RECORDS, 3),
            _fixed_group,
            f"jaxdp.FixedSizeGroup({{0}}, {BATCH}, {RECORDS}, 3)",
            slow=True,
        ),
        node(
            "FixedSizeSampled(Gaussian)",
            [sigma, draw.rate],
            lambda sigma, q: jaxdp.FixedSizeSampled(jaxdp.Gaussian(sigma), q),
            lambda sigma, q: pairs.FixedSize(curves.Gaussian(2 / sigma), q),
            "jaxdp.FixedSizeSampled(jaxdp.Gaussian({0}), {1})",
        ),
        node(
            "FixedSizeSampled(Laplace)",
            [sigma, draw.rate],
            lambda scale, q: jaxdp.FixedSizeSampled(jaxdp.Laplace(scale), q),
            lambda scale, q: pairs.FixedSize(curves.Laplace(2 / scale), q),
            "jaxdp.FixedSizeSampled(jaxdp.Laplace({0}), {1})",
        ),
        node(
            "TruncatedPoissonSampled(Gaussian)",
            [sigma, RATE],
            lambda sigma, q: jaxdp.TruncatedPoissonSampled(
                jaxdp.Gaussian(sigma), q, BATCH, RECORDS
            ),
            _truncated,
            f"jaxdp.TruncatedPoissonSampled(jaxdp.Gaussian({{0}}), {{1}}, {BATCH}, {RECORDS})",
        ),
        node(
            "fixed_size_sampled(Gaussian, replacement)",
            [sigma],
            lambda sigma: jaxdp.fixed_size_sampled(
                jaxdp.Gaussian(sigma), BATCH, RECORDS, neighbours="add-or-remove", replacement=True
            ),
            _replaced,
            f"jaxdp.fixed_size_sampled(jaxdp.Gaussian({{0}}), {BATCH}, {RECORDS}, "
            "neighbours='add-or-remove', replacement=True)",
        ),
    ]


FIXED_RESPONSE = node(
    "FixedSizeSampled(RandomizedResponse)",
    [draw.real(1e-6, 600, 0.5, 1.0, 20.0, 37.0), draw.rate],
    lambda e, q: jaxdp.FixedSizeSampled(jaxdp.RandomizedResponse(e), q),
    _fixed_response,
    "jaxdp.FixedSizeSampled(jaxdp.RandomizedResponse({0}), {1})",
    finite=True,
)


def releases() -> list[Node]:
    """Mixtures, parts, selections and shares of noise."""
    return [
        node(
            "Mixture(Gaussian, Laplace, RandomizedResponse)",
            [LEVEL, LEVEL, draw.real(1e-3, 100.0), _weights(3)],
            lambda s, b, e, w: jaxdp.Mixture(
                [jaxdp.Gaussian(s), jaxdp.Laplace(b), jaxdp.RandomizedResponse(e)], w
            ),
            lambda s, b, e, w: pairs.Revealed(
                [curves.Gaussian(1 / s), curves.Laplace(1 / b), grammar._response(e)], w
            ),
            "jaxdp.Mixture([jaxdp.Gaussian({0}), jaxdp.Laplace({1}), "
            "jaxdp.RandomizedResponse({2})], {3})",
        ),
        node(
            "Parallel(Gaussian, Laplace)",
            [LEVEL, LEVEL],
            lambda s, b: jaxdp.Parallel([jaxdp.Gaussian(s), jaxdp.Laplace(b)]),
            lambda s, b: pairs.Worst([curves.Gaussian(1 / s), curves.Laplace(1 / b)]),
            "jaxdp.Parallel([jaxdp.Gaussian({0}), jaxdp.Laplace({1})])",
        ),
        node(
            "ExponentialMechanism",
            [draw.real(1e-6, 300.0, 1.0)],
            jaxdp.ExponentialMechanism,
            pairs.BoundedRange,
            "jaxdp.ExponentialMechanism({0})",
        ),
        node(
            "PermuteAndFlip",
            [draw.real(1e-6, 300.0, 1.0)],
            jaxdp.PermuteAndFlip,
            curves.Laplace,
            "jaxdp.PermuteAndFlip({0})",
        ),
        node(
            "PartialNoise(Gaussian)",
            [LEVEL, draw.real(1e-3, 10.0, 0.5, 1.0)],
            lambda s, f: jaxdp.PartialNoise(jaxdp.Gaussian(s), f),
            lambda s, f: curves.Gaussian(1 / (s * mp.sqrt(f))),
            "jaxdp.PartialNoise(jaxdp.Gaussian({0}), {1})",
        ),
        node(
            "GammaDifference",
            [draw.integer(1, 6), draw.real(1e-2, 1e4, 1.0), grammar.SENSITIVITY],
            jaxdp.GammaDifference,
            lambda n, scale, s: curves.LaplaceSum(int(n), s / scale),
            "jaxdp.GammaDifference({0}, {1}, {2})",
            slow=True,
        ),
        node(
            "GeneralizedDiscreteLaplace(2)",
            [draw.real(0.3, 100.0, 1.0), grammar.SHIFT],
            lambda a, d: jaxdp.GeneralizedDiscreteLaplace(2.0, a, d),
            _two_laplaces,
            "jaxdp.GeneralizedDiscreteLaplace(2.0, {0}, {1})",
            slow=True,
        ),
    ]


def structures() -> list[Node]:
    """All of them, and what the engine makes of some: samples, compositions, allocations."""
    stated, drawings, released = own(), batches(), releases()
    leaves = [*stated, TABLE, *drawings, FIXED_RESPONSE, *released]
    logistic_noise, student_noise, cut_gaussian, cut_laplace, stretched, masses = stated
    drawn, double, exchanged, *_, truncated, replaced = drawings
    mixture, _, _, flip, *_ = released
    engine = [grammar.sampled(n) for n in stated]
    engine += [grammar.composed(n, grammar.RESPONSE) for n in stated]
    engine += [
        grammar.composed(grammar.LAPLACE, n) for n in (logistic_noise, student_noise, stretched)
    ]
    engine += [
        grammar.composed(grammar.sampled(n), grammar.FINITE_2) for n in (cut_gaussian, masses)
    ]
    engine += [grammar.composed(n, grammar.RESPONSE) for n in (drawn, double, exchanged, truncated)]
    engine += [grammar.composed(n, grammar.FINITE_2) for n in (replaced, mixture, flip)]
    engine += [grammar.repeated(TABLE, 5), grammar.allocated(TABLE, 4)]
    engine += [grammar.repeated(grammar.sampled(TABLE), 4), grammar.composed(TABLE, cut_laplace)]
    engine += [grammar.repeated(FIXED_RESPONSE, 20), grammar.numerical(FIXED_RESPONSE)]
    engine += [grammar.numerical(n) for n in (TABLE, drawn, exchanged, mixture)]
    return [*leaves, *engine]
