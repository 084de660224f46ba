"""Calibration at scale and accounting in loops: one table, ours beside dp_accounting.

    python -m benchmarks.run [--quick | --scale S] [--only NAME ...] [--output FILE.md]

Needs the extras `interop` and, for the training step, `examples`. Every result is checked from the
safe side before its time is written down. The table goes to benchmarks/results/ by default.
"""

import argparse
import datetime
import importlib.util
import pathlib
import platform
import resource
import time
from collections.abc import Callable
from typing import Any

import dp_accounting as dpa
import jax
import jax.numpy as jnp
import numpy as np
import optax
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant

import calibrate
import jaxdp
from jaxdp import interop, training

ROOT = pathlib.Path(__file__).parent


def seconds(function: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0


def sgd(sigma, rate, steps):
    return jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(sigma), rate), steps)


def allocation(sigma, steps):
    return jaxdp.RandomAllocation(jaxdp.Gaussian(sigma), steps)


def at_scale(
    name: str,
    build: Callable[..., jaxdp.Mechanism],
    targets: tuple[np.ndarray, np.ndarray],
    args: tuple[np.ndarray, ...],
    chunk: int,
    peer: float | None,
    **options: Any,
) -> dict[str, Any]:
    """A batch: the first chunk compiles, the rest is timed; the peer's seconds are for one."""
    epsilon, delta = targets
    count, devices = len(epsilon), jax.local_device_count()
    first = min(chunk * devices, count)

    def run(rows):
        return calibrate.batch(
            build,
            epsilon=epsilon[:rows],
            delta=delta[:rows],
            args=tuple(a[:rows] for a in args),
            chunk=chunk,
            **options,
        )

    cold, _ = seconds(lambda: run(first))
    small = peak()
    warm, found = seconds(lambda: run(count))
    assert np.all(found.status == calibrate.Status.SOLVED), np.unique(found.status)
    assert np.all(found.delta <= delta)
    peer_all = None if peer is None else peer * count
    note = f"all certified; peak memory {small:.0f} MiB after a chunk, {peak():.0f} after all"
    return row(f"{count} x {name}", cold, warm, peer_all, note)


def row(work, cold, warm, peer, note="", ratio=None):
    ratio = ratio if ratio is not None or peer is None else f"{peer / warm:.0f}"
    return {
        "work": work,
        "ours, cold": f"{cold:.3g} s" if cold is not None else "",
        "ours, warm": f"{warm:.3g} s",
        "peer": "" if peer is None else f"{peer:.3g} s",
        "ratio": ratio or "",
        "notes": note,
    }


def gaussian(scale: float) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    count = int(1_000_000 * scale)
    epsilon, delta = 10 ** rng.uniform(-1, 1, count), 10 ** rng.uniform(-12, -3, count)
    few = range(100)
    peer, _ = seconds(lambda: [dpa.get_sigma_gaussian(epsilon[i], delta[i]) for i in few])
    targets = (epsilon, delta)
    return [at_scale("Gaussian sigma", jaxdp.Gaussian, targets, (), 16384, peer / len(few))]


def event(noise: float) -> dp_event.DpEvent:
    gaussian = dp_event.GaussianDpEvent(noise)
    return dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(0.01, gaussian), 1000)


def peer_calibration(make: Callable[[], Any], epsilon: float) -> float:
    bracket = dpa.ExplicitBracketInterval(0.3, 10.0)
    return dpa.calibrate_dp_mechanism(make, event, epsilon, 1e-5, bracket)


def dp_sgd(scale: float) -> list[dict[str, Any]]:
    rng = np.random.default_rng(1)
    count = int(10_000 * scale)
    targets = 10 ** rng.uniform(-0.3, 0.9, count), 10 ** rng.uniform(-9, -5, count)
    args = 10 ** rng.uniform(-3, -1.3, count), np.floor(10 ** rng.uniform(2, 4, count))
    peer, _ = seconds(lambda: peer_calibration(PLDAccountant, 3.0))
    name = "DP-SGD sigma, numerical (peer: one of them, PLD)"
    return [at_scale(name, sgd, targets, args, 8, peer, method=jaxdp.Numerical())]


def random_allocation(scale: float) -> list[dict[str, Any]]:
    rng = np.random.default_rng(2)
    count = int(1000 * scale)
    targets = 10 ** rng.uniform(-0.3, 0.6, count), 10 ** rng.uniform(-8, -5, count)
    args = (np.floor(10 ** rng.uniform(1, 4, count)),)
    bracket = {"bracket": (0.2, 50.0), "method": jaxdp.Numerical()}
    return [at_scale("random-allocation sigma", allocation, targets, args, 8, None, **bracket)]


def calibration_by_their_tool(scale: float) -> list[dict[str, Any]]:
    rows = []
    for epsilon in (3.0,) if scale < 0.1 else (1.0, 3.0, 8.0):
        cold, _ = seconds(lambda e=epsilon: peer_calibration(interop.Accountant, e))
        warm, ours = seconds(lambda e=epsilon: peer_calibration(interop.Accountant, e))
        peer, theirs = seconds(lambda e=epsilon: peer_calibration(PLDAccountant, e))
        gap = f"sigma {ours:.6f} and {theirs:.6f}: {ours / theirs - 1:+.1e}"
        work = f"calibrate_dp_mechanism, DP-SGD (0.01, 1000), epsilon {epsilon:g}"
        rows.append(row(work, cold, warm, peer, gap))
    return rows


def training_step(scale: float) -> list[dict[str, Any]]:
    """The digits example's epoch with and without `track_privacy`, epsilon once an epoch."""
    spec = importlib.util.spec_from_file_location(
        "train_dp_sgd", ROOT.parent / "examples/train_dp_sgd.py"
    )
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    images, labels = (jnp.asarray(x) for x in example.data()[0])
    inner = optax.chain(
        optax.contrib.differentially_private_aggregate(1.0, 1.1, key=1), optax.sgd(0.5)
    )
    rate = 1.0 / example.BATCHES
    changing = optax.cosine_decay_schedule(1.5, 20 * example.BATCHES, 0.5)
    optimisers = {
        "plain": inner,
        "constant sigma": training.track_privacy(
            inner, noise_multiplier=1.1, sampling_probability=rate, batches="poisson"
        ),
        "sigma new at every step": training.track_privacy(
            inner, noise_multiplier=changing, sampling_probability=rate, batches="poisson"
        ),
    }

    def loss(params, image, label):
        scores = example.logits(params, image)
        return optax.softmax_cross_entropy_with_integer_labels(scores, label)

    def epoch_of(optimiser, tracked):
        @jax.jit
        def epoch(params, state, key):
            joined = example.members(key, "poisson", len(labels))
            batches = example.padded_batches(joined, 121)

            def body(carry, batch):
                params, state = carry
                index, _ = batch
                gradients = jax.vmap(jax.grad(loss), (None, 0, 0))(
                    params, images[index], labels[index]
                )
                updates, state = optimiser.update(gradients, state, params)
                return (optax.apply_updates(params, updates), state), None

            (params, state), _ = jax.lax.scan(body, (params, state), batches)
            spent = training.epsilon(training.accountant_of(state), 1e-5) if tracked else 0.0
            return params, state, spent

        return epoch

    epochs = {name: epoch_of(o, name != "plain") for name, o in optimisers.items()}
    carries, times = {}, {name: [] for name in epochs}
    for name, epoch in epochs.items():
        params = example.initial(jax.random.key(0))
        carries[name] = epoch(params, optimisers[name].init(params), jax.random.key(1))[:2]
    for key in jax.random.split(jax.random.key(2), 10 if scale < 0.1 else 100):
        for name, epoch in epochs.items():  # taken in turn, so that other load falls on all
            took, out = seconds(
                lambda e=epoch, n=name, k=key: jax.block_until_ready(e(*carries[n], k))
            )
            carries[name] = out[:2]
            times[name].append(took)
    steps = example.BATCHES
    base = np.median(times["plain"])
    return [
        row(
            f"digits DP-SGD step, {name}",
            None,
            np.median(times[name]) / steps,
            base / steps,
            f"{100 * (np.median(times[name]) / base - 1):+.1f}% over the plain step (peer)",
            ratio="",
        )
        for name in epochs
        if name != "plain"
    ]


JOBS = {
    "gaussian": gaussian,
    "interop": calibration_by_their_tool,
    "training": training_step,
    "sgd": dp_sgd,
    "allocation": random_allocation,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="shrink the batches by this")
    parser.add_argument("--quick", action="store_true", help="the same as --scale 0.01")
    parser.add_argument("--only", nargs="*", choices=JOBS, default=list(JOBS))
    parser.add_argument("--output", type=pathlib.Path)
    options = parser.parse_args()
    backend = jax.default_backend()
    today = datetime.date.today().isoformat()
    output = options.output or ROOT / "results" / f"{today}-{backend}-scale.md"
    kind = jax.devices()[0].device_kind
    device = f"{jax.local_device_count()} x {kind} ({platform.machine()})"
    rows: list[dict[str, Any]] = []
    for name in options.only:
        with jax.enable_x64(name != "training"):
            rows += JOBS[name](0.01 if options.quick else options.scale)
        print(rows[-1], flush=True)
        write(output, rows, device)
    print(output.read_text(encoding="utf-8"))


def write(output: pathlib.Path, rows: list[dict[str, Any]], device: str) -> None:
    """The table so far."""
    names = list(rows[0])
    lines = [
        f"# {datetime.date.today().isoformat()}, {device}, jax {jax.__version__}",
        "",
        "`python -m benchmarks.run`; peer: dp_accounting 0.6, the time of one target times all.",
        "",
        "| " + " | ".join(names) + " |",
        "|" + "---|" * len(names),
        *("| " + " | ".join(str(r[n]) for n in names) + " |" for r in rows),
    ]
    output.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
