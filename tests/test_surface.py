"""The first minute: what help() lists, what a thing says it is, and when two are the same."""

import copy
import pickle
import pydoc
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import calibrate
import jaxdp

GAUSSIAN = jaxdp.Gaussian(2.0)


@pytest.mark.parametrize("package", [jaxdp, calibrate])
def test_help_lists_what_is_public_and_nothing_else(package):
    public = {
        name
        for name, value in vars(package).items()
        if not name.startswith("_") and not isinstance(value, type(jax))
    }
    assert sorted(package.__all__) == sorted(public)
    text = pydoc.plain(pydoc.render_doc(package))
    for name in public:
        assert re.search(rf"\b{name}\b", text)
    assert ">>> " in text


@pytest.mark.parametrize(
    ("mechanism", "shown"),
    [
        (jaxdp.Gaussian(1), "Gaussian(sigma=1)"),
        (jaxdp.Gaussian(0.1, sensitivity=2.0), "Gaussian(sigma=0.1, sensitivity=2.0)"),
        (jaxdp.Gaussian(jnp.float32(0.5)), "Gaussian(sigma=0.5)"),
        (jaxdp.Gaussian(np.array([1.0, 2.5])), "Gaussian(sigma=[1. , 2.5])"),
        (
            jaxdp.Schedule(jaxdp.Gaussian(np.linspace(1.0, 2.0, 9))),
            "Schedule(mechanism=Gaussian(sigma=<[9] from 1.0 to 2.0>))",
        ),
        (
            jaxdp.RandomAllocation(jaxdp.Laplace(1e-9), 10, num_epochs=3),
            "RandomAllocation(mechanism=Laplace(scale=1e-09), num_steps=10, num_epochs=3)",
        ),
        (
            jaxdp.Composed([GAUSSIAN] * 20),
            f"Composed(mechanisms=[{', '.join(['Gaussian(sigma=2.0)'] * 4)}, ... 20 in all])",
        ),
    ],
)
def test_a_mechanism_says_what_it_is(mechanism, shown):
    assert repr(mechanism) == shown


def test_reprs_never_stand_in_the_way_of_a_transformation():
    shown = []
    jax.jit(lambda s: shown.append(repr(jaxdp.Gaussian(s))) or s)(1.0)
    assert shown == ["Gaussian(sigma=traced float32[])"]
    solution = calibrate.solve(jaxdp.Gaussian, epsilon=1.0, delta=1e-5)
    law = jaxdp.privacy_loss(jaxdp.Gaussian(1.0))
    odd = (object(), None, jax.ShapeDtypeStruct((2,), jnp.float32), np.zeros(0), 1j * np.ones(9))
    for leaf in odd:
        for whole in (GAUSSIAN, solution, law):
            shown = repr(jax.tree.map(lambda _, leaf=leaf: leaf, whole))
            assert shown.startswith(f"{type(whole).__name__}(")
            assert type(whole).__name__ in whole._repr_html_()


def test_notebooks_show_what_a_thing_is():
    """Nested mechanisms, the first rows of a batch, a law; text is text, whatever it holds."""

    def text(thing):
        shown = thing._repr_html_()
        assert shown.count("<table>") == shown.count("</table>") > 0
        return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", shown)).strip()

    run = jaxdp.Repeated(jaxdp.PoissonSampled(GAUSSIAN, 0.01), 1000)
    assert text(run) == (
        "Repeated mechanism PoissonSampled mechanism Gaussian sigma 2.0 "
        "sampling_probability 0.01 count 1000"
    )
    many = jaxdp.Composed([GAUSSIAN] * 20)
    assert text(many).count("Gaussian sigma 2.0") == 4
    assert text(many).endswith("... 20 in all")
    one = calibrate.solve(jaxdp.Gaussian, epsilon=1.0, delta=1e-5)
    assert text(one).startswith("Solution value 3.73063 epsilon 1.0 delta 1e-05 status The value")
    found = calibrate.solve(jaxdp.Gaussian, epsilon=jnp.linspace(1.0, 2.0, 12), delta=1e-5)
    assert "0 value = 3.73063, epsilon = 1.0, delta = 1e-05, SOLVED" in text(found)
    assert text(found).endswith("in all 12 SOLVED")
    law = jaxdp.privacy_loss(jaxdp.Gaussian(1.0))
    assert text(law).startswith("PrivacyLoss its curve is above the mechanism")
    assert "P and Q swapped" in text(law.reverse())
    noise = jaxdp.AdditiveNoise(lambda x: -jnp.abs(x), (), 1.0)
    assert "&lt;lambda&gt;" in noise._repr_html_()


def test_a_solution_and_a_law_say_what_they_are():
    one = calibrate.solve(jaxdp.Gaussian, epsilon=1.0, delta=1e-5)
    assert repr(one) == "Solution(value=3.73063, epsilon=1.0, delta=1e-05, status=SOLVED)"
    two = calibrate.solve(jaxdp.Gaussian, epsilon=jnp.array([1.0, 2.0]), delta=1e-5)
    assert repr(two).endswith("status=2 SOLVED)")
    law = jaxdp.privacy_loss(jaxdp.Gaussian(1.0))
    assert repr(law).startswith("PrivacyLoss(above the mechanism's, accurate about epsilon 4.")
    assert "8192 losses" in repr(law)
    assert repr(law.reverse()).endswith("P and Q swapped)")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (jaxdp.Gaussian(2), GAUSSIAN),
        (jaxdp.Gaussian(jnp.float32(2.0)), GAUSSIAN),
        (jaxdp.Gaussian([1.0, 2.0]), jaxdp.Gaussian(np.array([1, 2]))),
        (jaxdp.Composed([GAUSSIAN, GAUSSIAN]), jaxdp.Composed((GAUSSIAN, GAUSSIAN))),
        (
            jaxdp.Repeated(jaxdp.PoissonSampled(GAUSSIAN, 0.1), 7),
            jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(2.0), 0.1), 7.0),
        ),
        (jaxdp.RandomAllocation(GAUSSIAN, 9), jaxdp.RandomAllocation(GAUSSIAN, 9, 1, 1)),
    ],
)
def test_equal_mechanisms_are_equal_and_hash_alike(one, other):
    assert one == other
    assert hash(one) == hash(other)
    assert len({one, other}) == 1
    for again in (
        pickle.loads(pickle.dumps(one)),
        copy.deepcopy(one),
        jax.tree.map(lambda x: x, one),
    ):
        assert again == one


@pytest.mark.parametrize(
    "other",
    [
        jaxdp.Gaussian(2.0 + 1e-15),
        jaxdp.Gaussian(2.0, 2.0),
        jaxdp.Gaussian([2.0]),
        jaxdp.Laplace(2.0),
        jaxdp.Repeated(GAUSSIAN, 1),
        2.0,
        None,
    ],
)
def test_others_are_not_equal(other):
    assert other != GAUSSIAN


def test_a_traced_mechanism_is_equal_to_itself_alone():
    def compared(sigma):
        one, other = jaxdp.Gaussian(sigma), jaxdp.Gaussian(sigma)
        found.extend([one == one, one == other, one == GAUSSIAN, len({one, other})])
        return jaxdp.delta(one, 1.0)

    found = []
    jax.jit(jax.grad(compared))(2.0)
    assert found == [True, False, False, 2]


def test_an_equal_mechanism_is_the_same_static_argument():
    traces = []

    def f(m, x):
        traces.append(m)
        return x

    f = jax.jit(f, static_argnums=0)
    f(jaxdp.Gaussian(2.0), 1.0), f(jaxdp.Gaussian(2.0), 1.0), f(jaxdp.Gaussian(3.0), 1.0)
    assert traces == [jaxdp.Gaussian(2.0), jaxdp.Gaussian(3.0)]
