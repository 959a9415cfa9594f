"""The pool of widths: few kernels to compile, and nothing of a case lost on the way."""

from __future__ import annotations

import pytest

import strategies
from equivcheck.case import Case, Feature
from strategies import Menu

RUNS = range(200)


@pytest.mark.parametrize("seed", RUNS)
def test_a_run_has_four_widths_of_every_kind(seed: int) -> None:
    widths = strategies.pool(seed)
    assert len(widths) == 4
    assert sum(w & (w - 1) == 0 and w % 4 == 0 for w in widths) >= 2
    assert any(w % 4 for w in widths)
    assert any(64 <= w <= 128 for w in widths)


def test_runs_differ() -> None:
    assert len({strategies.pool(seed) for seed in RUNS}) > 50


def test_widths_are_of_the_pool_and_of_the_same_kind() -> None:
    widths = strategies.pool(7)
    for seed in range(300):
        case = strategies.random_case(seed, menu=Menu())
        found = strategies.pooled(case, widths)
        assert found == strategies.pooled(found, widths)
        for before, after in zip(case.features, found.features, strict=True):
            if before.table is not None:
                assert after == before
                continue
            assert after.dim in widths
            assert after.dim % 4 == 0 or before.dim % 4
            assert after.dim & (after.dim - 1) == 0 or before.dim & (before.dim - 1)


def test_a_width_becomes_the_next_narrower_one() -> None:
    pool = (3, 8, 64, 132)
    expected = {1: 8, 2: 8, 4: 8, 8: 8, 9: 8, 32: 8, 64: 64, 65: 64, 100: 64, 128: 64, 200: 132}
    case = Case(features=tuple(Feature(dim=dim) for dim in expected))
    assert [feature.dim for feature in strategies.pooled(case, pool).features] == list(expected.values())
