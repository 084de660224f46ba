"""jax_privacy's batch selection: every strategy has a run or a reason, and the table in docs/."""

import importlib
import importlib.util
import pathlib
import sys
import types

import pytest

pytest.importorskip("dp_accounting")

import jaxdp
from jaxdp import interop

pytestmark = pytest.mark.extra
PAGE = pathlib.Path(__file__).parents[1] / "docs" / "guides" / "jax-privacy-samplers.md"
STEP = jaxdp.Gaussian(2.0)


def _strategy(name, **fields):
    """Of jax_privacy's class name and fields (its own classes where it is installed)."""
    return type(name, (types.SimpleNamespace,), {})(**fields)


CYCLIC = {"sampling_prob": 0.1, "iterations": 40, "cycle_length": 1, "truncated_batch_size": None}
FIXED = {"batch_size": 20, "iterations": 40}
SEPARATED = {"iterations": 40, "min_sep": 4, "truncated_batch_size": None, "warm_start": True}
N, REPLACED = {"num_examples": 100}, {"num_examples": 100, "neighbours": "replace-one"}
# name of the row of their table; what they account for DP-SGD by; class and fields; ours by what
ROWS = [
    ("Poisson sampling", "PLD", "CyclicPoissonSampling", CYCLIC, {}, "exact"),
    (
        "Cyclic Poisson (BandMF)",
        "PLD",
        "CyclicPoissonSampling",
        CYCLIC | {"cycle_length": 4},
        {},
        "exact",
    ),
    (
        "Truncated Poisson",
        "PLD, of a larger pair",
        "CyclicPoissonSampling",
        CYCLIC | {"truncated_batch_size": 15},
        N,
        "from above",
    ),
    (
        "Truncated cyclic Poisson (BandMF)",
        "PLD, of a larger pair",
        "CyclicPoissonSampling",
        CYCLIC | {"cycle_length": 4, "truncated_batch_size": 5},
        N | {"neighbours": "replace-special"},
        "from above",
    ),
    (
        "Fixed-order + multi-epoch",
        "PLD",
        "CyclicPoissonSampling",
        CYCLIC | {"sampling_prob": 1.0, "cycle_length": 10},
        {},
        "exact",
    ),
    (
        "Fixed-size (with replacement)",
        "none",
        "FixedBatchSampling",
        FIXED | {"replace": True},
        REPLACED,
        "from above",
    ),
    (
        "Fixed-size (without replacement)",
        "RDP, replace-one alone",
        "FixedBatchSampling",
        FIXED | {"replace": False},
        REPLACED,
        "from above",
    ),
    (
        "Balls-in-bins",
        "Monte Carlo",
        "BallsInBinsSampling",
        {"iterations": 40, "cycle_length": 10},
        {},
        "exact",
    ),
    (
        "Random allocation",
        "none",
        "RandomAllocationSampling",
        {"iterations": 40, "total_participations": 1},
        {},
        "exact",
    ),
    (
        "Random allocation, k = 4",
        "none",
        "RandomAllocationSampling",
        {"iterations": 40, "total_participations": 4},
        {},
        "from above",
    ),
    (
        "b-min-sep (b > 1)",
        "Monte Carlo",
        "BMinSepSampling",
        SEPARATED | {"sampling_prob": 0.5},
        {},
        "from above",
    ),
    (
        "User-level wrapper",
        "of the base strategy",
        "UserSelectionStrategy",
        {"base_strategy": _strategy("CyclicPoissonSampling", **CYCLIC)},
        {},
        "of the base strategy",
    ),
]
REST = [
    (
        "Shuffling",
        "none",
        "no amplification is proved: a Gaussian of twice the sensitivity an epoch, replace-one",
    ),
    ("Multi-owner b-min-sep", "none", "none"),
]


def _table():
    lines = ["| strategy | theirs, for DP-SGD | ours | which is |", "|---|---|---|---|"]
    for name, theirs, kind, fields, options, how in ROWS:
        run = interop.from_batch_selection(_strategy(kind, **fields), STEP, **options)
        lines.append(f"| {name} | {theirs} | `{run!r}` | {how} |")
    lines += [f"| {name} | {theirs} | {ours} | from above |" for name, theirs, ours in REST[:1]]
    lines += [f"| {name} | {theirs} | {ours} | |" for name, theirs, ours in REST[1:]]
    return "\n".join(lines)


def test_the_page_has_the_table():
    """Breaks when a strategy's run changes: the page is then to have what this test found."""
    assert _table() in PAGE.read_text()


def test_runs_of_the_strategies():
    found = {
        name: interop.from_batch_selection(_strategy(kind, **fields), STEP, **options)
        for name, _, kind, fields, options, _ in ROWS
    }
    poisson = jaxdp.PoissonSampled(STEP, 0.1)
    assert found["Poisson sampling"] == jaxdp.Repeated(poisson, 40) == found["User-level wrapper"]
    assert found["Cyclic Poisson (BandMF)"] == jaxdp.Repeated(poisson, 10)
    cut = jaxdp.TruncatedPoissonSampled(STEP, 0.1, 15, 100)
    assert found["Truncated Poisson"] == jaxdp.Repeated(cut, 40)
    assert found["Fixed-order + multi-epoch"] == jaxdp.Repeated(STEP, 4)
    assert found["Balls-in-bins"].num_steps == 10
    assert found["Random allocation, k = 4"].num_selected == 4
    batch = jaxdp.fixed_size_sampled(STEP, 20, 100, neighbours="replace-one")
    assert found["Fixed-size (without replacement)"] == jaxdp.Repeated(batch, 40)
    poisson = interop.from_batch_selection(
        _strategy("CyclicPoissonSampling", **CYCLIC), STEP, neighbours="replace-one"
    )
    assert poisson == jaxdp.Repeated(jaxdp.PoissonSampledReplaceOne(STEP, 0.1), 40)
    cut = _strategy(
        "CyclicPoissonSampling", **CYCLIC | {"cycle_length": 4, "truncated_batch_size": 5}
    )
    step = jaxdp.TruncatedPoissonSampled(STEP, 0.1, 5, 25, zero_out=True)
    assert found["Truncated cyclic Poisson (BandMF)"] == jaxdp.Repeated(step, 10)
    replaced = interop.from_batch_selection(cut, STEP, **REPLACED)
    assert replaced == jaxdp.Repeated(jaxdp.replace_one(step), 10)
    cut.sampling_prob = 1.0
    fixed = interop.from_batch_selection(cut, STEP, num_examples=100, neighbours="replace-special")
    assert fixed == jaxdp.Repeated(jaxdp.fixed_size_sampled(STEP, 5, 25), 10)
    bins = _strategy("BallsInBinsSampling", iterations=40, cycle_length=10)
    zeroed = interop.from_batch_selection(bins, STEP, neighbours="replace-special")
    assert zeroed == found["Balls-in-bins"]


@pytest.mark.parametrize(
    ("strategy", "options", "problem"),
    [
        (_strategy("MultiOwnerMinSepSampling"), {}, "no run"),
        (
            _strategy("CyclicPoissonSampling", **CYCLIC | {"truncated_batch_size": 9}),
            {},
            "num_examples",
        ),
        (
            _strategy(
                "CyclicPoissonSampling", **CYCLIC | {"truncated_batch_size": 9, "cycle_length": 2}
            ),
            N,
            "truncated",
        ),
        (
            _strategy(
                "CyclicPoissonSampling",
                **CYCLIC | {"truncated_batch_size": 9, "cycle_length": 2},
                partition_type=types.SimpleNamespace(name="INDEPENDENT"),
            ),
            N | {"neighbours": "replace-special"},
            "equal split",
        ),
        (
            _strategy(
                "BMinSepSampling",
                **SEPARATED | {"sampling_prob": 0.5, "truncated_batch_size": 9},
            ),
            N,
            "truncated",
        ),
        (
            _strategy("BallsInBinsSampling", iterations=4, cycle_length=2),
            {"neighbours": "replace-one"},
            "neighbours",
        ),
    ],
)
def test_what_has_no_run_says_why(strategy, options, problem):
    with pytest.raises(ValueError, match=problem):
        interop.from_batch_selection(strategy, STEP, **options)


def test_their_own_classes():
    """Breaks when a field of a released version has another name."""
    theirs = pytest.importorskip("jax_privacy.batch_selection")
    cyclic = theirs.CyclicPoissonSampling(sampling_prob=0.1, iterations=8, cycle_length=2)
    run = interop.from_batch_selection(cyclic, STEP)
    assert run == jaxdp.Repeated(jaxdp.PoissonSampled(STEP, 0.1), 4)
    bins = theirs.BallsInBinsSampling(iterations=8, cycle_length=4)
    assert interop.from_batch_selection(bins, STEP).num_steps == 4
    fixed = theirs.FixedBatchSampling(batch_size=5, iterations=8)
    assert interop.from_batch_selection(fixed, STEP, num_examples=50).count == 8
    separated = theirs.BMinSepSampling(sampling_prob=0.5, iterations=8, min_sep=4)
    assert interop.from_batch_selection(separated, STEP).num_epochs == 2
    users = theirs.UserSelectionStrategy(cyclic)
    assert interop.from_batch_selection(users, STEP) == run


@pytest.fixture
def opacus_registry(monkeypatch):
    """Released accountants of opacus; where torch is absent, without the rest of the package."""
    spec = importlib.util.find_spec("opacus")
    if spec is None:
        pytest.skip("opacus is not installed")
    if importlib.util.find_spec("torch") is None:
        package, optimizers = types.ModuleType("opacus"), types.ModuleType("opacus.optimizers")
        package.__path__, package.__spec__ = list(spec.submodule_search_locations), spec
        optimizers.DPOptimizer = object
        for module in (package, optimizers):
            monkeypatch.setitem(sys.modules, module.__name__, module)
    return importlib.import_module("opacus.accountants.registry")


def test_opacus_runs_on_ours(opacus_registry):
    """Breaks when opacus asks for more than the accountant gives, or loses its history."""
    registry = opacus_registry
    registry.register_accountant("jaxdp", interop.OpacusAccountant, force=True)
    accountant = registry.create_accountant("jaxdp")
    assert accountant.get_epsilon(delta=1e-5) == 0.0
    accountant.history = [(1.0, 0.01, 999)]
    accountant.step(noise_multiplier=1.0, sample_rate=0.01)
    assert accountant.history == [(1.0, 0.01, 1000)]
    found = accountant.get_epsilon(delta=1e-5)
    assert 1.828237 <= found < 1.829  # the truth is 1.828237
    other = registry.create_accountant("jaxdp")
    other.load_state_dict(accountant.state_dict())
    assert other.get_epsilon(delta=1e-5) == found
    accountant.step(noise_multiplier=0.0, sample_rate=0.01)
    assert accountant.get_epsilon(delta=1e-5) == float("inf")


@pytest.mark.filterwarnings("ignore:Optimal order:UserWarning")  # of opacus's first guess
def test_opacus_calibrates_on_ours(opacus_registry):
    """Breaks when its `get_noise_multiplier`, as the migration guide has it, finds more noise."""
    utils = importlib.import_module("opacus.accountants.utils")
    opacus_registry.register_accountant("jaxdp", interop.OpacusAccountant, force=True)
    settings = {"target_epsilon": 3.0, "target_delta": 1e-5, "sample_rate": 0.05, "epochs": 3}
    ours = utils.get_noise_multiplier(**settings, accountant="jaxdp")
    step = jaxdp.PoissonSampled(jaxdp.Gaussian(ours), 0.05)
    assert 2.98 < jaxdp.epsilon(jaxdp.Repeated(step, 60), 1e-5) < 3.001
    assert ours <= utils.get_noise_multiplier(**settings, accountant="prv") + 1e-3
