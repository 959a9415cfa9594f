"""Rounding into fp16 and bf16, for every number they have: against NumPy, ml-dtypes and exact fractions."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from equivcheck.formats import (
    DType,
    Float64Array,
    down,
    lowest_bit,
    nearest,
    representable,
    store,
    toward_zero,
    up,
    widen,
)

NARROW = (DType.FP16, DType.BF16)


def every_number(dtype: DType) -> Float64Array:
    """All finite numbers of a 16-bit format, ascending."""
    values = widen(np.arange(2**16, dtype=np.uint16).view(dtype.numpy))  # signalling NaNs among them
    return np.unique(values[np.isfinite(values)])


def between(numbers: Float64Array, share: float) -> Float64Array:
    """Values between neighbours; exact for shares of few bits."""
    return numbers[:-1] + share * np.diff(numbers)


@pytest.mark.parametrize("dtype", NARROW)
def test_numbers_stay(dtype: DType) -> None:
    numbers = every_number(dtype)
    assert len(numbers) == {DType.FP16: 63487, DType.BF16: 65279}[dtype]
    for rounding in (nearest, down, up, toward_zero):
        assert (rounding(numbers, dtype) == numbers).all()
    assert representable(numbers, dtype).all()
    assert (widen(store(numbers, dtype)) == numbers).all()


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("share", [2.0**-30, 0.25, 0.5 - 2.0**-30, 0.5 + 2.0**-30, 0.75, 1 - 2.0**-30])
def test_between_two_numbers(dtype: DType, share: float) -> None:
    numbers = every_number(dtype)
    low, high, values = numbers[:-1], numbers[1:], between(numbers, share)
    assert (down(values, dtype) == low).all()
    assert (up(values, dtype) == high).all()
    assert (toward_zero(values, dtype) == np.where(values > 0, low, high)).all()
    assert (nearest(values, dtype) == (low if share < 0.5 else high)).all()
    assert not representable(values, dtype).any()


@pytest.mark.parametrize("dtype", NARROW)
def test_ties_go_to_the_even_number(dtype: DType) -> None:
    numbers = every_number(dtype)
    ties = between(numbers, 0.5)
    bits = np.abs(widen(store(nearest(ties, dtype), dtype))).astype(dtype.numpy).view(np.uint16)
    assert (bits % 2 == 0).all()
    assert (np.abs(nearest(ties, dtype) - ties) * 2 == np.diff(numbers)).all()


def test_fp16_is_numpys() -> None:
    numbers = every_number(DType.FP16)
    for share in (0.0, 0.25, 0.5, 0.5 + 2.0**-40, 0.75):
        values = between(numbers, share)
        assert (nearest(values, DType.FP16) == values.astype(np.float16).astype(np.float64)).all()


def test_bf16_is_ml_dtypes() -> None:
    """ml-dtypes goes through fp32, which is the same where the value is a number of fp32."""
    numbers = every_number(DType.BF16)
    for share in (0.0, 0.25, 0.5, 0.75):
        values = between(numbers, share)
        exact = values == values.astype(np.float32)
        assert exact.mean() > 0.9
        given = values[exact].astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)
        assert (nearest(values[exact], DType.BF16) == given).all()


@pytest.mark.parametrize("dtype", NARROW)
def test_once_and_not_twice(dtype: DType) -> None:
    """Just above a tie: rounding to fp32 first would make it one."""
    tie = 1 + 2.0**-dtype.info.precision
    assert nearest(np.asarray([tie + 2.0**-40]), dtype) > tie
    assert widen(store(np.asarray([tie + 2.0**-40]), dtype)) > tie
    assert nearest(np.asarray([tie - 2.0**-40]), dtype) < tie


@pytest.mark.parametrize("dtype", [*NARROW, DType.FP32])
def test_against_fractions(dtype: DType) -> None:
    """Nearest, down and up of values of all magnitudes, against a search among fractions."""
    rng = np.random.default_rng(1)
    info = dtype.info
    exponents = rng.integers(info.minimum_exponent - info.precision - 2, np.frexp(info.maximum)[1], 500)
    values = np.ldexp(rng.random(500) + 0.5, exponents) * rng.choice([-1.0, 1.0], 500)
    low, high, near = down(values, dtype), up(values, dtype), nearest(values, dtype)
    for value, below, above, chosen in zip(values, low, high, near, strict=True):
        if not np.isfinite([below, above]).all():
            continue
        exact = Fraction(float(value))
        unit = Fraction(2) ** (max(int(np.frexp(value)[1]) - 1, info.minimum_exponent) - info.precision + 1)
        floor = exact // unit * unit
        assert Fraction(float(below)) == floor
        assert Fraction(float(above)) == (floor if floor == exact else floor + unit)
        assert abs(Fraction(float(chosen)) - exact) <= unit / 2


@pytest.mark.parametrize("dtype", [*NARROW, DType.FP32])
@pytest.mark.parametrize("rounding", [nearest, down, up, toward_zero])
def test_monotone(dtype: DType, rounding: object) -> None:
    assert callable(rounding)
    rng = np.random.default_rng(2)
    values = np.sort(np.ldexp(rng.random(4000) - 0.5, rng.integers(-160, 140, 4000)))
    rounded = rounding(np.concatenate([[-np.inf], values, [np.inf]]), dtype)
    assert (np.diff(rounded[np.isfinite(rounded)]) >= 0).all()
    assert (rounded[:-1] <= rounded[1:]).all()


@pytest.mark.parametrize("dtype", [*NARROW, DType.FP32])
def test_beyond_the_largest_number(dtype: DType) -> None:
    """To nearest overflows from half a unit above; directed rounding in its own direction only (IEEE 754-2019, 7.4)."""
    info = dtype.info
    largest = info.maximum
    half = np.ldexp(1.0, int(np.frexp(largest)[1]) - info.precision - 1)
    over = np.asarray([largest + half * 0.999, largest + half, largest * 2, np.inf])
    assert nearest(over, dtype).tolist() == [largest, np.inf, np.inf, np.inf]
    assert down(over, dtype).tolist() == [largest, largest, largest, np.inf]
    assert up(over, dtype).tolist() == [np.inf] * 4
    assert toward_zero(over, dtype).tolist() == [largest, largest, largest, np.inf]
    assert (nearest(-over, dtype) == -nearest(over, dtype)).all()
    assert (down(-over, dtype) == -up(over, dtype)).all()
    assert np.isnan([f(np.asarray([np.nan]), dtype)[0] for f in (nearest, down, up, toward_zero)]).all()


@pytest.mark.parametrize("dtype", NARROW)
def test_lowest_bit_divides(dtype: DType) -> None:
    numbers = every_number(dtype)
    numbers = numbers[numbers != 0]
    quantum = lowest_bit(numbers)
    assert (np.frexp(quantum)[0] == 0.5).all()
    assert ((numbers / quantum) % 2 != 0).all()
    assert (quantum >= dtype.info.smallest_subnormal).all()


def test_lowest_bit_of_what_is_no_number() -> None:
    assert lowest_bit(np.asarray([0.0, -0.0, np.inf, -np.inf])).tolist() == [np.inf] * 4
    assert np.isnan(lowest_bit(np.asarray([np.nan]))).all()


def test_fp64_is_left_alone() -> None:
    values = np.asarray([1 + 2.0**-52, np.inf, -0.0])
    for rounding in (nearest, down, up, toward_zero):
        assert (rounding(values, DType.FP64) == values).all()
