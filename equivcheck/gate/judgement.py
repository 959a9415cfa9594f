"""Right, wrong, or could not tell: the rules by which a gate answers, and its sentences.

Wrong is what was seen to be wrong. Could not tell is everything that leaves the question open; a failure outweighs it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from equivcheck.gate.result import NO_PROPERTIES, Answer, PropertyResult, Result
from equivcheck.report.summary import MISTRUSTED_SHARE
from equivcheck.verdict import Status
from equivcheck.verification import Agreement

UNDETERMINED_SHARE = 0.5
"""A property most of whose elements may hold anything has shown nothing, as one that is mostly mistrusted."""

MINIMUM_SHARE = 0.25
"""Slices of each property that must have run, at least one. The first tests of every run are those that failed before;
slices come one of each property at a time; so a quarter of a profile is the next smaller one, evenly spread."""

_MOST_NAMED = 4


@dataclass(frozen=True)
class Evidence:
    """What decides beside the counts.

    Attributes
    ----------
    stopped
        Why the run ended before its tests did.
    messages
        Of tests that failed without saying anything about the subject.
    broken
        Subjects and witnesses that do not work here, with their sentence.
    accepted
        Reasons for which the subject may refuse cases; None where none were recorded.
    """

    stopped: Sequence[str]
    messages: Sequence[str]
    broken: Mapping[str, str]
    accepted: frozenset[str] | None


def judge(result: Result, evidence: Evidence) -> None:
    """Fill in answer, exit code, sentence, reasons and notes, and the doubts about each property."""
    for part in result.properties:
        part.doubt = _doubt(part)
    wrong, doubts = list(_wrong(result)), list(_doubts(result, evidence))
    result.answer = Answer.WRONG if wrong else Answer.CANNOT_TELL if doubts else Answer.RIGHT
    result.exit_code = result.answer.exit_code
    result.reasons = [*wrong, *doubts]
    result.notes = list(_notes(result, evidence))
    result.sentence = _sentence(result, wrong, doubts)


def _sentence(result: Result, wrong: list[str], doubts: list[str]) -> str:
    on = result.subject or "no subject"
    if wrong:
        more = _more(len(wrong) - 1)
        return f"WRONG: {on} must not go live: {wrong[0]}{more}"
    if doubts:
        more = _more(len(doubts) - 1)
        return f"COULD NOT TELL whether {on} is right: {doubts[0]}{more}"
    faults = sum(fault.caught for fault in result.faults)
    proof = f"; {faults} faults put into its results were all seen" if faults else ""
    return f"RIGHT: nothing was wrong in {result.judged:,} cases on {on}{proof}"


def _more(number: int) -> str:
    return f" (and {number} more reason{'s' if number > 1 else ''})" if number else ""


def _wrong(result: Result) -> list[str]:
    found: list[str] = []
    by_symptom: dict[tuple[str, str], int] = {}
    for failure in result.failures:
        key = (failure.source, failure.symptom)
        by_symptom[key] = by_symptom.get(key, 0) + 1
    for (source, symptom), number in by_symptom.items():
        place = NO_PROPERTIES.get(source, f"the property {source}")
        found.append(f"{place} failed ({symptom})" + (f" in {number} cases" if number > 1 else ""))
    for replayed in result.findings:
        if replayed.result != "same":
            found.append(f"finding {replayed.finding} no longer holds as recorded: {replayed.message}")
    return found


def _doubts(result: Result, evidence: Evidence) -> list[str]:
    found = [f"{name} does not work here: {reason}" for name, reason in evidence.broken.items()]
    found += evidence.stopped
    if evidence.broken:
        return found
    if not result.tests:
        return found or ["no test was collected"]
    if not result.judged:
        refused = "; ".join(list(result.unsupported)[:_MOST_NAMED])
        found.append("no case was judged" + (f", since the subject refuses all: {refused}" if refused else ""))
    found += [part.doubt for part in result.properties if part.doubt]
    found += _too_short(result)
    missed = [fault for fault in result.faults if not fault.caught and not fault.refused]
    for fault in missed:
        found.append(f"the fault {fault.name} was put into its results and not seen in {fault.cases} cases")
    found += [f"the fault {fault.name} proves nothing: {fault.control}" for fault in result.faults if fault.control]
    if result.faults and all(fault.refused for fault in result.faults):
        found.append("no fault could be put into its results, so nothing shows that this gate can fail")
    if result.new_unsupported:
        names = "; ".join(result.new_unsupported[:_MOST_NAMED])
        number = len(result.new_unsupported)
        many = f"{number} reasons that are" if number > 1 else "a reason that is"
        found.append(f"it refuses cases for {many} not on its recorded list: {names}")
    if result.baseline is not None and not any(e != Agreement.UNSUPPORTED for e in result.baseline.cases):
        found.append("no case could be compared with the baseline")
    found += [message.partition("\n")[0] for message in evidence.messages if not _is_death(result)]
    return found


def _too_short(result: Result) -> list[str]:
    """The profile's minimum: every test that comes before the slices, and a quarter of each property's slices."""
    first = [key for key in result.missing if not key.startswith("slice ")]
    ran = {part.name: part.slices for part in result.properties}
    planned: dict[str, int] = {part.name: part.planned for part in result.properties}
    for key in result.missing:
        if key.startswith("slice "):
            name = key.split(" ")[1]
            if name not in ran:
                planned[name] = planned.get(name, 0) + 1
    short = [name for name, all_ in planned.items() if ran.get(name, 0) < max(1, MINIMUM_SHARE * all_)]
    if not first and not short:
        return []
    what = []
    if first:
        what.append(f"{len(first)} of the tests that come first")
    if short:
        more = f" and {len(short) - _MOST_NAMED} more" if len(short) > _MOST_NAMED else ""
        what.append(f"the least number of slices of {', '.join(short[:_MOST_NAMED])}{more}")
    return [f"the time was too short for {' and '.join(what)}; give a larger budget, more workers or shards"]


def _doubt(part: PropertyResult) -> str:
    judged, mistrusted = part.counts.judged, part.counts.statuses.get(Status.MISTRUSTED, 0)
    if judged and mistrusted > MISTRUSTED_SHARE * judged:
        return f"{part.name}: {mistrusted:,} of {judged:,} cases could hardly have shown anything (mistrusted)"
    sums = part.counts.sums
    if sums.undetermined > UNDETERMINED_SHARE * (sums.judged + sums.undetermined):
        share = sums.undetermined / (sums.judged + sums.undetermined)
        return f"{part.name}: {100 * share:.0f} % of the elements may hold anything (undetermined)"
    return ""


def _is_death(result: Result) -> bool:
    """Whether messages without a case are those of tests at which a process ended, which are reported as failures."""
    return any(failure.status in (Status.CRASHED, Status.TIMEOUT) for failure in result.failures)


def _notes(result: Result, evidence: Evidence) -> list[str]:
    found = []
    if result.missing:
        found.append(f"{result.done:,} of {result.tests:,} tests were done; the others did not get their turn")
    refused = [fault.name for fault in result.faults if fault.refused]
    if refused:
        found.append(f"the subject takes no case that has a place for these faults: {', '.join(refused)}")
    if not result.witnesses:
        found.append("no witness was given, so nothing was compared with another system")
    if result.baseline is None:
        found.append("no baseline was given, so nothing was compared with recorded results")
    if evidence.accepted is None and result.unsupported:
        found.append(
            f"it refuses cases for {len(result.unsupported)} reasons, with no recorded list to compare them with"
        )
    if len(result.shards) == 1 and result.shards[0][1] > 1:
        first, number = result.shards[0]
        found.append(f"this is shard {first} of {number}: the answer is that of all together (equivcheck merge)")
    return found
