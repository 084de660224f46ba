"""One cell at a time: random laws on a small grid, far rougher than any mechanism's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdp
from jaxdp._law._discretise import HalfCells, lower, lower_measure
from jaxdp._law._grid import family_rungs, rungs
from jaxdp._numerical_terms import terms_of
from tests.programs import jit

CASES, CELLS = 4000, 12


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def rough_laws(seed):
    """Cells, some at the ends without width, halves' masses and means, and a mass above."""
    rng = np.random.default_rng(seed)
    width = 10 ** rng.uniform(-4.0, 0.5, (CASES, 1)) * np.ones(CELLS)
    width *= rng.choice([1.0, 2.0], (CASES, CELLS), p=[0.9, 0.1])
    cell = np.arange(CELLS)
    width *= cell >= rng.integers(0, 3, (CASES, 1))
    width *= cell < CELLS - rng.integers(0, 3, (CASES, 1))
    mass = 10 ** rng.uniform(-8.0, 0.0, (CASES, 2, CELLS))
    # peaks at the end, gaps, atoms
    mass *= np.exp(rng.uniform(-2.0, 2.0, (CASES, 1, 1)) * cell)
    mass *= rng.random((CASES, 2, CELLS)) < rng.choice([0.2, 0.6, 1.0], (CASES, 1, 1))
    mass *= width[:, None] > 0.0
    share = rng.choice([0.0, 0.5, 1.0, 2.0], (CASES, 2, CELLS), p=[0.1, 0.1, 0.1, 0.7])
    share = np.where(share == 2.0, rng.random(share.shape), share)
    offset = np.where(mass > 0.0, (share + np.array([[0.0], [1.0]])) * width[:, None] / 2.0, 0.0)
    top = rng.choice([0.0, 1.0], CASES) * rng.random(CASES)
    start = rng.uniform(-2.0, 2.0, (CASES, 1))
    nodes = np.concatenate([start, start + np.cumsum(width, axis=1)], axis=1)
    return width, mass, offset, top, nodes


def test_the_law_below_lies_below():
    """Breaks if a cell of the law below rises above the given law anywhere, or gains mass."""
    width, mass, offset, top, nodes = rough_laws(3)
    rise = np.expm1(offset)

    def below(width, mass, rise, top, nodes):
        halves = HalfCells(mass[0], mass[1], rise[0], rise[1])
        heavy = (mass[0] + mass[1]) > 0.0
        no = jnp.zeros(1, bool)
        empty = ~(jnp.concatenate([heavy, no]) | jnp.concatenate([no, heavy]))
        return lower_measure(halves, width, jnp.exp(nodes), top, empty)

    found = np.asarray(jit(jax.vmap(below))(width, mass, rise, top, nodes))
    ratio = np.exp(nodes)
    # Each half collapsed to its mean, and what lies above the grid at its end: the law from below.
    points = (ratio[:, None, :-1] * (1.0 + rise)).reshape(CASES, -1)
    points = np.concatenate([points, ratio[:, -1:]], axis=1)
    masses = np.concatenate([mass.reshape(CASES, -1), top[:, None]], axis=1)
    scale = np.sum(masses * points, axis=1, keepdims=True)
    assert np.all(found >= 0.0)

    def curves(at):
        for m, x in ((masses, points), (found, ratio)):
            yield np.sum(m[:, None] * np.maximum(x[:, None] - at[..., None], 0.0), axis=-1)

    # The gap between a line and a convex curve of lines is least at the curve's corners.
    given, got = curves(points)
    assert np.all(got <= given + 4e-15 * scale)
    # Away from them no difference is rounding's alone, however small.
    share = np.random.default_rng(4).random((CASES, 50))
    given, got = curves(np.exp(nodes[:, :1] + share * (nodes[:, -1:] - nodes[:, :1])))
    assert np.all(got <= given * (1.0 + 1e-9))
    # and it is no empty law
    some = scale[:, 0] > 0.0
    assert np.median(np.sum(found * ratio, axis=1)[some] / scale[some, 0]) > 0.999


@pytest.mark.parametrize("end", [0, -1])
def test_nodes_at_one_place_need_not_be_equal_bit_for_bit(end):
    """Breaks where an ulp counts as a cell: the atom at the end, half of all mass, is lost then."""
    (term,) = terms_of(jaxdp.Laplace(2.0))
    nodes = np.concatenate([[-0.5] * 4, np.linspace(-0.5, 0.5, 101)[1:-1], [0.5] * 4]) - 1e-14
    rounded = nodes.copy()
    rounded[end] = np.nextafter(nodes[end], np.inf * np.sign(nodes[end]))
    given, got = (lower(term, jnp.asarray(x), jnp.float64(0.0), 0.0) for x in (nodes, rounded))
    assert got[1] >= -1e-9  # log of the P-mass that is kept
    np.testing.assert_allclose(got[1], given[1], atol=1e-12)
    assert np.sum(got[0][-4:]) > 0.49


@pytest.mark.parametrize(("number", "most"), [(4, 1.0), (100, 0.5), (500, 0.25), (10**6, 0.1)])
def test_one_of_many_steps_has_few_nodes(number, most):
    """Breaks when each of hundreds costs as much as one alone, or loses its bulk or its reach."""
    size = 8192
    nodes = family_rungs(size, number)
    assert nodes.size <= most * rungs(size).size
    np.testing.assert_array_equal(nodes, -nodes[::-1])
    assert nodes[-1] >= 2 * size  # a window's width, from anywhere in it
    # Spread by 1 / (6 d^2) of the variance, d places in which it doubles its gap: few percent of
    # what the lattice itself spreads a step by, or a relative 7e-4.
    gap, away = np.diff(nodes), np.maximum(np.abs(nodes[1:]), np.abs(nodes[:-1]))
    deviation = size / 20 / number**0.5
    assert np.all((gap == 1.0) | (gap <= away / 16.0))
    assert np.all(gap[away <= min(deviation, 16.0)] == 1.0)
