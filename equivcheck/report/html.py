"""A gate's result as one HTML page: no network, readable on a phone and on paper.

What is drawn is prepared here as plain numbers; `templates/report.html.j2` says how it looks. Every text passes through
Jinja2's escaping: names of subjects, properties and reasons are not ours.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from itertools import groupby

import jinja2
import msgspec

from equivcheck.coverage import GOALS, Coverage, Goal, Kind, Missing
from equivcheck.drift import CLASSES
from equivcheck.engine.show import number, shares
from equivcheck.gate.result import NO_PROPERTIES, Failure, Result
from equivcheck.verdict import Status

_LADDERS = ("run", "bag", "lookups", "batch", "features", "dim")
_MOST_PER_SYMPTOM = 20
"""Failures of one symptom that the page shows; all are in result.json."""
_LEVELS = 5
"""Shades of the heat map, by the logarithm of the number of cases."""


@dataclass(frozen=True)
class Bar:
    """A bar: what it counts, how high it stands (0 to 100), and whether it is one that nobody wants to see."""

    label: str
    count: int
    height: float
    bad: bool = False


@dataclass(frozen=True)
class Chart:
    """Bars with a title, and a sentence that says what they come to. Where they are goals, none should be empty."""

    title: str
    bars: tuple[Bar, ...]
    says: str = ""
    goals: bool = False


@dataclass(frozen=True)
class Cell:
    """A pair of options: cases, shade from 0 to `_LEVELS`, and the reason where there are none."""

    count: int
    level: int
    title: str
    missing: str = ""


@dataclass(frozen=True)
class HeatMap:
    """Options in groups, one for each axis; rows of cells, None where two options belong to one axis."""

    axes: tuple[tuple[str, tuple[str, ...]], ...]
    options: tuple[str, ...]
    rows: tuple[tuple[Cell | None, ...], ...]


@dataclass(frozen=True)
class Symptom:
    """Failures of one source that look the same."""

    source: str
    symptom: str
    failures: tuple[Failure, ...]
    more: int


def as_html(result: Result, scripts: Mapping[str, str]) -> str:
    """The page.

    Parameters
    ----------
    scripts
        Text of each stand-alone script, by its file.
    """
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(number=lambda value: number(float(f"{value:.3g}")), shares=shares, compact=_compact)
    template = environment.from_string((files("equivcheck") / "templates" / "report.html.j2").read_text("utf-8"))
    coverage = Coverage.from_builtins(msgspec.to_builtins(result.coverage))
    missing = coverage.missing(result.coverage.largest_case) if coverage.cases else {}
    return template.render(
        result=result,
        scripts=scripts,
        statuses=list(Status),
        symptoms=_symptoms(result.failures),
        types=[_ratios(result, name) for name, found in result.types.items() if any(found.ratios)],
        baseline=_ulps("distance to the baseline, in ulps", result.baseline.ulps if result.baseline else {}),
        witnesses=[_ulps(f"{name}: distance in ulps", found) for name, found in sorted(result.counts.ulps.items())],
        shares_counted=sorted(result.counts.shares.items()),
        ladders=[chart for name in _LADDERS if (chart := _ladder(name, coverage)).bars],
        heat=_heat(coverage, missing),
        not_reached={
            reason: [goal.name for goal, why in missing.items() if why is reason and goal.kind is not Kind.MAIN]
            for reason in Missing
        },
        summary_numbers=_numbers(result),
    )


def _numbers(result: Result) -> list[tuple[str, str]]:
    found = [
        (f"{result.judged:,}", "cases judged"),
        (f"{result.done:,} / {result.tests:,}", "tests done"),
        (f"{len(result.failures):,}", "failures"),
    ]
    if result.faults:
        placed = [fault for fault in result.faults if not fault.refused]
        found.append((f"{sum(fault.caught for fault in placed)} / {len(placed)}", "injected faults seen"))
    if result.baseline is not None:
        found.append((shares(result.baseline.equal, result.baseline.elements), "bits equal to the baseline"))
    if result.findings:
        same = sum(replayed.result == "same" for replayed in result.findings)
        found.append((f"{same} / {len(result.findings)}", "known findings unchanged"))
    return [*found, (_time(result.seconds), "time")]


def _symptoms(failures: Iterable[Failure]) -> list[Symptom]:
    def key(failure: Failure) -> tuple[bool, str, str]:  # properties first: theirs are shrunk
        return failure.source in NO_PROPERTIES, failure.source, failure.symptom

    found = []
    for (_, source, symptom), group in groupby(sorted(failures, key=key), key):
        alike = tuple(group)
        found.append(Symptom(source, symptom, alike[:_MOST_PER_SYMPTOM], max(0, len(alike) - _MOST_PER_SYMPTOM)))
    return found


def _ratios(result: Result, name: str) -> Chart:
    counts, edges = result.types[name], result.ratio_edges
    labels = ["0", *(f"≤ {edge:g}" for edge in edges[1:]), f"> {edges[-1]:g}"]
    bars = _bars(labels, counts.ratios, bad=len(labels) - 1)
    statuses = ", ".join(f"{count:,} {status}" for status, count in sorted(counts.statuses.items()))
    return Chart(f"{name} tables", bars, statuses)


def _ulps(title: str, found: Mapping[str, int]) -> Chart:
    if not found:
        return Chart(title, ())
    return Chart(title, _bars(CLASSES, [found.get(name, 0) for name in CLASSES]))


def _ladder(name: str, coverage: Coverage) -> Chart:
    goals = [goal for goal in GOALS if goal.kind is Kind.EDGE and goal.name.startswith(f"{name}=")]
    values = [goal for goal in goals if goal.name.partition("=")[2].isdecimal()]
    counts = [coverage.judged[goal.name] for goal in values]
    if not any(counts):
        return Chart(name, ())
    missed = sum(not count for count in counts)
    says = f"{missed} of {len(counts)} edges were not reached" if missed else f"all {len(counts)} edges were reached"
    return Chart(
        _TITLES.get(name, name), _bars([goal.name.partition("=")[2] for goal in values], counts), says, goals=True
    )


_TITLES = {
    "run": "run lengths: lookups of one row in a batch",
    "bag": "bag lengths",
    "lookups": "lookups of a batch",
    "batch": "bags a feature",
    "features": "features",
    "dim": "widths of tables",
}


def _bars(labels: Iterable[str], counts: Iterable[int], bad: int = -1) -> tuple[Bar, ...]:
    """Bars whose height is the logarithm of their count, so that one case beside a million is seen."""
    pairs = list(zip(labels, counts, strict=True))
    most = max((count for _, count in pairs), default=0)
    scale = math.log1p(most) or 1.0
    return tuple(
        Bar(label, count, 100 * math.log1p(count) / scale, bad=position == bad)
        for position, (label, count) in enumerate(pairs)
    )


def _heat(coverage: Coverage, missing: Mapping[Goal, Missing]) -> HeatMap | None:
    goals = {frozenset(part.name for part in goal.traits): goal for goal in GOALS if goal.kind is Kind.MAIN}
    if not coverage.cases:
        return None
    names = list(dict.fromkeys(part.name for goal in goals.values() for part in goal.traits))
    order = list(dict.fromkeys(_axis(name) for name in names))
    options = tuple(sorted(names, key=lambda name: order.index(_axis(name))))
    most = max((coverage.judged[goal.name] for goal in goals.values()), default=0)
    rows = []
    for row, one in enumerate(options):
        cells: list[Cell | None] = []
        for other in options[: row + 1]:
            goal = goals.get(frozenset((one, other)))
            cells.append(None if goal is None else _cell(goal, coverage, missing, most))
        rows.append(tuple(cells))
    axes = tuple((axis, tuple(group)) for axis, group in groupby(options, _axis))
    return HeatMap(axes, options, tuple(rows))


def _cell(goal: Goal, coverage: Coverage, missing: Mapping[Goal, Missing], most: int) -> Cell:
    count = coverage.judged[goal.name]
    level = 0 if not count else 1 + int((_LEVELS - 1) * math.log1p(count) / math.log1p(most))
    why = missing.get(goal)
    what = f"{count:,} cases" if count else str(why or Missing.NOT_DRAWN)
    return Cell(count, level, f"{goal.name}: {what}", "" if why is None else str(why))


def _axis(trait: str) -> str:
    return trait.removeprefix("not ").partition("=")[0]


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def _compact(value: int) -> str:
    """A count in four characters at most: 950, 1.2k, 34k, 5M."""
    for size, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if value >= size:
            part = value / size
            return f"{part:.1f}{letter}" if part < 9.95 else f"{part:.0f}{letter}"
    return str(value)
