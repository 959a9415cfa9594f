"""Statistics of stochastic rounding: what it decided, and whether it is unbiased.

That each value becomes one of its two neighbours is judged with everything else (`equivcheck.oracle`). Here many values
are judged together. A value between neighbours a < b, at the share p = (x - a) / (b - a), goes up with probability p.
The oracle knows x within an interval, and so p within [low, high]; elements whose interval reaches over a neighbour are
left out, which depends on nothing that chance decides. Whether decisions are independent is asked of them in
`equivcheck.dependence`.

Bias. The number of ups among n independent elements has a Poisson-binomial distribution. For at least one more than its
mean, its tail is not above the binomial's with the mean of the p (Hoeffding, *On the distribution of the number of
successes in independent trials*, Ann. Math. Stat. 27 (1956), theorem 5). So the binomial's exact tail, at the mean of
the highs above and of the lows below, judges at the stated level. It is asked of all elements, upwards and away from
zero, and of each quarter of p by itself: rounding to nearest is unbiased over all, but not where p < 1/2.

Below the smallest normal number, and next to the largest, methods are biased by construction; both are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import special

from equivcheck.formats import AnyArray, DType, Float64Array, down, nearest, up, widen
from equivcheck.oracle import Bounds
from equivcheck.oracle.roundoff import BoolArray

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
