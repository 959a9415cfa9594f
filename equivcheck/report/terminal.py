"""The summary of a run as text: a table of properties and subjects, and what the run as a whole says."""

from __future__ import annotations

import io
from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from equivcheck.engine.show import number, shares
from equivcheck.report.summary import Row, Summary
from equivcheck.verdict import Status

_MOST_REASONS = 6


def as_text(summary: Summary, width: int) -> list[str]:
    """The summary in plain lines of at most `width` columns."""
    text = io.StringIO()
    console = Console(file=text, width=max(width, 80), color_system=None, highlight=False)
    for part in parts(summary):
        console.print(part)
    return [line.rstrip() for line in text.getvalue().splitlines()]


def parts(summary: Summary) -> Iterator[RenderableType]:
    """What is printed, in order."""
    if not summary.rows:
        return
    yield _table(list(summary.rows.values()))
    for subject, counts in summary.by_subject():
        if counts.unsupported:
            yield Text(f"{subject} refused {sum(counts.unsupported.values()):,} cases: {_most(counts.unsupported)}")
    total = summary.total
    for name, share in sorted(total.shares.items()):
        yield Text(f"{name}: {share.hits:,} of {share.of:,} ({shares(share.hits, share.of)})")
    if total.findings:
        yield Text(f"findings met: {_most(total.findings)}")
    for replayed in summary.replayed:
        if replayed.result != "same":
            yield Text(f"finding {replayed.finding} on {replayed.subject}: {replayed.message}")
    for told in summary.earlier:
        yield Text(f"an earlier run ended at a case ({told.status}), now saved: {told.replay}")
    if summary.collected is not None:
        for name, reason in summary.collected.absent.items():
            yield Text(f"not here: {name}: {reason}")
    for problem in summary.problems:
        yield Text(problem)


def _table(rows: list[Row]) -> Table:
    statuses = [s for s in Status if any(row.counts.statuses.get(s, 0) for row in rows)]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("property", "subject"):
        table.add_column(name, no_wrap=True)
    table.add_column("cases", justify="right")
    for status in statuses:
        table.add_column(status.value, justify="right")
    for name in ("trusted", "exact", "undetermined", "error/bound"):
        table.add_column(name, justify="right")
    for row in sorted(rows, key=lambda row: (row.subject, row.name)):
        counts = row.counts.sums
        table.add_row(
            row.name,
            row.subject,
            f"{row.counts.judged:,}",
            *(f"{row.counts.statuses.get(status, 0):,}" for status in statuses),
            shares(counts.trusted, counts.judged),
            shares(counts.exact, counts.judged),
            shares(counts.undetermined, counts.judged + counts.undetermined),
            number(float(f"{counts.worst_ratio:.3g}")),
        )
    return table


def _most(counts: dict[str, int]) -> str:
    ordered = sorted(counts.items(), key=lambda pair: -pair[1])
    shown = "; ".join(f"{name.rstrip('.')} ({count:,})" for name, count in ordered[:_MOST_REASONS])
    rest = len(ordered) - _MOST_REASONS
    return shown + (f"; and {rest} more reasons" if rest > 0 else "")
