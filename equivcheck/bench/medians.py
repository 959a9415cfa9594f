"""Ratios of a run, and their medians by class. A ratio is the witness's time over the subject's."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from equivcheck.bench.point import Kind
from equivcheck.bench.result import Document, Measured, Phase, Row


class Quantity(enum.StrEnum):
    """What is compared: device times of the phases, and the host's time of a step."""

    FORWARD = "forward"
    BACKWARD = "backward"
    BOTH = "both"
    STEP = "step"

    def phase(self, measured: Measured) -> Phase | None:
        """Of the device; a step has none."""
        phases = {
            Quantity.FORWARD: measured.forward,
            Quantity.BACKWARD: measured.backward,
            Quantity.BOTH: measured.both,
        }
        return phases.get(self)

    def time(self, measured: Measured) -> float:
        """Median, in microseconds."""
        phase = self.phase(measured)
        return measured.step.median if phase is None else phase.device.median


@dataclass(frozen=True)
class Spread:
    """Median, least and largest of so many numbers."""

    median: float
    least: float
    largest: float
    count: int


def ratio(row: Row, quantity: Quantity) -> float | None:
    """The witness's time over the subject's, where both were measured.

    Where only one of them could be captured in a graph, both are taken between events: like with like.
    """
    if row.subject.measured is None or row.witness is None or row.witness.measured is None:
        return None
    subject, witness = row.subject.measured, row.witness.measured
    first, second = quantity.phase(subject), quantity.phase(witness)
    if first is not None and second is not None and first.method is not second.method:
        if first.launched is None or second.launched is None:
            return None
        return second.launched.median / first.launched.median
    return quantity.time(witness) / quantity.time(subject)


def spread(values: Iterable[float | None]) -> Spread | None:
    """Of the numbers that there are; None where there are none."""
    there = [value for value in values if value is not None]
    return Spread(median(there), min(there), max(there), len(there)) if there else None


def classes(document: Document) -> dict[Kind, tuple[Row, ...]]:
    """Rows by class, in the order of `Kind`."""
    found = {kind: tuple(row for row in document.rows if row.point.kind is kind) for kind in Kind}
    return {kind: rows for kind, rows in found.items() if rows}
