"""Run every fault in this process, and print what was found as JSON: `python -m simulated_device.trial`.

The registration cannot be undone, so the tests leave it to one process; the faults are switched one after the other.
"""

import json
from typing import Any

import torch
from msgspec.structs import replace

from equivcheck import runner
from equivcheck.backends import torch_embedding_bag
from equivcheck.backends.handshake import handshake
from equivcheck.backends.torch_operators import Evidence, parts
from equivcheck.backends.torch_probe import probe
from equivcheck.case import (
    Bag,
    Case,
    Feature,
    Lookup,
    Optimizer,
    OptimizerKind,
    PerSampleWeights,
    Pooling,
    Regime,
    Values,
)
from equivcheck.formats import DType

from . import NAME
from .faults import SETTINGS, Fault, Pace

_FEATURES = (Feature(rows=5, dim=4, bags=(Bag((Lookup(0, 2), Lookup(3))), Bag(), Bag((Lookup(4),)))),)
_BASE = Case(
    features=_FEATURES,
    weight_values=Values(Regime.UNIFORM),
    gradient_values=Values(Regime.UNIFORM),
    per_sample_weights=PerSampleWeights(gradient=True),
)
_ADAGRAD = Optimizer(OptimizerKind.ADAGRAD, eps=0.125)

CASES = {
    "sum": _BASE,
    "mean": replace(_BASE, pooling=Pooling.MEAN, optimizer=_ADAGRAD),
    "none": replace(_BASE, pooling=Pooling.NONE, weights=DType.BF16, output=DType.FP16),
    "double": replace(_BASE, accumulation=DType.FP64, optimizer=_ADAGRAD),
}


def main() -> None:
    """Every fault on every case, and the right device at both paces."""
    torch.set_num_threads(1)
    device = torch.empty(0, device=NAME).device
    found: dict[str, Any] = {}
    for fault, pace in ((Fault.NONE, Pace.LATE), *((fault, Pace.AT_ONCE) for fault in Fault)):
        SETTINGS.fault, SETTINGS.pace = fault, pace
        handshake.cache_clear()
        needed = tuple(dict.fromkeys(part for case in CASES.values() for part in parts(case)))
        evidence = Evidence(NAME, probe(device, needed))
        setattr(torch_embedding_bag, "evidence", lambda _, known=evidence: known)  # noqa: B010  # no other process
        subject = runner.Subject(f"torch:{NAME}", torch_embedding_bag.TorchEmbeddingBag(NAME))
        found[f"{fault.name} {pace.name}"] = {name: _run(case, subject) for name, case in CASES.items()}
    print(json.dumps(found))


def _run(case: Case, subject: runner.Subject) -> dict[str, Any]:
    done = runner.run(case, subject)
    transfers = None if done.outcome is None else done.outcome.transfers
    return {
        "status": done.verdict.status.value,
        "reason": done.verdict.reason,
        "symptoms": [d.symptom.value for d in done.verdict.discrepancies],
        "details": [f"{d.where}: {d.detail}" for d in done.verdict.discrepancies],
        "copies": 0 if transfers is None else transfers.copies,
        "to_device_bytes": 0 if transfers is None else transfers.to_device_bytes,
        "to_host_bytes": 0 if transfers is None else transfers.to_host_bytes,
    }


if __name__ == "__main__":
    main()
