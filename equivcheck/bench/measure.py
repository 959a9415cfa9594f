"""One system at one point: built, filled, compared, timed, and taken down again."""

from __future__ import annotations

import gc
import math
from dataclasses import dataclass

import torch

from equivcheck.backends.driver import Pending
from equivcheck.backends.timed import Prepared, Timed
from equivcheck.bench import traffic
from equivcheck.bench.agreement import LARGEST_WEIGHT, Results
from equivcheck.bench.clock import Clock, Procedure
from equivcheck.bench.inputs import Batch, Inputs
from equivcheck.bench.point import Point, Setting, table_bytes, tables_of
from equivcheck.bench.result import Measured, Phase

QUANTITY_SECONDS = 0.025
"""For each time that is measured: a hundred repetitions of what takes 100 us and as long for flushing the cache."""
_SEED = 20_240_229


class NotFinite(RuntimeError):
    """Tables did not stay finite while they were measured, so what was measured is no training step."""


@dataclass
class _Trial:
    """A system with the inputs of a point. The batch that it looks up is overwritten for each repetition."""

    prepared: Prepared
    inputs: Inputs
    batch: Batch
    pending: Pending | None = None

    def load(self, repetition: int) -> None:
        self.batch.copy_from(self.inputs.batches[repetition % len(self.inputs.batches)])

    def forward(self) -> None:
        """The last one is forgotten first: autograd would go on using the stream on which it ran."""
        batch = self.batch
        self.pending = None
        self.pending = self.prepared.forward(batch.indices, batch.offsets, batch.per_sample_weights)

    def backward(self, *, retain: bool = True) -> None:
        """Retained, so that the tensors that a captured backward reads stay where they are."""
        if self.pending is None:
            raise AssertionError("a backward came before its forward")
        self.pending.backward(self.inputs.gradient, retain=retain)

    def both(self) -> None:
        self.forward()
        self.backward(retain=False)


def measure(
    backend: Timed, point: Point, setting: Setting, inputs: Inputs, clock: Clock, bandwidth: float
) -> tuple[Measured, Results]:
    """Times of a system, and its results for the first batch.

    Parameters
    ----------
    bandwidth
        Bytes a second of a copy, for the shares of it.

    Raises
    ------
    NotFinite
        See there.
    RuntimeError
        Whatever the system raises: out of memory, no kernel for a shape.
    """
    prepared = backend.prepare(tables_of(point, setting))
    with torch.no_grad():
        for number, table in enumerate(prepared.tables):
            generator = torch.Generator(prepared.device).manual_seed(_SEED + number)
            table.uniform_(-LARGEST_WEIGHT, LARGEST_WEIGHT, generator=generator)
    first = inputs.batches[0]
    weights = None if first.per_sample_weights is None else first.per_sample_weights.clone()
    trial = _Trial(prepared, inputs, Batch(first.indices.clone(), first.offsets.clone(), weights))
    results = _results(trial)
    peak = _peak(trial)
    moved = traffic.forward(point, setting, inputs.counts), traffic.backward(point, setting, inputs.counts)
    measured = Measured(
        forward=_phase(clock, Procedure(trial.forward, trial.load), moved[0], bandwidth),
        backward=_phase(clock, Procedure(trial.backward, trial.load, trial.forward), moved[1], bandwidth),
        both=_phase(clock, Procedure(trial.both, trial.load), moved[0] + moved[1], bandwidth),
        step=clock.step_times(Procedure(trial.both, trial.load), QUANTITY_SECONDS),
        table_bytes=table_bytes(point, setting),
        peak_bytes=peak,
    )
    trial.forward()
    if trial.pending is None or not bool(trial.pending.output.isfinite().all()):
        raise NotFinite("outputs are no longer finite after the measurement; report it, the rate is too large")
    return measured, results


def release(device: torch.device) -> None:
    """Give memory back that the last system held, cycles of autograd included."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _results(trial: _Trial) -> Results:
    trial.load(0)
    trial.forward()
    if trial.pending is None:
        raise AssertionError("a forward left nothing")
    output = trial.pending.output.detach().clone()
    trial.backward(retain=False)
    rows = tuple(table[named].clone() for table, named in zip(trial.prepared.tables, trial.inputs.touched, strict=True))
    trial.pending = None
    return Results(output, rows)


def _peak(trial: _Trial) -> int:
    """Bytes that a step holds beside what is there before it."""
    device = trial.prepared.device
    if device.type != "cuda":
        return 0
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    trial.both()
    torch.cuda.synchronize(device)
    trial.pending = None
    return int(torch.cuda.max_memory_allocated(device) - before)


def _phase(clock: Clock, procedure: Procedure, moved: traffic.Bytes, bandwidth: float) -> Phase:
    device, method, reason = clock.device_times(procedure, QUANTITY_SECONDS)
    seconds = device.median / 1e6
    return Phase(
        device=device,
        method=method,
        reason=reason,
        launched=clock.launched_times(procedure, QUANTITY_SECONDS),
        host=clock.host_times(procedure, QUANTITY_SECONDS / 2),
        fewest_bytes=moved.fewest,
        bytes_by_lookups=moved.by_lookups,
        share=moved.fewest / seconds / bandwidth if seconds > 0 else math.nan,
    )
