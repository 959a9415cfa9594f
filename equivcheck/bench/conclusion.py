"""What a run comes to, in an exit code and a sentence."""

from __future__ import annotations

from equivcheck.bench.medians import Quantity, ratio, spread
from equivcheck.bench.result import Document
from equivcheck.verdict import Status

MEASURED, WRONG, CANNOT_TELL = 0, 1, 2
_WRONG = (Status.FAILED, Status.KNOWN, Status.CRASHED, Status.TIMEOUT)


def conclude(document: Document) -> tuple[int, str]:
    """WRONG where a kernel was, or the two disagree; COULD NOT TELL where nothing was measured."""
    rows = document.rows
    systems = [system for row in rows for system in (row.subject, row.witness) if system is not None]
    wrong = sum(system.judged.status in _WRONG for system in systems)
    apart = sum(row.agreement is not None and not row.agreement.within for row in rows)
    if wrong or apart:
        return WRONG, f"WRONG: {wrong} judgements, and {apart} disagreements at full size."
    measured = sum(row.subject.measured is not None for row in rows)
    if not measured:
        return CANNOT_TELL, "COULD NOT TELL: nothing was measured."
    sentence = f"MEASURED: {measured} of {len(rows) + len(document.left_out)} points."
    parts = []
    for quantity in (Quantity.FORWARD, Quantity.BACKWARD, Quantity.STEP):
        found = spread(ratio(row, quantity) for row in rows)
        if found is not None:
            parts.append(f"{quantity} {found.median:.2f} ({found.least:.2f} to {found.largest:.2f})")
    if parts:
        sentence += f" {document.subject} is as fast as {document.witness} times: {', '.join(parts)}."
    return MEASURED, sentence
