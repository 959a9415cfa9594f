"""What a run of the suite comes to: right, wrong, or could not tell; for people, and as JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import msgspec

from equivcheck.report.summary import Row, Summary
from equivcheck.report.terminal import as_text

RIGHT, WRONG, CANNOT_TELL = 0, 1, 2
_LOG_LINES = 40


@dataclass(frozen=True)
class Conclusion:
    """The exit code, and the sentences that explain it."""

    exit_code: int
    sentence: str
    detail: str = ""


def conclude(summary: Summary, exit_status: int, log: str) -> Conclusion:
    """What a run comes to, from its events, and pytest's exit status and output.

    A failure counts whatever happened after it. Without one, everything but a run that ended well and judged something
    is no answer.
    """
    judged = summary.total.judged
    on = ", ".join(summary.subjects)
    changed = [replayed for replayed in summary.replayed if replayed.result not in ("same", "not applicable")]
    count = len(summary.failures) + len(changed) + len(summary.problems)
    if count:
        parts = [
            f"{len(summary.failures)} failures" if summary.failures else "",
            f"{len(changed)} findings that no longer hold as recorded" if changed else "",
            f"{len(summary.problems)} properties that have shown nothing" if summary.problems else "",
        ]
        sentence = f"WRONG: {', '.join(filter(None, parts))}, in {judged:,} cases on {on}"
        return Conclusion(WRONG, sentence, "\n\n".join(summary.messages))
    broken = summary.collected.broken if summary.collected else {}
    for name, reason in broken.items():
        return Conclusion(CANNOT_TELL, f"COULD NOT TELL: {name} does not work here: {reason}")
    if exit_status not in (0, 1, 5) or (exit_status == 1 and not summary.messages):
        tail = "\n".join(log.rstrip().splitlines()[-_LOG_LINES:])
        what = f"ended with exit status {exit_status}" if exit_status >= 0 else f"was ended by signal {-exit_status}"
        return Conclusion(CANNOT_TELL, f"COULD NOT TELL: pytest {what}", tail)
    if exit_status == 1:
        return Conclusion(
            CANNOT_TELL, "COULD NOT TELL: a slice did not run as it should", "\n\n".join(summary.messages)
        )
    if not judged:
        return Conclusion(CANNOT_TELL, "COULD NOT TELL: no case was judged")
    return Conclusion(RIGHT, f"RIGHT: {judged:,} cases judged on {on}")


def show(summary: Summary, conclusion: Conclusion) -> None:
    """Print failures, the table, and the conclusion as the last line."""
    for told in summary.failures:
        print(f"{told.text}\n")
    print("\n".join(as_text(summary)))
    if conclusion.detail:
        print(f"\n{conclusion.detail}\n")
    print(conclusion.sentence)


def as_json(summary: Summary, conclusion: Conclusion) -> str:
    """The same as a JSON object."""
    result: dict[str, Any] = {
        "exit_code": conclusion.exit_code,
        "sentence": conclusion.sentence,
        "detail": conclusion.detail,
        "started": msgspec.to_builtins(summary.started),
        "collected": msgspec.to_builtins(summary.collected),
        "rows": [_row(row) for row in summary.rows.values()],
        "failures": msgspec.to_builtins(summary.failures),
        "findings": msgspec.to_builtins(summary.replayed),
        "problems": list(summary.problems),
    }
    return json.dumps(result, indent=2) + "\n"


def _row(row: Row) -> dict[str, Any]:
    return {
        "property": row.name,
        "subject": row.subject,
        "slices": row.slices,
        "skipped": row.skipped,
        "failed": row.failed,
        "seconds": row.seconds,
        "counts": msgspec.to_builtins(row.counts),
    }
