"""Findings: recorded faults of real systems, by which the suite sees past them and looks on.

A finding is a JSON file in `golden/findings/`: which subject at which versions, the condition (a conjunction of the
traits that coverage counts), the symptom, the sentence of the contract that it breaks, its cause in the system's
source, and the minimal case. A failure that matches condition and symptom is KNOWN; everything else about the case is
judged as ever. The minimal case is replayed in every run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import msgspec
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from equivcheck import golden
from equivcheck.case import Case, CaseError
from equivcheck.facts_of_case import facts
from equivcheck.problem import Problem
from equivcheck.traits import TraitError, holds, trait
from equivcheck.verdict import Discrepancy, Status, Symptom, Tensor, Verdict

FORMAT_VERSION = 1

FAILURES = (Status.FAILED, Status.ERROR, Status.CRASHED, Status.TIMEOUT)
"""Statuses that fail a property, unless a finding explains them."""

Sentence = Annotated[str, msgspec.Meta(min_length=1)]


class FindingError(ValueError):
    """A file that should hold a finding does not. The message says which, what is wrong, and what to do."""


class Sign(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One way in which the finding shows.

    Attributes
    ----------
    tensor, symptoms
        Of the discrepancy.
    most_ulps, most_ratio
        Largest error, in ulps and as a share of its bound, that the finding explains.
    says
        A part of the discrepancy's detail, such as a piece of an exception's text.
    """

    tensor: Tensor
    symptoms: Annotated[tuple[Symptom, ...], msgspec.Meta(min_length=1)]
    most_ulps: float = math.inf
    most_ratio: float = math.inf
    says: str = ""

    def matches(self, discrepancy: Discrepancy) -> bool:
        """Whether the discrepancy shows in this way."""
        return (
            discrepancy.tensor is self.tensor
            and discrepancy.symptom in self.symptoms
            and self.says in discrepancy.detail
            and not discrepancy.ulps > self.most_ulps
            and not discrepancy.ratio > self.most_ratio
        )


class Cause(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The place in the system's source that is wrong, such as "FBGEMM v1.8.0", a path, "190", and why."""

    system: Sentence
    file: Sentence
    lines: Sentence
    explanation: Sentence


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A finding as it is written."""

    equivcheck_finding: int
    title: Sentence
    subject: Sentence
    versions: dict[str, str]
    traits: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    contract: Sentence
    cause: Cause
    case: dict[str, Any]
    signs: tuple[Sign, ...] = ()
    ends: tuple[Status, ...] = ()
    shown_by: str = ""


class Finding(msgspec.Struct, frozen=True):
    """A recorded fault.

    Attributes
    ----------
    name
        The file's name without its suffix.
    subject
        Pattern of the subjects that have it, such as `fbgemm-cpu*`.
    versions
        Per package, the range of versions that have it, such as `==1.8.*`.
    traits
        Names of traits that a case must have, all of them, to be hit (`equivcheck.traits`).
    signs
        How it shows in a verdict.
    ends
        CRASHED and TIMEOUT, where it may end the process; such cases run in a process of their own.
    contract, cause
        The sentence that is broken, and the place that breaks it.
    case
        The minimal case.
    shown_by
        The property that shows it, as `test_file.py::test_name` of the suite, where judging the case alone does not: a
        bias shows in many elements together.
    """

    name: str
    title: str
    subject: str
    versions: dict[str, str]
    traits: tuple[str, ...]
    signs: tuple[Sign, ...]
    ends: tuple[Status, ...]
    contract: str
    cause: Cause
    case: Case
    shown_by: str = ""

    @property
    def dangerous(self) -> bool:
        """Whether a case may end the process."""
        return bool(self.ends)

    def concerns(self, subject: str, versions: Mapping[str, str]) -> bool:
        """Whether a subject of this name and these versions has the fault."""
        return fnmatchcase(subject, self.subject) and all(
            package in versions and _within(versions[package], wanted) for package, wanted in self.versions.items()
        )

    def holds(self, problem: Problem) -> bool:
        """Whether the problem meets the finding's condition."""
        return holds(self.traits, facts(problem.case, problem))

    def shows(self, discrepancy: Discrepancy) -> bool:
        """Whether a discrepancy is one of its signs."""
        return any(sign.matches(discrepancy) for sign in self.signs)


def explain(findings: Iterable[Finding], problem: Problem, verdict: Verdict) -> tuple[Verdict, tuple[str, ...]]:
    """Look for findings that explain a failure.

    Parameters
    ----------
    findings
        Those that concern the subject.
    verdict
        One of `FAILURES`.

    Returns
    -------
    verdict
        KNOWN if findings explain all of it. Otherwise as before, less the discrepancies that are explained.
    names
        The findings that were met.
    """
    met = [finding for finding in findings if finding.holds(problem)]
    if verdict.status in (Status.CRASHED, Status.TIMEOUT):
        names = tuple(finding.name for finding in met if verdict.status in finding.ends)
        return (_known(verdict, names) if names else verdict), names
    unexplained = []
    found: dict[str, None] = {}
    for discrepancy in verdict.discrepancies:
        names = tuple(finding.name for finding in met if finding.shows(discrepancy))
        found.update(dict.fromkeys(names))
        if not names:
            unexplained.append(discrepancy)
    names = tuple(found)
    if names and not unexplained:
        return _known(verdict, names), names
    return replace(verdict, discrepancies=tuple(unexplained)), names


def load_findings(folders: Iterable[Path]) -> tuple[Finding, ...]:
    """The findings of all folders, by name.

    Raises
    ------
    FindingError
        If a folder is missing, a file is malformed, or two have the same name.
    """
    found: dict[str, Finding] = {}
    for folder in folders:
        if not folder.is_dir():
            raise FindingError(f"findings are read from {folder}, which is no folder; give one with JSON files")
        for path in sorted(folder.glob("*.json")):
            if path.stem in found:
                raise FindingError(f"two findings have the name {path.stem}; rename {path}")
            found[path.stem] = load_finding(path)
    return tuple(found.values())


def load_finding(path: Path) -> Finding:
    """Read one finding strictly.

    Raises
    ------
    FindingError
        Naming the file, what is wrong, and what to do.
    """
    try:
        document = msgspec.json.decode(path.read_bytes(), type=_Document)
        case = Case.from_builtins(document.case)
        for wanted in document.versions.values():
            SpecifierSet(wanted)
        for name in document.traits:
            trait(name)
    except (OSError, msgspec.DecodeError, CaseError, InvalidSpecifier, TraitError, UnicodeDecodeError) as error:
        raise FindingError(f"{path} holds no finding: {error}") from None
    if document.equivcheck_finding != FORMAT_VERSION:
        raise FindingError(
            f"{path} has format {document.equivcheck_finding}; this version of equivcheck reads {FORMAT_VERSION}"
        )
    if not document.signs and not document.ends:
        raise FindingError(f"{path} has neither signs nor ends, so it explains nothing; say how the fault shows")
    if set(document.ends) - {Status.CRASHED, Status.TIMEOUT}:
        raise FindingError(f"{path} ends in {', '.join(document.ends)}; a process ends in crashed or timeout")
    return Finding(
        name=path.stem,
        title=document.title,
        subject=document.subject,
        versions=document.versions,
        traits=document.traits,
        signs=document.signs,
        ends=document.ends,
        contract=document.contract,
        cause=document.cause,
        case=case,
        shown_by=document.shown_by,
    )


def built_in_folder() -> Path | None:
    """The findings that come with equivcheck."""
    golden_folder = golden.folder()
    return golden_folder / "findings" if golden_folder is not None else None


def _known(verdict: Verdict, names: tuple[str, ...]) -> Verdict:
    reason = "recorded as " + ", ".join(names)
    return Verdict(Status.KNOWN, verdict.discrepancies, verdict.reports, reason)


@lru_cache(maxsize=1024)  # asked for each finding at each case, which took 0.2 ms
def _within(version: str, wanted: str) -> bool:
    """Whether a version is in a range. A backend may put the distribution's name before it: `fbgemm-gpu-cpu 1.8.0`."""
    try:
        return SpecifierSet(wanted).contains(Version(version.split()[-1]), prereleases=True)
    except (InvalidVersion, IndexError):
        return False
