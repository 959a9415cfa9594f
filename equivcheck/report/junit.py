"""A gate's result as JUnit's XML, as CI systems read it: a suite for each property, a case for each kind of symptom."""

from __future__ import annotations

import re
from collections.abc import Iterable
from xml.etree import ElementTree as xml

from equivcheck.gate.result import Failure, Result
from equivcheck.verdict import Status
from equivcheck.verification import Agreement

_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 (section 2.2, Char) does not hold, escaped or not."""


def as_junit(result: Result) -> bytes:
    """The document. A test is a property, a rerun, a finding, a recorded case or a fault."""
    root = xml.Element("testsuites", name="equivcheck gate", time=f"{result.seconds:.3f}")
    failures: dict[str, list[Failure]] = {}
    for failure in result.failures:
        failures.setdefault(failure.source, []).append(failure)
    for part in result.properties:
        mine = failures.pop(part.name, [])
        suite = _suite(root, part.name, part.seconds)
        skipped = "" if part.counts.judged else "nothing judged"
        _case(suite, part.name, part.subject, mine, part.seconds, skipped)
    for source, found in failures.items():
        _case(_suite(root, source), source, result.subject, found)
    if result.reruns:
        suite = _suite(root, "cases that were there before")
        for rerun in result.reruns:
            if rerun.failure is None:
                skipped = rerun.reason if rerun.status is Status.UNSUPPORTED else ""
                _case(suite, f"{rerun.source} {rerun.name}", rerun.subject, [], rerun.seconds, skipped)
    if result.findings:
        suite = _suite(root, "findings")
        for replayed in result.findings:
            case = _case(suite, replayed.finding, replayed.subject, [])
            if replayed.result != "same":
                _child(case, "failure", replayed.result, replayed.message)
    if result.baseline is not None:
        suite = _suite(root, "baseline")
        for compared in result.baseline.changed:
            if compared.agreement != Agreement.OUTSIDE:
                _case(suite, f"{compared.name}: {compared.agreement}", compared.subject, [])
    if result.faults:
        suite = _suite(root, "faults")
        for fault in result.faults:
            case = _case(suite, fault.name, fault.subject, [], skipped=fault.refused)
            if not fault.caught and not fault.refused:
                _child(case, "error", "not seen", fault.title)
    gate = _case(_suite(root, "gate"), "the answer", result.subject, [], result.seconds)
    if result.exit_code:
        _child(gate, "failure" if result.exit_code == 1 else "error", result.sentence, "\n".join(result.reasons))
    _count(root)
    xml.indent(root)
    body: bytes = xml.tostring(root, encoding="utf-8", xml_declaration=True)
    return body + b"\n"


def _suite(root: xml.Element, name: str, seconds: float = 0.0) -> xml.Element:
    return xml.SubElement(root, "testsuite", name=_clean(name), time=f"{seconds:.3f}")


def _case(
    suite: xml.Element, name: str, subject: str, failures: Iterable[Failure], seconds: float = 0.0, skipped: str = ""
) -> xml.Element:
    case = xml.SubElement(
        suite, "testcase", classname=_clean(f"equivcheck.{subject}"), name=_clean(name), time=f"{seconds:.3f}"
    )
    found = list(failures)
    if found:  # one a case: several would be counted as one by most readers
        text = "\n\n".join(failure.text for failure in found)
        _child(case, "failure", "; ".join(dict.fromkeys(failure.symptom for failure in found)), text)
    elif skipped:
        _child(case, "skipped", skipped, "")
    return case


def _child(case: xml.Element, tag: str, message: str, text: str) -> None:
    xml.SubElement(case, tag, message=_clean(message)).text = _clean(text)


def _count(root: xml.Element) -> None:
    for suite in root:
        for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            suite.set(name, str(len(suite.findall(f"testcase/{tag}"))))
        suite.set("tests", str(len(suite)))
    for name in ("tests", "failures", "errors", "skipped"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in root)))


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("\ufffd", text)
