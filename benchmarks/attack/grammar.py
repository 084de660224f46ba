"""The mechanisms that are drawn: a tree of steps and combinators, its rows, its exact law."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
from mpmath import mp, mpf

import jaxdp
from benchmarks.attack import curves, draw, laws

Sampler = Callable[[np.random.Generator, int], np.ndarray]
Row = Sequence[np.ndarray]


def literal(value) -> str:
    """A parameter as a user would write it."""
    array = np.asarray(value, float)
    if array.ndim:
        return "[" + ", ".join(literal(v) for v in array) + "]"
    number = float(array)
    return str(int(number)) if number.is_integer() and abs(number) < 1e6 else repr(number)


@dataclasses.dataclass(frozen=True)
class Node:
    """A structure: how its parameters are drawn, built, written and judged.

    Attributes:
      name: the structure, for the table.
      samplers: one for each parameter, of its children first.
      build: parameters -> mechanism.
      law: parameters of one row -> exact law, or None where none is known.
      code: parameters of one row -> Python.
      engine: whether queries need the numerical engine (slower, and fewer rows).
      slack: relative error of the law.
      finite: whether the law is a pair of finite vectors.
      method: how queries are asked to answer, "" for the default.
      slow: whether one row of a closed form costs a good part of a second.
    """

    name: str
    samplers: tuple[Sampler, ...]
    build: Callable[..., jaxdp.Mechanism]
    law: Callable[..., laws.Law] | None
    code: Callable[..., str]
    engine: bool = False
    slack: float = 0.0
    finite: bool = False
    method: str = ""
    slow: bool = False

    def draw(self, rng: np.random.Generator, n: int) -> list[np.ndarray]:
        """The parameters of n rows."""
        return [sampler(rng, n) for sampler in self.samplers]


def step(cls, samplers, law, finite=False, slow=False) -> Node:
    """A leaf: a public mechanism with its parameters."""

    def code(*row):
        return f"jaxdp.{cls.__name__}({', '.join(map(literal, row))})"

    return Node(cls.__name__, tuple(samplers), cls, law, code, finite=finite, slow=slow)


def _response(epsilon) -> laws.Pair:
    kept, other = 1 / (1 + mp.exp(-epsilon)), 1 / (1 + mp.exp(epsilon))
    return laws.Pair([kept, other], [other, kept])


def _approximate(epsilon, delta) -> laws.Pair:
    kept, other = ((1 - delta) / (1 + mp.exp(s * epsilon)) for s in (-1, 1))
    return laws.Pair([delta, kept, other, mpf(0)], [mpf(0), other, kept, delta])


def _finite(p, q) -> laws.Pair:
    p, q = [mpf(float(x)) for x in p], [mpf(float(x)) for x in q]
    return laws.Pair([x / mp.fsum(p) for x in p], [x / mp.fsum(q) for x in q])


def _geometric(a, sensitivity) -> laws.Pair:
    """Discrete Laplace: the ratio is constant on either side, between them D - 1 outcomes."""
    d, q = int(sensitivity), mp.exp(-a)
    inner = [mp.tanh(a / 2) * q**k for k in range(d + 1)]
    outer = [1 / (1 + q), q**d / (1 + q)]
    absent = [outer[0], *inner[1:d], outer[1]]
    return laws.Pair(absent[::-1], absent)


def _negative_binomial(r, p, sensitivity) -> laws.Pair:
    d, mass, k = int(sensitivity), p**r, 0
    table, least = [], mpf(10) ** -400
    while mass > least or k < r / p:
        table.append(mass)
        mass, k = mass * (k + r) / (k + 1) * (1 - p), k + 1
    pair = _shifted(table, d)
    pair.atoms = pair.atoms[:-d]  # seen with the record only, an artefact of the cut
    return pair


def _shifted(table, d) -> laws.Cut:
    zeros = [mpf(0)] * d
    return laws.Cut([*zeros, *table], [*table, *zeros])


def _symmetric(half, d) -> laws.Pair:
    """Noise from its masses at 0, 1, ...; what is cut off is far below any float."""
    table = [*half[:0:-1], *half]
    total = mp.fsum(table)
    return _shifted([x / total for x in table], d)


def _discrete_gaussian(sigma, sensitivity) -> laws.Pair:
    reach = int(45 * sigma + 24 * sensitivity) + 3
    half = [mp.exp(-(mpf(k) ** 2) / (2 * sigma**2)) for k in range(reach)]
    return _tailed(half, int(sensitivity))


def _tailed(half, d) -> laws.Pair:
    """Outcomes seen on one side only, an artefact of the cut, are left out."""
    pair = _symmetric(half, d)
    pair.atoms = [(x, y) for x, y in pair.atoms if x and y]
    return pair


def _skellam(variance, sensitivity) -> laws.Pair:
    reach = int(12 * mp.sqrt(variance) * 4 + 24 * sensitivity) + 250
    ratio, half = mpf(0), []
    for k in range(reach, 0, -1):  # I_k / I_{k-1} by its continued fraction
        ratio = 1 / (2 * k / variance + ratio)
        half.append(ratio)
    table = [mp.exp(-variance) * mp.besseli(0, variance)]
    for r in reversed(half):
        table.append(table[-1] * r)
    return _tailed(table, int(sensitivity))


def _ou(theta, rho, t, sensitivity) -> laws.Law:
    return curves.Gaussian(sensitivity * mp.sqrt(theta / mp.expm1(2 * theta * t)) / rho)


positive = draw.real
SENSITIVITY = draw.real(1e-2, 1e2, 1.0)
SHIFT = draw.integer(1, 5)
RESPONSE = step(
    jaxdp.RandomizedResponse,
    [draw.real(1e-6, 600, 1e-12, 0.5, 1.0, 20.0, 36.0, 37.0, 700.0)],
    _response,
    finite=True,
)
APPROXIMATE = step(
    jaxdp.ApproximateDP,
    [draw.real(1e-6, 600, 0.5, 1.0, 20.0, 37.0, 700.0), draw.failure],
    _approximate,
    finite=True,
)
FINITE_2 = step(jaxdp.FinitePair, [draw.masses(2), draw.masses(2)], _finite, finite=True)
FINITE_3 = step(jaxdp.FinitePair, [draw.masses(3), draw.masses(3)], _finite, finite=True)
FINITE_5 = step(jaxdp.FinitePair, [draw.masses(5), draw.masses(5)], _finite, finite=True)
GEOMETRIC = step(
    jaxdp.DiscreteLaplace, [draw.real(1e-4, 300, 1.0, 0.5), SHIFT], _geometric, finite=True
)
GAUSSIAN = step(
    jaxdp.Gaussian,
    [draw.real(1e-3, 1e6, 1.0, 0.5, 0.02, 1e4), SENSITIVITY],
    lambda sigma, s: curves.Gaussian(s / sigma),
)
BROWNIAN = step(
    jaxdp.Brownian,
    [draw.real(1e-6, 1e8, 1.0, 0.5), SENSITIVITY],
    lambda t, s: curves.Gaussian(s / mp.sqrt(2 * t)),
)
ORNSTEIN = step(
    jaxdp.OrnsteinUhlenbeck,
    [draw.real(1e-8, 1e2, 1.0), draw.real(1e-2, 1e2, 1.0), draw.real(1e-3, 300, 1.0), SENSITIVITY],
    _ou,
)
LAPLACE = step(
    jaxdp.Laplace,
    [draw.real(1e-3, 1e6, 1.0, 0.5), SENSITIVITY],
    lambda scale, s: curves.Laplace(s / scale),
)
LAPLACES = step(
    jaxdp.LaplaceSum,
    [draw.integer(1, 8), draw.real(1e-2, 1e4, 1.0), SENSITIVITY],
    lambda n, scale, s: curves.LaplaceSum(int(n), s / scale),
    slow=True,
)
DISCRETE_GAUSSIAN = step(
    jaxdp.DiscreteGaussian, [draw.real(0.05, 8, 1.0, 0.5), SHIFT], _discrete_gaussian, slow=True
)
SKELLAM = step(jaxdp.Skellam, [draw.real(0.01, 50, 1.0, 10.0), SHIFT], _skellam, slow=True)
NEGATIVE_BINOMIAL = step(
    jaxdp.NegativeBinomial,
    [draw.real(0.05, 20, 1.0, 0.5, 2.0), draw.real(0.2, 0.999, 0.5), draw.integer(1, 3)],
    _negative_binomial,
    slow=True,
)
FINITE = (RESPONSE, APPROXIMATE, FINITE_2, FINITE_3, GEOMETRIC)
SMOOTH = (GAUSSIAN, LAPLACE, BROWNIAN, ORNSTEIN)
INTEGER = (DISCRETE_GAUSSIAN, SKELLAM, NEGATIVE_BINOMIAL)


def sampled(node: Node) -> Node:
    """Poisson subsampling of a structure."""
    law = node.law and (lambda *row: laws.sampled(node.law(*row[:-1]), row[-1]))
    return dataclasses.replace(
        node,
        name=f"PoissonSampled({node.name})",
        samplers=(*node.samplers, draw.rate),
        build=lambda *args: jaxdp.PoissonSampled(node.build(*args[:-1]), args[-1]),
        law=law,
        code=lambda *row: f"jaxdp.PoissonSampled({node.code(*row[:-1])}, {literal(row[-1])})",
    )


def repeated(node: Node, most: int) -> Node:
    """Runs of a finite structure, up to `most`."""
    law = node.law and (lambda *row: laws.repeated(node.law(*row[:-1]), int(row[-1])))
    return dataclasses.replace(
        node,
        name=f"Repeated({node.name})",
        samplers=(*node.samplers, draw.integer(1, most)),
        build=lambda *args: jaxdp.Repeated(node.build(*args[:-1]), args[-1]),
        law=law,
        code=lambda *row: f"jaxdp.Repeated({node.code(*row[:-1])}, {literal(row[-1])})",
        engine=True,
    )


def allocated(node: Node, most: int, selected: int = 1, epochs: int = 1) -> Node:
    """k of t steps of a finite structure, in each of some epochs."""
    names = [f"num_selected={selected}"] * (selected > 1) + [f"num_epochs={epochs}"] * (epochs > 1)
    extra = {"num_selected": selected} if selected > 1 else {}
    extra |= {"num_epochs": epochs} if epochs > 1 else {}

    def law(*row):
        return laws.allocated(node.law(*row[:-1]), int(row[-1]), selected, epochs)

    return dataclasses.replace(
        node,
        name=f"RandomAllocation({', '.join([node.name, *names])})",
        samplers=(*node.samplers, draw.integer(selected, most)),
        build=lambda *args: jaxdp.RandomAllocation(node.build(*args[:-1]), args[-1], **extra),
        law=node.law and law,
        code=lambda *row: (
            f"jaxdp.RandomAllocation({', '.join([node.code(*row[:-1]), literal(row[-1]), *names])})"
        ),
        engine=True,
    )


def composed(*nodes: Node) -> Node:
    """The composition of structures: enumerated if finite, else by one curve, mixed."""
    cuts = np.cumsum([0, *(len(n.samplers) for n in nodes)])

    def parts(args):
        return [(n, args[a:b]) for n, a, b in zip(nodes, cuts, cuts[1:], strict=False)]

    def law(*row):
        found = [n.law(*args) for n, args in parts(row)]
        pairs = [x for x in found if isinstance(x, laws.Pair)]
        others = [x for x in found if not isinstance(x, laws.Pair)]
        if not others:
            return laws.product(pairs)
        tail = others[-1]
        for other in reversed(others[:-1]):
            tail = laws.Composed(other, tail)
        return laws.Composed(laws.product(pairs), tail) if pairs else tail

    smooth = sum(not n.finite for n in nodes)
    return Node(
        f"Composed({', '.join(n.name for n in nodes)})",
        tuple(s for n in nodes for s in n.samplers),
        lambda *args: jaxdp.Composed([n.build(*a) for n, a in parts(args)]),
        law if all(n.law for n in nodes) and smooth <= 2 else None,
        lambda *row: f"jaxdp.Composed([{', '.join(n.code(*a) for n, a in parts(row))}])",
        engine=True,
        slack=1e-12 if smooth > 1 else 0.0,
        finite=smooth == 0,
    )


def scheduled(node: Node, steps: int) -> Node:
    """Steps whose parameters differ, along the last axis."""

    def vector(sampler):
        return lambda rng, n: np.stack([sampler(rng, n) for _ in range(steps)], axis=-1)

    def law(*row):
        return laws.product(node.law(*(x[i] for x in row)) for i in range(steps))

    return Node(
        f"Schedule({node.name})",
        tuple(vector(s) for s in node.samplers),
        lambda *args: jaxdp.Schedule(node.build(*args)),
        law if node.finite else None,
        lambda *row: f"jaxdp.Schedule({node.code(*row)})".replace("[", "jnp.array([").replace(
            "]", "])"
        ),
        engine=True,
        finite=node.finite,
    )


def allocated_gaussian() -> Node:
    """One of two Gaussian steps."""
    return Node(
        "RandomAllocation(Gaussian, 2)",
        (draw.real(0.1, 100, 1.0, 0.5),),
        lambda sigma: jaxdp.RandomAllocation(jaxdp.Gaussian(sigma), 2),
        lambda sigma: curves.GaussianAllocation(1 / sigma),
        lambda sigma: f"jaxdp.RandomAllocation(jaxdp.Gaussian({literal(sigma)}), 2)",
        engine=True,
        slack=1e-12,
    )


def gaussians() -> Node:
    """A composition of the Gaussian family, one closed form."""
    node = composed(GAUSSIAN, BROWNIAN, ORNSTEIN)

    def law(sigma, a, t, b, theta, rho, time, c):
        ou = _ou(theta, rho, time, c).mu
        return curves.Gaussian(mp.sqrt((a / sigma) ** 2 + b**2 / (2 * t) + ou**2))

    return dataclasses.replace(node, law=law, engine=False, slack=0.0)


def numerical(node: Node) -> Node:
    """The engine where it is not needed."""
    name = f"{node.name} by Numerical()"
    return dataclasses.replace(node, name=name, engine=True, method="Numerical")


def runs(node: Node) -> Node:
    """Many runs of a Gaussian, by the engine: one Gaussian."""
    law = node.law

    def many(*row):
        return curves.Gaussian(law(*row[:-1]).mu * mp.sqrt(row[-1]))

    return numerical(dataclasses.replace(repeated(node, 10**6), law=many, finite=False))


def exact_row(row: Row) -> list:
    """One row of parameters, as they are, in the references' arithmetic."""
    return [mpf(float(x)) if np.ndim(x) == 0 else exact_row(x) for x in row]


def structures() -> list[Node]:
    """All structures with an exact law, those that compile quickly first."""
    closed = [*FINITE, FINITE_5, *SMOOTH, LAPLACES, *INTEGER, gaussians()]
    closed += [sampled(n) for n in (*FINITE, *SMOOTH, LAPLACES, *INTEGER)]
    engine = [repeated(n, 40) for n in (RESPONSE, FINITE_2, sampled(RESPONSE))]
    engine += [repeated(n, 6) for n in (APPROXIMATE, FINITE_3, sampled(APPROXIMATE), GEOMETRIC)]
    engine += [repeated(sampled(n), 4) for n in (FINITE_3, GEOMETRIC)]
    engine += [allocated(RESPONSE, 40), allocated(APPROXIMATE, 6), allocated(FINITE_2, 30)]
    engine += [allocated(APPROXIMATE, 3, epochs=2), allocated(RESPONSE, 6, selected=2)]
    engine += [allocated(FINITE_3, 5), allocated(sampled(RESPONSE), 8), allocated(GEOMETRIC, 4)]
    engine += [repeated(allocated(RESPONSE, 5), 3), composed(RESPONSE, APPROXIMATE, FINITE_3)]
    engine += [composed(sampled(GAUSSIAN), RESPONSE), composed(LAPLACE, APPROXIMATE)]
    engine += [composed(sampled(FINITE_2), allocated(RESPONSE, 6)), composed(LAPLACES, GEOMETRIC)]
    engine += [composed(LAPLACE, GAUSSIAN)]
    engine += [composed(DISCRETE_GAUSSIAN, RESPONSE), composed(NEGATIVE_BINOMIAL, FINITE_2)]
    engine += [composed(LAPLACE, LAPLACE), composed(sampled(SKELLAM), APPROXIMATE)]
    engine += [scheduled(RESPONSE, 5), scheduled(sampled(APPROXIMATE), 3), allocated_gaussian()]
    engine += [runs(GAUSSIAN), runs(ORNSTEIN), numerical(gaussians())]
    engine += [numerical(n) for n in (*FINITE, *SMOOTH[:2], LAPLACES, *INTEGER)]
    engine += [numerical(sampled(n)) for n in (*FINITE[:3], *SMOOTH[:2], SKELLAM)]
    return closed + engine
