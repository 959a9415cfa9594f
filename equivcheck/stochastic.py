"""Statistics of stochastic rounding: whether it is unbiased, and whether its decisions are independent.

That each value becomes one of its two neighbours is judged with everything else (`equivcheck.oracle`). Here many values
are judged together. A value between neighbours a < b, at the share p = (x - a) / (b - a), goes up with probability p.
The oracle knows x within an interval, and so p within [low, high]; elements whose interval reaches over a neighbour are
left out, which depends on nothing that chance decides.

Bias. The number of ups among n independent elements has a Poisson-binomial distribution. For at least one more than its
mean, its tail is not above the binomial's with the mean of the p (Hoeffding, *On the distribution of the number of
successes in independent trials*, Ann. Math. Stat. 27 (1956), theorem 5). So the binomial's exact tail, at the mean of
the highs above and of the lows below, judges at the stated level. It is asked of all elements, upwards and away from
zero, and of each quarter of p by itself: rounding to nearest is unbiased over all, but not where p < 1/2.

Independence. Let r = up - p with p the middle of its interval, d half its width. Over n disjoint pairs of independent
elements the products r s are independent, of means within d e, in ranges of width at most 1: their mean stays within
the mean of d e plus sqrt(ln(2/level) / 2n) (Hoeffding, *Probability inequalities for sums of bounded random variables*,
J. Amer. Statist. Assoc. 58 (1963), theorem 2). One random number for two elements gives r s a mean of 1/12 or more, if
it works upwards, away from zero, or away from the nearest neighbour, in both. Methods do one of these, so all three
senses are tested: in the others the products cancel.

Below the smallest normal number, and next to the largest, methods are biased by construction; both are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import special

from equivcheck.formats import AnyArray, DType, Float64Array, down, nearest, up, widen
from equivcheck.oracle import Bounds
from equivcheck.oracle.roundoff import BoolArray
from equivcheck.oracle.sparse import Int64Array

LEVEL = 1e-9
"""Probability with which one test blames an unbiased and independent rounding."""
_QUARTERS = ((0.0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1.0))


@dataclass(frozen=True)
class Decisions:
    """What stochastic rounding decided, element by element of one tensor, (rows, columns).

    Attributes
    ----------
    judged
        Elements whose neighbours are known, in the normal range.
    up
        Whether the upper neighbour was taken.
    low, high
        The least and most probability of that.
    negative
        Whether the upper neighbour is the one nearer to zero.
    """

    judged: BoolArray
    up: BoolArray
    low: Float64Array
    high: Float64Array
    negative: BoolArray


@dataclass(frozen=True)
class Statistic:
    """One test: `found` lies in [`low`, `high`] with a probability of at least 1 - level."""

    name: str
    elements: int
    found: float
    low: float
    high: float

    @property
    def passed(self) -> bool:
        """Whether it does."""
        return self.low <= self.found <= self.high


def decisions(bounds: Bounds, stored: AnyArray) -> Decisions:
    """Decisions of the store of a block (rows, columns).

    Raises
    ------
    ValueError
        If the block was not stored stochastically.
    """
    if bounds.before_store is None:
        raise ValueError("the bounds have no value before the store; only rows stored stochastically do")
    info, dtype = bounds.dtype.info, bounds.dtype
    before = bounds.before_store
    # The kernel's value was rounded to fp32 before.
    least = np.minimum(before.low, nearest(before.low, DType.FP32))
    most = np.maximum(before.high, nearest(before.high, DType.FP32))
    below, above = down(least, dtype), up(most, dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        gap = above - below
        neighbours = (above == up(np.nextafter(below, np.inf), dtype)) & (gap > 0)
        normal = np.minimum(np.abs(below), np.abs(above)) >= info.smallest_normal
        inside = np.maximum(np.abs(below), np.abs(above)) <= info.maximum
        found = widen(stored)
        judged = neighbours & normal & inside & ~bounds.undetermined & ((found == below) | (found == above))
        scale = np.where(judged, gap, 1.0)
        low, high = (np.where(judged, (end - below) / scale, 0.0) for end in (least, most))
    return Decisions(judged, judged & (found == above), low, high, below < 0)


def unbiased(*parts: Decisions, level: float = LEVEL) -> tuple[Statistic, ...]:
    """Tests of bias over all elements of one update: upwards, away from zero, and in each quarter of the shares.

    The level is shared out among the tests.
    """
    taken, low, high, negative = (
        np.concatenate([getattr(part, name)[part.judged] for part in parts])
        for name in ("up", "low", "high", "negative")
    )
    away = np.where(negative, ~taken, taken)
    away_low, away_high = np.where(negative, 1 - high, low), np.where(negative, 1 - low, high)
    each = level / (2 + len(_QUARTERS))
    tests = [
        _binomial("bias upwards", taken, low, high, each),
        _binomial("bias away from zero", away, away_low, away_high, each),
    ]
    for start, stop in _QUARTERS:
        inside = (low >= start) & (high <= stop)
        name = f"bias of shares from {start} to {stop}"
        tests.append(_binomial(name, taken[inside], low[inside], high[inside], each))
    return tuple(tests)


def independent(name: str, first: Decisions, second: Decisions, level: float = LEVEL) -> tuple[Statistic, ...]:
    """Tests of two blocks of the same shape, element against element: of two tables, steps, or runs."""
    return _products(name, [(first, second)], level)


def independent_inside(*parts: Decisions, level: float = LEVEL) -> tuple[Statistic, ...]:
    """Tests of neighbours inside blocks, all blocks together: columns and rows next to each other, and four apart."""
    tests: list[Statistic] = []
    for axis, what in ((1, "columns"), (0, "rows")):
        for lag in (1, 4):
            tests += _products(f"{what} {lag} apart", [_pairs(part, lag, axis) for part in parts], level / 4)
    return tuple(tests)


def elements_needed(bias: float, level: float = LEVEL) -> int:
    """Elements from which a bias, in units of the last place, fails with a probability of at least 1 - level.

    Hoeffding's radius is sqrt(ln(2/level) / 2n) on either side; the bias has to be two of them.
    """
    return int(np.ceil(2 * np.log(2 / level) / bias**2))


def _binomial(name: str, taken: BoolArray, low: Float64Array, high: Float64Array, level: float) -> Statistic:
    """Least and most shares of ups at the level, from the exact tails."""
    count = len(taken)
    if not count:
        return Statistic(name, 0, 0.0, 0.0, 1.0)
    least, most = float(low.mean()), float(high.mean())
    ups = np.arange(count + 1, dtype=np.float64)
    upper = special.bdtrc(ups - 1, count, min(most, 1.0)) > level / 2  # P(X >= k)
    lower = special.bdtr(ups, count, max(least, 0.0)) > level / 2  # P(X <= k)
    # Hoeffding's theorem begins one above the mean, and ends one below it.
    highest = max(float(ups[upper].max(initial=0.0)), np.ceil(count * most + 1))
    lowest = min(float(ups[lower].min(initial=count)), np.floor(count * least - 1))
    return Statistic(name, count, float(taken.mean()), lowest / count, highest / count)


def _products(name: str, pairs: list[tuple[Decisions, Decisions]], level: float) -> tuple[Statistic, ...]:
    """Tests of pairs of blocks, element against element, of decisions in each of three senses.

    One random number for two values whose signs differ goes the same way in one of the senses upwards and away from
    zero, and in opposite ways in the other. So it does for two values of which one is nearer to its upper neighbour,
    where a method rounds to nearest first and then, perhaps, to the other side.
    """
    residuals: list[tuple[Float64Array, ...]] = []
    for first, second in pairs:
        both = first.judged & second.judged
        (one, one_half), (other, other_half) = (_residual(part, both) for part in (first, second))
        zero = np.where(first.negative[both] == second.negative[both], 1.0, -1.0)
        near = np.where(_nearer_up(first, both) == _nearer_up(second, both), 1.0, -1.0)
        residuals.append((one * other, one_half * other_half, zero, near))
    products, halves, zero, near = (np.concatenate([found[i] for found in residuals]) for i in range(4))
    senses = {"upwards": products, "away from zero": products * zero, "away from the nearest": products * near}
    count = len(products)
    each = level / len(senses)
    radius = float(halves.mean() + np.sqrt(np.log(2 / each) / (2 * count))) if count else 1.0
    return tuple(
        Statistic(f"{name}, {sense}", count, float(values.mean()) if count else 0.0, -radius, radius)
        for sense, values in senses.items()
    )


def _nearer_up(part: Decisions, both: BoolArray) -> BoolArray:
    return part.low[both] + part.high[both] > 1.0


def _residual(part: Decisions, both: BoolArray) -> tuple[Float64Array, Float64Array]:
    """Decision less the middle of its probability, and half the width of that."""
    low, high = part.low[both], part.high[both]
    return part.up[both] - (low + high) / 2, (high - low) / 2


def _pairs(part: Decisions, lag: int, axis: int) -> tuple[Decisions, Decisions]:
    """Disjoint pairs `lag` apart along an axis: each element belongs to one."""
    index = np.arange(part.judged.shape[axis] // (2 * lag) * 2 * lag)
    left, right = (_taken(part, index[index // lag % 2 == half], axis) for half in (0, 1))
    return left, right


def _taken(part: Decisions, index: Int64Array, axis: int) -> Decisions:
    return Decisions(*(np.take(getattr(part, f), index, axis) for f in ("judged", "up", "low", "high", "negative")))
