"""Each adapter against a plain simulation in NumPy: every tensor, every optimizer, every program of calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest

from equivcheck.backends import fbgemm_module, registry
from equivcheck.backends.protocol import Backend, BackendUnavailable
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
    Rounding,
    Step,
    Values,
)
from equivcheck.formats import AnyArray, DType, Float64Array, store
from equivcheck.outcome import Forward, Outcome, Update
from equivcheck.problem import Action, Problem, Snapshot, materialise, program, split_by_feature

TORCH, FBGEMM = registry.build("torch"), registry.build("fbgemm-cpu")
BOTH = pytest.mark.parametrize("backend", [TORCH, FBGEMM], ids=lambda backend: backend.name)

SHARED = (
    Feature(rows=5, dim=4, bags=(Bag((Lookup(0, 2), Lookup(3))), Bag(), Bag((Lookup(4),)))),
    Feature(table=0, bags=(Bag((Lookup(1), Lookup(0))), Bag((Lookup(3),)))),
    Feature(rows=7, dim=8, bags=(Bag((Lookup(2, 3), Lookup(6))), Bag((Lookup(0),)))),
)
ONE_WIDTH = (
    Feature(rows=5, dim=4, bags=(Bag((Lookup(0, 2), Lookup(3))), Bag(), Bag((Lookup(4),)))),
    Feature(rows=7, dim=4, bags=(Bag((Lookup(2, 3),)), Bag((Lookup(0),)))),
)
RANKS = (
    Feature(rows=5, dim=4, bags=(Bag((Lookup(0, 2), Lookup(3)), copies=2), Bag((Lookup(1),), rank=2))),
    Feature(rows=6, dim=8, bags=(Bag((Lookup(2),), rank=1), Bag((Lookup(2), Lookup(5)), rank=2))),
)
WEIGHTS = PerSampleWeights(values=Values(Regime.UNIFORM), gradient=True)
ROWWISE = Optimizer(OptimizerKind.ROWWISE_ADAGRAD, eps=0.125)
UNIFORM = Values(Regime.UNIFORM)

ROUNDINGS = 40
"""More operations than any element here takes in fp32, terms of sums and the update together."""


def case(**changes: object) -> Case:
    """Three features, two tables, two steps of different data and rate, uniform values."""
    base = Case(
        features=SHARED,
        weight_values=UNIFORM,
        gradient_values=UNIFORM,
        state_values=UNIFORM,
        steps=(Step(), Step(shift=1, learning_rate=0.25)),
    )
    return msgspec.structs.replace(base, **changes)


# The simulation: the contract's formulas, lookup by lookup, in fp64.
def simulate(problem: Problem, outcome: Outcome) -> Iterator[tuple[AnyArray, ...]]:
    """For each action: the output alone, or all tables and states and the weight gradient (where asked for).

    Each action starts from the state that the subject itself had reached before it.
    """
    state = problem.initial
    for (action, step), result in zip(program(problem.case), outcome.results, strict=True):
        if action is Action.FORWARD:
            yield (simulated_output(problem, state, step),)
        else:
            after, weight_gradient = simulated_update(problem, state, step)
            asked = problem.case.per_sample_weights
            gradient = () if asked is None or not asked.gradient else (weight_gradient.astype(asked.dtype.numpy),)
            yield (*after.tables, *after.momentum1, *after.momentum2, *gradient)
        if isinstance(result, Update):
            state = result.after


def lookups(problem: Problem, step: int) -> Iterator[tuple[int, int, int, int, float, int]]:
    """Feature, bag of the feature, position, row, per-sample weight, and what MEAN divides by (otherwise 1)."""
    batch, first = problem.batches[step], 0
    for feature, bags in enumerate(batch.bags):
        for bag in range(bags):
            start, stop = int(batch.offsets[first + bag]), int(batch.offsets[first + bag + 1])
            length = stop - start if problem.case.pooling is Pooling.MEAN else 1
            for position in range(start, stop):
                weight = 1.0 if batch.per_sample_weights is None else float(batch.per_sample_weights[position])
                yield feature, bag, position, int(batch.indices[position]), weight, length
        first += bags


def simulated_output(problem: Problem, state: Snapshot, step: int) -> AnyArray:
    batch = problem.batches[step]
    flat = np.zeros(batch.grad_output.shape)
    by_feature = [np.zeros((bags, dim)) for bags, dim in zip(batch.bags, problem.dims, strict=True)]
    for feature, bag, position, row, weight, length in lookups(problem, step):
        term = weight / length * state.tables[problem.feature_tables[feature]][row].astype(float)
        if problem.case.pooling is Pooling.NONE:
            flat[position] = term
        else:
            by_feature[feature][bag] += term
    if batch.batch_sizes is not None:
        parts = []
        for rank in range(len(batch.batch_sizes[0])):
            for feature, sizes in enumerate(batch.batch_sizes):
                start = sum(sizes[:rank])
                parts.append(by_feature[feature][start : start + sizes[rank]].reshape(-1))
        flat = np.concatenate(parts)
    elif problem.case.pooling is not Pooling.NONE:
        flat = np.concatenate(by_feature, axis=1)
    return store(flat, problem.case.output)


def simulated_update(problem: Problem, state: Snapshot, step: int) -> tuple[Snapshot, Float64Array]:
    batch, gradient = problem.batches[step], problem.batches[step].grad_output.astype(float)
    by_feature = split_by_feature(gradient, problem, batch)
    tables = [table.astype(float) for table in state.tables]
    slopes = [np.zeros(table.shape) for table in tables]
    touched: list[set[int]] = [set() for _ in tables]
    of_weights = np.zeros(len(batch.indices))
    for feature, bag, position, row, weight, length in lookups(problem, step):
        number = problem.feature_tables[feature]
        upstream = gradient[position] if problem.case.pooling is Pooling.NONE else by_feature[feature][bag]
        of_weights[position] = 0 if problem.frozen[feature] else tables[number][row] @ upstream / length
        slopes[number][row] += weight / length * upstream
        touched[number].add(row)
    moments = [[m.astype(float) for m in ms] for ms in (state.momentum1, state.momentum2)]
    for number, table in enumerate(tables):
        for row in touched[number]:
            states = [moment[number] for moment in moments if moment]
            table[row] = updated_row(problem, step, table[row], slopes[number][row], states, row)
    new = Snapshot(
        tuple(store(table, problem.case.weights) for table in tables),
        tuple(m.astype(np.float32) for m in moments[0]),
        tuple(m.astype(np.float32) for m in moments[1]),
    )
    return new, of_weights


def updated_row(
    problem: Problem, step: int, w: Float64Array, g: Float64Array, states: list[Float64Array], row: int
) -> Float64Array:
    """New row; writes the states."""
    o, lr = problem.case.optimizer, problem.batches[step].learning_rate
    t = o.step + step
    if o.kind is OptimizerKind.SGD:
        return np.asarray(w - lr * g)
    m = states[0]
    if o.kind is OptimizerKind.ADAGRAD:
        m[row] += g * g
        return np.asarray(w - lr * g / (np.sqrt(m[row]) + o.eps))
    if o.kind is OptimizerKind.ROWWISE_ADAGRAD:
        entering = g + o.weight_decay * w if o.decay is Decay.L2 else g
        m[row] += np.mean(entering**2)
        multiplier = lr / (np.sqrt(m[row]) + o.eps)
        decay = {Decay.NONE: 0.0, Decay.L2: multiplier * o.weight_decay, Decay.DECOUPLED: lr * o.weight_decay}[o.decay]
        return np.asarray((1 - decay) * w - multiplier * g)
    v = states[1]
    square = np.mean(g * g) if o.kind is OptimizerKind.PARTIAL_ROWWISE_ADAM else g * g
    m[row] = o.beta1 * m[row] + (1 - o.beta1) * g
    v[row] = o.beta2 * v[row] + (1 - o.beta2) * square
    direction = (m[row] / (1 - o.beta1**t)) / (np.sqrt(v[row] / (1 - o.beta2**t)) + o.eps)
    return np.asarray(w - lr * (direction + o.weight_decay * w))


def tensors(outcome: Outcome) -> Iterator[tuple[AnyArray, ...]]:
    for result in outcome.results:
        if isinstance(result, Forward):
            yield (result.output,)
        else:
            after, gradient = result.after, result.weight_gradient
            yield (*after.tables, *after.momentum1, *after.momentum2, *(() if gradient is None else (gradient,)))


def check(backend: Backend, problem_or_case: Case, *, exact: bool = False) -> Outcome:
    """Run, and compare every tensor of every action, the inputs and the guards."""
    assert backend.supports(problem_or_case), backend.supports(problem_or_case).reason
    problem = materialise(problem_or_case)
    outcome = backend.run(problem)
    assert outcome.raised is None
    expected, found = list(simulate(problem, outcome)), list(tensors(outcome))
    assert [len(a) for a in found] == [len(e) for e in expected]
    for action, pair in enumerate(zip(found, expected, strict=True)):
        for number, (actual, truth) in enumerate(zip(*pair, strict=True)):
            where = f"action {action}, tensor {number}"
            assert actual.dtype == truth.dtype, where
            assert actual.shape == truth.shape, where
            if exact:
                np.testing.assert_array_equal(actual, truth, where)
            else:
                assert_near(actual, truth, where)
    for guard in outcome.guards:
        assert guard.before.tobytes() == guard.after.tobytes(), guard.name
    for step, batch in enumerate(problem.batches):
        assert {name: a.tobytes() for name, a in batch.arrays} == {
            name: a.tobytes() for name, a in outcome.inputs_after[step].items()
        }
    return outcome


def assert_near(actual: AnyArray, truth: AnyArray, where: str) -> None:
    """Values are around 1: ROUNDINGS of fp32, and for 16-bit types one unit in the last place for each step."""
    dtype = next(d for d in DType if d.numpy == truth.dtype)
    unit = ROUNDINGS * DType.FP32.info.unit_roundoff + (0 if dtype is DType.FP32 else 4 * dtype.info.unit_roundoff)
    off = np.abs(actual.astype(float) - truth.astype(float)) / np.maximum(np.abs(truth.astype(float)), 1)
    assert off.size == 0 or off.max() <= unit, f"{where}: off by {off.max()}, allowed {unit}"


def changed(weights: PerSampleWeights, **changes: object) -> PerSampleWeights:
    return msgspec.structs.replace(weights, **changes)


EXACT = [
    pytest.param(backend, weighted, pooling, id=f"{backend.name} {pooling}{' weighted' * weighted}")
    for backend in (TORCH, FBGEMM)
    for weighted in (False, True)
    for pooling in Pooling
    # FBGEMM divides no weighted MEAN's gradient, and drops weights without pooling.
    if not (backend is FBGEMM and weighted and pooling is not Pooling.SUM)
]


@pytest.mark.parametrize(("backend", "weighted", "pooling"), EXACT)
def test_exact_data_give_the_exact_result(backend: Backend, weighted: bool, pooling: Pooling) -> None:
    """Small integers, lengths that are powers of two, SGD with a rate of a half: no rounding anywhere."""
    features = tuple(
        msgspec.structs.replace(f, bags=(Bag((Lookup(0, 2), Lookup(3), Lookup(1))), Bag(), Bag((Lookup(4), Lookup(0)))))
        for f in (ONE_WIDTH if pooling is Pooling.NONE else SHARED)
    )
    integers = Values(Regime.INTEGERS, magnitude=8)
    check(
        backend,
        case(
            features=features,
            pooling=pooling,
            per_sample_weights=changed(WEIGHTS, values=Values(Regime.SIGNS)) if weighted else None,
            weight_values=integers,
            gradient_values=integers,
        ),
        exact=True,
    )


TYPES = [(DType.FP32, DType.FP32), (DType.FP16, DType.FP32), (DType.FP32, DType.FP16), (DType.BF16, DType.BF16)]


@pytest.mark.parametrize("types", TYPES, ids=lambda types: f"{types[0]} to {types[1]}")
@pytest.mark.parametrize("kind", OptimizerKind)
@BOTH
def test_every_optimizer_and_type(backend: Backend, kind: OptimizerKind, types: tuple[DType, DType]) -> None:
    optimizer = Optimizer(kind, eps=0.125, weight_decay=0.25 if "adam" in kind else 0.0, step=3)
    asked = case(optimizer=optimizer, weights=types[0], output=types[1], per_sample_weights=WEIGHTS)
    if not backend.supports(asked):
        assert backend is FBGEMM
        assert "adam" in kind or DType.BF16 in types
        return
    check(backend, asked)


@pytest.mark.parametrize("kind", OptimizerKind)
def test_plain_torch_accumulates_in_fp64_where_asked(kind: OptimizerKind) -> None:
    optimizer = Optimizer(kind, eps=0.125)
    check(TORCH, case(optimizer=optimizer, accumulation=DType.FP64, weights=DType.FP16, per_sample_weights=WEIGHTS))


@pytest.mark.parametrize("decay", Decay)
@BOTH
def test_decay(backend: Backend, decay: Decay) -> None:
    """FBGEMM's generated code, for unshared fp32, ignores it: the tables here are shared."""
    shared = (SHARED[0], SHARED[1])
    optimizer = msgspec.structs.replace(ROWWISE, decay=decay, weight_decay=0.0 if decay is Decay.NONE else 0.25)
    check(backend, case(features=shared, optimizer=optimizer))


@pytest.mark.parametrize("pooling", [Pooling.SUM, Pooling.MEAN])
@BOTH
def test_variable_batches_are_rank_major(backend: Backend, pooling: Pooling) -> None:
    weights = None if backend is FBGEMM and pooling is Pooling.MEAN else WEIGHTS
    check(backend, case(features=RANKS, ranks=3, pooling=pooling, per_sample_weights=weights, optimizer=ROWWISE))


@pytest.mark.parametrize("call", [call for call in Call if call not in (Call.SIDE_STREAM, Call.GRAPH)])
@pytest.mark.parametrize("kind", [OptimizerKind.ROWWISE_ADAGRAD, OptimizerKind.ADAM])
@BOTH
def test_every_program_of_calls(backend: Backend, kind: OptimizerKind, call: Call) -> None:
    asked = case(call=call, optimizer=Optimizer(kind, eps=0.125), per_sample_weights=WEIGHTS)
    if kind is OptimizerKind.ADAM and backend is FBGEMM:
        assert not backend.supports(asked)
        return
    check(backend, asked)


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("indices", IndexType)
@BOTH
def test_layouts_change_nothing(backend: Backend, indices: IndexType, layout: Layout) -> None:
    gradient_only = layout in (Layout.EXPANDED, Layout.TRANSPOSED)
    layouts = Layouts(gradient=layout) if gradient_only else Layouts(layout, layout, layout, layout)
    check(backend, case(layouts=layouts, indices=indices, per_sample_weights=changed(WEIGHTS, dtype=DType.FP16)))


@pytest.mark.parametrize("pooling", Pooling)
@BOTH
def test_nothing_to_look_up(backend: Backend, pooling: Pooling) -> None:
    for bags in ((), (Bag(), Bag())):
        features = (Feature(rows=3, dim=4, bags=bags), Feature(rows=2, dim=4))
        check(backend, case(features=features, pooling=pooling, optimizer=ROWWISE), exact=True)


def test_plain_torch_takes_tables_without_rows_and_any_width() -> None:
    features = (
        Feature(rows=0, dim=3),
        Feature(rows=4, dim=1, bags=(Bag((Lookup(0, 2), Lookup(3))),)),
        Feature(table=1, bags=(Bag((Lookup(1), Lookup(0))),)),
        Feature(rows=0, dim=5, bags=(Bag(),)),
    )
    check(TORCH, case(features=features, optimizer=ROWWISE, per_sample_weights=WEIGHTS))


@BOTH
def test_a_frozen_feature_updates_its_table_and_gives_its_weights_no_gradient(backend: Backend) -> None:
    features = (msgspec.structs.replace(SHARED[0], frozen=True), *SHARED[1:])
    outcome = check(backend, case(features=features, optimizer=ROWWISE, per_sample_weights=WEIGHTS))
    update = outcome.results[1]
    assert isinstance(update, Update)
    assert update.weight_gradient is not None
    assert not update.weight_gradient[:4].any()
    assert update.weight_gradient[4:].all()


@BOTH
def test_rows_that_nobody_names_keep_their_bytes_and_their_nan(backend: Backend) -> None:
    problem = materialise(case(poison=(Poison(Place.UNTOUCHED_ROWS),), optimizer=ROWWISE, steps=(Step(),)))
    (_, final) = tensors(backend.run(problem))
    for before, after in zip(problem.initial.tables, final, strict=False):
        unnamed = np.isnan(before[:, 0].astype(float))
        assert unnamed.any()
        assert after[unnamed].tobytes() == before[unnamed].tobytes()
        assert np.isfinite(after[~unnamed].astype(float)).all()


@BOTH
def test_fatal_bounds_raise_and_change_nothing(backend: Backend) -> None:
    problem = materialise(
        case(bounds_check=BoundsCheck.FATAL, bad_indices=(BadIndex(IndexFault.ROWS, 2),), optimizer=ROWWISE)
    )
    outcome = backend.run(problem)
    assert outcome.raised is not None
    assert outcome.results == ()
    assert outcome.raised.position == 0
    assert outcome.raised.message
    for name in ("tables", "momentum1"):
        for before, after in zip(getattr(problem.initial, name), getattr(outcome.raised.after, name), strict=True):
            assert before.tobytes() == after.tobytes()
    for batch, after in zip(problem.batches, outcome.inputs_after, strict=True):
        assert {name: a.tobytes() for name, a in batch.arrays} == {name: a.tobytes() for name, a in after.items()}


@pytest.mark.parametrize("mode", [BoundsCheck.IGNORE, BoundsCheck.WARNING])
@BOTH
def test_repairs(backend: Backend, mode: BoundsCheck) -> None:
    """One index beyond its table, one malformed offset: as the case with row 0 and the clamped offset."""
    features = (Feature(rows=3, dim=4, bags=(Bag((Lookup(1), Lookup(2))), Bag((Lookup(2),)), Bag((Lookup(1),)))),)
    repaired = (Feature(rows=3, dim=4, bags=(Bag((Lookup(1), Lookup(0))), Bag((Lookup(2), Lookup(1))), Bag())),)
    bad = case(
        features=features,
        steps=(Step(),),
        bounds_check=mode,
        bad_indices=(BadIndex(IndexFault.ROWS, 1),),
        bad_offsets=(BadOffset(OffsetFault.BEYOND_END, 2),),
    )
    found = backend.run(materialise(bad))
    good = backend.run(materialise(case(features=repaired, steps=(Step(),))))
    for a, b in zip(tensors(found), tensors(good), strict=True):
        for actual, expected in zip(a, b, strict=True):
            np.testing.assert_array_equal(actual, expected)
    forward = found.results[0]
    assert isinstance(forward, Forward)
    warned = forward.warnings or 0
    assert warned >= 2 if mode is BoundsCheck.WARNING else warned == 0


def test_an_index_of_minus_one_contributes_nothing_in_plain_torch() -> None:
    """The length still counts it, and its weight's gradient is zero."""
    features = (Feature(rows=3, dim=4, bags=(Bag((Lookup(1), Lookup(2))), Bag((Lookup(2), Lookup(0))))),)
    asked = case(
        features=features,
        steps=(Step(),),
        pooling=Pooling.MEAN,
        per_sample_weights=WEIGHTS,
        bounds_check=BoundsCheck.FATAL,
        bad_indices=(BadIndex(IndexFault.PRUNED, 1),),
    )
    problem = materialise(asked)
    (output,), (_, weight_gradient) = tensors(TORCH.run(problem))
    weights = problem.batches[0].per_sample_weights
    assert weights is not None
    np.testing.assert_array_equal(output[0], problem.initial.tables[0][1] * weights[0] / np.float32(2))
    assert weight_gradient[1] == 0
    assert np.all(weight_gradient[[0, 2, 3]] != 0)


REFUSED = {
    "bf16 tables": case(weights=DType.BF16),
    "bf16 output": case(output=DType.BF16),
    "dim": case(features=(Feature(rows=2, dim=6),)),
    "adam": case(optimizer=Optimizer(OptimizerKind.ADAM)),
    "variable adagrad": case(features=RANKS, ranks=3, optimizer=Optimizer(OptimizerKind.ADAGRAD)),
    "fp64": case(accumulation=DType.FP64),
    "no rows": case(features=(Feature(rows=0, dim=4),)),
    "stream": case(call=Call.SIDE_STREAM),
    "graph": case(call=Call.GRAPH),
}


@pytest.mark.parametrize("name", [name for name in REFUSED if name not in ("fp64", "stream", "graph")])
def test_fbgemm_really_refuses_what_is_called_unsupported(name: str) -> None:
    """Nothing is unsupported on our word alone: given the case anyway, FBGEMM raises."""
    assert FBGEMM.supports(REFUSED[name]).reason
    problem = materialise(REFUSED[name])
    try:
        raised = FBGEMM.run(problem).raised
    except (AssertionError, NotImplementedError, RuntimeError):  # its constructor refuses
        return
    assert raised is not None


@pytest.mark.parametrize("name", ["fp64", "stream", "graph"])
def test_what_a_cpu_cannot_be_asked_is_unsupported(name: str) -> None:
    assert FBGEMM.supports(REFUSED[name]).reason
    assert bool(TORCH.supports(REFUSED[name])) == (name == "fp64")


@pytest.mark.parametrize(
    "asked",
    [
        case(pooling=Pooling.MEAN, per_sample_weights=WEIGHTS),
        case(features=ONE_WIDTH, pooling=Pooling.NONE, per_sample_weights=WEIGHTS),
        case(weights=DType.FP16, rounding=Rounding.STOCHASTIC),
        case(feature_order=3),
    ],
    ids=["weighted mean", "weighted without pooling", "stochastic", "permuted features"],
)
def test_fbgemm_is_asked_what_it_computes_otherwise(asked: Case) -> None:
    """Options that it accepts and ignores are findings, and no reason not to run the case."""
    assert FBGEMM.supports(asked)


def test_a_kept_module_carries_nothing_from_case_to_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same problem before and after others of its kind, with other state, rates, eps, NaN, and an exception."""
    builds: list[fbgemm_module._Kind] = []
    build = fbgemm_module._build

    def counted(kind: fbgemm_module._Kind) -> fbgemm_module._Module:
        builds.append(kind)
        return build(kind)

    monkeypatch.setattr(fbgemm_module, "_build", counted)
    monkeypatch.setattr(fbgemm_module, "_kept", fbgemm_module._Kept())

    plain = case(optimizer=ROWWISE, bounds_check=BoundsCheck.FATAL, per_sample_weights=WEIGHTS)
    first = list(tensors(FBGEMM.run(materialise(plain))))
    others: list[dict[str, Any]] = [
        {"optimizer": Optimizer(OptimizerKind.ROWWISE_ADAGRAD, eps=1.0, learning_rate=2.0)},
        {"call": Call.OUTSTANDING},
        {"call": Call.FORWARD_ONLY, "poison": (Poison(Place.TOUCHED_ROW), Poison(Place.UNTOUCHED_ROWS))},
        {"gradient_values": Values(Regime.NEAR_OVERFLOW)},
    ]
    for changes in others:
        FBGEMM.run(materialise(msgspec.structs.replace(plain, **changes)))
    assert len(builds) == 1, "the module was to be kept"

    raised = FBGEMM.run(materialise(msgspec.structs.replace(plain, bad_indices=(BadIndex(IndexFault.ROWS),)))).raised
    assert raised is not None
    again = tensors(FBGEMM.run(materialise(plain)))
    assert len(builds) == 2, "a module that raised was to be dropped"
    for a, b in zip(first, again, strict=True):
        assert [x.tobytes() for x in a] == [x.tobytes() for x in b]


def test_results_do_not_depend_on_the_callers_threads_and_leave_them_alone() -> None:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        check(TORCH, case())
        check(FBGEMM, case())
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_versions_name_what_is_under_test() -> None:
    assert {"torch", "device"} <= set(TORCH.versions())
    assert FBGEMM.versions()["fbgemm_gpu"].startswith("fbgemm-gpu")


@pytest.mark.parametrize("variable", ["FBGEMM_TBE_BOUNDS_CHECK_MODE", "FBGEMM_EXPERIMENTAL_TBE", "FBGEMM_TBE_V2"])
def test_what_the_environment_would_override_is_refused(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "3")
    with pytest.raises(BackendUnavailable, match=f"{variable} is set to '3'"):
        registry.build("fbgemm-cpu")
