"""`equivcheck script`: a stand-alone script for the bug report of whoever maintains the system."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from equivcheck.engine.options import DEFAULT_TIME_LIMIT

CANNOT_TELL = 2


def command(
    file: Annotated[Path, typer.Argument(help="A saved case, a finding, or a case by itself.")],
    subject: Annotated[str | None, typer.Option(help="The system; default: the one that is recorded.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where the script is written; default: standard output.")] = None,
    time_limit: Annotated[float, typer.Option(help="Seconds that the run may take.")] = DEFAULT_TIME_LIMIT,
) -> None:
    """Write a script that shows a failure with torch and the system alone: no equivcheck, an assertion that fails.

    The case is run once, where the system runs here; otherwise the script shows what is recorded.
    """
    from equivcheck.case import CaseError
    from equivcheck.script import script

    try:
        text = script(_evidence(file, subject, time_limit))
    except CaseError as error:
        print(f"equivcheck: {error}", file=sys.stderr)
        raise typer.Exit(CANNOT_TELL) from None
    if out is None:
        sys.stdout.write(text)
    else:
        out.write_text(text)
        print(f"{out}: {len(text.splitlines())} lines")


def _evidence(file: Path, subject: str | None, time_limit: float) -> Any:
    from equivcheck import store
    from equivcheck.arithmetic import Arithmetic
    from equivcheck.backends.protocol import BackendUnavailable
    from equivcheck.case import Case, CaseError
    from equivcheck.findings import load_finding
    from equivcheck.problem import materialise
    from equivcheck.runner import Subject
    from equivcheck.script import Evidence
    from equivcheck.verdict import Discrepancy, Status, Verdict

    fields = store.read_object(file)
    versions: dict[str, str] = {}
    recorded: Verdict | None = None
    title = "A table-batched embedding gives wrong results."
    if "equivcheck_finding" in fields:
        finding = load_finding(file)
        case, name, title, versions = (
            finding.case,
            finding.subject.rstrip("*").replace("*", "+"),
            f"{finding.title}.",
            finding.versions,
        )
        found = tuple(Discrepancy(s.tensor, s.symptoms[0], -1, "") for s in finding.signs)
        recorded = Verdict(Status.FAILED if found else finding.ends[0], found, reason="as recorded")
    elif "equivcheck_case" in fields:
        case, name = Case.from_builtins(fields), ""
    else:
        saved = store.load(file)
        case, name, recorded = saved.failing_case or saved.case, saved.provenance.subject, store.as_verdict(saved)
        versions = saved.provenance.versions
    name = subject or name
    if not name:
        raise CaseError(f"{file} holds a case that names no subject; say whose script it is: --subject NAME")
    problem = materialise(case, file.parent)
    try:
        loaded = Subject.load(name)
    except BackendUnavailable:
        if recorded is None:
            raise CaseError(f"{name} does not run here, and {file} does not say how the case failed") from None
        verdict = _placed(recorded, case)
        return Evidence(title, name, problem, verdict, Arithmetic(), None, versions)
    return _run(loaded, problem, title, file.parent, time_limit)


def _run(loaded: Any, problem: Any, title: str, folder: Path, time_limit: float) -> Any:
    """What the system does with the case here: first in a process of its own, since it may end it."""
    from equivcheck import isolation, runner
    from equivcheck.script import Evidence
    from equivcheck.verdict import Status

    verdict = isolation.judge(problem.case, loaded.name, folder, time_limit)
    arithmetic, outcome = loaded.backend.arithmetic(problem.case), None
    if verdict.status is Status.FAILED and len(problem.case.steps) > 1:
        # Later steps start from the system's own state.
        run = runner.run(problem.case, loaded, folder=folder)
        verdict, outcome = run.verdict, run.outcome
    return Evidence(title, loaded.name, problem, verdict, arithmetic, outcome, loaded.versions)


def _placed(recorded: Any, case: Any) -> Any:
    """The recorded verdict, each discrepancy with its position in the program: the first that can have its tensor."""
    from dataclasses import replace

    from equivcheck.problem import Action, program
    from equivcheck.verdict import Tensor

    actions = [action for action, _ in program(case)]

    def place(found: Any) -> Any:
        if found.action >= 0 or found.tensor in (Tensor.GUARDS, Tensor.INPUTS):
            return found
        forward = found.tensor in (Tensor.OUTPUT, Tensor.CALL, Tensor.WARNINGS)
        wanted = Action.FORWARD if forward else Action.BACKWARD
        return replace(found, action=actions.index(wanted)) if wanted in actions else None

    return replace(recorded, discrepancies=tuple(filter(None, map(place, recorded.discrepancies))))
