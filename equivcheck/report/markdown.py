"""A gate's result as Markdown: the job's page on GitHub, a comment, a mail."""

from __future__ import annotations

import html
import re

from equivcheck.engine.show import number, shares
from equivcheck.gate.result import Answer, Result
from equivcheck.verdict import Status

_MOST_FAILURES = 10
_MARKS = {Answer.RIGHT: "✅", Answer.WRONG: "❌", Answer.CANNOT_TELL: "⚠️"}
_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|~@$-])")


def as_markdown(result: Result) -> str:
    """The answer, why, the table of properties, failures with their replay lines, and what all of it stands on."""
    lines = [f"# {_MARKS[result.answer]} {escape(result.sentence)}", ""]
    if len(result.reasons) > 1:
        lines += [*(f"- {escape(reason)}" for reason in result.reasons), ""]
    lines += _facts(result)
    lines += _table(result)
    lines += _failures(result)
    if result.notes:
        lines += ["## Notes", "", *(f"- {escape(note)}" for note in result.notes), ""]
    pinned = (f"{escape(name)} {escape(value)}" for name, value in result.pinned.items())
    lines += ["## Pinned", "", "; ".join(pinned), ""]
    return "\n".join(lines)


def escape(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    return _SPECIAL.sub(r"\\\1", as_text(text))


def as_text(text: str) -> str:
    """Text that HTML, and Markdown with HTML in it, shows as it is, on one line."""
    return html.escape(" ".join(text.split()), quote=False)


def _facts(result: Result) -> list[str]:
    shard = ", ".join(f"{first}/{of}" for first, of in result.shards if of > 1)
    facts = [
        f"{result.judged:,} cases judged in {result.seconds:,.0f} s; {result.done:,} of {result.tests:,} tests done"
        + (f" (shard {shard})" if shard else "")
    ]
    if result.faults:
        placed = [fault for fault in result.faults if not fault.refused]
        facts.append(f"{sum(fault.caught for fault in placed)} of {len(placed)} faults that were put in were seen")
    if result.baseline is not None:
        cases = ", ".join(f"{count} {agreement}" for agreement, count in sorted(result.baseline.cases.items()))
        equal = shares(result.baseline.equal, result.baseline.elements)
        facts.append(f"baseline {result.baseline.subject} of {result.baseline.date}: {cases}; {equal} of bits equal")
    if result.coverage.line:
        facts.append(f"coverage: {result.coverage.line}")
    return [*(f"- {escape(fact)}" for fact in facts), ""]


def _table(result: Result) -> list[str]:
    if not result.properties:
        return []
    present = [status for status in Status if any(part.counts.statuses.get(status) for part in result.properties)]
    head = ["property", "slices", "cases", *present, "trusted", "exact", "error/bound"]
    lines = ["| " + " | ".join(head) + " |", "|---" + "|--:" * (len(head) - 1) + "|"]
    for part in result.properties:
        sums = part.counts.sums
        cells = [
            escape(part.name),
            f"{part.slices}/{part.planned}",
            f"{part.counts.judged:,}",
            *(f"{part.counts.statuses.get(status, 0):,}" for status in present),
            shares(sums.trusted, sums.judged),
            shares(sums.exact, sums.judged),
            number(float(f"{sums.worst_ratio:.3g}")),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]


def _failures(result: Result) -> list[str]:
    if not result.failures:
        return []
    lines = [f"## {len(result.failures)} failures", ""]
    for failure in result.failures[:_MOST_FAILURES]:
        lines += [
            f"<details><summary>{as_text(failure.source)}: {as_text(failure.symptom)}</summary>",
            "",
            _fenced(failure.text),
            "",
            "</details>",
            "",
        ]
    rest = len(result.failures) - _MOST_FAILURES
    return [*lines, *([f"{rest} more are in report.html", ""] if rest > 0 else [])]


def _fenced(text: str) -> str:
    """A block of code, whose fence is longer than any in the text."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}"
