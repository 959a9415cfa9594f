"""Named traits of a case, such as `run>=257`, `pooling=mean`, `unsorted sharing` or `not psw`.

Coverage counts them, and a finding's predicate is a conjunction of them.
"""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

from equivcheck.case import (
    BoundsCheck,
    Call,
    Decay,
    Distribution,
    IndexFault,
    IndexType,
    Layout,
    OffsetFault,
    OptimizerKind,
    Place,
    Pooling,
    Regime,
    Rounding,
    Special,
)
from equivcheck.facts import Choice, Facts, Flag, Number
from equivcheck.formats import DType

Member = TypeVar("Member", Flag, Choice)


class TraitError(ValueError):
    """A trait's text that names nothing. The message says what is near."""


@dataclass(frozen=True)
class Trait:
    """A predicate on the facts of a case, known by its name.

    A number's trait holds if one of the case's numbers fulfils it: `run>=257` if any row is looked up that often.
    `not` before a trait turns it round: `not run>=2` means that every run has length one. `!=` is short for that.
    """

    name: str
    holds: Callable[[Facts], bool]

    def __str__(self) -> str:
        return self.name


OPTIONS: dict[Choice, tuple[str, ...]] = {
    Choice.WEIGHTS: ("fp32", "fp16", "bf16"),
    Choice.OUTPUT: ("fp32", "fp16", "bf16"),
    Choice.ACCUMULATION: (DType.FP32, DType.FP16, DType.FP64),
    Choice.INDICES: tuple(IndexType),
    Choice.POOLING: tuple(Pooling),
    Choice.PSW: ("none", "fp32", "fp16"),
    Choice.OPTIMIZER: tuple(OptimizerKind),
    Choice.DECAY: tuple(Decay),
    Choice.ROUNDING: tuple(Rounding),
    Choice.BOUNDS: tuple(BoundsCheck),
    Choice.INDEX_FAULT: tuple(IndexFault),
    Choice.OFFSET_FAULT: tuple(OffsetFault),
    Choice.CALL: tuple(Call),
    Choice.POISON: tuple(Place),
    Choice.POISON_VALUE: tuple(Special),
    Choice.REGIME_WEIGHTS: tuple(Regime),
    Choice.REGIME_GRADIENT: tuple(Regime),
    Choice.REGIME_STATE: tuple(Regime),
    Choice.REGIME_PSW: tuple(Regime),
    Choice.LAYOUT_INDICES: tuple(Layout)[:4],
    Choice.LAYOUT_OFFSETS: tuple(Layout)[:4],
    Choice.LAYOUT_PSW: tuple(Layout)[:4],
    Choice.LAYOUT_GRADIENT: tuple(Layout),
    Choice.DISTRIBUTION: tuple(Distribution),
}
"""What each axis may be, as in a Case's JSON. A map is a list of table numbers, such as `map=[0,1,0]`."""

_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "=": operator.eq,
}
_FORM = re.compile(r"(?P<axis>[a-z ]+?)\s*(?P<comparison>>=|<=|!=|=|>|<)\s*(?P<value>\S+)")
_POWER = re.compile(r"2\^(-?\d+)([+-]\d+)?")


@cache
def trait(name: str) -> Trait:
    """The trait of a name.

    Raises
    ------
    TraitError
        If there is no such axis, flag or option.
    """
    if name.startswith("not "):
        inner = trait(name.removeprefix("not "))
        return Trait(name, lambda facts: not inner.holds(facts))
    match = _FORM.fullmatch(name)
    if match is None:
        flag = _member(Flag, name, name)
        return Trait(name, lambda facts: flag in facts.flags)
    axis, comparison, value = match["axis"], match["comparison"], match["value"]
    if comparison == "!=":
        equal = trait(f"{axis}={value}")
        return Trait(name, lambda facts: not equal.holds(facts))
    if axis in set(Number):
        number, limit, compare = Number(axis), _number(name, value), _COMPARISONS[comparison]
        return Trait(name, lambda facts: any(compare(own, limit) for own in facts.numbers.get(number, ())))
    choice = _member(Choice, axis, name)
    if comparison != "=":
        raise TraitError(f"trait {name!r} compares {axis!r}, which has named options; use = or !=")
    if choice in OPTIONS and value not in OPTIONS[choice]:
        raise TraitError(f"trait {name!r}: {axis!r} is one of {', '.join(OPTIONS[choice])}")
    return Trait(name, lambda facts: value in facts.choices[choice])


def holds(names: Iterable[str], facts: Facts) -> bool:
    """Whether all of the traits hold."""
    return all(trait(name).holds(facts) for name in names)


def _member(kind: type[Member], text: str, name: str) -> Member:
    if text in set(kind):
        return kind(text)
    near = difflib.get_close_matches(text, [*Flag, *Choice, *Number], n=3)
    raise TraitError(f"no trait {name!r}: {text!r} is no axis or flag; near are {', '.join(near) or 'none'}")


def _number(name: str, text: str) -> float:
    power = _POWER.fullmatch(text)
    try:
        return 2.0 ** int(power[1]) + int(power[2] or 0) if power else float(text)
    except ValueError:
        raise TraitError(f"trait {name!r}: {text!r} is no number; write 257, 0.125, 2^-27 or 2^24+1") from None
