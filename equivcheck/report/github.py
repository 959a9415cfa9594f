"""Lines that GitHub Actions shows as annotations of a job."""

from __future__ import annotations

from equivcheck.gate.result import Answer, Result

_MOST = 10
"""Annotations of a kind that GitHub keeps for a step."""


def lines_of(result: Result) -> list[str]:
    """One line for each failure, and one for the answer; text is escaped, so that no name can speak to the runner."""
    lines = []
    for failure in result.failures[: _MOST - 1]:
        title = f"{failure.source} on {failure.subject}: {failure.symptom}"
        lines.append(_line("error", title, failure.replay))
    level = {Answer.RIGHT: "notice", Answer.WRONG: "error", Answer.CANNOT_TELL: "warning"}[result.answer]
    return [*lines, _line(level, "equivcheck gate", result.sentence)]


def _line(level: str, title: str, message: str) -> str:
    return f"::{level} title={_property(title)}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
