"""Results as the tables of docs/faults.md: no figure there is typed by hand.

A page holds blocks between `<!-- faults: NAME -->` and `<!-- faults: end -->`; `filled` replaces what stands between.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median

from equivcheck.faults.catalogue import FAULTS, fits
from equivcheck.faults.fault import Fault, Kind, Reach
from equivcheck.faults.hunt import Hunted, Kill

_INJECTED = {"source edit": "edit", "wrapper": "wrapper", "simulated kernel": "NumPy"}


def filled(page: str, name: str, text: str) -> str:
    """The page with `text` in its block of that name.

    Raises
    ------
    ValueError
        If the page has no such block.
    """
    start, end = f"<!-- faults: {name} -->\n", "<!-- faults: end -->"
    before, found, rest = page.partition(start)
    if not found or end not in rest:
        raise ValueError(
            f"the page has no block {start.strip()} ... {end}; put both lines where the tables shall stand"
        )
    return before + start + "\n" + text.strip() + "\n\n" + rest[rest.index(end) :]


def first_kills(results: Iterable[Hunted], *, compiled: bool) -> str:
    """Counts by class, first kills, and what cannot be seen, of one run.

    Parameters
    ----------
    compiled
        Whether the kernels were compiled, so that what only a GPU shows had to be seen.
    """
    found = {result.fault: result for result in results}
    return "\n".join([*_counts(found, compiled), "", *_kills(found), "", *_unseen(found, compiled)])


def by_property(results: Iterable[Hunted]) -> str:
    """The full matrix: which property sees which fault, and what would live without it."""
    found = list(results)
    names = tuple(dict.fromkeys(result.properties[0] for result in found))
    seen: dict[str, dict[str, Kill]] = {}
    for result in found:
        seen.setdefault(result.fault, {})
        if result.kill is not None:
            seen[result.fault][result.properties[0]] = result.kill
    cases, seconds = sum(result.cases for result in found), sum(result.seconds for result in found)
    lines = [
        f"{_about(found)}: {len(seen)} faults, {len(names)} properties, {cases:,} cases, "
        f"{seconds:,.0f} s in the processes.",
        "",
        "| property | faults that it sees | that no other property sees |",
        "|---|---:|---|",
    ]
    for name in names:
        sees = [fault for fault, kills in seen.items() if name in kills]
        alone = [fault for fault in sees if len(seen[fault]) == 1]
        lines.append(f"| {name} | {len(sees)} | {', '.join(alone)} |")
    lines += ["", "| fault | seen by, after how many cases |", "|---|---|"]
    for kind in Kind:
        rows = [fault for fault in sorted(seen) if FAULTS[fault].kind is kind]
        if rows:
            lines.append(f"| **{kind.value}** | |")
        for fault in rows:
            kills = sorted(seen[fault].items(), key=lambda item: item[1].cases)
            lines.append(f"| {fault} | {', '.join(f'{name} {kill.cases}' for name, kill in kills) or 'none'} |")
    return "\n".join(lines)


def link(report: str) -> str:
    """A public report in brackets, as a link named by repository and number; nothing if there is none."""
    if not report:
        return ""
    parts = re.fullmatch(r"https://github\.com/[^/]+/([^/]+)/(?:pull|issues)/(\d+)", report)
    name = f"{parts[1]} {parts[2]}" if parts else report.removeprefix("https://")
    return f" ([{name}]({report}))"


def _about(results: Sequence[Hunted]) -> str:
    """Day, subject, versions, profile and seed of some results, in words."""
    days = sorted({result.day for result in results} - {""})
    subjects = sorted({result.subject for result in results})
    versions = {name: version for result in results for name, version in result.versions.items()}
    told = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()) if name != "device")
    profiles = sorted({f"profile {result.profile}, seed {result.seed}" for result in results})
    when = " to ".join(dict.fromkeys((days[0], days[-1]))) if days else "no day"
    return f"{when}, `{', '.join(subjects)}` ({told}), {', '.join(profiles)}"


def _counts(found: Mapping[str, Hunted], compiled: bool) -> Iterator[str]:
    seconds, cases = (sum(getattr(result, name) for result in found.values()) for name in ("seconds", "cases"))
    yield f"{_about(list(found.values()))}: {cases:,} cases, {seconds:,.0f} s in the processes."
    yield ""
    yield "| class | faults | subtle | seen | median cases | slowest |"
    yield "|---|---:|---:|---:|---:|---|"
    for kind in Kind:
        row = _count(kind.value, [fault for fault in FAULTS.values() if fault.kind is kind], found, compiled)
        if row:
            yield row
    yield _count("all", list(FAULTS.values()), found, compiled)
    yield ""
    first: dict[str, int] = {}
    for result in found.values():
        if result.kill is not None:
            first[result.kill.property] = first.get(result.kill.property, 0) + 1
    told = (f"{name} {number}" for name, number in sorted(first.items(), key=lambda item: -item[1]))
    yield f"Seen first by: {', '.join(told)}."


def _count(name: str, faults: list[Fault], found: Mapping[str, Hunted], compiled: bool) -> str:
    hunted = [fault for fault in faults if fault.name in found]
    if not hunted:
        return ""
    visible = [fault for fault in hunted if visible_on(fault, compiled)]
    kills = {fault.name: found[fault.name].kill for fault in hunted}
    counts = {fault: kill.before + kill.cases for fault, kill in kills.items() if kill is not None}
    slowest = max(counts, key=lambda fault: counts[fault], default="")
    told = f"{slowest}, {counts[slowest]:,}" if slowest else ""
    middle = f"{median(counts.values()):g}" if counts else ""
    seen = sum(kills[fault.name] is not None for fault in visible)
    subtle = sum(fault.subtle for fault in hunted)
    return f"| {name} | {len(hunted)} | {subtle} | {seen} of {len(visible)} | {middle} | {told} |"


def visible_on(fault: Fault, compiled: bool) -> bool:
    """Whether a fault has to be seen, on kernels that are interpreted, or compiled."""
    return fault.reach is Reach.HERE or (fault.reach is Reach.GPU and compiled)


def _kills(found: Mapping[str, Hunted]) -> Iterator[str]:
    yield "| fault | what is wrong | injected by | seen first by | cases | s | symptom |"
    yield "|---|---|---|---|---:|---:|---|"
    for kind in Kind:
        faults = [fault for fault in FAULTS.values() if fault.kind is kind and fault.name in found]
        if faults:
            yield f"| **{kind.value}** | | | | | | |"
        for fault in faults:
            result = found[fault.name]
            what = f"{fault.what}{link(fault.report)}"
            start = f"| {fault.name} | {what} | {_INJECTED[fault.injection]}"
            kill = result.kill
            if kill is None:
                why = result.error or ("not seen" if fault.reach is Reach.NOBODY else "**not seen**")
                yield f"{start} | {why} | {result.cases} | {result.seconds:.1f} | |"
            else:
                cases = f"{kill.before} + {kill.cases}" if kill.before else f"{kill.cases}"
                yield f"{start} | {kill.property} | {cases} | {kill.seconds:.1f} | {kill.symptom} |"


def _unseen(found: Mapping[str, Hunted], compiled: bool) -> Iterator[str]:
    subjects = {result.subject for result in found.values()}
    hidden = [
        fault
        for fault in FAULTS.values()
        if not visible_on(fault, compiled) and all(fits(fault, subject) for subject in subjects)
    ]
    yield "| not to be seen here | what is wrong | shown by | why not here |"
    yield "|---|---|---|---|"
    for fault in hidden:
        yield f"| {fault.name} | {fault.what}{link(fault.report)} | {fault.reach.value} | {fault.proof} |"
