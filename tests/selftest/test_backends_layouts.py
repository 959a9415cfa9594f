"""Layouts change where values lie and never the values; poison around them shows reads and writes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from equivcheck.backends.layouts import FINITE_POISON, GUARD_BYTES, TORCH_DTYPES, place, to_numpy, to_torch
from equivcheck.case import Layout
from equivcheck.formats import AnyArray, DType

CPU = torch.device("cpu")
BF16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = [np.dtype(np.float32), np.dtype(np.float16), BF16, np.dtype(np.int32), np.dtype(np.int64)]
FLAT = (Layout.CONTIGUOUS, Layout.STRIDED, Layout.SLICE, Layout.MISALIGNED)


def numbers(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> AnyArray:
    count = int(np.prod(shape))
    return (np.arange(count, dtype=np.float64) - count // 3).reshape(shape).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("shape", [(0,), (1,), (7,), (0, 4), (3, 0), (3, 5)], ids=str)
def test_every_layout_holds_the_same_values(
    shape: tuple[int, ...], layout: Layout, dtype: np.dtype[np.generic]
) -> None:
    if layout is Layout.TRANSPOSED and len(shape) == 1:
        return
    array = numbers(shape, dtype)
    if layout is Layout.EXPANDED:
        array = np.full(shape, array.reshape(-1)[0] if array.size else 0, dtype)
    array.flags.writeable = False  # as a Problem's are
    placed = place("x", array, layout, CPU)
    values, guard = placed.read()
    assert placed.tensor.shape == shape
    assert values.dtype == dtype
    assert values.tobytes() == array.tobytes()
    assert guard.before.tobytes() == guard.after.tobytes()
    assert guard.before.size >= 2 * GUARD_BYTES


@pytest.mark.parametrize(
    ("shape", "layout", "strides"),
    [
        ((7,), Layout.CONTIGUOUS, (1,)),
        ((7,), Layout.STRIDED, (2,)),
        ((7,), Layout.SLICE, (1,)),
        ((3, 5), Layout.CONTIGUOUS, (5, 1)),
        ((3, 5), Layout.STRIDED, (20, 2)),
        ((3, 5), Layout.SLICE, (8, 1)),
        ((3, 5), Layout.MISALIGNED, (5, 1)),
        ((3, 5), Layout.TRANSPOSED, (1, 3)),
        ((3, 5), Layout.EXPANDED, (0, 0)),
    ],
    ids=str,
)
def test_strides(shape: tuple[int, ...], layout: Layout, strides: tuple[int, ...]) -> None:
    assert place("x", np.ones(shape, np.float32), layout, CPU).tensor.stride() == strides


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_contiguous_is_aligned_as_a_fresh_tensor_and_misaligned_is_not(dtype: np.dtype[np.generic]) -> None:
    array = numbers((3, 8), dtype)
    assert place("x", array, Layout.CONTIGUOUS, CPU).tensor.data_ptr() % 64 == 0
    assert place("x", array, Layout.MISALIGNED, CPU).tensor.data_ptr() % 16 == dtype.itemsize


def test_a_flat_array_has_no_transpose() -> None:
    with pytest.raises(ValueError, match=r"shape \(4,\) has no transposed layout"):
        place("x", np.ones(4, np.float32), Layout.TRANSPOSED, CPU)


@pytest.mark.parametrize("layout", FLAT)
def test_what_is_read_around_the_tensor_shows(layout: Layout) -> None:
    floats, integers = (
        place("x", numbers((6,), BF16), layout, CPU),
        place("i", numbers((6,), np.dtype("i4")), layout, CPU),
    )
    assert np.isnan(to_numpy(floats.buffer)[floats.outside].astype(np.float64)).all()
    assert (to_numpy(integers.buffer)[integers.outside] == 0x5A5A5A5A).all()


@pytest.mark.parametrize("dtype", [np.dtype(np.float32), np.dtype(np.float16), BF16], ids=str)
def test_an_update_in_place_beside_a_table_shows(dtype: np.dtype[np.generic]) -> None:
    """NaN would stay the same NaN."""
    placed = place("table", numbers((6,), dtype), Layout.CONTIGUOUS, CPU, floats=FINITE_POISON)
    placed.buffer.sub_(0.125)
    _, guard = placed.read()
    assert (guard.before.view(dtype) != guard.after.view(dtype)).all()


@pytest.mark.parametrize("layout", FLAT)
def test_a_write_beside_the_tensor_shows_and_restores(layout: Layout) -> None:
    placed = place("x", numbers((4, 3), np.dtype(np.float16)), layout, CPU)
    first_outside = int(np.flatnonzero(placed.outside)[-GUARD_BYTES // 2])
    placed.buffer[first_outside] = 1.0
    placed.tensor[2, 1] = 99.0
    values, guard = placed.read()
    assert values[2, 1] == 99
    assert (guard.before != guard.after).any()
    placed.restore()
    values, guard = placed.read()
    assert values.tobytes() == numbers((4, 3), np.dtype(np.float16)).tobytes()
    assert (guard.before == guard.after).all()


@pytest.mark.parametrize("dtype", DType)
def test_arrays_go_to_torch_and_back_to_the_bit(dtype: DType) -> None:
    size = dtype.numpy.itemsize
    bits = np.arange(2**16, dtype=np.uint64) * np.uint64(2 ** (8 * size - 16) + 1)
    array = bits.astype(f"u{size}").view(dtype.numpy)
    tensor = to_torch(array)
    assert tensor.dtype == TORCH_DTYPES[dtype]
    assert to_numpy(tensor).tobytes() == array.tobytes()


def test_copies_share_no_memory() -> None:
    array = np.ones((2, 2), np.float32)
    tensor = to_torch(array)
    back = to_numpy(tensor)
    tensor.zero_()
    assert array.all()
    assert back.all()
