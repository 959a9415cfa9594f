"""How far two arrays that should mean the same lie apart: equal bits, units in the last place, and to which side."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from equivcheck.formats import AnyArray

CLASSES = ("0", "1", "2", "3-4", "5-8", "9-16", "17-64", "65-1024", "over 1024", "not comparable")
"""Distances in ulps. Not comparable: a NaN beside a number, or two infinities that differ in their sign."""
_EDGES = np.array([0, 1, 2, 4, 8, 16, 64, 1024])
_INTEGERS = {2: np.int16, 4: np.int32}


class Drift(msgspec.Struct):
    """Elements that were compared, those of equal bits, those in which the first is larger, and distances in ulps.

    -0 equals +0 and NaN equals NaN, as for exact data.
    """

    elements: int = 0
    equal: int = 0
    above: int = 0
    ulps: dict[str, int] = msgspec.field(default_factory=dict)

    def add(self, other: Drift) -> None:
        """Count `other` in."""
        self.elements += other.elements
        self.equal += other.equal
        self.above += other.above
        for name, number in other.ulps.items():
            self.ulps[name] = self.ulps.get(name, 0) + number


def drift(ours: AnyArray, theirs: AnyArray) -> Drift:
    """Compare two arrays of one shape and one type: fp32, fp16 or bf16, which fp64 holds exactly.

    An ulp is a step in the type's own sequence of values: from the largest finite number to infinity is one.

    Raises
    ------
    ValueError
        If shapes or types differ.
    """
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        raise ValueError(f"{ours.dtype} of shape {ours.shape} beside {theirs.dtype} of shape {theirs.shape}")
    left, right = ours.astype(np.float64).ravel(), theirs.astype(np.float64).ravel()
    equal = (left == right) | (np.isnan(left) & np.isnan(right))
    opposite = np.isinf(left) & np.isinf(right) & (left != right)
    beyond = ~equal & (np.isnan(left) | np.isnan(right) | opposite)
    steps = np.abs(_position(ours) - _position(theirs))
    classes = np.searchsorted(_EDGES, np.where(equal, 0, steps))
    classes[beyond] = len(CLASSES) - 1
    counts = np.bincount(classes, minlength=len(CLASSES))
    found = {name: int(number) for name, number in zip(CLASSES, counts, strict=True) if number}
    return Drift(ours.size, int(equal.sum()), int((left > right).sum()), found)


def _position(array: AnyArray) -> npt.NDArray[np.float64]:
    """Place of each value in its type's sequence, -0 and +0 at zero: the bits, with the sign's bit as a sign."""
    dense = np.ascontiguousarray(array).ravel()
    bits = dense.view(_INTEGERS[dense.dtype.itemsize]).astype(np.int64)
    lowest = -(2 ** (8 * dense.dtype.itemsize - 1))  # the bits of -0
    return np.where(bits < 0, lowest - bits, bits).astype(np.float64)
