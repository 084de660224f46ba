"""Trainings in their users' words are the mechanisms that they say."""

import functools

import jax
import numpy as np
import pytest

import calibrate
import jaxdp

SETTINGS = {"num_examples": 1000, "batch_size": 50, "epochs": 3}


def _poisson(sigma, q, steps):
    return jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(sigma), q), steps)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (SETTINGS, _poisson(1.5, 0.05, 60)),
        ({**SETTINGS, "epochs": 0.33}, _poisson(1.5, 0.05, 7)),  # 6.6 steps
        ({"num_examples": 1000, "batch_size": 300, "epochs": 3}, _poisson(1.5, 0.3, 10)),
        ({"num_examples": 10, "batch_size": 10, "epochs": 2}, _poisson(1.5, 1.0, 2)),
        # 0.1 + 0.2 is more than 0.3: no step more for a rounding
        ({"num_examples": 10, "batch_size": 1, "epochs": 0.1 + 0.2}, _poisson(1.5, 0.1, 3)),
        (
            {**SETTINGS, "batches": "random allocation"},
            jaxdp.RandomAllocation(jaxdp.Gaussian(1.5), 20, num_epochs=3),
        ),
        (  # fewer steps, so that none is smaller than was asked for
            {"num_examples": 1000, "batch_size": 300, "epochs": 1, "batches": "random allocation"},
            jaxdp.RandomAllocation(jaxdp.Gaussian(1.5), 3),
        ),
    ],
)
def test_a_training_is_the_mechanism_that_it_says(settings, expected):
    assert jaxdp.dp_sgd(noise_multiplier=1.5, **settings) == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_examples", 0),
        ("num_examples", 10.5),
        ("batch_size", 1001),
        ("batch_size", 0.0),
        ("epochs", -1),
        ("noise_multiplier", 0.0),
        ("batches", "hats"),
        ("neighbours", "replace"),
        ("max_batch_size", 0),
        ("max_batch_size", 79),
        ("min_separation", 1.5),
    ],
)
def test_wrong_settings_are_refused_by_name(name, value):
    settings = {"noise_multiplier": 1.5, **SETTINGS, name: value}
    with pytest.raises(ValueError, match="sigma" if name == "noise_multiplier" else name):
        jaxdp.dp_sgd(**settings)


@pytest.mark.parametrize("batches", ["cyclic poisson", "b-min-sep"])
def test_batches_larger_than_their_groups_are_refused(batches):
    """Groups of 2 records have no batches of 20: a run of 50 steps was answered for as one step."""
    settings = {**SETTINGS, "num_examples": 100, "batch_size": 20, "noise_multiplier": 1.0}
    jaxdp.dp_sgd(**settings, batches=batches, min_separation=5)
    with pytest.raises(ValueError, match=r"min_separation must be at most .* 5 here"):
        jaxdp.dp_sgd(**settings, batches=batches, min_separation=6)


def test_decimals_of_a_batch_size_cost_no_step():
    """10 / 0.1 is 99.99... in doubles: an epoch had 99 steps."""
    settings = {"epochs": 1, "noise_multiplier": 1.0, "batches": "random allocation"}
    for n, size in ((10, 0.1), (1, 0.1), (21, 2.1), (3, 0.3)):
        m = jaxdp.dp_sgd(num_examples=n, batch_size=size, **settings)
        assert m.num_steps == round(n / size)
    assert jaxdp.dp_sgd(num_examples=11, batch_size=2.0, **settings).num_steps == 5


ONE, TWICE = jaxdp.Gaussian(1.5), jaxdp.Gaussian(1.5, 2.0)
CUT = (0.05, 79, 1000)  # room for 50 + 4 sqrt(50)
FIXED = functools.partial(jaxdp.fixed_size_sampled, ONE, 50, 1000)
# (batches, neighbours): the run, and what it attains where that is another one
RUNS = {
    ("poisson", "replace-one"): (jaxdp.PoissonSampledReplaceOne(ONE, 0.05), None),
    ("poisson", "replace-special"): (jaxdp.PoissonSampled(ONE, 0.05), None),
    ("fixed size", "add-or-remove"): (jaxdp.PoissonSampled(TWICE, 0.05), None),
    ("fixed size", "replace-one"): (FIXED(), jaxdp.PoissonSampled(TWICE, 0.05)),
    ("fixed size", "replace-special"): (FIXED(), jaxdp.PoissonSampled(ONE, 0.05)),
    ("truncated poisson", "add-or-remove"): (jaxdp.TruncatedPoissonSampled(ONE, *CUT), 0.9 * 0.05),
    ("truncated poisson", "replace-one"): (
        jaxdp.TruncatedPoissonSampledReplaceOne(ONE, *CUT),
        0.9 * 0.05,
    ),
    ("truncated poisson", "replace-special"): (
        jaxdp.TruncatedPoissonSampled(ONE, *CUT, zero_out=True),
        0.9 * 0.05,
    ),
    ("with replacement", "add-or-remove"): (
        FIXED(neighbours="add-or-remove", replacement=True),
        0.9 * 0.05,
    ),
    ("with replacement", "replace-special"): (FIXED(replacement=True), 0.9 * 0.05),
}


@pytest.mark.parametrize("key", RUNS)
def test_batches_drawn_afresh_for_all_neighbours(key):
    batches, neighbours = key
    step, attained = RUNS[key]
    build = functools.partial(
        jaxdp.dp_sgd, noise_multiplier=1.5, batches=batches, neighbours=neighbours, **SETTINGS
    )
    assert build() == jaxdp.Repeated(step, 60)
    found = build(attained=True)
    if isinstance(attained, float):  # a little less than the rate is kept
        assert attained < float(found.mechanism.sampling_probability) < 0.05
    else:
        assert found == jaxdp.Repeated(attained or step, 60)
    assert np.asarray(build(num_examples=60, batch_size=60).count) == 3  # every record, always


@pytest.mark.parametrize(
    ("batches", "neighbours", "expected", "attained"),
    [
        ("public order", "add-or-remove", jaxdp.Repeated(ONE, 3), None),
        ("public order", "replace-one", jaxdp.Repeated(TWICE, 3), None),
        ("full batch", "replace-special", jaxdp.Repeated(ONE, 3), None),
        (
            "shuffled",
            "replace-one",
            jaxdp.Repeated(TWICE, 3),
            jaxdp.RandomAllocation(TWICE, 20, num_epochs=3),
        ),
        (
            "shuffled",
            "replace-special",
            jaxdp.Repeated(ONE, 3),
            jaxdp.RandomAllocation(ONE, 20, num_epochs=3),
        ),
        (
            "random allocation",
            "replace-special",
            jaxdp.RandomAllocation(ONE, 20, num_epochs=3),
            None,
        ),
        (
            "cyclic poisson",
            "add-or-remove",
            jaxdp.cyclic_poisson_sampled(ONE, 0.2, 4, 60),
            None,
        ),
        (
            "cyclic poisson",
            "replace-one",
            jaxdp.Repeated(jaxdp.PoissonSampledReplaceOne(ONE, 0.2), 15),
            None,
        ),
        (
            "b-min-sep",
            "replace-special",
            jaxdp.min_sep_sampled(ONE, 1.0 / 17.0, 4, 60, warm_start=True),
            jaxdp.GaussianMixture,
        ),
    ],
)
def test_runs_that_keep_track_of_records(batches, neighbours, expected, attained):
    build = functools.partial(
        jaxdp.dp_sgd, noise_multiplier=1.5, batches=batches, neighbours=neighbours, **SETTINGS
    )
    assert build() == expected
    found = build(attained=True)
    assert (
        isinstance(found, attained)
        if isinstance(attained, type)
        else found == (expected if attained is None else attained)
    )


@pytest.mark.parametrize(
    ("batches", "neighbours"),
    [
        ("b-min-sep", "replace-one"),
        ("random allocation", "replace-one"),
        ("shuffled", "add-or-remove"),
    ],
)
def test_what_nothing_is_proved_about_is_refused(batches, neighbours):
    with pytest.raises(ValueError, match=f"neighbours must be .* for batches '{batches}'"):
        jaxdp.dp_sgd(noise_multiplier=1.5, batches=batches, neighbours=neighbours, **SETTINGS)


def test_calibration_for_other_neighbours():
    settings = {**SETTINGS, "batches": "public order", "neighbours": "replace-one"}
    found = calibrate.dp_sgd(epsilon=3.0, delta=1e-5, **settings)
    once = calibrate.solve(jaxdp.Gaussian, epsilon=3.0, delta=1e-5)
    assert float(found.value) == pytest.approx(2.0 * 3**0.5 * float(once.value), rel=1e-5)


def test_an_allocation_has_whole_epochs():
    with pytest.raises(ValueError, match="epochs"):
        jaxdp.dp_sgd(
            **{**SETTINGS, "epochs": 0.5}, noise_multiplier=1.0, batches="random allocation"
        )


def test_the_noise_may_be_traced_and_have_a_shape():
    sigma = np.array([1.0, 2.0])
    assert jaxdp.dp_sgd(noise_multiplier=sigma, **SETTINGS) == _poisson(sigma, 0.05, 60)
    more = {"batches": "truncated poisson", "attained": True}
    for extra in ({}, {"batches": "random allocation"}, more):
        build = functools.partial(jaxdp.dp_sgd, **extra, **SETTINGS)
        run = jax.jit(lambda s, build=build: build(noise_multiplier=s))(2.0)
        assert jax.tree.structure(run) == jax.tree.structure(build(noise_multiplier=2.0))
        assert jax.tree.leaves(run) == pytest.approx(jax.tree.leaves(build(noise_multiplier=2.0)))


def test_calibration_meets_its_target_and_no_more():
    found = calibrate.dp_sgd(epsilon=3.0, delta=1e-5, **SETTINGS)
    reached = float(jaxdp.epsilon(jaxdp.dp_sgd(noise_multiplier=found.value, **SETTINGS), 1e-5))
    assert 2.999 < reached <= 3.0


@pytest.mark.slow
def test_calibration_of_an_allocation():
    settings = {**SETTINGS, "batches": "random allocation"}
    found = calibrate.dp_sgd(epsilon=3.0, delta=1e-5, **settings)
    reached = float(jaxdp.epsilon(jaxdp.dp_sgd(noise_multiplier=found.value, **settings), 1e-5))
    assert 2.99 < reached <= 3.0
