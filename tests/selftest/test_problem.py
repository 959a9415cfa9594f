"""Problems: arrays are a pure function of the Case, the same bits everywhere."""

import os
import subprocess
import sys

import numpy as np
import pytest

from equivcheck.case import (
    BadIndex,
    BadOffset,
    Bag,
    BoundsCheck,
    Call,
    Case,
    Distribution,
    Feature,
    IndexFault,
    IndexType,
    Layout,
    Layouts,
    Lookup,
    OffsetFault,
    Optimizer,
    OptimizerKind,
    PerSampleWeights,
    Place,
    Poison,
    Pooling,
    Regime,
    Special,
    Step,
    Traffic,
    Values,
)
from equivcheck.formats import DType
from equivcheck.problem import Action, Problem, materialise, output_shape, program, split_by_feature

BAGS = (Bag((Lookup(3, 2), Lookup(1))), Bag(), Bag((Lookup(7, 300),), copies=2))
TWO = (Feature(rows=10, dim=8, bags=BAGS), Feature(table=0, bags=BAGS[:1]), Feature(rows=5, dim=3, bags=BAGS[2:]))
GOLDEN: dict[str, tuple[Case, str]] = {}


def _golden(name: str, digest: str, case: Case) -> None:
    GOLDEN[name] = (case, digest)


_golden("default", "e72133c7fb78e6435be848b9e8665492b53d5f5837ae8c1aa61f21a04f033ec0", Case())
_golden("listed", "9f60aa941b78db5409b622524aa7cbf87dba164abe7447a944958f224f1a0c77", Case(features=TWO, seed=1))
_golden(
    "normal-fp16",
    "2648c7f66916c9fbefc58a519f342e450e76bb5199cdafcebf1bfc3044b733a5",
    Case(features=TWO, weights=DType.FP16, weight_values=Values(Regime.NORMAL)),
)
_golden(
    "wide-bf16",
    "ab5f40a9ac024d3bc37d916fd79fd53b8a10ab0c387e95278d9d04d6ebe363a5",
    Case(features=TWO, weights=DType.BF16, weight_values=Values(Regime.WIDE), seed=2),
)
_golden(
    "weights-mixed",
    "497018f69ee66f12cc55f5ef7c491e7864fb6f8d5642b32815045ecd4da75350",
    Case(
        features=TWO,
        pooling=Pooling.MEAN,
        per_sample_weights=PerSampleWeights(DType.FP16, Values(Regime.MIXED), gradient=True),
        gradient_values=Values(Regime.OUTLIER),
        output=DType.BF16,
    ),
)
_golden(
    "adam-steps",
    "52071578ddff0801b69c70d05746d920c25df2bbea358afdfe8133c082cd6e46",
    Case(
        features=TWO,
        optimizer=Optimizer(OptimizerKind.ADAM),
        state_values=Values(Regime.UNIFORM),
        steps=(Step(), Step(shift=3, bags=1, seed=9)),
        feature_order=5,
        lookup_order=6,
    ),
)
_golden(
    "steps-turned",
    "ab231b3fa490f6e1d9d4714f806b6e4b0e4d855e9a6110464b232cdfa26757b3",
    Case(
        features=TWO,
        per_sample_weights=PerSampleWeights(),
        steps=(Step(), Step(turn=1), Step(lookups=1), Step(bags=2, lookups=2, turn=2)),
    ),
)
_golden(
    "ranks",
    "82918193f3fa066ec625b0dc8d79e7b244068ebc2e539b9ce8b63872931749c2",
    Case(features=(Feature(rows=4, bags=(Bag((Lookup(1),), rank=1), Bag((Lookup(2),), copies=3))),), ranks=3),
)
_golden(
    "zipf",
    "fa6ed46d7361c6da5ef1e2c64f18d37adaac8589fde06e7939f8e5f1a4251b3c",
    Case(features=(Feature(rows=100_000, dim=2, traffic=Traffic(50, 9, True, Distribution.ZIPF, 4)),)),
)
_golden(
    "hot-int32",
    "d843da481ddc4723ed13f8d66c1195d02870f0f138e30324f0a0565f40fdcc38",
    Case(
        features=(Feature(rows=1000, traffic=Traffic(64, 5, distribution=Distribution.HOT)),),
        indices=IndexType.INT32,
    ),
)
_golden(
    "faults",
    "fe74ec9cb3ebaf105b6efc7278c8cd44959667408a2fbea1f6905c6a8d51cff1",
    Case(
        features=TWO,
        bounds_check=BoundsCheck.WARNING,
        bad_indices=tuple(BadIndex(fault, i) for i, fault in enumerate(IndexFault)),
        bad_offsets=tuple(BadOffset(fault, i) for i, fault in enumerate(OffsetFault)),
    ),
)
_golden(
    "poison",
    "8a99a460f0a2972d14f26952eff8455b754f42c2ccd40e83d3db71b9b120485f",
    Case(
        features=TWO,
        poison=(
            Poison(Place.UNTOUCHED_ROWS),
            Poison(Place.TOUCHED_ROW, Special.INF, 2),
            Poison(Place.GRADIENT, Special.MINUS_INF, 9),
        ),
        weight_values=Values(Regime.SUBNORMAL),
    ),
)
_golden(
    "lookups",
    "eec6eb9b33b25cf5e69ec7818636b7d88445a3ab23bf07acc8bc5e75967afa0c",
    Case(features=TWO[:2], pooling=Pooling.NONE, gradient_values=Values(Regime.NEAR_OVERFLOW)),
)


@pytest.mark.parametrize("name", GOLDEN)
def test_a_case_materialises_into_the_recorded_bits(name: str) -> None:
    case, digest = GOLDEN[name]
    assert materialise(case).digest == digest


_CHILD = """
import numpy as np
x = np.linspace(0.1, 9.7, 4099)
print(np.exp(x).tobytes().hex())
from tests.selftest.test_problem import GOLDEN
from equivcheck.problem import materialise
for case, digest in GOLDEN.values():
    assert materialise(case).digest == digest
"""


def test_the_bits_do_not_depend_on_avx512() -> None:
    """The child shows that the switch has an effect: np.exp then gives other bits, unless there is no AVX-512."""
    features = np.show_config("dicts")["SIMD Extensions"].get("found", [])
    wide = [f for f in features if f.startswith(("X86_V4", "AVX512"))]
    disabled = {**os.environ, "NPY_DISABLE_CPU_FEATURES": " ".join(wide)}
    plain = subprocess.run([sys.executable, "-c", _CHILD], capture_output=True, text=True, check=True)
    without = subprocess.run([sys.executable, "-c", _CHILD], capture_output=True, text=True, check=True, env=disabled)
    if wide:
        assert plain.stdout != without.stdout


def test_arrays_cannot_be_changed() -> None:
    problem = materialise(Case(features=TWO))
    with pytest.raises(ValueError, match="read-only"):
        problem.batches[0].indices[0] = 1


def test_listed_bags_become_indices_and_offsets() -> None:
    batch = materialise(Case(features=(Feature(rows=9, bags=BAGS[:2]), Feature(rows=2, bags=BAGS[:1])))).batches[0]
    np.testing.assert_array_equal(batch.indices, [3, 3, 1, 1, 1, 1])  # the second table is clipped to two rows
    np.testing.assert_array_equal(batch.offsets, [0, 3, 3, 6, 6])  # and its batch padded with an empty bag


def test_a_variable_batch_is_rank_major_in_the_output() -> None:
    case = Case(
        features=(
            Feature(rows=9, dim=2, bags=(Bag((Lookup(1),)), Bag((Lookup(2),), rank=1))),
            Feature(rows=9, dim=3, bags=(Bag((Lookup(3),), rank=1),)),
        ),
        ranks=2,
    )
    problem = materialise(case)
    batch = problem.batches[0]
    assert batch.batch_sizes == ((1, 1), (0, 1))
    assert output_shape(problem, batch) == (2 * 2 + 3,)
    flat = np.arange(7.0)
    first, second = split_by_feature(flat, problem, batch)
    np.testing.assert_array_equal(first, [[0, 1], [2, 3]])
    np.testing.assert_array_equal(second, [[4, 5, 6]])


def test_untouched_rows_are_poisoned_and_touched_ones_are_not() -> None:
    problem = materialise(Case(features=TWO[:1], poison=(Poison(Place.UNTOUCHED_ROWS),)))
    nan = np.isnan(problem.initial.tables[0].astype(float)).all(axis=1)
    np.testing.assert_array_equal(np.flatnonzero(~nan), [1, 3, 7])


def test_an_expanded_gradient_has_one_value() -> None:
    case = Case(features=TWO, gradient_values=Values(Regime.NORMAL), layouts=Layouts(gradient=Layout.EXPANDED))
    assert len(np.unique(materialise(case).batches[0].grad_output)) == 1


@pytest.mark.parametrize("call", Call)
def test_every_program_pairs_backwards_with_forwards(call: Call) -> None:
    actions = program(Case(call=call, steps=(Step(), Step())))
    started = [step for action, step in actions if action is Action.FORWARD]
    assert started == [0, 1]
    for position, (action, step) in enumerate(actions):
        if action is Action.BACKWARD:
            assert (Action.FORWARD, step) in actions[:position]


def test_deleting_the_last_feature_keeps_the_values_of_the_others() -> None:
    both, one = materialise(Case(features=TWO)), materialise(Case(features=TWO[:2]))
    np.testing.assert_array_equal(both.initial.tables[0], one.initial.tables[0])
    for left, right in zip(_gradients(both), _gradients(one), strict=False):
        np.testing.assert_array_equal(left, right)


def _gradients(problem: Problem) -> tuple[np.ndarray, ...]:
    batch = problem.batches[0]
    return split_by_feature(batch.grad_output, problem, batch)


def test_a_turned_step_has_the_same_bags_elsewhere_and_a_shortened_one_fewer_lookups() -> None:
    bags = (Bag((Lookup(1, 3),)), Bag(), Bag((Lookup(2), Lookup(0))), Bag((Lookup(3),)))
    steps = (Step(), Step(turn=1), Step(turn=6), Step(lookups=1), Step(bags=3, lookups=2, turn=1), Step(lookups=0))
    problem = materialise(Case(features=(Feature(rows=4, bags=bags),), steps=steps))
    found = [(batch.offsets.tolist(), batch.indices.tolist()) for batch in problem.batches]
    assert found == [
        ([0, 3, 3, 5, 6], [1, 1, 1, 2, 0, 3]),
        ([0, 0, 2, 3, 6], [2, 0, 3, 1, 1, 1]),
        ([0, 2, 3, 6, 6], [2, 0, 3, 1, 1, 1]),
        ([0, 1, 1, 2, 3], [1, 2, 3]),
        ([0, 0, 2, 4], [2, 0, 1, 1]),
        ([0, 0, 0, 0, 0], []),
    ]


def test_a_step_without_bags_has_no_malformed_offset() -> None:
    case = Case(
        features=(Feature(bags=(Bag((Lookup(),)),)),),
        bounds_check=BoundsCheck.WARNING,
        bad_offsets=(BadOffset(OffsetFault.SMALLEST),),
        steps=(Step(), Step(bags=0)),
    )
    first, second = materialise(case).batches
    assert first.offsets[0] == np.iinfo(np.int64).min
    assert second.offsets.tolist() == [0]


def test_ranks_turn_with_their_bags() -> None:
    bags = (Bag((Lookup(1),), rank=0), Bag((Lookup(2, 2),), rank=0), Bag((Lookup(3),), rank=1))
    problem = materialise(Case(features=(Feature(rows=4, bags=bags),), ranks=3, steps=(Step(), Step(turn=1))))
    assert [batch.batch_sizes for batch in problem.batches] == [((2, 1, 0),), ((0, 2, 1),)]
    assert problem.batches[1].indices.tolist() == [2, 2, 1, 3]
