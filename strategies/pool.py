"""Widths from a small pool, for subjects whose kernels are compiled for those of a case.

Compiling takes longer than everything else in a case: TorchRec's Triton TBE has the sum of all widths as a constant in
its kernels, and five kernels to a step. With any width in any case, hardly two cases would share a compiled kernel. A
soak runs so many cases that everything else that is compiled comes from a pool, too (`strategies/signatures.py`).
"""

from __future__ import annotations

import msgspec

from equivcheck import words
from equivcheck.case import Case, Feature

_CHOICES = (
    (4, 8, 16),
    (64, 128),
    (12, 20, 28, 36, 60, 96, 124, 132, 260, 516, 1028),
    (1, 2, 3, 5, 31, 33, 35, 65, 129),
)
"""A run has one width of each: two powers of two, a multiple of four, and one that a vector of four does not divide."""


def pool(seed: int) -> tuple[int, ...]:
    """The widths of a run, ascending."""
    return tuple(
        sorted(group[words.derive(seed, "pool", number) % len(group)] for number, group in enumerate(_CHOICES))
    )


def pooled(case: Case, widths: tuple[int, ...]) -> Case:
    """The case with each table as wide as the widest of the pool that is not wider, else the least.

    A power of two stays one, and a multiple of four stays one: exact means of squares, and systems that take only
    multiples of four, depend on that.
    """
    return msgspec.structs.replace(case, features=tuple(_pooled(feature, widths) for feature in case.features))


def _pooled(feature: Feature, widths: tuple[int, ...]) -> Feature:
    if feature.table is not None:
        return feature
    dim = feature.dim
    power = dim & (dim - 1) == 0
    like = [w for w in widths if (not power or w & (w - 1) == 0) and (dim % 4 != 0 or w % 4 == 0)]
    narrower = [w for w in like if w <= dim]
    return msgspec.structs.replace(feature, dim=max(narrower) if narrower else min(like))
