"""Intervals hold whatever a right operation gives: exhaustively near the edges, and for millions of random operands."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from equivcheck.arithmetic import Grouped, Sequential, Store, StoreRounding, TensorCore
from equivcheck.formats import DType, Float64Array, down, nearest, toward_zero, up
from equivcheck.oracle.roundoff import BoolArray, Fp32Operations, Interval, hull, point, positive, stored, widened
from tests.selftest.simulated.machine import Error, Machine

FP32 = DType.FP32.info
COUNT = 4000


def operands(seed: int, positive_only: bool = False) -> Float64Array:
    """Numbers of fp32 of all magnitudes: a third ordinary, a third from subnormal to huge, the rest edges."""
    rng = np.random.default_rng(seed)
    ordinary = rng.random(COUNT // 3) * 4 - 2
    wide = np.ldexp(1 + rng.random(COUNT // 3), rng.integers(-150, 127, COUNT // 3))
    edges = np.asarray(
        [
            0.0,
            1.0,
            2.0**-149,
            3 * 2.0**-149,
            2.0**-126,
            2.0**-126 - 2.0**-149,
            1 + 2.0**-23,
            1 - 2.0**-24,
            2.0**127,
            3.0,
            7.0,
        ]
    )
    rest = rng.choice(edges, COUNT - 2 * (COUNT // 3))
    values = nearest(np.concatenate([ordinary, wide * rng.choice([-1.0, 1.0], len(wide)), rest]), DType.FP32)
    values = rng.permutation(values)
    return np.abs(values) if positive_only else values


def spread(values: Float64Array, seed: int, share: float) -> Interval:
    """Intervals that hold the values, and often nothing else."""
    rng = np.random.default_rng(seed)
    width = np.where(rng.random(len(values)) < 0.5, 0.0, share * np.abs(values) * rng.random(len(values)))
    return Interval(values - width * rng.random(len(values)), values + width)


def inside(interval: Interval, found: Float64Array, judged: BoolArray | None = None) -> None:
    """Every finite result lies in its interval; infinite ends hold everything."""
    ok = (interval.low <= found) & (found <= interval.high)
    if judged is not None:
        ok |= ~judged
    assert ok.all(), (interval.low[~ok][:3], found[~ok][:3], interval.high[~ok][:3])


Result = tuple[Interval, Float64Array]
Binary = Callable[[Fp32Operations, Machine, Interval, Interval, Float64Array, Float64Array], Result]
OPERATIONS: dict[str, Binary] = {
    "add": lambda ops, m, a, b, x, y: (ops.add(a, b), m.add(x, y)),
    "subtract": lambda ops, m, a, b, x, y: (ops.subtract(a, b), m.subtract(x, y)),
    "multiply": lambda ops, m, a, b, x, y: (ops.multiply(a, b), m.multiply(x, y)),
    "scale": lambda ops, m, a, b, x, y: (ops.scale(a, positive(b)), m.multiply(x, np.abs(y))),
    "divide": lambda ops, m, a, b, x, y: (ops.divide(a, positive(b)), m.divide(x, np.abs(y))),
    "square": lambda ops, m, a, b, x, y: (ops.square(a), m.multiply(x, x)),
    "sqrt": lambda ops, m, a, b, x, y: (ops.sqrt(positive(b)), m.sqrt(np.abs(y))),
    "shifted": lambda ops, m, a, b, x, y: (ops.shifted(a, b), m.add(x, y)),
}


@pytest.mark.parametrize("sharp", [False, True])
@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("flushes", [False, True])
@pytest.mark.parametrize("error", list(Error))
@pytest.mark.parametrize("units", [1.0, 4.0])
def test_an_operation_stays_inside(sharp: bool, name: str, flushes: bool, error: Error, units: float) -> None:
    second_positive = name in ("scale", "divide", "sqrt")
    machine = Machine(division=units, square_root=units, flushes=flushes, error=error)
    for seed in range(8):
        x, y = operands(seed), operands(seed + 100, second_positive)
        ops = Fp32Operations(units, units, flushes, x.shape, sharp=sharp)
        with np.errstate(all="ignore"):
            interval, found = OPERATIONS[name](ops, machine, spread(x, seed, 0.1), spread(y, seed + 1, 0.1), x, y)
            unclear = ops.overflow | np.isnan(found) | np.isnan(interval.low) | np.isnan(interval.high)
        inside(interval, found, ~unclear)


@pytest.mark.parametrize("flushes", [False, True])
def test_a_fused_product_stays_inside(flushes: bool) -> None:
    """Every interval holds the unrounded result, too."""
    machine = Machine(fused=True, flushes=flushes)
    for seed in range(8):
        x, y, z = operands(seed), operands(seed + 50), operands(seed + 100)
        ops = Fp32Operations(1, 1, flushes, x.shape)
        with np.errstate(all="ignore"):
            interval = ops.add(ops.multiply(point(x), point(y)), point(z))
            found = machine.multiply_add(x, y, z)
            unclear = ops.overflow | ~np.isfinite(found)
        inside(interval, found, ~unclear)


def test_an_operation_is_tight() -> None:
    """Correctly rounded operations on ordinary numbers may move by u of the result, and hardly more."""
    rng = np.random.default_rng(3)
    x, y = (nearest(1 + rng.random(COUNT), DType.FP32) for _ in range(2))
    ops = Fp32Operations(1, 1, False, x.shape)
    a, b = point(x), point(y)
    for interval, exact in (
        (ops.add(a, b), x + y),
        (ops.multiply(a, b), x * y),
        (ops.scale(a, b), x * y),
        (ops.divide(a, b), x / y),
        (ops.square(a), x * x),
        (ops.sqrt(a), np.sqrt(x)),
    ):
        width = interval.high - interval.low
        assert (width <= 2.001 * FP32.unit_roundoff * exact).all()
        assert (width > 1.999 * FP32.unit_roundoff * exact).any()


def test_a_sharp_operation_holds_the_result_and_its_rounding_and_no_neighbour() -> None:
    rng = np.random.default_rng(3)
    x, y = (nearest(1 + rng.random(COUNT), DType.FP32) for _ in range(2))
    ops = Fp32Operations(1, 1, False, x.shape, sharp=True)
    for interval, exact in (
        (ops.divide(point(x), point(y)), x / y),
        (ops.sqrt(point(x)), np.sqrt(x)),
        (ops.shifted(point(x), point(2.0**-40)), x + 2.0**-40),
    ):
        rounded = nearest(exact, DType.FP32)
        inside(interval, exact)
        inside(interval, rounded)
        for direction in (0.0, np.inf):
            neighbour = np.nextafter(rounded.astype(np.float32), np.float32(direction)).astype(np.float64)
            assert ((neighbour < interval.low) | (neighbour > interval.high)).all()


def test_adding_zero_to_a_sharp_root_changes_nothing() -> None:
    x = operands(7, positive_only=True)
    ops = Fp32Operations(1, 1, False, x.shape, sharp=True)
    root = ops.sqrt(point(x))
    shifted = ops.shifted(root, point(0.0))
    np.testing.assert_allclose(shifted.low, root.low, rtol=2.0**-50, atol=0)
    np.testing.assert_allclose(shifted.high, root.high, rtol=2.0**-50, atol=0)


def test_exact_results_stay_points() -> None:
    """Small integers, and powers of two that stay in range."""
    ops = Fp32Operations(1, 1, False, (3,))
    a, b = point(np.asarray([3.0, -5.0, 4.0])), point(np.asarray([2.0, 8.0, 0.25]))
    for interval, expected in (
        (ops.add(a, b), [5, 3, 4.25]),
        (ops.subtract(a, b), [1, -13, 3.75]),
        (ops.multiply(a, b), [6, -40, 1]),
        (ops.scale(a, b), [6, -40, 1]),
        (ops.square(a), [9, 25, 16]),
        (ops.divide(a, b), [1.5, -0.625, 16]),
        (ops.sqrt(point(np.asarray([4.0, 0.25, 9.0]))), [2, 0.5, 3]),
    ):
        assert interval.low.tolist() == expected
        assert interval.high.tolist() == expected


def test_declared_errors_make_exact_results_uncertain() -> None:
    ops = Fp32Operations(4, 6, False, (1,))
    four, two = point(np.asarray([4.0])), point(np.asarray([2.0]))
    for interval, units in ((ops.divide(four, two), 4), (ops.sqrt(four), 6)):
        assert interval.low[0] <= 2 - units * 2.0**-24 * 2 * 0.999
        assert interval.high[0] >= 2 + units * 2.0**-24 * 2 * 0.999


def test_a_square_across_zero_starts_at_zero() -> None:
    ops = Fp32Operations(1, 1, False, (1,))
    square = ops.square(Interval(np.asarray([-1.0]), np.asarray([2.0])))
    assert square.low[0] == 0
    assert 4 <= square.high[0] < 4.00001


def test_overflow_is_noted() -> None:
    ops = Fp32Operations(1, 1, False, (2,))
    with np.errstate(over="ignore"):
        ops.multiply(point(np.asarray([2.0**100, 1.0])), point(np.asarray([2.0**100, 1.0])))
    assert ops.overflow.tolist() == [True, False]
    ops.note(np.asarray([0.0, 4e38]))
    assert ops.overflow.tolist() == [True, True]


@pytest.mark.parametrize("dtype", [DType.FP16, DType.BF16])
@pytest.mark.parametrize("rounding", list(StoreRounding))
def test_a_store_stays_inside(dtype: DType, rounding: StoreRounding) -> None:
    """Directly, or over fp32 first: both are what kernels do with a value that is held wider."""
    rng = np.random.default_rng(5)
    least, most = dtype.info.minimum_exponent - 12, 15 if dtype is DType.FP16 else 127
    exact = np.ldexp(1 + rng.random(COUNT), rng.integers(least, most, COUNT)) * rng.choice([-1.0, 1.0], COUNT)
    # Values just beside numbers and ties of the type, where rounding twice differs.
    grid = down(exact, dtype)
    unit = up(np.nextafter(grid, np.inf), dtype) - grid
    near = grid + unit * rng.choice([0.0, 0.5, 1.0], COUNT) + unit * rng.choice([-1, 0, 1], COUNT) * 2.0**-20
    over = dtype.info.maximum * (1 + rng.random(100) * 2.0**-9)
    for values in (exact, near, over):
        interval = stored(point(values), dtype, Store(rounding), DType.FP32)
        for held in (values, nearest(values, DType.FP32)):
            chosen: list[Float64Array] = {
                StoreRounding.NEAREST: [nearest(held, dtype)],
                StoreRounding.TRUNCATE: [toward_zero(held, dtype)],
                StoreRounding.STOCHASTIC: [down(held, dtype), up(held, dtype)],
            }[rounding]
            for found in chosen:
                inside(interval, found, np.isfinite(held))


@pytest.mark.parametrize("rounding", list(StoreRounding))
def test_the_last_operation_is_the_store_of_its_own_type(rounding: StoreRounding) -> None:
    """An fp32 value stored as fp32 is not rounded again, whatever is declared for narrower types."""
    values = np.asarray([1 + 2.0**-25, 1 - 2.0**-26, 2.0**-150])
    interval = stored(point(values), DType.FP32, Store(rounding), DType.FP32)
    assert (interval.low == nearest(values, DType.FP32)).all()
    assert (interval.high == nearest(values, DType.FP32)).all()


@pytest.mark.parametrize("dtype", [DType.FP16, DType.BF16])
def test_a_store_is_tight(dtype: DType) -> None:
    """To nearest, a known value has one result, but for rounding twice; otherwise its neighbours."""
    values = np.asarray([1.0, 1 + 2.0**-13, -3.3])
    interval = stored(point(values), dtype, Store(), DType.FP32)
    assert (interval.low == interval.high).all()
    stochastic = stored(point(values), dtype, Store(StoreRounding.STOCHASTIC), DType.FP32)
    assert (stochastic.low == down(values, dtype)).all()
    assert (stochastic.high == up(values, dtype)).all()


@pytest.mark.parametrize("dtype", [DType.FP16, DType.BF16])
def test_saturating_and_flushing_stores(dtype: DType) -> None:
    info = dtype.info
    values = np.asarray([info.maximum * 4, -info.maximum * 4, info.smallest_subnormal * 3, -info.smallest_subnormal])
    plain = stored(point(values), dtype, Store(), DType.FP32)
    assert plain.low.tolist() == [np.inf, -np.inf, values[2], values[3]]
    both = stored(point(values), dtype, Store(saturates=True, flushes=True), DType.FP32)
    assert both.low.tolist() == [info.maximum, -np.inf, 0, values[3]]
    assert both.high.tolist() == [np.inf, -info.maximum, values[2], 0]


@pytest.mark.parametrize("rounding", [StoreRounding.NEAREST, StoreRounding.STOCHASTIC])
def test_an_infinity_saturates_nowhere(rounding: StoreRounding) -> None:
    values = np.asarray([np.inf, -np.inf])
    for dtype in (DType.FP16, DType.BF16):
        interval = stored(point(values), dtype, Store(rounding, saturates=True), DType.FP32)
        assert interval.low.tolist() == interval.high.tolist() == values.tolist()


def test_hull_and_widened() -> None:
    first, second = Interval(np.asarray([1.0]), np.asarray([2.0])), Interval(np.asarray([1.5]), np.asarray([3.0]))
    assert hull(first, second).low[0] == 1
    assert hull(first, second).high[0] == 3
    wider = widened(Interval(np.asarray([-2.0]), np.asarray([np.inf])), 0.5, 1.0)
    assert (wider.low[0], wider.high[0]) == (-4.0, np.inf)


def test_errors_of_sums() -> None:
    """The formulas of docs/numerics.md."""
    terms = np.asarray([0, 1, 2, 5, 17])
    u = 2.0**-24
    assert Sequential().error(terms).tolist() == [0, 0, u, 4 * u, 16 * u]
    assert Sequential(DType.FP16).error(terms)[2] == 2.0**-11
    grouped = Grouped(4, DType.FP32, DType.FP64).error(terms)
    assert grouped[1] < 2.0**-50
    assert 3 * u < grouped[3] < 3.001 * u
    assert TensorCore(16).error(terms).tolist() == [17 * 2 * u] * 4 + [34 * 2 * u]
