"""One pass over malformed offsets: the rule, against every order in which two or three bags can be served."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations, product

import numpy as np
import pytest

from equivcheck.one_pass import repairs


def orders(bags: int) -> Iterator[tuple[tuple[int, str], ...]]:
    """Orders of reading and writing: each bag reads both of its offsets before it writes them."""
    events = [(bag, what) for bag in range(bags) for what in ("read", "write")]
    for order in permutations(events):
        if all(order.index((bag, "read")) < order.index((bag, "write")) for bag in range(bags)):
            yield order


def served(offsets: tuple[int, ...], lookups: int, order: tuple[tuple[int, str], ...], always: bool, last: int) -> bool:
    """Whether the pass is right in one order; `last` is how many events come before the last offset is set."""
    right = np.maximum.accumulate(np.clip(offsets, 0, lookups))
    right[-1] = lookups
    memory, seen = list(offsets), {}
    for number, (bag, what) in enumerate(order):
        if number == last and memory[-1] != lookups:
            memory[-1] = lookups
        if what == "read":
            start, end = memory[bag], memory[bag + 1]
            wrong = start < 0 or start > end or end > lookups
            first = max(0, min(start, lookups)) if wrong else start
            seen[bag] = (first, max(first, min(end, lookups)) if wrong else end, wrong)
        else:
            first, end, wrong = seen[bag]
            if wrong or always:
                memory[bag], memory[bag + 1] = first, end
    if last >= len(order):
        memory[-1] = lookups
    looked_at = all(
        seen[bag][:2] == (right[bag], right[bag + 1])
        or (bag == len(offsets) - 2 and seen[bag][0] == right[bag] and seen[bag][1] == offsets[-1] and not always)
        for bag in seen
    )
    return memory == right.tolist() and looked_at


@pytest.mark.parametrize("always", [False, True])
@pytest.mark.parametrize("bags", [1, 2])
def test_it_is_right_exactly_where_every_order_is(bags: int, always: bool) -> None:
    lookups, told = 3, set()
    every = tuple(orders(bags))
    for offsets in product((-1, 0, 1, 2, 3, 4), repeat=bags + 1):
        found = repairs(np.array(offsets), lookups, always=always)
        moments = range(2 * bags + 1)
        expected = all(served(offsets, lookups, order, always, last) for order in every for last in moments)
        if found:
            assert expected, offsets
        told.add((found, expected))
    assert (True, True) in told
    assert (False, False) in told


@pytest.mark.parametrize(
    ("offsets", "right"),
    [
        ([0, 2, 4], True),
        ([-1, 2, 4], True),
        ([0, 2, 9], True),
        ([0, 2, 3], True),
        ([0, -1, 4], True),
        ([0, 2, 9, 4], True),
        ([0, 1, -1, 4], False),
        ([0, 9, 2, 4], False),
        ([0, 5, 3, 4, 8], False),
    ],
)
def test_known_offsets(offsets: list[int], right: bool) -> None:
    lookups = 8 if len(offsets) == 5 else 4
    assert repairs(np.array(offsets), lookups, always=False) is right


def test_ignoring_writes_back_what_was_right() -> None:
    assert repairs(np.array([0, 2, 3]), 4, always=False)
    assert not repairs(np.array([0, 2, 3]), 4, always=True)
