"""Two runs of the bench, before and after. What is not comparable is refused, in a sentence that says what differs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from equivcheck.bench.medians import Quantity, spread
from equivcheck.bench.result import Document, Measured, Phase, Row


class NotComparable(ValueError):
    """Two documents measured different things. The message says which, and what to do."""


@dataclass(frozen=True)
class Compared:
    """Two documents, and the rows of each point that both measured: before and after."""

    before: Document
    after: Document
    pairs: tuple[tuple[Row, Row], ...]


_SAME: tuple[tuple[str, Callable[[Document], object]], ...] = (
    ("device", lambda document: document.provenance.device),
    ("table type", lambda document: document.setting.weights.value),
    ("output type", lambda document: document.setting.output.value),
    ("optimizer", lambda document: document.setting.optimizer.value),
    ("per-sample weights", lambda document: document.setting.weighted),
    ("bytes flushed", lambda document: document.machine.flushed_bytes),
)
"""What must be the same. Versions, commits and subjects may differ: they are what is compared."""


def compared(before: Document, after: Document) -> Compared:
    """Pairs of measured points.

    Raises
    ------
    NotComparable
        If device, types, optimizer, a point's tables, batch or distribution, or the way of measuring differ, or the
        two have no measured point in common.
    """
    for what, of in _SAME:
        if of(before) != of(after):
            raise NotComparable(
                f"the {what} is {of(before)!s} before and {of(after)!s} after; measure both on one device, with the "
                "same options"
            )
    earlier = {row.point.name: row for row in before.rows}
    pairs = []
    for row in after.rows:
        other = earlier.get(row.point.name)
        if other is None or other.subject.measured is None or row.subject.measured is None:
            continue
        _same_point(other, row)
        _same_method(row.point.name, other.subject.measured, row.subject.measured)
        pairs.append((other, row))
    if not pairs:
        raise NotComparable("no point was measured in both; measure both with the same classes and shards")
    return Compared(before, after, tuple(pairs))


def as_lines(found: Compared) -> list[str]:
    """Ratios before / after of the subject, by point and in the median; and what differs between the runs."""
    lines = [
        f"before: {_run(found.before)}",
        f"after:  {_run(found.after)}",
        f"A ratio is the time before over the time after, of the subject; {len(found.pairs)} points.",
    ]
    lines += [
        f"{name}: {before} before, {after} after"
        for name, before, after in _versions(found.before, found.after)
        if before != after
    ]
    for before, after in found.pairs:
        ratios = [f"{quantity} {_ratio(before, after, quantity):.2f}" for quantity in Quantity]
        lines.append(f"{after.point.name}: {', '.join(ratios)}")
    for quantity in Quantity:
        of_all = spread(_ratio(before, after, quantity) for before, after in found.pairs)
        if of_all is not None:
            lines.append(f"{quantity}: median {of_all.median:.2f}, {of_all.least:.2f} to {of_all.largest:.2f}")
    return lines


def _same_point(before: Row, after: Row) -> None:
    name = after.point.name
    for field in ("batch", "distribution", "ragged", "rows", "dims", "lengths"):
        first, second = getattr(before.point, field), getattr(after.point, field)
        if first != second:
            raise NotComparable(
                f"{name} has {field} {_short(first)} before and {_short(second)} after; measure both with the same "
                "limits and the same shard files"
            )


def _same_method(name: str, before: Measured, after: Measured) -> None:
    for phase in ("forward", "backward", "both"):
        first: Phase = getattr(before, phase)
        second: Phase = getattr(after, phase)
        if first.method is not second.method:
            raise NotComparable(
                f"the {phase} of {name} was measured by {first.method} before and by {second.method} after, which "
                f"are different times ({first.reason or second.reason})"
            )


def _ratio(before: Row, after: Row, quantity: Quantity) -> float:
    first, second = before.subject.measured, after.subject.measured
    if first is None or second is None:
        raise AssertionError("pairs are measured")
    return quantity.time(first) / quantity.time(second)


def _run(document: Document) -> str:
    found = document.provenance
    return f"{document.subject} at {found.commit} on {found.device}, {found.date}"


def _versions(before: Document, after: Document) -> list[tuple[str, str, str]]:
    def all_of(document: Document) -> dict[str, str]:
        found = document.provenance
        return found.versions | found.subject | {"CUDA": found.cuda, "driver": found.driver}

    first, second = all_of(before), all_of(after)
    return [(name, first.get(name, "none"), second.get(name, "none")) for name in sorted(first | second)]


def _short(value: object) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else f"{text[:57]}..."
