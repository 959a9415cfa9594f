"""Where choices come from: Hypothesis, or a seed.

The strategies are written once, over `Chooser`. Hypothesis makes the choices where a failure shall be shrunk; a seed
makes them, at a tenth of the time, where millions of cases are judged and a failing one is saved as it is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Generic, Protocol, TypeVar, cast

from hypothesis import strategies as st

from equivcheck import words

T = TypeVar("T")


class Chooser(Protocol):
    """A source of choices. The first of the options is the simplest, towards which a failure shrinks."""

    def position(self, least: int, most: int) -> int:
        """A number from `least` to `most`, each as likely as the other."""
        ...

    def choose(self, options: tuple[T, ...]) -> T:
        """One of the options, each as likely as the other."""
        ...

    def several(self, part: Callable[[], T], counts: tuple[int, ...]) -> list[T]:
        """As many parts as one of `counts` says, which are ascending; a shrinker can delete each part alone."""
        ...


@dataclass(frozen=True)
class Axis(Generic[T]):
    """Options, the simplest first, of which those at positions `least` to `most` may be drawn now.

    What is drawn is a position among *all* options. A forced pair, a size or a leaning only narrow the positions and
    never change what a position means: when a shrinker takes the forced pair away, the case stays as it is, and
    everything that the pair had pinned can shrink, too.
    """

    options: tuple[T, ...]
    least: int = 0
    most: int = -1

    def draw(self, chooser: Chooser) -> T:
        """One of the options."""
        return self.options[chooser.position(self.least, self.most if self.most >= 0 else len(self.options) - 1)]


def draw_up_to(axis: Axis[int], chooser: Chooser, largest: int) -> int:
    """One of an axis' ascending numbers that is at most `largest`; if none may be drawn, the smallest that may."""
    most = bisect_right(axis.options, largest) - 1
    if axis.most >= 0:
        most = min(most, axis.most)
    return axis.options[chooser.position(axis.least, max(axis.least, most))]


def smallest(axis: Axis[int]) -> int:
    """The smallest number that may be drawn from an axis of ascending ones."""
    return axis.options[axis.least]


class SeededChooser:
    """Choices that are a pure function of a seed."""

    def __init__(self, seed: int) -> None:
        self._key = words.derive(seed, "chooser")
        self._calls = 0

    def position(self, least: int, most: int) -> int:
        """A number from `least` to `most`."""
        self._calls += 1
        # Multiply-shift: the shares differ by less than their number / 2^64.
        return least + (words.derive(self._key, self._calls) * (most - least + 1) >> 64)

    def choose(self, options: tuple[T, ...]) -> T:
        """One of the options."""
        return options[self.position(0, len(options) - 1)]

    def several(self, part: Callable[[], T], counts: tuple[int, ...]) -> list[T]:
        """As many parts as one of `counts` says."""
        return [part() for _ in range(self.choose(counts))]


class HypothesisChooser:
    """Choices drawn by Hypothesis: `draw` is that of a composite strategy.

    The number of parts is drawn first, and each part inside a strategy of its own, which Hypothesis records as a span.
    Where a smaller number alone does not show a failure, its shrinker also deletes each span in turn
    (`Shrinker.minimize_individual_choices`, Hypothesis 6.170). With a choice for going on before each part, as
    `hypothesis.strategies.lists` has it, parts of more than five choices could not be deleted from the front.
    """

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw
        self._next: Callable[[], object] = object
        self._span = _span(self)  # one strategy a case: making one costs 50 us, drawing from it 10 (2026-11-30)

    def position(self, least: int, most: int) -> int:
        """A number from `least` to `most`; shrinks towards `least`."""
        return self._draw(_positions(least, most))

    def choose(self, options: tuple[T, ...]) -> T:
        """One of the options; shrinks towards the first."""
        return options[self._draw(_positions(0, len(options) - 1))]

    def several(self, part: Callable[[], T], counts: tuple[int, ...]) -> list[T]:
        """As many parts as one of `counts` says; shrinks towards the fewest and simplest."""
        parts: list[T] = []
        for _ in range(self.choose(counts)):
            self._next = part
            parts.append(cast(T, self._draw(self._span)))
        return parts

    def run(self, draw: st.DrawFn) -> object:
        """The next part, drawn inside the span that `draw` belongs to."""
        self._draw = draw
        return self._next()


@st.composite
def _span(draw: st.DrawFn, chooser: HypothesisChooser) -> object:
    return chooser.run(draw)


@cache
def _positions(least: int, most: int) -> st.SearchStrategy[int]:
    return st.integers(least, most)
