"""Traits: each flag and number is what it says on a case made for it, and a wrong name is answered with a near one."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter

import pytest

import strategies
from equivcheck.case import (
    BadIndex,
    BadOffset,
    Bag,
    BoundsCheck,
    Call,
    Captured,
    Case,
    Distribution,
    Feature,
    IndexFault,
    Lookup,
    OffsetFault,
    Optimizer,
    OptimizerKind,
    PerSampleWeights,
    Pooling,
    Step,
    Traffic,
)
from equivcheck.facts import Facts, Flag, Number
from equivcheck.facts_of_case import facts
from equivcheck.problem import materialise
from equivcheck.traits import OPTIONS, TraitError, trait
from equivcheck.words import permutation

ONE = Bag((Lookup(),))


def table(*bags: Bag, rows: int = 4, dim: int = 4) -> Feature:
    return Feature(rows=rows, dim=dim, bags=bags)


EXAMPLES: dict[str, Case] = {
    "sharing": Case(features=(table(ONE), Feature(table=0))),
    "unsorted map": Case(
        features=(table(ONE), table()),
        feature_order=next(seed for seed in range(1, 99) if permutation(seed, 2).tolist() == [1, 0]),
    ),
    "unsorted sharing": Case(features=(table(ONE), table(), Feature(table=0))),
    "interleaved sharing": Case(features=(table(ONE), table(), Feature(table=0))),
    "feature with no neighbour of its table": Case(features=(table(ONE), Feature(table=0), table())),
    "last feature longer than half of the longest": Case(features=(table(ONE), table(ONE, ONE)), ranks=1),
    "fewer samples than features": Case(features=(table(ONE), table()), ranks=1),
    "wide feature with short bags": Case(features=(table(ONE, dim=1028),)),
    "32 bags in a row of one lookup": Case(features=(table(Bag((Lookup(),), copies=32), Bag()),)),
    "table without rows": Case(features=(table(ONE), table(rows=0))),
    "first table without rows": Case(features=(table(rows=0), table(ONE))),
    "middle table without rows": Case(features=(table(ONE), table(rows=0), table())),
    "last table without rows": Case(features=(table(ONE), table(rows=0))),
    "all tables without rows": Case(features=(table(ONE, rows=0),)),
    "lookup into a table without rows": Case(features=(table(ONE, rows=0),)),
    "bag empty": Case(features=(table(ONE), table(ONE, Bag()))),
    "first bag empty": Case(features=(table(Bag(), ONE),)),
    "middle bag empty": Case(features=(table(ONE, Bag(), ONE),)),
    "last bag empty": Case(features=(table(ONE, ONE), table(ONE))),
    "all bags empty": Case(features=(table(Bag(copies=3)),)),
    "ragged feature": Case(features=(table(ONE, Bag((Lookup(0, 3),))),)),
    "bag length not a power of two": Case(features=(table(Bag((Lookup(0, 3),))),)),
    "feature without lookups": Case(features=(table(ONE), table())),
    "row repeated": Case(features=(table(ONE, ONE),)),
    "row repeated in a bag": Case(features=(table(Bag((Lookup(1), Lookup(2), Lookup(1)))),)),
    "row in several bags": Case(features=(table(ONE, ONE),)),
    "row in several features": Case(features=(table(ONE), Feature(table=0, bags=(ONE,)))),
    "long and short runs": Case(features=(table(Bag((Lookup(0, 33), Lookup(1)))),)),
    "every row touched": Case(features=(table(Bag((Lookup(0), Lookup(1))), rows=2),)),
    "one of many rows touched": Case(features=(table(ONE, rows=1000),)),
    "last row touched": Case(features=(table(Bag((Lookup(9),))),)),
    "mixed dims": Case(features=(table(ONE), table(dim=8))),
    "wider table after a narrower": Case(features=(table(ONE), table(dim=8))),
    "narrower table after a wider": Case(features=(table(ONE), table(dim=2))),
    "dim below the widest's power of two": Case(features=(table(ONE, dim=12),)),
    "dim not multiple of 4": Case(features=(table(ONE, dim=6),)),
    "psw": Case(per_sample_weights=PerSampleWeights()),
    "psw gradient": Case(per_sample_weights=PerSampleWeights(gradient=True)),
    "vbe": Case(features=(table(ONE),), ranks=1),
    "empty rank": Case(features=(table(ONE),), ranks=2),
    "feature empty in a rank": Case(features=(table(ONE), table()), ranks=1),
    "frozen feature": Case(features=(Feature(frozen=True),)),
    "traffic": Case(features=(Feature(traffic=Traffic(2)),)),
    "backward": Case(),
    "optimizer state": Case(optimizer=Optimizer(OptimizerKind.ADAM)),
    "index out of bounds": Case(bounds_check=BoundsCheck.IGNORE, bad_indices=(BadIndex(IndexFault.ROWS),)),
    "pruned index": Case(bad_indices=(BadIndex(IndexFault.PRUNED),)),
    "malformed offsets": Case(bounds_check=BoundsCheck.FATAL, bad_offsets=(BadOffset(OffsetFault.NEGATIVE, 1),)),
    "first offset malformed": Case(
        features=(table(ONE),), bounds_check=BoundsCheck.FATAL, bad_offsets=(BadOffset(OffsetFault.NEGATIVE, 2),)
    ),
    "first offset positive": Case(
        features=(table(ONE),), bounds_check=BoundsCheck.FATAL, bad_offsets=(BadOffset(OffsetFault.PLUS_ONE, 2),)
    ),
    "offsets that one pass repairs wrongly": Case(
        features=(table(ONE, ONE, ONE),),
        bounds_check=BoundsCheck.WARNING,
        bad_offsets=(BadOffset(OffsetFault.NEGATIVE, 2),),
    ),
    "last offset malformed": Case(
        features=(table(ONE),), bounds_check=BoundsCheck.FATAL, bad_offsets=(BadOffset(OffsetFault.NEGATIVE, 3),)
    ),
    "later step shifted": Case(steps=(Step(), Step(shift=1))),
    "later step smaller": Case(steps=(Step(), Step(bags=0))),
    "later step with shorter bags": Case(features=(table(ONE),), steps=(Step(), Step(lookups=0))),
    "later step with bags turned": Case(features=(table(ONE, Bag()),), steps=(Step(), Step(turn=1))),
    "learning rate changes between steps": Case(steps=(Step(), Step(learning_rate=2.0))),
}
CAPTURED = Case(features=(Feature(rows=3),), captured=Captured("batch", "0" * 64))


def test_every_flag_has_an_example() -> None:
    assert set(EXAMPLES) == set(Flag) - {Flag.CAPTURED}


@pytest.mark.parametrize(
    "case",
    [
        Case(features=(table(ONE, ONE),), steps=(Step(), Step(lookups=1, turn=1))),
        Case(features=(table(ONE, Bag()),), steps=(Step(), Step(lookups=1, turn=2))),
        Case(features=(table(ONE, Bag()),), steps=(Step(), Step(lookups=0, turn=1))),
        Case(features=(table(ONE, Bag()),), steps=(Step(), Step(bags=1, turn=1))),
    ],
    ids=("bags of one length", "turned round", "nothing left", "one bag left"),
)
def test_a_turn_that_changes_nothing_is_none(case: Case) -> None:
    assert trait("not later step with bags turned").holds(facts(case))


@pytest.mark.parametrize("flag", EXAMPLES)
def test_a_flag_holds_where_it_should_and_not_everywhere(flag: str) -> None:
    assert trait(flag).holds(facts(EXAMPLES[flag]))
    plain = Case(call=Call.FORWARD_ONLY, features=(table(Bag((Lookup(1),)), rows=3),))
    pair = Case(features=(table(ONE), Feature(table=0, bags=(ONE,))))
    assert not all(trait(flag).holds(facts(case)) for case in (plain, pair))
    assert trait(f"not {flag}").holds(facts(EXAMPLES[flag])) is False


def numbers() -> Iterator[tuple[str, Case]]:
    hot = Feature(rows=200, dim=1, traffic=Traffic(200, 40, distribution=Distribution.CYCLIC))
    yield "run=257", Case(features=(table(Bag((Lookup(0, 100),)), Bag((Lookup(0, 157),))),))
    yield "run>=41", Case(features=(table(Bag((Lookup(0, 1),), copies=41)),))
    yield "lookups=8000", Case(features=(hot,))
    yield "hot rows=200", Case(features=(hot,))
    yield "distinct rows=200", Case(features=(hot,))
    yield "not run!=40", Case(features=(hot,))
    yield "bag=0", Case(features=(table(ONE, Bag()),))
    yield "batch=5", Case(features=(table(Bag(copies=5)), table(ONE)))
    yield "features=2", Case(features=(table(), Feature(table=0)))
    yield "tables<2", Case(features=(table(), Feature(table=0)))
    yield "rows=0", Case(features=(table(rows=0), table()))
    yield "dim=12", Case(features=(table(dim=12), table()))
    yield "dim ratio>=100", Case(features=(table(dim=1), table(dim=128)))
    yield "row id=2^24", Case(features=(Feature(rows=2**25, bags=(Bag((Lookup(2**24),)),)),))
    yield "table elements>2^24", Case(features=(Feature(rows=2**25),))
    yield "ranks>1", Case(ranks=2)
    yield "steps=2", Case(steps=(Step(), Step()))
    yield "adam step=2^24+1", Case(optimizer=Optimizer(OptimizerKind.ADAM, step=2**24 + 1))
    yield "learning rate=0.25", Case(optimizer=Optimizer(learning_rate=0.25))
    yield "eps=2^-27", Case(optimizer=Optimizer(OptimizerKind.ADAGRAD, eps=2.0**-27))
    yield "weight decay=0.5", Case(optimizer=Optimizer(OptimizerKind.ADAM, weight_decay=0.5))
    yield "map=[0,1,0]", Case(features=(table(), table(), Feature(table=0)))
    yield "pooling=mean", Case(pooling=Pooling.MEAN)
    yield "pooling!=sum", Case(pooling=Pooling.MEAN)
    yield "layout indices=contiguous", Case()
    yield "psw=none", Case()


@pytest.mark.parametrize(("name", "case"), [pytest.param(*given, id=given[0]) for given in numbers()])
def test_a_number_or_choice_holds(name: str, case: Case) -> None:
    assert trait(name).holds(facts(case))
    other = Facts({}, dict.fromkeys(facts(case).choices, ()), frozenset())
    assert trait(name).holds(other) is ("!=" in name and not name.startswith("not"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "unsorted sharin",
            "'unsorted sharin' is no axis or flag; near are unsorted sharing",
        ),
        ("runs>=3", "'runs' is no axis or flag; near are run"),
        ("pooling=max", "'pooling' is one of sum, mean, none"),
        ("pooling>=mean", "compares 'pooling', which has named options; use = or !="),
        ("run>=many", "'many' is no number; write 257"),
        ("not dim=x", "'x' is no number"),
    ],
)
def test_a_wrong_name_is_answered(name: str, message: str) -> None:
    with pytest.raises(TraitError) as error:
        trait(name)
    assert message in str(error.value)


def test_every_option_is_a_trait() -> None:
    for choice, options in OPTIONS.items():
        for option in options:
            assert trait(f"{choice}={option}").name == f"{choice}={option}"


def test_bag_lengths_are_those_after_a_repair_and_a_step_s_own() -> None:
    four_and_four = (table(Bag((Lookup(0, 4),)), Bag((Lookup(0, 4),))),)
    shifted = Case(
        features=four_and_four,
        bounds_check=BoundsCheck.IGNORE,
        bad_offsets=(BadOffset(OffsetFault.PLUS_ONE, position=1),),
    )
    three = Case(features=four_and_four, steps=(Step(), Step(lookups=3)))
    assert Flag.UNEVEN_BAG not in facts(Case(features=four_and_four)).flags
    assert Flag.UNEVEN_BAG in facts(shifted, materialise(shifted)).flags
    assert Flag.UNEVEN_BAG in facts(three).flags


def test_a_captured_batch_needs_its_problem() -> None:
    with pytest.raises(ValueError, match="give its problem, which holds the arrays"):
        facts(CAPTURED)


def test_facts_are_cheap() -> None:
    cases = [strategies.random_case(number) for number in range(300)]
    times = []
    for case in cases:
        start = perf_counter()
        found = facts(case)
        times.append(perf_counter() - start)
        assert Number.LOOKUPS in found.numbers
    # 0.15 ms measured in the median (2026-11-30); ten times that would be felt in a hunt.
    assert sorted(times)[len(times) // 2] < 1.5e-3
