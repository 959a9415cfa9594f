"""Faults put into a subject's own results: what a gate must see, on whatever system it runs.

Each takes a right result and makes it wrong in one place, as kernels have been wrong. A gate that does not see one
cannot be trusted with the next build. Faults in a kernel's source are another matter (`equivcheck faults`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from equivcheck.formats import AnyArray
from equivcheck.outcome import Forward, Outcome, Update
from equivcheck.problem import Problem, Snapshot
from equivcheck.recordings import named_rows

Change = Callable[[Problem, Outcome], Outcome | None]
_VISIBLE = 2.0**-4
"""Relative error of a result. Eight times bf16's unit roundoff, which is the least that a 16-bit output can show."""


@dataclass(frozen=True)
class Fault:
    """A fault by name, what it stands for, and how it changes a result; None where the case has no place for it."""

    name: str
    title: str
    change: Change


def bag_left_out(problem: Problem, outcome: Outcome) -> Outcome | None:
    """The output's largest element is zero, as if its bag had been left out."""
    return _output(outcome, lambda value: np.zeros_like(value))


def narrow_sum(problem: Problem, outcome: Outcome) -> Outcome | None:
    """The output's largest element is off by a sixteenth, as where a sum is too narrow or loses a lookup."""
    return _output(outcome, lambda value: (value.astype(np.float64) * (1 + _VISIBLE)).astype(value.dtype))


def not_a_number(problem: Problem, outcome: Outcome) -> Outcome | None:
    """The output's largest element is NaN, as where memory was never written."""
    return _output(outcome, lambda value: np.full_like(value, np.nan))


def update_lost(problem: Problem, outcome: Outcome) -> Outcome | None:
    """The row that changed most keeps its old contents: an update is lost."""
    return _row(problem, outcome, lambda before, after: before)


def update_doubled(problem: Problem, outcome: Outcome) -> Outcome | None:
    """The row that changed most is updated twice: a row's lookups were not gathered into one run."""

    def twice(before: AnyArray, after: AnyArray) -> AnyArray:
        old, new = before.astype(np.float64), after.astype(np.float64)
        return (new + (new - old)).astype(after.dtype)

    return _row(problem, outcome, twice)


def neighbour_written(problem: Problem, outcome: Outcome) -> Outcome | None:
    """The lowest bit of a row that nobody named is flipped: a store went next door."""
    last = _last_update(outcome)
    if last is None:
        return None
    for table, (array, named) in enumerate(zip(last[1].after.tables, named_rows(problem), strict=True)):
        free = np.setdiff1d(np.arange(len(array)), named)
        if free.size and array.shape[1]:
            changed = array.copy()
            changed.view(np.uint8)[free[0], 0] ^= 1
            return _with_state(outcome, last[0], "tables", table, changed)
    return None


def state_not_stored(problem: Problem, outcome: Outcome) -> Outcome | None:
    """The optimizer's first moment is as it was before: its store is missing."""
    last = _last_update(outcome)
    if last is None:
        return None
    before = _before(problem, outcome, last[0])
    for table, (old, new) in enumerate(zip(before.momentum1, last[1].after.momentum1, strict=True)):
        if _moved(old, new).max(initial=0.0) > _VISIBLE:
            return _with_state(outcome, last[0], "momentum1", table, old.copy())
    return None


def weights_shifted(problem: Problem, outcome: Outcome) -> Outcome | None:
    """The gradients of the per-sample weights stand one lookup further: weights paired with the wrong lookup."""
    for position, result in enumerate(outcome.results):
        if isinstance(result, Update) and result.weight_gradient is not None:
            shifted = np.roll(result.weight_gradient, 1)
            if _moved(result.weight_gradient, shifted).max(initial=0.0) > _VISIBLE:
                return _with(outcome, position, replace(result, weight_gradient=shifted))
    return None


def inputs_changed(problem: Problem, outcome: Outcome) -> Outcome | None:
    """An index of the caller's is another after the call."""
    for step, arrays in enumerate(outcome.inputs_after):
        indices = arrays.get("indices")
        if indices is not None and indices.size:
            changed = indices.copy()
            changed[0] += 1
            inputs = list(outcome.inputs_after)
            inputs[step] = {**arrays, "indices": changed}
            return replace(outcome, inputs_after=tuple(inputs))
    return None


FAULTS = tuple(
    Fault(change.__name__, (change.__doc__ or "").strip().rstrip("."), change)
    for change in (
        *(bag_left_out, narrow_sum, not_a_number, update_lost, update_doubled, neighbour_written),
        *(state_not_stored, weights_shifted, inputs_changed),
    )
)
"""A sample of everything that is judged."""


def _output(outcome: Outcome, change: Callable[[AnyArray], AnyArray]) -> Outcome | None:
    for position, result in enumerate(outcome.results):
        if isinstance(result, Forward) and result.output.size:
            values = np.abs(result.output.astype(np.float64))
            values[~np.isfinite(values)] = 0.0
            place = np.unravel_index(int(values.argmax()), values.shape)
            # Twice the smallest normal fp32, so that a sixteenth of it is none of the subnormals that may be flushed.
            if values[place] > 2.0**-125:
                output = result.output.copy()
                output[place] = change(output[place])
                return _with(outcome, position, replace(result, output=output))
    return None


def _row(problem: Problem, outcome: Outcome, change: Callable[[AnyArray, AnyArray], AnyArray]) -> Outcome | None:
    last = _last_update(outcome)
    if last is None:
        return None
    before = _before(problem, outcome, last[0])
    for table, (old, new) in enumerate(zip(before.tables, last[1].after.tables, strict=True)):
        moved = _moved(old, new)
        if moved.size and moved.max() > _VISIBLE:
            row = int(moved.max(axis=1).argmax())
            array = new.copy()
            array[row] = change(old[row], new[row])
            return _with_state(outcome, last[0], "tables", table, array)
    return None


def _moved(old: AnyArray, new: AnyArray) -> npt.NDArray[np.float64]:
    """How far each element moved, as a share of the larger of the two values; zero where one is not finite."""
    left, right = old.astype(np.float64), new.astype(np.float64)
    largest = np.maximum(np.abs(left), np.abs(right))
    moved = np.zeros_like(largest)
    finite = np.isfinite(largest) & (largest > 0)
    moved[finite] = np.abs(right[finite] - left[finite]) / largest[finite]
    return moved


def _last_update(outcome: Outcome) -> tuple[int, Update] | None:
    """The last update: what comes after a changed one would be judged by what it left."""
    found = [(position, result) for position, result in enumerate(outcome.results) if isinstance(result, Update)]
    return found[-1] if found else None


def _before(problem: Problem, outcome: Outcome, position: int) -> Snapshot:
    earlier = [result.after for result in outcome.results[:position] if isinstance(result, Update)]
    return earlier[-1] if earlier else problem.initial


def _with_state(outcome: Outcome, position: int, name: str, table: int, array: AnyArray) -> Outcome:
    update = outcome.results[position]
    assert isinstance(update, Update)
    arrays = list(getattr(update.after, name))
    arrays[table] = array
    return _with(outcome, position, replace(update, after=replace(update.after, **{name: tuple(arrays)})))


def _with(outcome: Outcome, position: int, result: Forward | Update) -> Outcome:
    results = list(outcome.results)
    results[position] = result
    return replace(outcome, results=tuple(results))
