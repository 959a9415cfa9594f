"""Statistics of stochastic rounding: whether any two of its decisions, however far apart, come of one random number.

Let r = up - p with p the middle of the interval [p - d, p + d] in which the probability of going up lies. Of
independent elements r s has a mean of about 0; of two that share one random number it is 1/12 over shares that are
uniform, and so is its negative where one takes u and the other 1 - u. Summed are the products of all pairs of elements
of two blocks, or of one, whose places are related in one way:

- place j = i + lag, for every lag: periods, rows or tables that share, numbers that a step shifts;
- place j = i xor mask, for every mask: neighbours that share a word, lanes that are mirrored or exchanged.

Places are row-major, and where two blocks have other widths also those in rows padded to the same width. Fast
transforms (Fourier's, Walsh's) give all sums at once.

Each sum S is judged by a bound that holds whatever the decisions. Take its pairs in an order in which j is decided
after i, and i is in no later pair as j. Given what was decided before, X = r_i r_j is at most 1, has a mean within
|r_i| d_j, and a mean square of at most r_i^2 v_j with v = max p (1 - p) + d^2. From e^x <= 1 + x + psi(y) x^2 / y^2 for
x <= y and psi(y) = e^y - 1 - y, exp(t S - t sum d_j - psi(t) V) with V = sum r_i^2 v_j is a supermartingale that begins
at 1 (Freedman, *On tail probabilities for martingales*, Ann. Probab. 3 (1975)), and so, for a t that no decision moves,

    P( |S| > (ln(2/level) + psi(t) V) / t + sum d_j )  <=  level.

Between two blocks, t is taken from V, which is known before the second block is decided. Inside one, t is taken from
sum v_i v_j; the pairs of a mask are disjoint there, so that v_i v_j stands for r_i^2 v_j. `level` is shared out evenly
among all sums: Bonferroni's correction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import combinations, product

import numpy as np
from scipy import fft
from scipy.linalg import hadamard

from equivcheck.formats import Float64Array
from equivcheck.oracle.sparse import Int64Array
from equivcheck.stochastic import LEVEL, Decisions, Statistic

_SENSES = ("upwards", "away from zero", "away from the nearest")
"""Ways in which one random number for two elements may work in both; in the other ways its products cancel."""


@dataclass(frozen=True)
class _Block:
    """Decisions by place, zero where none was judged: `residuals` r in each of the senses (senses, places)."""

    residuals: Float64Array
    judged: Float64Array
    squares: Float64Array
    variances: Float64Array
    halves: Float64Array

    @property
    def places(self) -> int:
        """How many places there are."""
        return len(self.judged)


@dataclass(frozen=True)
class _Sums:
    """Sums of products in one kind of relation, each bounded by a radius: (senses, relations) and (relations)."""

    what: str
    shifts: bool
    first: _Block
    second: _Block
    relations: Int64Array
    sums: Float64Array
    variances: Float64Array
    expected: Float64Array
    drifts: Float64Array


def independent(blocks: Mapping[str, Decisions], level: float = LEVEL) -> tuple[Statistic, ...]:
    """Tests of all pairs of elements of named blocks (rows, columns), in the order in which they were decided.

    Returns
    -------
    tuple
        For each block, each pair of blocks, and each kind of relation the sum that is nearest to its bound, or beyond.
    """
    some = _with_places(blocks)
    within = [sums for name, part in some for sums in _within(name, part)]
    across = [sums for pair in combinations(some, 2) for sums in _between(*pair)]
    return _judged([*within, *across], level)


def independent_between(
    first: Mapping[str, Decisions], second: Mapping[str, Decisions], level: float = LEVEL
) -> tuple[Statistic, ...]:
    """The same, of pairs of an element of one group of blocks and one of another."""
    pairs = product(_with_places(first), _with_places(second))
    return _judged([sums for pair in pairs for sums in _between(*pair)], level)


def _with_places(blocks: Mapping[str, Decisions]) -> list[tuple[str, Decisions]]:
    return [(name, part) for name, part in blocks.items() if part.judged.size]


def _judged(found: list[_Sums], level: float) -> tuple[Statistic, ...]:
    each = level / max(sum(sums.sums.size for sums in found), 1)
    return tuple(_worst(sums, each) for sums in found if sums.sums.size)


def _worst(found: _Sums, level: float) -> Statistic:
    """The sum that is the largest part of its radius, as a mean."""
    surprise = np.log(2 / level)
    # Bennett's choice of t; any would do that no decision moves.
    rate = np.log1p(np.sqrt(2 * surprise / np.maximum(found.expected, 1e-3)))
    radii = (surprise + (np.expm1(rate) - rate) * found.variances) / rate + found.drifts
    sense, at = np.unravel_index(np.argmax(np.abs(found.sums) / radii), found.sums.shape)
    relation = int(found.relations[at])
    count = _pairs(found, relation)
    apart = f"{relation:,} apart" if found.shifts else f"at i and i xor {relation:,}"
    radius = float(radii[at]) / max(count, 1)
    mean = float(found.sums[sense, at]) / max(count, 1)
    return Statistic(f"{found.what} {apart}, {_SENSES[sense]}", count, mean, -radius, radius)


def _pairs(found: _Sums, relation: int) -> int:
    """Pairs of judged elements in a relation."""
    places = np.arange(found.first.places)
    partners = places + relation if found.shifts else places ^ relation
    inside = (partners >= 0) & (partners < found.second.places)
    count = int((found.first.judged[inside] * found.second.judged[partners[inside]]).sum())
    return count if found.shifts or found.first is not found.second else count // 2


def _within(name: str, part: Decisions) -> Iterator[_Sums]:
    """Pairs inside one block: each once."""
    block = _block(part, part.judged.shape[1])
    what = f"elements of {name}"
    yield _summed(what, True, block, block, np.arange(1, block.places), _correlated, 1.0)
    block = _to_power_of_two(block)
    yield _summed(what, False, block, block, np.arange(1, block.places), _dyadic, 0.5)


def _between(first: tuple[str, Decisions], second: tuple[str, Decisions]) -> Iterator[_Sums]:
    """Pairs of an element of one block and one of another, by places of rows as they are and of padded ones."""
    (name, one), (other_name, other) = first, second
    widths = one.judged.shape[1], other.judged.shape[1]
    both = ((widths, ""), ((max(widths), max(widths)), " in padded rows"))
    for (left, right), how in both if widths[0] != widths[1] else both[:1]:
        blocks = _block(one, left), _block(other, right)
        what = f"elements of {name} and {other_name}{how}"
        lags = np.arange(1 - blocks[0].places, blocks[1].places)
        yield _summed(what, True, *blocks, lags, _correlated, 1.0)
        places = max(block.places for block in blocks)
        one_padded, other_padded = (_to_power_of_two(block, places) for block in blocks)
        yield _summed(what, False, one_padded, other_padded, np.arange(one_padded.places), _dyadic, 1.0)


_Products = Callable[[Float64Array, Float64Array], Float64Array]


def _summed(
    what: str, shifts: bool, first: _Block, second: _Block, relations: Int64Array, products: _Products, share: float
) -> _Sums:
    """All sums of a pair of blocks; `share` is one half where the products have each pair twice."""

    def of(one: Float64Array, other: Float64Array) -> Float64Array:
        return share * products(one, other)[..., relations]

    def not_negative(one: Float64Array, other: Float64Array) -> Float64Array:
        """Without the transforms' rounding errors, some 1e-12, where the sum is zero."""
        return np.maximum(of(one, other), 0.0)

    same = first is second
    variances = not_negative(first.variances if same and not shifts else first.squares, second.variances)
    expected = not_negative(first.variances, second.variances) if same else variances
    drifts = not_negative(first.judged, second.halves) / share
    sums = of(first.residuals, second.residuals)
    return _Sums(what, shifts, first, second, relations, sums, variances, expected, drifts)


def _block(part: Decisions, width: int) -> _Block:
    """Decisions by place, in rows of `width` places."""
    judged = part.judged
    middle, half = (part.low + part.high) / 2, (part.high - part.low) / 2
    residuals = np.where(judged, part.up - middle, 0.0)
    zero = np.where(part.negative, -1.0, 1.0)
    near = np.where(middle > 0.5, -1.0, 1.0)
    nearest_to_half = np.clip(0.5, part.low, part.high)
    variances = np.where(judged, nearest_to_half * (1 - nearest_to_half) + half**2, 0.0)

    def flat(values: Float64Array) -> Float64Array:
        return np.pad(values, ((0, 0), (0, width - values.shape[1]))).ravel()

    senses = np.stack([flat(residuals), flat(residuals * zero), flat(residuals * near)])
    halves = flat(np.where(judged, half, 0.0))
    return _Block(senses, flat(judged.astype(np.float64)), senses[0] ** 2, flat(variances), halves)


def _to_power_of_two(block: _Block, places: int = 1) -> _Block:
    """With as many places as a mask of bits needs."""
    missing = (1 << (max(block.places, places) - 1).bit_length()) - block.places

    def padded(values: Float64Array) -> Float64Array:
        return np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, missing)])

    return _Block(*(padded(getattr(block, name)) for name in _Block.__dataclass_fields__))


def _correlated(first: Float64Array, second: Float64Array) -> Float64Array:
    """Sum over i of first[i] second[i + k] at every k, negative ones counted from the end."""
    length = fft.next_fast_len(first.shape[-1] + second.shape[-1] - 1, real=True)
    product = fft.rfft(first, length).conj() * fft.rfft(second, length)
    result: Float64Array = fft.irfft(product, length)
    return result


def _dyadic(first: Float64Array, second: Float64Array) -> Float64Array:
    """Sum over i of first[i] second[i xor k] at every k."""
    result: Float64Array = _walsh(_walsh(first) * _walsh(second)) / first.shape[-1]
    return result


def _walsh(values: Float64Array) -> Float64Array:
    """Walsh-Hadamard transform along the last axis, in natural order: of rows, and then of columns, of a square."""
    size = values.shape[-1]
    columns = 1 << (size.bit_length() - 1) // 2
    square = values.reshape(*values.shape[:-1], size // columns, columns)
    transformed: Float64Array = _hadamard(size // columns) @ square @ _hadamard(columns)
    return transformed.reshape(values.shape)


@cache
def _hadamard(size: int) -> Float64Array:
    return np.asarray(hadamard(size, np.float64))
