"""Everything that a gate writes beside its events, made from the result alone."""

from __future__ import annotations

import os
from pathlib import Path

from equivcheck.gate.result import Result
from equivcheck.gate.result import write as write_result
from equivcheck.refusals import as_text
from equivcheck.report.github import lines_of
from equivcheck.report.html import as_html
from equivcheck.report.junit import as_junit
from equivcheck.report.markdown import as_markdown
from equivcheck.store import write_atomically

UNSUPPORTED = "unsupported.txt"


def write(result: Result, folder: Path) -> None:
    """Write result.json, junit.xml, summary.md, report.html, and the list of what is refused, into `folder`."""
    write_result(result, folder)
    scripts = {failure.script: _text(folder / failure.script) for failure in result.failures if failure.script}
    write_atomically(folder / "junit.xml", as_junit(result))
    write_atomically(folder / "summary.md", as_markdown(result).encode())
    write_atomically(folder / "report.html", as_html(result, scripts).encode())
    write_atomically(folder / UNSUPPORTED, as_text(result.unsupported).encode())


def tell_github(result: Result) -> list[str]:
    """Add the summary to the job's page, where there is one; returns the lines that GitHub takes for annotations."""
    page = os.environ.get("GITHUB_STEP_SUMMARY")
    if page:
        with Path(page).open("a", encoding="utf-8") as file:
            file.write(as_markdown(result))
    return lines_of(result) if os.environ.get("GITHUB_ACTIONS") == "true" else []


def _text(path: Path) -> str:
    return path.read_text(errors="replace")
