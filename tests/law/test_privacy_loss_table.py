"""Laws as mechanisms, their sums and their files, against exact curves."""

import dataclasses

import jax
import numpy as np
import pytest
from mpmath import mp

import jaxdp
from jaxdp import _privacy_loss_readings as readings

MECHANISM = jaxdp.Composed([jaxdp.Laplace(2.0), jaxdp.ApproximateDP(0.3, 1e-4)])
EPSILONS = np.array([-1.0, -0.2, 0.0, 0.3, 0.6, 0.75, 2.0])


def _truth(epsilon, direction):
    """delta of the pair in closed form: Laplace beside the three outcomes of the other."""
    up, down = 1.0 / (1.0 + np.exp(-0.3)), 1.0 / (1.0 + np.exp(0.3))
    with jax.enable_x64(True):
        left, right = (
            np.asarray(jaxdp.hockey_stick(jaxdp.Laplace(2.0), e, direction=direction))
            for e in (epsilon - 0.3, epsilon + 0.3)
        )
    return 1e-4 + (1.0 - 1e-4) * (up * left + down * right)


@pytest.fixture(scope="module")
def laws():
    with jax.enable_x64(True):
        return {
            side: jaxdp.privacy_loss(MECHANISM, delta=1e-2, side=side)
            for side in ("upper", "lower")
        }


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_a_law_as_a_mechanism_stays_on_its_side_at_every_epsilon(laws, direction):
    """Breaks when the minorant cuts a corner, or the atom below has the wrong place."""
    truth = _truth(EPSILONS, direction)
    for reverse in (False, True):
        asked = direction if not reverse else {"remove": "add", "add": "remove"}[direction]
        above, below = ((law.reverse() if reverse else law).as_mechanism() for law in laws.values())
        with jax.enable_x64(True):
            high = np.asarray(jaxdp.hockey_stick(above, EPSILONS, direction=asked))
            low = np.asarray(jaxdp.hockey_stick(below, EPSILONS, direction=asked))
        room = 2.0**-40 if asked == "add" else 0.0
        assert np.all(high >= truth * (1.0 - 1e-12) - room)
        assert np.all(low <= truth * (1.0 + 1e-12) + room)
        if direction == "remove":
            near = (EPSILONS > 0.0) & (EPSILONS < 0.7)
            np.testing.assert_allclose(high[near], truth[near], rtol=2e-3)
            np.testing.assert_allclose(low[near], truth[near], rtol=2e-2)


def _asymmetric(count):
    """Losses and masses of so many runs of a finite pair, by enumeration: (losses, p, q)."""
    p, q = np.array([0.2, 0.5, 0.05, 0.25]), np.array([0.5, 0.1, 0.0, 0.4])
    both = [np.array([1.0]), np.array([1.0])]
    for _ in range(count):
        both = [np.outer(x, y).ravel() for x, y in zip(both, (p, q), strict=True)]
    return jaxdp.Repeated(jaxdp.FinitePair(p, q), count), *both


@pytest.mark.parametrize("x64", [True, False])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_table_is_tight_in_both_directions(x64, reverse):
    """Breaks where the other direction is what the law says of it: 1.28 below, nothing above."""
    mechanism, p, q = _asymmetric(5)
    directions = {"remove": (p, q), "add": (q, p)}
    if reverse:
        directions = {"remove": (q, p), "add": (p, q)}
    with jax.enable_x64(x64):
        laws = [jaxdp.privacy_loss(mechanism, delta=0.05, side=s) for s in ("lower", "upper")]
        tables = [(law.reverse() if reverse else law).as_mechanism() for law in laws]
    for direction, (a, b) in directions.items():
        truth = np.array([np.maximum(a - np.exp(e) * b, 0.0).sum() for e in EPSILONS])
        with jax.enable_x64(True):
            low, high = (
                np.asarray(jaxdp.hockey_stick(table, EPSILONS, direction=direction))
                for table in tables
            )
        room = 2.0**-39 if direction == "add" else 0.0
        assert np.all(low <= truth * (1.0 + 1e-12) + room)
        assert np.all(high >= truth * (1.0 - 1e-12) - room)
        np.testing.assert_allclose(low, truth, rtol=4e-3)
        np.testing.assert_allclose(high, truth, rtol=4e-3)


def test_sums_and_samples_of_tables_know_both_directions():
    """Breaks where a sum, or a file, loses the opposite law: epsilon was infinite to add."""
    step = jaxdp.PoissonSampled(jaxdp.Gaussian(1.0), 0.05)
    with jax.enable_x64(True):
        law = jaxdp.privacy_loss(jaxdp.Repeated(step, 50), delta=1e-5)
        run = jaxdp.PoissonSampled(law.as_mechanism(), 0.5)
        for direction in ("remove", "add"):
            truth = float(jaxdp.epsilon(jaxdp.Repeated(step, 100), 1e-5, direction=direction))
            got = float((law + law).epsilon(1e-5, direction=direction))
            assert truth * 0.999 <= got <= truth * 1.005
            assert float(sum([law, law]).epsilon(1e-5, direction=direction)) == got
            exact = jaxdp.PoissonSampled(jaxdp.Repeated(step, 50), 0.5)
            low, _ = jaxdp.epsilon_bounds(exact, 1e-5, direction=direction)
            assert low <= jaxdp.epsilon(run, 1e-5, direction=direction) <= 1.002 * low


def test_lower_tables_of_32_bits_do_not_round_up():
    """Breaks when NumPy works in the precision of the fields: 24.06 for 20."""
    for epsilon in (5.0, 12.0, 20.0):
        with jax.enable_x64(False):
            law = jaxdp.privacy_loss(jaxdp.RandomizedResponse(epsilon), side="lower", delta=1e-5)
            alone = dataclasses.replace(law, opposite=None)
        for table in (law.as_mechanism(), alone.as_mechanism()):
            for direction in ("remove", "add"):
                assert float(jaxdp.epsilon_bounds(table, 1e-5, direction=direction)[0]) <= epsilon


def test_what_attacks_achieve_lies_between_the_laws(laws):
    """The best guess at several priors, and the advantage, against the closed form."""
    priors = np.array([0.0, 0.2, 0.45, 0.5, 0.7, 1.0])
    odds = np.log((1.0 - priors[1:-1]) / priors[1:-1])
    for reverse in (False, True):
        direction = "add" if reverse else "remove"
        truth = 1.0 - priors[1:-1] + priors[1:-1] * _truth(odds, direction)
        with jax.enable_x64(True):
            low, high = (
                np.asarray((law.reverse() if reverse else law).attack_success(priors))
                for law in (laws["lower"], laws["upper"])
            )
        assert np.all(low[1:-1] <= truth + 1e-12)
        assert np.all(high[1:-1] >= truth - 1e-12)
        assert np.all(high - low < 2e-3)
        np.testing.assert_array_equal([*low[[0, -1]], *high[[0, -1]]], 1.0)
    with jax.enable_x64(True):
        ends = float(laws["lower"].advantage()), float(laws["upper"].advantage())
        assert ends[0] <= _truth(0.0, "remove") <= ends[1] == float(laws["upper"].delta(0.0))
        with pytest.raises(ValueError, match="prior"):
            laws["upper"].attack_success(1.5)


@pytest.mark.slow
def test_a_sum_is_the_composition_and_sides_do_not_mix(laws):
    with jax.enable_x64(True):
        low, high = (float((law + law).epsilon(1e-2)) for law in (laws["lower"], laws["upper"]))
        truth = jaxdp.epsilon_bounds(jaxdp.Repeated(MECHANISM, 2), 1e-2, direction="remove")
        assert low <= truth[1]
        assert truth[0] <= high
        assert high - low < 3e-2 * high
        with pytest.raises(ValueError, match="above"):
            laws["upper"] + laws["lower"]
        with pytest.raises(TypeError):
            laws["upper"] * 1.5


def test_files_hold_all_of_a_law_and_nothing_else_is_read(laws, tmp_path):
    path = tmp_path / "law"
    law = laws["lower"].reverse()
    law.save(path)
    again = jaxdp.PrivacyLoss.load(path)
    for field in dataclasses.fields(law):
        one, two = getattr(law, field.name), getattr(again, field.name)
        assert np.array_equal(one, two)
        assert np.asarray(one).dtype == np.asarray(two).dtype
    with jax.enable_x64(True):
        assert again.epsilon(1e-2) == law.epsilon(1e-2)
    np.savez(path.with_suffix(".npz"), format="something else")
    with pytest.raises(ValueError, match="format"):
        jaxdp.PrivacyLoss.load(path.with_suffix(".npz"))
    path.with_suffix(".txt").write_text("no law")
    with pytest.raises(ValueError, match="holds no law"):
        jaxdp.PrivacyLoss.load(path.with_suffix(".txt"))


@pytest.mark.slow
def test_a_law_in_32_bits_and_what_has_no_table(laws):
    law = jaxdp.privacy_loss(jaxdp.Laplace(2.0), delta=1e-2)
    assert law.tilt.dtype == np.float32
    with jax.enable_x64(True):
        high, truth = (
            np.asarray(jaxdp.hockey_stick(m, EPSILONS, direction="remove"))
            for m in (law.as_mechanism(), jaxdp.Laplace(2.0))
        )
    assert np.all(high >= truth * (1.0 - 1e-12))
    with pytest.raises(ValueError, match="batch"):
        jaxdp.privacy_loss(jaxdp.Laplace(2.0), delta=[1e-2, 1e-3]).as_mechanism()
    with pytest.raises(TypeError, match="traced"):
        jax.jit(lambda x: x.as_mechanism().losses)(laws["upper"])


@pytest.mark.parametrize("side", ["upper", "lower"])
@pytest.mark.parametrize("delta", [1e-2, 1e-100, 1e-290])
def test_reading_a_law_at_all_points_is_reading_it_at_each(side, delta):
    """Breaks when sums over the grid lose digits far out, or what underflows is too much there."""
    with jax.enable_x64(True):
        law = jaxdp.privacy_loss(jaxdp.Gaussian(0.5), delta=delta, side=side, direction="remove")
        assert law.log_mass.dtype == np.float64
        loss = np.asarray(readings.losses(law))
        chosen = np.linspace(0, loss.size - 1, 200).astype(int)
        each = np.asarray(jax.vmap(lambda e: readings.log_direct(law, e, False))(loss[chosen]))
        at_once = np.asarray(readings.log_at_points(law, False))[chosen]
    np.testing.assert_array_equal(np.isfinite(at_once), np.isfinite(each))
    some = np.isfinite(each)
    np.testing.assert_allclose(np.exp(at_once[some] - each[some]), 1.0, rtol=3e-8)
    assert np.min(each[some]) < 0.8 * np.log(delta)


@pytest.mark.parametrize("side", ["upper", "lower"])
@pytest.mark.parametrize("direction", ["remove", "add"])
def test_the_curve_at_the_points_is_on_the_side_of_the_exact_one(side, direction):
    """Breaks by 1e-9 on the wrong side: sums of the masses at hand, in 40 digits."""
    step = jaxdp.PoissonSampled(jaxdp.Gaussian(1.0), 0.1)
    with jax.enable_x64(True), mp.workdps(40):
        law = jaxdp.privacy_loss(step, delta=1e-30, side=side, direction=direction, grid_size=1024)
        got = np.asarray(readings._log_masses_at_points(law))
        at = np.asarray(readings.losses(law))
        start, spacing = mp.mpf(float(law.start)), mp.mpf(float(law.spacing))
        points = [start + spacing * k for k in range(at.size)]
        masses = [mp.exp(mp.mpf(float(x))) for x in law.log_mass]
        for k in range(0, at.size, 101):
            falls = (1 - mp.exp(mp.mpf(float(at[k])) - x) for x in points)
            exact = mp.fsum(m * x for m, x in zip(masses, falls, strict=True) if x > 0)
            if exact > 0:
                off = float(mp.expm1(mp.mpf(float(got[k])) - mp.log(exact)))
                assert 0.0 <= (off if side == "upper" else -off) < 1e-9
