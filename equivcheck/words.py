"""Random words as a pure function of a key and a position: the same bits on every machine, in any order.

SplitMix64 (Steele, Lea and Flood, *Fast Splittable Pseudorandom Number Generators*, OOPSLA 2014, figure 15) as a
counter-based generator: word i is the mixed value of key + i times the odd constant. Random access lets a row of a
table be made without the rows before it. NumPy's distributions are not used, since they promise no stable bits.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Words: TypeAlias = npt.NDArray[np.uint64]

_GAMMA = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB
_MASK = 2**64 - 1


def derive(*parts: int | str) -> int:
    """Key of the stream that `parts` (seeds, numbers, names) name; another key for any other parts."""
    key = 0
    for part in parts:
        for word in _as_words(part):
            key = _mix((key ^ word) + _GAMMA & _MASK)
    return key


def words(key: int, positions: npt.NDArray[np.int64]) -> Words:
    """64 random bits for each position, which may be any int64 numbers of any shape."""
    z = positions.astype(np.uint64) * np.uint64(_GAMMA) + np.uint64(key)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(_FIRST)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(_SECOND)
    return z ^ (z >> np.uint64(31))


def integers(random: Words, bound: int) -> npt.NDArray[np.int64]:
    """Integers in [0, bound) from words, by the multiply-shift method on their upper 32 bits; bound is below 2^31."""
    return ((random >> np.uint64(32)) * np.uint64(bound) >> np.uint64(32)).astype(np.int64)


def permutation(seed: int, length: int) -> npt.NDArray[np.int64]:
    """Permutation of 0..length-1; seed 0 is the identity."""
    positions = np.arange(length, dtype=np.int64)
    if seed == 0:
        return positions
    return np.argsort(words(derive(seed, "permutation"), positions), kind="stable")


def _mix(z: int) -> int:
    z = (z ^ (z >> 30)) * _FIRST & _MASK
    z = (z ^ (z >> 27)) * _SECOND & _MASK
    return z ^ (z >> 31)


def _as_words(part: int | str) -> list[int]:
    if isinstance(part, int):
        return [part & _MASK]
    data = part.encode()
    return [len(data), *(int.from_bytes(data[i : i + 8], "little") for i in range(0, len(data), 8))]
