"""The built-in Triton TBE, interpreted: at its own edges, against plain NumPy where every order is exact."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import torch

from equivcheck.backends.triton import TritonBackend
from equivcheck.case import (
    BadIndex,
    BadOffset,
    Bag,
    BoundsCheck,
    Call,
    Case,
    Decay,
    Feature,
    IndexFault,
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
    Values,
)
from equivcheck.compare import judge
from equivcheck.formats import AnyArray, DType
from equivcheck.outcome import Forward, Outcome
from equivcheck.problem import materialise
from equivcheck.triton_tbe import MODE, Mode, tiles
from equivcheck.triton_tbe.bounds import OutOfBounds
from equivcheck.triton_tbe.module import TritonTBE
from equivcheck.triton_tbe.small_tables import COUNTED, MOST_ROWS
from equivcheck.triton_tbe.transpose import CHUNK, LONG_RUN, MIDDLE_RUN
from equivcheck.verdict import Status

pytestmark = pytest.mark.skipif(MODE is Mode.COMPILED, reason="a GPU's kernels are tested by the suite, on the GPU")

RUN_LENGTHS = (
    *(1, 2, 7, 8, 9, 63, 64, 65),
    *(MIDDLE_RUN - 1, MIDDLE_RUN, MIDDLE_RUN + 1),
    *(LONG_RUN - 1, LONG_RUN, LONG_RUN + 1),
    *(LONG_RUN + CHUNK - 1, LONG_RUN + CHUNK, LONG_RUN + CHUNK + 1),
    *(1023, 1024, 1025, 2049, 4097),
)
VARIANTS = ((), ("hoist",), ("small-tables",), ("small-tables", "hoist"))
INTEGERS = Values(Regime.INTEGERS, magnitude=4)
UNIFORM = Values(Regime.UNIFORM)


def run(case: Case, *variants: str) -> Outcome:
    """Run and judge; whatever is judged passes."""
    backend = TritonBackend("cpu", *variants)
    assert backend.supports(case)
    problem = materialise(case)
    outcome = backend.run(problem)
    verdict = judge(problem, backend.arithmetic(case), outcome)
    assert verdict.status in (Status.PASSED, Status.MISTRUSTED), verdict.discrepancies
    return outcome


def results(outcome: Outcome) -> list[AnyArray]:
    """All arrays that came back."""
    found: list[AnyArray] = []
    for result in outcome.results:
        if isinstance(result, Forward):
            found.append(result.output)
        else:
            after = result.after
            found += [*after.tables, *after.momentum1, *after.momentum2]
            found += [] if result.weight_gradient is None else [result.weight_gradient]
    return found


def same(first: Outcome, second: Outcome) -> bool:
    pairs = zip(results(first), results(second), strict=True)
    return all(one.tobytes() == other.tobytes() for one, other in pairs)


# Runs.
@pytest.mark.parametrize("length", RUN_LENGTHS)
def test_a_run_of_any_length_is_one_update_with_the_sum_of_its_gradients(length: int) -> None:
    """Integers below 2^24: any lost, doubled or misplaced lookup changes the result."""
    generator = np.random.default_rng(length)
    rows, dim = 7, 5
    indices = np.concatenate([np.full(length, 3), generator.integers(0, rows, 40)])
    generator.shuffle(indices)
    bags = np.sort(generator.integers(0, len(indices) + 1, 11))
    offsets = np.concatenate([[0], bags, [len(indices)]])
    module = TritonTBE([(rows, dim)], learning_rate=1.0, bounds_check_mode=BoundsCheck.NONE)
    table = generator.integers(-8, 9, (rows, dim)).astype(np.float32)
    module.split_embedding_weights()[0].copy_(torch.from_numpy(table))
    gradient = generator.integers(-100, 101, (12, dim)).astype(np.float32)

    output = module(torch.from_numpy(indices), torch.from_numpy(offsets))
    expected = np.stack([table[indices[a:b]].sum(0) for a, b in pairwise(offsets)])
    np.testing.assert_array_equal(output.detach().numpy(), expected)

    output.backward(torch.from_numpy(gradient))
    updated = table.copy()
    np.subtract.at(updated, indices, np.repeat(gradient, np.diff(offsets), axis=0))
    np.testing.assert_array_equal(module.split_embedding_weights()[0].numpy(), updated)


def test_short_and_long_runs_of_several_tables_in_one_batch() -> None:
    bags = (Bag((Lookup(0, LONG_RUN), Lookup(1, LONG_RUN - 1), Lookup(2, 3 * CHUNK + 1))), Bag((Lookup(4),)))
    features = (Feature(rows=5, dim=3, bags=bags), Feature(rows=9, dim=20, bags=bags), Feature(table=0, bags=bags[1:]))
    outcome = run(Case(features=features, weight_values=INTEGERS, gradient_values=INTEGERS))
    assert any(path.startswith(f"backward: runs from {LONG_RUN}") for path in outcome.paths)


# The contract on every optimizer, type and option.
@pytest.mark.parametrize("variants", VARIANTS, ids=lambda variants: "+".join(variants) or "plain")
@pytest.mark.parametrize("kind", OptimizerKind)
@pytest.mark.parametrize("weights", [DType.FP32, DType.FP16, DType.BF16])
def test_every_optimizer_type_and_variant(weights: DType, kind: OptimizerKind, variants: tuple[str, ...]) -> None:
    features = (
        Feature(rows=40, dim=7, bags=(Bag((Lookup(0, 2), Lookup(39))), Bag(), Bag((Lookup(4),)))),
        Feature(rows=100, dim=24, bags=(Bag((Lookup(2, 3), Lookup(60))), Bag((Lookup(0),)))),
        Feature(table=0, bags=(Bag((Lookup(1), Lookup(0))), Bag((Lookup(3),)))),
    )
    case = Case(
        features=features,
        weights=weights,
        output=DType.BF16 if weights is DType.FP32 else weights,
        pooling=Pooling.MEAN,
        per_sample_weights=PerSampleWeights(values=UNIFORM, gradient=True),
        optimizer=Optimizer(kind, eps=0.125, weight_decay=0.25 if "adam" in kind else 0.0),
        weight_values=UNIFORM,
        gradient_values=UNIFORM,
        state_values=UNIFORM,
        steps=(Step(), Step(shift=1, learning_rate=0.25)),
    )
    run(case, *variants)


@pytest.mark.parametrize("accumulation", [DType.FP16, DType.FP64])
@pytest.mark.parametrize("pooling", Pooling)
def test_other_accumulations(accumulation: DType, pooling: Pooling) -> None:
    bags = (Bag((Lookup(0, 2), Lookup(3))), Bag(), Bag((Lookup(4, 9),)))
    run(
        Case(
            features=(Feature(rows=5, dim=6, bags=bags),),
            weights=DType.FP16,
            accumulation=accumulation,
            pooling=pooling,
            per_sample_weights=PerSampleWeights(values=UNIFORM, gradient=True),
            weight_values=UNIFORM,
            gradient_values=UNIFORM,
        )
    )


def test_fp16_accumulation_of_wider_tables_is_refused_with_a_sentence() -> None:
    support = TritonBackend("cpu").supports(Case(accumulation=DType.FP16))
    assert not support
    assert "fp16 tables" in support.reason
    with pytest.raises(ValueError, match="fp16 is for fp16 tables"):
        TritonTBE([(2, 2)], accumulation=torch.float16)


@pytest.mark.parametrize("decay", Decay)
def test_decay(decay: Decay) -> None:
    optimizer = Optimizer(
        OptimizerKind.ROWWISE_ADAGRAD, eps=0.5, decay=decay, weight_decay=0.0 if decay is Decay.NONE else 0.25
    )
    features = (Feature(rows=3, dim=5, bags=(Bag((Lookup(0, 2), Lookup(2))),)),)
    run(Case(features=features, optimizer=optimizer, weight_values=UNIFORM, gradient_values=UNIFORM))


@pytest.mark.parametrize("call", [Call.OUTSTANDING, Call.RETAINED, Call.RATE_CHANGED, Call.RESTORED, Call.FORWARD_ONLY])
def test_calls(call: Call) -> None:
    features = (Feature(rows=4, dim=3, bags=(Bag((Lookup(0, 2), Lookup(3))),)),)
    optimizer = Optimizer(OptimizerKind.ADAM, eps=0.5)
    case = Case(features=features, optimizer=optimizer, call=call, steps=(Step(), Step(shift=1)))
    run(replaced(case, weight_values=UNIFORM, gradient_values=UNIFORM))


def replaced(case: Case, **changes: object) -> Case:
    import msgspec

    return msgspec.structs.replace(case, **changes)


def test_hoisting_the_transpose_changes_no_bit() -> None:
    features = (Feature(rows=50, dim=12, bags=(Bag((Lookup(0, 300), Lookup(3), Lookup(0, 2))), Bag((Lookup(7),)))),)
    case = Case(features=features, weight_values=UNIFORM, gradient_values=UNIFORM, steps=(Step(), Step(shift=2)))
    plain, hoisted = run(case), run(case, "hoist")
    assert same(plain, hoisted)
    assert "transpose: in the forward" in hoisted.paths
    assert "transpose: in the forward" not in plain.paths


def test_nothing_to_look_up() -> None:
    for pooling in Pooling:
        run(Case(features=(Feature(rows=0, dim=3), Feature(rows=2, dim=3, bags=(Bag(),))), pooling=pooling))
        run(Case(features=(Feature(rows=2, dim=3),), pooling=pooling))


# Small tables.
SMALL = Feature(rows=MOST_ROWS, dim=20, bags=(Bag((Lookup(3, COUNTED + 5), Lookup(63, 2))), Bag((Lookup(0),)), Bag()))


@pytest.mark.parametrize("weights", [DType.FP32, DType.FP16, DType.BF16])
@pytest.mark.parametrize("weighted", [False, True])
def test_small_tables_give_exact_results_where_the_gather_does(weights: DType, weighted: bool) -> None:
    case = Case(
        features=(SMALL, replaced_feature(SMALL, rows=MOST_ROWS + 1)),
        weights=weights,
        per_sample_weights=PerSampleWeights(values=INTEGERS, gradient=True) if weighted else None,
        weight_values=Values(Regime.INTEGERS, magnitude=16),
        gradient_values=INTEGERS,
    )
    plain, small = run(case), run(case, "small-tables")
    assert same(plain, small)
    assert any(path.startswith("forward: small tables") for path in small.paths)


def replaced_feature(feature: Feature, **changes: object) -> Feature:
    import msgspec

    return msgspec.structs.replace(feature, **changes)


@pytest.mark.parametrize("place", [Place.TOUCHED_ROW, Place.UNTOUCHED_ROWS, Place.PER_SAMPLE_WEIGHT])
@pytest.mark.parametrize("value", Special)
def test_small_tables_keep_what_is_not_finite_where_it_belongs(place: Place, value: Special) -> None:
    case = Case(
        features=(SMALL,),
        per_sample_weights=PerSampleWeights(values=UNIFORM),
        weight_values=UNIFORM,
        gradient_values=UNIFORM,
        poison=(Poison(place, value, position=3),),
    )
    run(case, "small-tables")


@pytest.mark.parametrize("regime", [Regime.WIDE, Regime.SUBNORMAL, Regime.OUTLIER, Regime.NEAR_OVERFLOW])
@pytest.mark.parametrize("weights", [DType.FP32, DType.FP16, DType.BF16])
def test_small_tables_are_right_at_every_magnitude(weights: DType, regime: Regime) -> None:
    features = (replaced_feature(SMALL, bags=(*SMALL.bags, Bag((Lookup(1), Lookup(2), Lookup(62))))),)
    case = Case(features=features, weights=weights, weight_values=Values(regime), gradient_values=UNIFORM)
    run(case, "small-tables")


# Bounds.
@pytest.mark.parametrize("fault", IndexFault)
@pytest.mark.parametrize("mode", [BoundsCheck.IGNORE, BoundsCheck.WARNING, BoundsCheck.FATAL])
def test_wrong_indices(mode: BoundsCheck, fault: IndexFault) -> None:
    features = (
        Feature(rows=3, dim=2, bags=(Bag((Lookup(1, 2), Lookup(2))), Bag((Lookup(2),)))),
        Feature(rows=0, dim=5),
    )
    case = Case(features=features, bounds_check=mode, bad_indices=(BadIndex(fault, 1),))
    outcome = run(case)
    assert (outcome.raised is not None) == (mode is BoundsCheck.FATAL and fault is not IndexFault.PRUNED)


@pytest.mark.parametrize("fault", OffsetFault)
@pytest.mark.parametrize("mode", [BoundsCheck.IGNORE, BoundsCheck.WARNING, BoundsCheck.FATAL])
@pytest.mark.parametrize("position", [0, 1, 2, 4])
def test_wrong_offsets(mode: BoundsCheck, fault: OffsetFault, position: int) -> None:
    bags = (Bag((Lookup(1, 2), Lookup(2))), Bag(), Bag((Lookup(2),)), Bag((Lookup(0),)))
    case = Case(
        features=(Feature(rows=3, dim=2, bags=bags),), bounds_check=mode, bad_offsets=(BadOffset(fault, position),)
    )
    run(case)


def test_fatal_says_what_is_wrong_and_where() -> None:
    module = TritonTBE([(3, 2)], bounds_check_mode=BoundsCheck.FATAL)
    with pytest.raises(OutOfBounds, match="the first at position 1: 9; give rows of the table"):
        module(torch.tensor([0, 9]), torch.tensor([0, 2]))
    with pytest.raises(OutOfBounds, match="give offsets that rise from 0 to the 2 lookups"):
        module(torch.tensor([0, 1]), torch.tensor([1, 2]))


# The module's own errors.
def test_shapes_that_do_not_fit_are_refused() -> None:
    module = TritonTBE([(3, 2), (4, 2)])
    with pytest.raises(ValueError, match="3 bags cannot be shared equally by 2 features"):
        module(torch.tensor([0]), torch.tensor([0, 1, 1, 1]))
    with pytest.raises(ValueError, match="per-sample weights"):
        module(torch.tensor([0]), torch.tensor([0, 1, 1]), torch.ones(2))
    with pytest.raises(ValueError, match="3 offsets for 3 bags"):
        module(torch.tensor([0]), torch.tensor([0, 1, 1]), batch_size_per_feature_per_rank=[[1], [2]])
    with pytest.raises(ValueError, match="one dim"):
        TritonTBE([(3, 2), (4, 3)], pooling_mode=Pooling.NONE)


def test_subjects_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ValueError, match="small-tables, hoist"):
        TritonBackend("cpu", "smal-tables")
    with pytest.raises(ValueError, match="cpu"):
        TritonBackend("tpu")


# Rounding.
def stored(values: npt.NDArray[np.float32], weights: torch.dtype, *, stochastic: bool, seed: int = 0) -> torch.Tensor:
    """What SGD with rate 1 stores when the exact new row is `values`: from a row of zeros and their negation."""
    dim = len(values)
    module = TritonTBE(
        [(1, dim)], weights_precision=weights, learning_rate=1.0, stochastic_rounding=stochastic, seed=seed
    )
    output = module(torch.tensor([0]), torch.tensor([0, 1]))
    with np.errstate(all="ignore"):
        output.backward(torch.from_numpy(-values)[None])
    return module.split_embedding_weights()[0][0].clone()


def interesting(bits_lost: int) -> npt.NDArray[np.float32]:
    """Around every kind of number: halfway points, subnormals, overflow, infinities, NaN, and anything."""
    generator = np.random.default_rng(5)
    high = generator.integers(0, 2**32 >> bits_lost, 1500, dtype=np.uint32) << bits_lost
    near = np.asarray(
        [0, 1, 2 ** (bits_lost - 1) - 1, 2 ** (bits_lost - 1), 2 ** (bits_lost - 1) + 1, 2**bits_lost - 1]
    )
    bits = (high[:, None] | near.astype(np.uint32)[None, :]).reshape(-1)
    special = np.asarray([0.0, -0.0, np.inf, -np.inf, np.nan, 65504, 65519.9, 65520, 2.0**-14, 2.0**-24, 2.0**-25])
    return np.concatenate([bits.view(np.float32), special.astype(np.float32)])


@pytest.mark.parametrize(("weights", "bits_lost"), [(torch.float16, 13), (torch.bfloat16, 16)])
def test_rows_are_stored_to_nearest_even(weights: torch.dtype, bits_lost: int) -> None:
    values = interesting(bits_lost)
    found = stored(values, weights, stochastic=False).float().numpy()
    with np.errstate(all="ignore"):
        expected = values.astype(np.float16 if weights is torch.float16 else ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("weights", "bits_lost"), [(torch.float16, 13), (torch.bfloat16, 16)])
def test_stochastic_rounding_gives_a_neighbour_and_never_leaves_the_range(weights: torch.dtype, bits_lost: int) -> None:
    values = interesting(bits_lost)
    found = stored(values, weights, stochastic=True).double().numpy()
    info = (DType.FP16 if weights is torch.float16 else DType.BF16).info
    finite = np.isfinite(values)
    np.testing.assert_array_equal(found[~finite].astype(np.float32), values[~finite])
    exact = np.clip(values[finite].astype(np.float64), -info.maximum, info.maximum)
    _, exponent = np.frexp(exact)
    unit = np.ldexp(1.0, np.maximum(exponent - 1, info.minimum_exponent) - info.precision + 1)
    low, high = np.floor(exact / unit) * unit, np.minimum(np.ceil(exact / unit) * unit, info.maximum)
    assert (((found[finite] == low) | (found[finite] == high)) & np.isfinite(found[finite])).all()


@pytest.mark.parametrize("weights", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("scale", [1.0, 2.0**-16])
def test_stochastic_rounding_is_unbiased(weights: torch.dtype, scale: float) -> None:
    """Of n elements a quarter of the way up, n/4 go up, within 6 standard deviations (2e-9). fp16: also subnormal."""
    count = 16_384
    info = (DType.FP16 if weights is torch.float16 else DType.BF16).info
    unit = 2.0 ** (1 - info.precision) * scale
    if weights is torch.float16 and scale < 1:
        unit = info.smallest_subnormal
    values = np.full(count, scale + unit / 4, np.float32)
    found = stored(values, weights, stochastic=True, seed=3).double().numpy()
    up = int((found > scale).sum())
    assert abs(up - count / 4) < 6 * np.sqrt(count * 3 / 16)
    assert set(np.unique(found)) == {scale, scale + unit}


def test_random_numbers_differ_by_element_row_update_and_seed_and_repeat() -> None:
    """Halfway values toss a coin an element. 4,096 tosses: a share outside 0.5 +- 0.05 has probability 2e-10."""

    def tosses(seed: int, updates: int) -> npt.NDArray[np.bool_]:
        module = TritonTBE(
            [(64, 64)], weights_precision=torch.bfloat16, learning_rate=1.0, stochastic_rounding=True, seed=seed
        )
        for _ in range(updates):
            module.split_embedding_weights()[0].zero_()
            module(torch.arange(64), torch.arange(65)).backward(torch.full((64, 64), 1 + 2.0**-8))
        return np.asarray(module.split_embedding_weights()[0].float().numpy() != -1.0)

    first = tosses(0, 1)
    np.testing.assert_array_equal(first, tosses(0, 1))
    assert abs(first.mean() - 0.5) < 0.05
    for other in (np.roll(first, 1, axis=0), np.roll(first, 1, axis=1), first.T, tosses(0, 2), tosses(1, 1)):
        assert abs((first == other).mean() - 0.5) < 0.05


# Around the kernels.
def test_every_output_is_written_and_no_guard_is_touched() -> None:
    """Outputs are NaN before they are written; `judge` compares the guards."""
    features = tuple(Feature(rows=3, dim=dim, bags=(Bag((Lookup(1),)), Bag())) for dim in (1, 3, 17, 31, 33, 64, 130))
    outcome = run(Case(features=features, weight_values=UNIFORM, gradient_values=UNIFORM))
    assert np.isfinite(results(outcome)[0].astype(float)).all()
    names = {guard.name for guard in outcome.guards}
    assert {"weights", "output", "between tables of weights", "row numbers"} <= names


def test_the_interpreters_tiles_are_the_cheapest_of_those_that_fit() -> None:
    lengths = torch.tensor([2000] + [1] * 63)
    chosen = tiles.run_tile(torch.device("cpu"), 8, lambda: lengths)
    assert chosen.columns == 8
    assert chosen.rows * chosen.lookups * chosen.columns <= tiles.INTERPRETED_TILE
    assert chosen.lookups == max(tiles.INTERPRETED_LOOKUPS)
    one = tiles.run_tile(torch.device("cpu"), 8, lambda: torch.ones(4096, dtype=torch.int64))
    assert (one.rows, one.lookups) == (max(tiles.INTERPRETED_ROWS), min(tiles.INTERPRETED_LOOKUPS))


@pytest.mark.parametrize(("most", "pieces"), [(2**30, 1), (16, 2), (1, 5)])
def test_a_segment_with_more_lanes_than_32_bits_count_is_cut(
    most: int, pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from equivcheck.triton_tbe import lanes
    from equivcheck.triton_tbe.layout import FeatureLayout, TableLayout, fixed_batch

    features = FeatureLayout(TableLayout.build([(9, 16)]), [0], torch.device("cpu"))
    monkeypatch.setattr(lanes, "MOST_LANES", max(most, 4))
    segments, number = lanes.lanes_of(fixed_batch(features, 5), features, tiles.LaneTile(1, 1, 1, 4, 1), frozenset())
    assert number == len(segments.of_span) == 5 * 4
    assert len(segments.bags) == pieces
    assert segments.bags.sum() == 5
    assert segments.output.tolist() == [16 * int(bag) for bag in segments.bag]


@pytest.mark.parametrize("dims", [(128, 64, 8, 4), (8, 20), (64,), (32,), (4,), (3, 5), (1,)], ids=str)
@pytest.mark.parametrize("lengths", [(1, 0, 3, 2), (40, 1, 9, 0)], ids=["short", "long"])
@pytest.mark.parametrize("pooling", [Pooling.SUM, Pooling.MEAN])
def test_a_gpus_lanes_give_the_same_bits(
    dims: tuple[int, ...], lengths: tuple[int, ...], pooling: Pooling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of exact sums: the order in which a GPU's lanes add is another."""
    bags = tuple(Bag((Lookup(n % 3, n), Lookup(2))) if n else Bag() for n in lengths) * 9
    case = Case(
        features=tuple(Feature(rows=3, dim=dim, bags=bags) for dim in dims),
        weights=DType.FP16,
        pooling=pooling,
        per_sample_weights=PerSampleWeights(values=INTEGERS),
        weight_values=INTEGERS,
        gradient_values=INTEGERS,
    )
    interpreted = run(case)
    chosen: list[tiles.LaneTile] = []

    def of_a_gpu(device: torch.device, *rest: Any) -> tiles.LaneTile:
        chosen.append(tiles.lane_tile(torch.device("cuda"), *rest))
        return chosen[-1]

    monkeypatch.setattr("equivcheck.triton_tbe.module.lane_tile", of_a_gpu)
    assert same(run(case), interpreted)
    assert all(tile.span == tile.lanes > 1 for tile in chosen)
    assert [tile.wide for tile in chosen] == [8 if min(dims) < 8 <= max(dims) or 20 in dims else 0 for _ in chosen]


@pytest.mark.parametrize("rows", [32_766, 32_767, 70_000])
def test_rows_are_sorted_by_numbers_that_are_wide_enough(rows: int) -> None:
    module = TritonTBE([(rows, 1)], learning_rate=1.0, bounds_check_mode=BoundsCheck.NONE)
    named = torch.tensor([rows - 1, 0, rows // 2, rows - 1])
    module(named, torch.tensor([0, 4])).backward(torch.ones(1, 1))
    expected = -torch.bincount(named, minlength=rows).float()
    np.testing.assert_array_equal(module.split_embedding_weights()[0][:, 0].numpy(), expected.numpy())


@pytest.mark.parametrize("end", [2**15 - 1, 2**15, 2**31 - 1, 2**31])
def test_the_number_behind_all_rows_has_a_place_among_the_keys(end: int) -> None:
    from equivcheck.triton_tbe.transpose import _key_type

    assert torch.iinfo(_key_type(end)).max >= end


def test_without_pooling_lookups_of_no_bag_update_nothing() -> None:
    """A first offset above zero: the lookups before it belong to no bag, and stand before those that do."""
    module = TritonTBE([(4, 2)], pooling_mode=Pooling.NONE, learning_rate=1.0)
    before = torch.arange(8.0).view(4, 2)
    module.split_embedding_weights()[0].copy_(before)
    output = module(torch.tensor([1, 2, 3]), torch.tensor([2, 3]))
    np.testing.assert_array_equal(output.detach().numpy(), [[0, 0], [0, 0], [6, 7]])
    output.backward(torch.ones_like(output))
    after = before - torch.tensor([[0.0], [0.0], [0.0], [1.0]])
    np.testing.assert_array_equal(module.split_embedding_weights()[0].numpy(), after.numpy())


def test_tables_of_like_width_are_numbered_together_whatever_their_order() -> None:
    from equivcheck.triton_tbe.layout import FeatureLayout, TableLayout

    layout = TableLayout.build([(3, 128), (5, 8), (0, 16), (4, 100), (2, 33), (0, 300)])
    features = FeatureLayout(layout, range(6), torch.device("cpu"))
    assert layout.width_classes == ((16, 0), (33, 5), (128, 7), (300, 14))
    assert features.class_rows.tolist() == [0, 5, 7, 14, 14]
    assert features.rows_of_classes == (5, 2, 7, 0)
    bases = dict(zip(features.table_pointers.row_base.tolist(), features.table_pointers.dim.tolist(), strict=True))
    assert (bases[0], bases[5], bases[7], bases[10]) == (8, 33, 128, 100)


def test_a_launch_leaves_the_language_of_kernels_as_it_was() -> None:
    import triton.language as tl

    before = {name: getattr(tl, name) for name in dir(tl)}
    run(Case(features=(Feature(rows=2, dim=2, bags=(Bag((Lookup(1),)),)),)))
    assert {name: getattr(tl, name) for name in dir(tl)} == before
    assert not hasattr(tl.tensor, "T") or isinstance(tl.tensor.T, property)


def test_triton_imported_in_the_other_mode_is_an_error_with_the_way_out() -> None:
    code = (
        "import os; os.environ['TRITON_INTERPRET'] = '0'; import triton; os.environ['TRITON_INTERPRET'] = '1'\n"
        "try:\n    import equivcheck.triton_tbe\nexcept RuntimeError as error:\n    print(error)"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "set TRITON_INTERPRET=1 before this process starts" in printed


def test_a_tile_reads_as_rows_lookups_columns() -> None:
    assert str(replace(tiles.Tile(1, 2, 3), rows=4)) == "4x2x3"
