"""Ratios of a run, and their medians by class. A ratio is the witness's time over the subject's."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from equivcheck.bench.point import Kind
from equivcheck.bench.result import Document, Measured, Row


class Quantity(enum.StrEnum):
    """What is compared: device times of the phases, and the host's time of a step."""

    FORWARD = "forward"
    BACKWARD = "backward"
    BOTH = "both"
    STEP = "step"

    def time(self, measured: Measured) -> float:
        """Median, in microseconds."""
        if self is Quantity.STEP:
            return measured.step.median
        phase = {Quantity.FORWARD: measured.forward, Quantity.BACKWARD: measured.backward}.get(self, measured.both)
        return phase.device.median


@dataclass(frozen=True)
class Spread:
    """Median, least and largest of so many numbers."""

    median: float
    least: float
    largest: float
    count: int


def ratio(row: Row, quantity: Quantity) -> float | None:
    """The witness's time over the subject's, where both were measured."""
    if row.subject.measured is None or row.witness is None or row.witness.measured is None:
        return None
    return quantity.time(row.witness.measured) / quantity.time(row.subject.measured)


def spread(values: Iterable[float | None]) -> Spread | None:
    """Of the numbers that there are; None where there are none."""
    there = [value for value in values if value is not None]
    return Spread(median(there), min(there), max(there), len(there)) if there else None


def classes(document: Document) -> dict[Kind, tuple[Row, ...]]:
    """Rows by class, in the order of `Kind`."""
    found = {kind: tuple(row for row in document.rows if row.point.kind is kind) for kind in Kind}
    return {kind: rows for kind, rows in found.items() if rows}
