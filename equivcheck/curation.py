"""A small set of cases that reaches as much as a large one: for what is recorded once and compared for years."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from equivcheck.case import Case
from equivcheck.coverage import reached
from equivcheck.facts_of_case import facts


def curate(given: Sequence[Case], pools: Sequence[Sequence[Case]], number: int) -> tuple[Case, ...]:
    """`number` cases (fewer where the pools are empty before): the given ones, then from each pool in turn.

    Each turn takes the case of the pool that reaches most that is new: a goal of coverage that n cases have counts
    2^-n, so that goals without a case come first and rare ones next. A pure function of its arguments.
    """
    chosen = list(dict.fromkeys(given))
    taken = set(chosen)
    having: dict[str, int] = {}
    for case in chosen:
        _count(having, reached(facts(case)))
    rest = [{case: reached(facts(case)) for case in pool if case not in taken} for pool in pools]
    while len(chosen) < number and any(rest):
        for pool in rest:
            if pool and len(chosen) < number:
                best = max(pool, key=partial(_news, pool, having))
                _count(having, pool.pop(best))
                if best not in taken:
                    taken.add(best)
                    chosen.append(best)
    return tuple(chosen)


def _news(pool: Mapping[Case, list[str]], having: Mapping[str, int], case: Case) -> float:
    return float(sum(2.0 ** -having.get(goal, 0) for goal in pool[case]))


def _count(having: dict[str, int], goals: list[str]) -> None:
    for goal in goals:
        having[goal] = having.get(goal, 0) + 1
