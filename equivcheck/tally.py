"""Counting while tensors are compared: what was judged, the worst wrong element of each kind, and the worst ratio."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from equivcheck.formats import AnyArray, DType, Float64Array, widen
from equivcheck.oracle import Bounds
from equivcheck.oracle.expectation import InputExpectation
from equivcheck.oracle.sparse import blocks
from equivcheck.verdict import Discrepancy, Symptom, Tensor, TensorReport

Namer = Callable[[int, int], str]
"""Names an element in words from its row and column in the block."""


@dataclass
class _Counts:
    judged: int = 0
    exact: int = 0
    trusted: int = 0
    undetermined: int = 0
    wrong: int = 0
    worst_ratio: float = 0.0


class Tally:
    """Collects the comparison of one case."""

    def __init__(self) -> None:
        self._counts: dict[Tensor, _Counts] = {}
        self._worst: dict[tuple[Tensor, Symptom], Discrepancy] = {}

    def discrepancies(self) -> tuple[Discrepancy, ...]:
        """The worst element of each tensor and symptom, worst first; NaN ratios lead."""
        return tuple(sorted(self._worst.values(), key=lambda d: -np.nan_to_num(d.ratio, nan=np.inf, posinf=1e308)))

    def reports(self) -> tuple[TensorReport, ...]:
        """Counts of every tensor that was compared, in the order of the enum."""
        return tuple(
            TensorReport(t, c.judged, c.exact, c.trusted, c.undetermined, c.wrong, c.worst_ratio)
            for t, c in sorted(self._counts.items(), key=lambda item: list(Tensor).index(item[0]))
        )

    def judged(self, tensor: Tensor, elements: int) -> None:
        """Count elements that are compared one to one."""
        self._of(tensor).judged += elements

    def wrong(self, found: Discrepancy) -> None:
        """Keep a discrepancy, unless a worse one of its kind is known."""
        self._of(found.tensor).wrong += found.count
        key = (found.tensor, found.symptom)
        known = self._worst.get(key)
        worse = known is None or not (found.ratio <= known.ratio or np.isnan(found.ratio))
        count = found.count + (0 if known is None else known.count)
        base = found if worse or known is None else known
        self._worst[key] = _with_count(base, count)

    def compare(self, tensor: Tensor, position: int, bounds: Bounds, actual: AnyArray, name: Namer) -> None:
        """Compare a block (rows, columns) with its bounds, element by element."""
        counts = self._of(tensor)
        rows, columns = bounds.value.shape
        counts.undetermined += int(bounds.undetermined.sum())
        judged = bounds.value.size - int(bounds.undetermined.sum())
        counts.judged += judged
        if bounds.trusted.size:
            # On a large case trust is measured on the leading columns and stands for all.
            counts.trusted += round(judged * float(bounds.trusted.mean()))
        for start, stop in blocks(rows, columns):
            self._compare_block(tensor, position, bounds, actual, name, slice(start, stop))

    def same_bytes(
        self,
        tensor: Tensor,
        position: int,
        where: str,
        before: AnyArray,
        after: AnyArray,
        kept: npt.NDArray[np.bool_] | None,
    ) -> None:
        """Compare bytes, of the rows in `kept` or of all: -0 is not 0, and a NaN keeps its payload."""
        if before.shape != after.shape or before.dtype != after.dtype:
            detail = f"{after.dtype} {after.shape}, not {before.dtype} {before.shape}"
            self.wrong(Discrepancy(tensor, Symptom.SHAPE, position, where, detail=detail))
            return
        differs = _bytes(before) != _bytes(after)
        if kept is not None:
            differs &= kept.reshape(-1, *([1] * (differs.ndim - 1)))
            self.judged(tensor, int(kept.sum()) * (before.size // max(len(before), 1)))
        else:
            self.judged(tensor, before.size)
        if differs.any():
            first = tuple(int(i) for i in np.argwhere(differs)[0])
            self.wrong(
                Discrepancy(
                    tensor,
                    Symptom.BYTES,
                    position,
                    f"{where}, element {list(first)}",
                    actual=float(after[first]),
                    truth=float(before[first]),
                    count=int(differs.sum()),
                )
            )

    def repaired(self, step: int, name: str, allowed: InputExpectation, after: AnyArray) -> None:
        """Compare indices or offsets after the call: each as given, or as a repair leaves it."""
        where = f"{name} of step {step}"
        if after.shape != allowed.given.shape or after.dtype != allowed.given.dtype:
            detail = f"{after.dtype} {after.shape}, not {allowed.given.dtype} {allowed.given.shape}"
            self.wrong(Discrepancy(Tensor.INPUTS, Symptom.SHAPE, -1, where, detail=detail))
            return
        self.judged(Tensor.INPUTS, after.size)
        differs = (after != allowed.given) & (after != allowed.repaired)
        if differs.any():
            first = int(np.argmax(differs))
            self.wrong(
                Discrepancy(
                    Tensor.INPUTS,
                    Symptom.BYTES,
                    -1,
                    f"{where}, element {first}",
                    actual=float(after[first]),
                    truth=float(allowed.given[first]),
                    count=int(differs.sum()),
                )
            )

    def _of(self, tensor: Tensor) -> _Counts:
        return self._counts.setdefault(tensor, _Counts())

    def _compare_block(
        self, tensor: Tensor, position: int, bounds: Bounds, actual: AnyArray, name: Namer, block: slice
    ) -> None:
        counts = self._of(tensor)
        low, high = bounds.allowed.low[block], bounds.allowed.high[block]
        value, undetermined = bounds.value[block], bounds.undetermined[block]
        found = widen(actual[block])
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            right = ((low <= found) & (found <= high)) | (np.isnan(low) & np.isnan(found)) | undetermined
            exact = low == high
            counts.exact += int((exact & ~undetermined).sum())
            error = np.abs(found - value)
            bound = np.where(found >= value, high - value, value - low)
            ratio = np.where(exact, np.where(right, 0.0, np.inf), error / bound)
            comparable = right & ~undetermined & ~exact & np.isfinite(ratio)
            if comparable.any():
                counts.worst_ratio = max(counts.worst_ratio, float(ratio[comparable].max()))
        if right.all():
            return
        wrong = ~right
        for symptom, mask in _symptoms(found, low, high, wrong):
            candidates = np.where(mask, np.nan_to_num(ratio, nan=np.inf, posinf=np.inf), -1.0)
            best = np.where(candidates == candidates.max(), np.nan_to_num(error, nan=np.inf, posinf=np.inf), -1.0)
            row, column = (int(i) for i in np.unravel_index(int(np.argmax(best)), best.shape))
            self.wrong(
                Discrepancy(
                    tensor,
                    symptom,
                    position,
                    name(row + (block.start or 0), column),
                    actual=float(found[row, column]),
                    truth=float(value[row, column]),
                    low=float(low[row, column]),
                    high=float(high[row, column]),
                    error=float(error[row, column]),
                    bound=float(bound[row, column]),
                    ratio=float(ratio[row, column]),
                    ulps=_ulps(error[row, column], value[row, column], bounds.dtype),
                    count=int(mask.sum()),
                )
            )


def _symptoms(
    found: Float64Array, low: Float64Array, high: Float64Array, wrong: npt.NDArray[np.bool_]
) -> list[tuple[Symptom, npt.NDArray[np.bool_]]]:
    """The wrong elements by kind; each element has one."""
    nan, expected_nan = np.isnan(found), np.isnan(low)
    kinds = [
        (Symptom.NAN, nan & ~expected_nan),
        (Symptom.NOT_NAN, expected_nan),
        (Symptom.INFINITE, np.isinf(found)),
        (Symptom.FINITE, np.isinf(low) & (low == high)),
        (Symptom.NOT_EXACT, low == high),
        (Symptom.OUT_OF_BOUND, np.ones(found.shape, bool)),
    ]
    result, left = [], wrong
    for symptom, mask in kinds:
        taken = left & mask
        if taken.any():
            result.append((symptom, taken))
        left = left & ~mask
    return result


def _ulps(error: float, truth: float, dtype: DType) -> float:
    if not np.isfinite(truth) or not np.isfinite(error):
        return float("nan")
    info = dtype.info
    exponent = max(int(np.frexp(truth)[1]) - 1, info.minimum_exponent)
    return float(error / 2.0 ** (exponent - info.precision + 1))


def _bytes(array: AnyArray) -> npt.NDArray[np.unsignedinteger]:
    """The array's bit patterns, one unsigned integer an element."""
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


def _with_count(found: Discrepancy, count: int) -> Discrepancy:
    return replace(found, count=count)
