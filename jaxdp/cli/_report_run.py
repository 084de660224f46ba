"""The run that `jaxdp report` is about, from its settings and in words."""

import dataclasses
from typing import Any

import jaxdp
from jaxdp import _builders
from jaxdp.cli._display import InputError

SIZES = ("num_examples", "batch_size", "epochs", "max_batch_size", "min_separation")
NEIGHBOURS = {
    "add-or-remove": "one record is added or removed (the worse of both directions is reported)",
    "replace-one": "one record is replaced by another",
    "replace-special": "one record is replaced by one that is drawn like it and has no gradient",
}
SAMPLERS = {
    "poisson": "Poisson: every record joins every batch independently, with the same probability",
    "truncated poisson": "truncated Poisson: every record joins every batch independently, with "
    "the same probability; of more than there is room for some are dropped at random",
    "cyclic poisson": "cyclic Poisson: groups of records, made by a public rule, take turns; the "
    "records of the group join the batch independently, with the same probability",
    "b-min-sep": "separated: a record that was in none of the last batches joins the next one, "
    "independently of the others, with the same probability",
    "random allocation": "random allocation (balls and bins): in every epoch every record joins "
    "one step, chosen uniformly and independently of the others",
    "fixed size": "fixed size: every batch is drawn afresh, without replacement",
    "with replacement": "with replacement: every batch is drawn afresh, with replacement",
    "public order": "public order: in every epoch a record joins one step, by a rule that looks at "
    "no other record and may be known",
    "full batch": "full batch: every step sees all records",
    "shuffled": "shuffled: in every epoch all records in a new random order, cut into batches",
}


@dataclasses.dataclass(frozen=True)
class Run:
    """What is accounted for, what such batches attain, how they were drawn, and what is proved."""

    mechanism: jaxdp.Mechanism
    attained: jaxdp.Mechanism
    sampling: str
    guarantee: str


def described(numbers: dict[str, Any], batches: str, neighbours: str) -> Run:
    """The run that the checked settings describe."""
    sigma = numbers["sigma"]
    if sigma is None:
        raise InputError("the report needs sigma, the noise multiplier (--sigma)")
    rate, steps = numbers["sampling_probability"], numbers["num_steps"]
    examples, size, epochs = sizes = [numbers[key] for key in SIZES[:3]]
    if rate is None and steps is None:
        if None in sizes:
            raise InputError(
                "give num_examples, batch_size and epochs, or sampling_probability and num_steps"
            )
        room, separation = numbers["max_batch_size"], numbers["min_separation"]
        try:
            training = _builders.training(
                examples, size, epochs, batches, neighbours, room, separation
            )
            run, attained = training.mechanism(sigma), training.attained(sigma)
        except (TypeError, ValueError) as error:
            raise InputError(str(error)) from None
        described = f"{examples:g} records, batches of {size:g}, {epochs:g} epochs"
        return Run(run, attained, described, training.guarantee)
    if rate is None or steps is None or any(x is not None for x in sizes[1:]):
        raise InputError(
            "give sampling_probability with num_steps, or num_examples, batch_size and epochs"
        )
    if (batches, neighbours) != ("poisson", "add-or-remove"):
        raise InputError(
            "other batches than poisson, and other neighbours, are described by num_examples, "
            "batch_size and epochs"
        )
    if rate > 1.0 or steps != int(steps):
        raise InputError("sampling_probability must be in (0, 1], num_steps an integer")
    step = jaxdp.PoissonSampled(jaxdp.Gaussian(sigma), rate) if rate < 1 else jaxdp.Gaussian(sigma)
    run = jaxdp.Repeated(step, int(steps))
    described = f"probability {rate:g}, {int(steps)} steps"
    return Run(run, run, described, _builders.GUARANTEES["poisson"])
