"""Compositions of several kinds of steps: one program for all, in which only masses differ."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdp
from jaxdp._law._terms import Term, of_each


def _term(rate, low=-jnp.inf):
    """A term with numbers of its own in place of masses, which a law need not have."""

    def masses(lo, hi):
        lo, hi = jnp.maximum(lo, 0.0), jnp.maximum(hi, 0.0)
        return rate * (lo - hi), rate * lo - 2.0 * hi

    return Term(masses, rate, -2.0, -3.0, (low, jnp.inf), 1e-14)


def test_terms_are_answered_one_by_one():
    """Breaks when a term has the masses, the numbers or the row of another, or loses a slope."""

    def read(term, row):
        (at, ends), low = row, term.support[0]
        q, p = term.masses(-jnp.inf, at)  # (scalars that are not of one shape are fine)
        many, _ = term.masses(ends[0], ends[1:])
        low = jnp.where(jnp.isfinite(low), low, 7.0)
        return {"q": q * at, "other": (p, jnp.sum(many), low, term.count + term.log_tau_q)}

    def every(rates, one_by_one):
        terms = [_term(rates[0]), _term(rates[1], -1.5), _term(3.0)]
        rows = [(1.0 + i, jnp.arange(3.0) + i) for i in range(3)]
        if one_by_one:
            found = [read(*x) for x in zip(terms, rows, strict=True)]
        else:
            found = of_each(read, terms, rows)
        return jnp.stack([jnp.stack([x["q"], *x["other"]]) for x in found])

    with jax.enable_x64(True):
        rates = jnp.array([0.5, 2.0])
        for of in (every, jax.jacfwd(every), jax.jacrev(every)):
            want, got = of(rates, True), jax.jit(of, static_argnums=1)(rates, False)
            np.testing.assert_allclose(got, want, rtol=1e-15)
        assert len({*np.asarray(every(rates, False))[:, 0].tolist()}) == 3


def _size(jaxpr):
    total = 0
    for equation in jaxpr.eqns:
        total += 1
        for leaf in jax.tree.leaves(equation.params, is_leaf=lambda x: hasattr(x, "eqns")):
            program = getattr(leaf, "jaxpr", leaf)
            total += _size(program) if hasattr(program, "eqns") else 0
    return total


def test_a_kind_more_adds_little_to_the_program():
    """Breaks when every kind is discretised and composed by operations of its own."""
    steps = [
        jaxdp.PoissonSampled(jaxdp.Gaussian(1.0), 0.01),
        jaxdp.PoissonSampled(jaxdp.Laplace(1.0), 0.01),
        jaxdp.RandomizedResponse(0.1),
    ]
    two, three = (
        _size(
            jax.make_jaxpr(lambda m: jaxdp.epsilon_bounds(m, 1e-5, direction="remove"))(
                jaxdp.Composed(steps[:k])
            )
        )
        for k in (2, 3)
    )
    assert three < 1.2 * two


@pytest.mark.slow
def test_the_order_of_kinds_does_not_matter():
    """Breaks when what one kind needs, an end of its losses or a cut, is that of another."""
    sigma, count = np.array([0.8, 2.0]), np.array([3.0, 500.0])
    kinds = [
        jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(sigma), 0.02), count),
        jaxdp.ApproximateDP(0.4, np.array([1e-7, 1e-9])),
        jaxdp.Repeated(jaxdp.Laplace(np.array([4.0, 30.0])), 5.0),
    ]
    found = [
        jaxdp.epsilon_bounds(jaxdp.Composed([kinds[i] for i in order]), 1e-6, direction="remove")
        for order in ((0, 1, 2), (2, 0, 1))
    ]
    (low, high), (other_low, other_high) = (np.asarray(x) for x in found)
    assert np.all(np.maximum(low, other_low) <= np.minimum(high, other_high))
    assert np.all(high - low < 2e-3 * high)
    np.testing.assert_allclose(high, other_high, rtol=1e-4)
    np.testing.assert_allclose(low, other_low, rtol=1e-3)
