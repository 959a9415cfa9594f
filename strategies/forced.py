"""Combinations of axes that a case is made to have: pairs that chance alone would bring together too rarely."""

from __future__ import annotations

from collections.abc import Container
from itertools import product
from typing import Any

from equivcheck.axes import DISTINCT_ROWS, RUN_CLASSES
from equivcheck.case import (
    BoundsCheck,
    Call,
    Decay,
    Distribution,
    IndexFault,
    OptimizerKind,
    Place,
    Pooling,
    Rounding,
    Special,
)
from equivcheck.formats import DType
from strategies.data import BETAS2, Recipe
from strategies.menu import UPDATING, BagKind, Forced, Sharing

_NARROW = (DType.FP16, DType.BF16)
_RUNS = {
    f"run {least}-{most}" if most < 2**31 else f"run >={least}": range(least, most + 1) for least, most in RUN_CLASSES
}
_SHARED = {"alone": Sharing.NEVER, "shared": Sharing.SURELY}

BYTES = (129, 257)
"""Features, more than 7 and 8 bits number."""


def _forced(name: str, **options: Container[Any]) -> Forced:
    return Forced(name, options)


def _stochastic() -> tuple[Forced, ...]:
    return tuple(
        _forced(
            f"stochastic rounding, {run}, {shared}",
            rounding=(Rounding.STOCHASTIC,),
            weights=_NARROW,
            hot=_RUNS[run],
            feature_counts=(0,),
            sharing=(_SHARED[shared],),
            calls=UPDATING,
        )
        for run, shared in product(_RUNS, _SHARED)
    )


def _bounds() -> tuple[Forced, ...]:
    return tuple(
        _forced(
            f"bounds {mode}, {'vbe' if vbe else 'fixed batch'}, {'weighted' if weighted else 'unweighted'}",
            bounds=(mode,),
            ranks=(1, 2, 3) if vbe else (0,),
            weighted=(DType.FP32, DType.FP16) if weighted else (None,),
        )
        for mode, vbe, weighted in product(BoundsCheck, (False, True), (False, True))
    )


def _mean() -> tuple[Forced, ...]:
    return tuple(
        _forced(
            f"mean, output {output}, backward, {'weighted' if weighted else 'unweighted'}",
            pooling=(Pooling.MEAN,),
            output=(output,),
            weighted=(DType.FP32, DType.FP16) if weighted else (None,),
            calls=UPDATING,
        )
        for output, weighted in product(_NARROW, (False, True))
    )


def _decay() -> tuple[Forced, ...]:
    return tuple(
        _forced(
            f"decay {decay}, {dtype}, {shared}",
            optimizers=(OptimizerKind.ROWWISE_ADAGRAD,),
            decay=(decay,),
            weights=(dtype,),
            sharing=(_SHARED[shared],),
            calls=UPDATING,
        )
        for decay, dtype, shared in product((Decay.L2, Decay.DECOUPLED), (DType.FP32, *_NARROW), _SHARED)
    )


def _unsorted() -> tuple[Forced, ...]:
    return tuple(
        _forced(
            f"unsorted sharing, {optimizer}, {dtype}",
            sharing=(Sharing.UNSORTED,),
            optimizers=(optimizer,),
            weights=(dtype,),
            calls=UPDATING,
        )
        for optimizer, dtype in product(OptimizerKind, (DType.FP32, *_NARROW))
    )


def _narrow_tables() -> tuple[Forced, ...]:
    return tuple(
        _forced(f"dim<32, {run}", widest=(31,), hot=_RUNS[run], feature_counts=(0,), calls=UPDATING)
        for run in list(_RUNS)[2:]
    )


def _thresholds() -> tuple[Forced, ...]:
    """Runs at the lengths at which kernels change their way: a warp's, and a block's."""
    return tuple(
        _forced(f"run at {least + 1}", hot=range(least, least + 3), feature_counts=(0,), calls=UPDATING)
        for least in (31, 255)
    )


def _weighted_repeats() -> tuple[Forced, ...]:
    sizes = {"N<=32": (1, 32), "N 33-1024": (33, 1024), "N>1024": (1025, 4097)}
    result = []
    for (size, (least, most)), weighted, repeated in product(sizes.items(), (False, True), (False, True)):
        options: dict[str, Container[Any]] = {
            "weighted": (DType.FP32, DType.FP16) if weighted else (None,),
            "kinds": (BagKind.TRAFFIC,),
            "traffic_bags": range(least, most + 1),
            "traffic_lengths": (1,),
            "feature_counts": (0,),
            "rows": (1, 2, 3) if repeated else (4097,),
            "distributions": (Distribution.UNIFORM, Distribution.ZIPF, Distribution.HOT)
            if repeated
            else (Distribution.CYCLIC,),
            "ranks": (0, 1),
            "calls": UPDATING,
        }
        kind = f"{'weighted' if weighted else 'unweighted'}, {'repeated' if repeated else 'distinct'} rows"
        result.append(_forced(f"{size}, {kind}", **options))
    return tuple(result)


def small_products(dims: tuple[int, ...]) -> tuple[Forced, ...]:
    """What a product of counts and a table is for: fp16 tables of these widths, pooled into fp32 without weights."""
    pinned: dict[str, Container[Any]] = {
        "dims": (dims,),
        "weights": (DType.FP16,),
        "output": (DType.FP32,),
        "weighted": (None,),
        "pooling": (Pooling.SUM,),
        "ranks": (0,),
    }
    return tuple(
        _forced(f"small fp16 tables, {optimizer}", optimizers=(optimizer,), calls=UPDATING, **pinned)
        for optimizer in (OptimizerKind.SGD, OptimizerKind.ROWWISE_ADAGRAD)
    )


def small_edges() -> tuple[Forced, ...]:
    """Where a small-table path begins and ends: tables of one row too many, variable batches, and all bits of fp32."""
    return (
        _forced("small fp32 tables, all bits", weights=(DType.FP32,), recipes=(Recipe.SMOOTH,), feature_counts=(0,)),
        _forced("65 rows", rows=(65,), rowless=(False,), feature_counts=(0,)),
        _forced("small tables, vbe", ranks=(2, 3, 8), feature_counts=(0,)),
    )


def _element_wise() -> tuple[Forced, ...]:
    """Adagrad, which row-wise optimizers would otherwise crowd out: eps counts element by element."""
    return (_forced("element-wise Adagrad", optimizers=(OptimizerKind.ADAGRAD,), recipes=(Recipe.SMOOTH,)),)


def _roots() -> tuple[Forced, ...]:
    """Roots and quotients whose last bits show: a hundred rows or more, each looked up once or twice, without decay."""
    return tuple(
        _forced(
            f"roots, {kind}",
            recipes=(Recipe.ROOTS,),
            optimizers=(kind,),
            decay=(Decay.NONE,),
            weights=(DType.FP32,),
            accumulation=(DType.FP32,),
            kinds=(BagKind.TRAFFIC,),
            rows=range(100, 301),
            traffic_bags=range(100, 301),
            traffic_lengths=(1,),
            distributions=(Distribution.CYCLIC,),
            feature_counts=(0,),
        )
        for kind in (OptimizerKind.ROWWISE_ADAGRAD, OptimizerKind.ADAGRAD)
    )


def _restored() -> tuple[Forced, ...]:
    """State that a saved module has to carry. Adam's t matters while 1 - beta^t is far from one."""
    return tuple(
        _forced(f"restored, {kind}", calls=(Call.RESTORED,), optimizers=(kind,), adam_steps=(1, 2, 10))
        for kind in tuple(OptimizerKind)[1:]
    )


def _growing() -> tuple[Forced, ...]:
    """A batch larger than those before it; and such as have no lookups, but count in Adam's t all the same."""
    adam: dict[str, Container[Any]] = {"optimizers": (OptimizerKind.ADAM,), "adam_steps": (1, 2, 10)}
    return (
        _forced("growing", growing=(True,), steps=(2, 3)),
        _forced("no lookups, then all", growing=(True,), steps=(2, 3), kept=(0,), calls=(Call.STEPS,), **adam),
    )


def _still() -> tuple[Forced, ...]:
    """Rows that are looked up and have no gradient. They decay, and Adam moves them by the moments that they have."""
    return (
        *(
            _forced(
                f"no gradient, decay {decay}",
                recipes=(Recipe.STILL,),
                optimizers=(OptimizerKind.ROWWISE_ADAGRAD,),
                decay=(decay,),
            )
            for decay in (Decay.L2, Decay.DECOUPLED)
        ),
        *(
            _forced(f"no gradient, {kind}", recipes=(Recipe.STILL,), optimizers=(kind,))
            for kind in (OptimizerKind.ADAM, OptimizerKind.PARTIAL_ROWWISE_ADAM)
        ),
    )


def _subnormal() -> tuple[Forced, ...]:
    """Subnormal numbers of 16 bits: normal ones in the arithmetic, which a conversion may flush."""
    return tuple(_forced(f"subnormal, {dtype}", recipes=(Recipe.SUBNORMAL,), weights=(dtype,)) for dtype in _NARROW)


def _overflow() -> tuple[Forced, ...]:
    """fp32 numbers that bf16 has no room for, though its exponents are as large."""
    return (
        _forced("overflow, bf16", recipes=(Recipe.OVERFLOW,), weights=(DType.FP32,), output=(DType.BF16,), hot=(0,)),
    )


def _fp64_means() -> tuple[Forced, ...]:
    """Means whose reciprocal lengths fp32 rounds, told from fp64 ones by an output that is as wide."""
    return (
        _forced(
            "fp64 means",
            accumulation=(DType.FP64,),
            pooling=(Pooling.MEAN,),
            recipes=(Recipe.SMOOTH,),
            output=(DType.FP32,),
            hot=range(7, 34),
        ),
    )


def _long_runs() -> tuple[Forced, ...]:
    """Thirty runs of more than a block's 256 at once: lists of long runs, and all steps of programs that go through."""
    return (
        _forced(
            "many long runs",
            rows=(30,),
            traffic_bags=(4096,),
            traffic_lengths=(2,),
            distributions=(Distribution.CYCLIC,),
            ranks=(0,),
        ),
    )


def _long_updates() -> tuple[Forced, ...]:
    """Runs from a block's 256 on, whose updates a kernel may have written anew, with each decay."""
    rowwise = tuple((OptimizerKind.ROWWISE_ADAGRAD, decay) for decay in (Decay.L2, Decay.DECOUPLED))
    adam = tuple((kind, Decay.NONE) for kind in (OptimizerKind.ADAM, OptimizerKind.PARTIAL_ROWWISE_ADAM))
    return tuple(
        _forced(
            f"long run, {kind}, decay {decay}" if decay is not Decay.NONE else f"long run, {kind}",
            hot=range(256, 1026),
            optimizers=(kind,),
            decay=(decay,),
            recipes=(Recipe.EXACT,),
            feature_counts=(0,),
            calls=UPDATING,
        )
        for kind, decay in (*rowwise, *adam)
    )


def _pending() -> tuple[Forced, ...]:
    """Adam's t where a backward is not the one of the latest forward, or one of two of the same."""
    return tuple(
        _forced(f"{call}, {OptimizerKind.ADAM}", calls=(call,), optimizers=(OptimizerKind.ADAM,), adam_steps=(1, 2, 10))
        for call in (Call.OUTSTANDING, Call.RETAINED)
    )


def _warned() -> tuple[Forced, ...]:
    """Warnings that are counted in one forward and in the next; and a first offset that alone is wrong."""
    first: dict[str, Container[Any]] = {"index_counts": (0,), "offset_counts": (1,), "offset_positions": (0,)}
    return (
        _forced("warnings, two steps", bounds=(BoundsCheck.WARNING,), steps=(2,)),
        _forced("fatal first offset", bounds=(BoundsCheck.FATAL,), **first),
        _forced("warned first offset", bounds=(BoundsCheck.WARNING,), **first),
    )


def _pruned_means() -> tuple[Forced, ...]:
    """A pruned lookup counts in the length of its bag, by which the gradients of rows and of weights are divided."""
    return (
        _forced(
            "pruned, weighted mean",
            pooling=(Pooling.MEAN,),
            weighted=(DType.FP32, DType.FP16),
            hot=(8,),
            spread=(False,),
            feature_counts=(0,),
            bounds=tuple(BoundsCheck)[1:],
            index_faults=(IndexFault.PRUNED,),
            index_counts=(1, 2, 3),
            offset_counts=(0,),
        ),
    )


def _frozen() -> tuple[Forced, ...]:
    """More features than the bits of a word, of which not all are frozen."""
    return (
        _forced(
            "many features, some frozen",
            feature_counts=(33, 34, 63, 64, 65, 101, 128),
            feature_parts=(3,),
            weighted=(DType.FP32, DType.FP16),
            widest=(31,),
            hot=(0,),
        ),
    )


def _many_features() -> tuple[Forced, ...]:
    """More features than 7 and 8 bits number."""
    return (_forced("many features", feature_counts=BYTES, hot=(0,)),)


def _bias_corrections() -> tuple[Forced, ...]:
    """1 - beta^t is small, and so shows an error of beta^t magnified: t small, and a beta whose powers fp32 rounds."""
    return tuple(
        _forced(
            f"bias correction, {kind}",
            optimizers=(kind,),
            beta2=BETAS2[1:3],
            adam_steps=(2, 10),
            recipes=(Recipe.SMOOTH,),
        )
        for kind in (OptimizerKind.ADAM, OptimizerKind.PARTIAL_ROWWISE_ADAM)
    )


def _late_bias_corrections() -> tuple[Forced, ...]:
    """1 - beta^t is still below one by far more than fp32's unit roundoff, though t is large: .999^5000 is .0067."""
    return tuple(
        _forced(
            f"late bias correction, {kind}",
            optimizers=(kind,),
            beta2=BETAS2[1:2],
            adam_steps=(5000,),
            recipes=(Recipe.SMOOTH,),
        )
        for kind in (OptimizerKind.ADAM, OptimizerKind.PARTIAL_ROWWISE_ADAM)
    )


def _stochastic_infinity() -> tuple[Forced, ...]:
    """Rows that are infinite before they are rounded.

    Forms of other optimizers may multiply them by zero; those elements are not judged.
    """
    return tuple(
        _forced(
            f"stochastic infinity, {dtype}",
            poison=tuple((Place.TOUCHED_ROW, value) for value in (Special.INF, Special.MINUS_INF)),
            optimizers=(OptimizerKind.SGD, OptimizerKind.ROWWISE_ADAGRAD),
            decay=(Decay.NONE,),
            weights=(dtype,),
            accumulation=(DType.FP32,),
            recipes=(Recipe.EXACT, Recipe.SMOOTH),
            feature_counts=(0,),
        )
        for dtype in _NARROW
    )


def _infinite_weights() -> tuple[Forced, ...]:
    """Weights that make infinite gradients of no zero among them: zeros that pad a row's columns would become NaN."""
    return tuple(
        _forced(
            f"infinite weight, {kind}",
            poison=tuple((Place.PER_SAMPLE_WEIGHT, value) for value in (Special.INF, Special.MINUS_INF)),
            weighted=(DType.FP32, DType.FP16),
            optimizers=(kind,),
            accumulation=(DType.FP32,),
            recipes=(Recipe.SMOOTH,),
            feature_counts=(0,),
        )
        for kind in (OptimizerKind.ROWWISE_ADAGRAD, OptimizerKind.PARTIAL_ROWWISE_ADAM)
    )


def _rare() -> tuple[Forced, ...]:
    """Single edges that several axes have to agree on, so that chance alone hardly meets them."""
    cyclic: dict[str, Container[Any]] = {
        "kinds": (BagKind.TRAFFIC,),
        "distributions": (Distribution.CYCLIC,),
        "ranks": (0, 1),
        "feature_counts": (0,),
    }
    distinct = range(DISTINCT_ROWS[0], DISTINCT_ROWS[-1] + 1)
    return (
        *(_forced("distinct rows", rows=distinct, traffic_bags=range(1025, 4097), traffic_lengths=(1,), **cyclic),) * 3,
        _forced("many hot rows", rows=(200,), traffic_bags=(4096,), traffic_lengths=(2,), **cyclic),
        *(_forced("N", traffic_bags=range(2, 4098), traffic_lengths=(1,), **cyclic),) * 8,
        *(_forced("values", recipes=(Recipe.ANY,)),) * 12,
        *(_forced("values of states", recipes=(Recipe.ANY,), optimizers=tuple(OptimizerKind)[1:]),) * 6,
        *(
            _forced(
                "fp64 sums",  # of several terms, told from fp32 ones by an output that is as wide
                accumulation=(DType.FP64,),
                recipes=(Recipe.SMOOTH,),
                output=(DType.FP32,),
                hot=range(7, 34),
            ),
        )
        * 6,
        *(_forced("shared by two", sharing=(Sharing.SURELY, Sharing.UNSORTED), orders=range(1, 12)),) * 6,
    )


def beyond(length: int) -> Forced:
    """A run that is longer."""
    return _forced(f"run > {length}", hot=range(length + 1, 2**31))


def lone_halves() -> Forced:
    """Rows of fp16, multiplied by weights, that go into an fp16 output as they are."""
    return _forced("lone lookups, fp16", weights=(DType.FP16,), output=(DType.FP16,), weighted=(DType.FP32, DType.FP16))


def bag_beyond(length: int) -> Forced:
    """A bag that is longer."""
    return _forced(f"bag > {length}", hot=range(length + 1, 2**31), spread=(False,), pooling=(Pooling.SUM,))


def uneven_means(lengths: tuple[int, ...]) -> tuple[Forced, ...]:
    """Means of bags of these lengths; rows' gradients, and the weights', are divided by them, too."""
    return tuple(
        _forced(
            f"mean, {name}",
            pooling=(Pooling.MEAN,),
            hot=lengths,
            spread=(False,),
            weighted=weighted,
            calls=UPDATING,
        )
        for name, weighted in (("unweighted", (None,)), ("weighted", (DType.FP32,)))
    )


STOCHASTIC = _stochastic()
STOCHASTIC_KINDS = tuple(
    _forced(f"stochastic, {kind}, {dtype}", optimizers=(kind,), weights=(dtype,))
    for kind, dtype in product(OptimizerKind, _NARROW)
)
STOCHASTIC_INFINITY = _stochastic_infinity()
INFINITE_WEIGHTS = _infinite_weights()
BOUNDS = _bounds()
MEAN = _mean()
DECAY = _decay()
UNSORTED = _unsorted()
NARROW_TABLES = _narrow_tables()
THRESHOLDS = _thresholds()
WEIGHTED_REPEATS = _weighted_repeats()
ELEMENT_WISE = _element_wise()
ROOTS = _roots()
RESTORED = _restored()
PRUNED_MEANS = _pruned_means()
FROZEN = _frozen()
MANY_FEATURES = _many_features()
GROWING = _growing()
STILL = _still()
BIAS_CORRECTIONS = _bias_corrections()
LATE_BIAS_CORRECTIONS = _late_bias_corrections()
PENDING = _pending()
SUBNORMAL = _subnormal()
OVERFLOW = _overflow()
FP64_MEANS = _fp64_means()
LONG_RUNS = _long_runs()
LONG_UPDATES = _long_updates()
WARNED = _warned()
RARE = _rare()
PAIRS = (*STOCHASTIC, *BOUNDS, *MEAN, *DECAY, *UNSORTED, *NARROW_TABLES, *WEIGHTED_REPEATS)
"""All that docs/generation.md asks for."""
