"""What the cases exercised: single edges, forced pairs, pairs of the main axes, and the paths that subjects report.

Counts are plain data, so that workers send them and a controller adds them up. What was not reached is told apart:
beyond the sizes of this run, refused by the subject, or not drawn.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations, product
from typing import Any

from equivcheck import axes
from equivcheck.facts import Choice, Facts, Flag, Number
from equivcheck.traits import OPTIONS, Trait, trait


class Missing(enum.StrEnum):
    """Why something was not reached."""

    NOT_DRAWN = "not drawn"
    REFUSED = "refused by the subject"
    TOO_LARGE = "beyond this run's sizes"


class Kind(enum.StrEnum):
    """Edges are single values; forced pairs are those of docs/generation.md; main pairs any two of the main axes."""

    EDGE = "edges"
    FORCED = "forced pairs"
    MAIN = "main pairs"


@dataclass(frozen=True)
class Goal:
    """What a run should reach: traits that one case has together, and the elements that such a case takes at least."""

    kind: Kind
    traits: tuple[Trait, ...]
    elements: int = 1

    @cached_property
    def name(self) -> str:
        """Names of the traits, joined."""
        return ", ".join(part.name for part in self.traits)

    def holds(self, facts: Facts) -> bool:
        """Whether one case has all of them."""
        return all(part.holds(facts) for part in self.traits)


def _edges() -> Iterable[Goal]:
    sizes: dict[Number, tuple[int, ...]] = {
        Number.RUN: axes.RUN_LENGTHS,
        Number.LOOKUPS: axes.LOOKUPS,
        Number.BAG: axes.BAG_LENGTHS,
        Number.BATCH: (*axes.BATCHES, *axes.LARGE_BATCHES),
        Number.FEATURES: axes.FEATURES,
        Number.ROWS: axes.ROWS,
        Number.DIM: axes.DIMS,
        Number.DISTINCT_ROWS: axes.DISTINCT_ROWS,
        Number.ADAM_STEP: axes.ADAM_STEPS,
    }
    for number, values in sizes.items():
        for value in values:
            # A bag takes room for a lookup and for an output; an optimizer's step count takes none.
            elements = {Number.ADAM_STEP: 1, Number.BATCH: 2 * value}.get(number, value)
            yield Goal(Kind.EDGE, (trait(f"{number}={value}"),), elements)
    for name, elements in _THRESHOLDS.items():
        yield Goal(Kind.EDGE, (trait(name),), elements)
    for choice, options in OPTIONS.items():
        for option in options:
            yield Goal(Kind.EDGE, (trait(f"{choice}={option}"),))
    for flag in Flag:
        if flag is not Flag.CAPTURED:  # comes from files, never from strategies
            yield Goal(Kind.EDGE, (trait(flag),))


_THRESHOLDS = {
    "hot rows=1": 33,
    "hot rows>=2": 66,
    "hot rows>=200": 200 * 33,
    "dim ratio>=100": 100,
    "row id>=2^24": 2**24,
    "row id>=2^31": 2**31,
    "table elements>=2^31": 2**31,
    "ranks=1": 1,
    "ranks>=3": 1,
    "steps=2": 1,
    "steps>=3": 1,
    "map=[0,0]": 1,
    "map=[1,0,1]": 1,
    "map=[0,1,0,1]": 1,
    "map=[1,0]": 1,
    "eps=0": 1,
    "eps=2^-27": 1,
    "eps=2^-3": 1,
    "eps=1": 1,
    "eps<2^-30": 1,
    "learning rate=0": 1,
    "learning rate<2^-20": 1,
    "learning rate=2^-7": 1,
    "learning rate>=100": 1,
}
"""Edges that are no list of numbers, and the elements that they take."""


def _classes(number: Number, classes: tuple[tuple[int, int], ...]) -> list[tuple[Trait, ...]]:
    return [(trait(f"{number}>={least}"), trait(f"{number}<={most}")) for least, most in classes]


def _forced() -> Iterable[Goal]:
    def crossed(*parts: Iterable[str]) -> Iterable[Goal]:
        return (Goal(Kind.FORCED, tuple(trait(name) for name in names)) for names in product(*parts))

    narrow = ("weights=fp16", "weights=bf16")
    weights = ("weights=fp32", *narrow)
    weighted = ("psw", "not psw")
    sharing = ("sharing", "not sharing")
    runs = [f"run={least}" if least == most else f"run>={least}" for least, most in axes.RUN_CLASSES]
    yield from crossed(["rounding=stochastic"], narrow, runs, sharing)
    yield from crossed([f"bounds={mode}" for mode in OPTIONS[Choice.BOUNDS]], ("vbe", "not vbe"), weighted)
    yield from crossed(["pooling=mean"], ("output=fp16", "output=bf16"), ["backward"], weighted)
    yield from crossed(("decay=l2", "decay=decoupled"), weights, sharing)
    yield from crossed(["unsorted sharing"], [f"optimizer={kind}" for kind in OPTIONS[Choice.OPTIMIZER]], weights)
    yield from crossed(["not dim>=32"], runs[2:])
    sizes = ("not lookups>=33", "lookups>=33", "lookups>=1025")
    yield from crossed(weighted, ("row repeated", "not row repeated"), sizes)


def _main() -> Iterable[Goal]:
    axes_: list[tuple[str, ...]] = [
        tuple(f"{axis}={option}" for option in OPTIONS[axis])
        for axis in (
            *(Choice.WEIGHTS, Choice.OUTPUT, Choice.INDICES, Choice.POOLING, Choice.PSW, Choice.OPTIMIZER),
            *(Choice.ROUNDING, Choice.BOUNDS),
        )
    ]
    axes_ += [(flag, f"not {flag}") for flag in (Flag.SHARING, Flag.VBE, Flag.BAG_EMPTY, Flag.DIM_NOT_MULTIPLE_OF_4)]
    for one, other in combinations(axes_, 2):
        for names in product(one, other):
            if set(names) != {"pooling=none", "vbe"}:  # has no defined output
                yield Goal(Kind.MAIN, tuple(trait(name) for name in names))


GOALS: tuple[Goal, ...] = (*_edges(), *_forced(), *_main())
"""The catalogue: everything that docs/generation.md names."""


@dataclass
class Coverage:
    """Counts over cases; add facts to it, merge others' into it, and ask what is missing.

    Attributes
    ----------
    cases
        Cases drawn.
    drawn, judged
        Per goal, the cases that had it, and those of them that the subject took.
    paths
        Cases in which the subject says it took a path.
    """

    cases: int = 0
    drawn: Counter[str] = field(default_factory=Counter)
    judged: Counter[str] = field(default_factory=Counter)
    paths: Counter[str] = field(default_factory=Counter)

    def add(self, facts: Facts, *, judged: bool = True, paths: Iterable[str] = ()) -> None:
        """Count one case."""
        self.cases += 1
        names = reached(facts)
        self.drawn.update(names)
        if judged:
            self.judged.update(names)
        self.paths.update(set(paths))

    def merge(self, other: Coverage) -> None:
        """Add another worker's counts."""
        self.cases += other.cases
        self.drawn.update(other.drawn)
        self.judged.update(other.judged)
        self.paths.update(other.paths)

    def to_builtins(self) -> dict[str, Any]:
        """Plain data for JSON."""
        counts = {name: dict(getattr(self, name)) for name in ("drawn", "judged", "paths")}
        return {"cases": self.cases, **counts}

    @classmethod
    def from_builtins(cls, data: Mapping[str, Any]) -> Coverage:
        """As `to_builtins` wrote it."""
        return cls(data["cases"], *(Counter(data[name]) for name in ("drawn", "judged", "paths")))

    def missing(self, elements: int) -> dict[Goal, Missing]:
        """Goals that no judged case reached, and why. `elements` is the largest size of a case in this run."""
        reasons = {}
        for goal in GOALS:
            if not self.judged[goal.name]:
                if goal.elements > elements:
                    reasons[goal] = Missing.TOO_LARGE
                else:
                    reasons[goal] = Missing.REFUSED if self.drawn[goal.name] else Missing.NOT_DRAWN
        return reasons

    def line(self, elements: int) -> str:
        """One line: shares reached, and how much was not drawn, refused or too large."""
        missing = self.missing(elements)
        shares = []
        for kind in Kind:
            goals = [goal for goal in GOALS if goal.kind is kind]
            shares.append(f"{kind} {sum(goal not in missing for goal in goals)}/{len(goals)}")
        reasons = Counter(missing.values())
        rest = [f"{reasons[reason]} {reason}" for reason in Missing if reasons[reason]]
        return ", ".join([*shares, f"paths {len(self.paths)}"]) + (f" ({', '.join(rest)})" if rest else "")

    def render(self, elements: int) -> str:
        """Line, what was not reached by reason, and the paths with their counts."""
        missing = self.missing(elements)
        lines = [self.line(elements)]
        for reason in Missing:
            names = [goal.name for goal, why in missing.items() if why is reason]
            if names:
                lines += [f"{reason}:", *(f"  {name}" for name in names)]
        if self.paths:
            lines += ["paths:", *(f"  {count:>7}  {name}" for name, count in self.paths.most_common())]
        return "\n".join(lines)


def reached(facts: Facts) -> list[str]:
    """Names of the goals that a case reaches. Each trait is asked once, however many goals share it."""
    held = {part.name for part in _TRAITS if part.holds(facts)}
    return [name for name, names in _NAMES if held.issuperset(names)]


_TRAITS = tuple({part.name: part for goal in GOALS for part in goal.traits}.values())
_NAMES = tuple((goal.name, tuple(part.name for part in goal.traits)) for goal in GOALS)
