"""Where choices come from: Hypothesis, or a seed.

The strategies are written once, over `Chooser`. Hypothesis makes the choices where a failure shall be shrunk; a seed
makes them, at a tenth of the time, where millions of cases are judged and a failing one is saved as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Protocol, TypeVar, cast

from hypothesis import strategies as st

from equivcheck import words

T = TypeVar("T")


class Chooser(Protocol):
    """A source of choices. The first of the options is the simplest, towards which a failure shrinks."""

    def position(self, count: int) -> int:
        """A number in [0, count), each as likely as the other."""
        ...

    def choose(self, options: tuple[T, ...]) -> T:
        """One of the options, each as likely as the other."""
        ...

    def several(self, part: Callable[[], T], most: int, more: tuple[bool, ...], least: int = 0) -> list[T]:
        """From `least` to `most` parts, each of which a shrinker can delete alone.

        `more` are the options for going on after each part, False first.
        """
        ...


class SeededChooser:
    """Choices that are a pure function of a seed."""

    def __init__(self, seed: int) -> None:
        self._key = words.derive(seed, "chooser")
        self._calls = 0

    def position(self, count: int) -> int:
        """A number in [0, count)."""
        self._calls += 1
        return words.derive(self._key, self._calls) * count >> 64  # shares differ by less than count / 2^64

    def choose(self, options: tuple[T, ...]) -> T:
        """One of the options."""
        return options[self.position(len(options))]

    def several(self, part: Callable[[], T], most: int, more: tuple[bool, ...], least: int = 0) -> list[T]:
        """From `least` to `most` parts."""
        parts: list[T] = []
        while len(parts) < most and (self.choose(more) or len(parts) < least):
            parts.append(part())
        return parts


class HypothesisChooser:
    """Choices drawn by Hypothesis: `draw` is that of a composite strategy.

    A part and the decision to have it are drawn inside one strategy. Hypothesis records them as one span, which its
    shrinker deletes in one step (`hypothesis.strategies.lists` does the same).
    """

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw
        self._next: Callable[[], object] = object
        self._span = _span(self)  # one strategy a case: making one costs 50 us, drawing from it 10 (2026-11-30)

    def position(self, count: int) -> int:
        """A number in [0, count); shrinks towards 0."""
        return self._draw(_positions(count))

    def choose(self, options: tuple[T, ...]) -> T:
        """One of the options."""
        return options[self._draw(_positions(len(options)))]

    def several(self, part: Callable[[], T], most: int, more: tuple[bool, ...], least: int = 0) -> list[T]:
        """From `least` to `most` parts."""
        parts: list[T] = []
        while len(parts) < most:
            # Chosen before a part that must be there, too: what follows keeps its place when a part is deleted.
            self._next = lambda: part() if self.choose(more) or len(parts) < least else _END
            drawn = self._draw(self._span)
            if drawn is _END:
                break
            parts.append(cast(T, drawn))
        return parts

    def run(self, draw: st.DrawFn) -> object:
        """The next part, drawn inside the span that `draw` belongs to."""
        self._draw = draw
        return self._next()


_END = object()


@st.composite
def _span(draw: st.DrawFn, chooser: HypothesisChooser) -> object:
    return chooser.run(draw)


@lru_cache(maxsize=None)
def _positions(count: int) -> st.SearchStrategy[int]:
    return st.sampled_from(range(count))


@lru_cache(maxsize=2**14)
def prefix(ascending: tuple[int, ...], most: int) -> tuple[int, ...]:
    """Those of some ascending numbers that are at most `most`; the first one always."""
    kept = tuple(number for number in ascending if number <= most)
    return kept or ascending[:1]


def leaning(chooser: Chooser, options: tuple[T, ...], share: int) -> T:
    """One of the options, where the first comes `share` times as often as all others together."""
    others = len(options) - 1
    return options[max(chooser.position((share + 1) * others) - share * others + 1, 0)] if others else options[0]
