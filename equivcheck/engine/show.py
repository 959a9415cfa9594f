"""Cases, numbers and failures as people read them."""

from __future__ import annotations

import enum
import math
from typing import Any

import msgspec

from equivcheck.case import Case
from equivcheck.problem import Action, program
from equivcheck.verdict import Discrepancy, Status, Verdict

WIDTH = 110
"""Columns up to which a part of a case stays on one line."""


def python_source(part: object, indent: int = 0) -> str:
    """A Case, or a part of one, as the Python that builds it; what is left at its default is left out."""
    one_line = _call(part, None)
    if indent + len(one_line) <= WIDTH or not isinstance(part, msgspec.Struct | tuple):
        return one_line
    return _call(part, indent)


def failure(case: Case, verdict: Verdict) -> list[str]:
    """What was wrong, in lines: the element, the kernel's value, the truth, the error in ulps and of its bound."""
    lines = []
    for discrepancy in verdict.discrepancies:
        lines += _discrepancy(case, discrepancy)
    if verdict.status is not Status.FAILED or not lines:
        lines += [f"{verdict.status.value}: {line}" if i == 0 else line for i, line in enumerate(_reason(verdict))]
    return lines


def number(value: float) -> str:
    """A number with the digits that tell it apart, NaN and infinities by name."""
    return repr(value) if math.isfinite(value) else {True: "NaN", False: "Inf" if value > 0 else "-Inf"}[value != value]


def shares(part: int, whole: int) -> str:
    """A percentage, which is 0 % and 100 % only where it is exactly so."""
    if not whole:
        return "-"
    percent = 100 * part / whole
    if 0 < part < whole:
        percent = min(max(percent, 0.1), 99.9)
    return f"{percent:.0f} %" if percent in (0, 100) or 1 <= percent <= 99 else f"{percent:.1f} %"


def _reason(verdict: Verdict) -> list[str]:
    return verdict.reason.rstrip().splitlines() or ["no reason was given"]


def _discrepancy(case: Case, found: Discrepancy) -> list[str]:
    more = f", and {found.count - 1} more elements" if found.count > 1 else ""
    lines = [f"{found.tensor.value}: {found.symptom.value} at {found.where or 'the call'}{more}{_when(case, found)}"]
    if not math.isnan(found.truth) or not math.isnan(found.actual):
        lines.append(f"  kernel {number(found.actual)}")
        lines.append(f"  truth  {number(found.truth)}{_allowed(found)}")
    if not math.isnan(found.error):
        share = "the bound is zero" if found.bound == 0 else f"{found.ratio:.4g} times its bound"
        ulps = "" if math.isnan(found.ulps) else f" = {found.ulps:.4g} ulp"
        lines.append(f"  error  {found.error:.4g}{ulps}, {share}")
    if found.detail:
        lines += [f"  {line}" for line in found.detail.splitlines()]
    return lines


def _allowed(found: Discrepancy) -> str:
    if math.isnan(found.low) and math.isnan(found.high):
        return ""
    if found.low == found.high:
        return f", only {number(found.low)} is allowed" if found.low != found.truth else ", and nothing else is allowed"
    return f", allowed from {number(found.low)} to {number(found.high)}"


def _when(case: Case, found: Discrepancy) -> str:
    actions = program(case)
    if len(actions) <= 2 or not 0 <= found.action < len(actions):
        return ""
    action, step = actions[found.action]
    return f", after the {'forward' if action is Action.FORWARD else 'backward'} of step {step}"


def _call(part: Any, indent: int | None) -> str:
    """`Name(field=value, ...)`; on several lines if `indent` is given."""
    if isinstance(part, enum.Enum):
        return f"{type(part).__name__}.{part.name}"
    inner = None if indent is None else indent + 4
    if isinstance(part, tuple):
        items = [_item(element, inner) for element in part]
        return _brackets("(", items, ",)" if len(items) == 1 else ")", indent)
    if not isinstance(part, msgspec.Struct):
        return repr(part)
    items = []
    for field in msgspec.structs.fields(part):
        value = getattr(part, field.name)
        default = field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default
        if value != default:
            items.append(f"{field.name}={_item(value, inner)}")
    return _brackets(f"{type(part).__name__}(", items, ")", indent)


def _item(value: object, indent: int | None) -> str:
    return _call(value, None) if indent is None else python_source(value, indent)


def _brackets(opening: str, items: list[str], closing: str, indent: int | None) -> str:
    if indent is None or not items:
        return opening + ", ".join(items) + closing
    space = "\n" + " " * (indent + 4)
    return opening + "".join(f"{space}{item}," for item in items) + "\n" + " " * indent + closing.lstrip(",")
