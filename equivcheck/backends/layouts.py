"""NumPy arrays as torch tensors in the memory layouts of a case, inside poisoned memory, and back.

Every input is a view into a larger buffer whose other bytes hold a pattern: a value read from there shows (NaN in
floating point, an index far out of any table), and a byte written there shows when the buffer is read back.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import numpy.typing as npt
import torch

from equivcheck.backends.transfers import download, upload
from equivcheck.case import Layout
from equivcheck.formats import AnyArray, DType
from equivcheck.outcome import Guard

GUARD_BYTES = 512
"""Poison before and after: what CUDA's allocator aligns to, so that contiguous tensors are as aligned as fresh ones."""

FLOAT_POISON = 0xFF
"""All bits set is a NaN in every floating-point type."""
INTEGER_POISON = 0x5A
"""A large positive index: times any row's width it leads outside the address space, and a read fails at once."""
FINITE_POISON = 0x3F
"""A number near 1 in every floating-point type, for memory that is updated in place: NaN minus a step is the same NaN,
and a step beside the table would not show (FBGEMM's CPU TBE 1.8.0 does that after a table without rows)."""

TORCH_DTYPES = {
    DType.FP32: torch.float32,
    DType.FP16: torch.float16,
    DType.BF16: torch.bfloat16,
    DType.FP64: torch.float64,
}

_BF16 = np.dtype(ml_dtypes.bfloat16)


@dataclass(frozen=True)
class Placed:
    """A tensor that lies in a poisoned buffer.

    Attributes
    ----------
    tensor
        The view that a system is handed.
    buffer
        The flat buffer, on the same device.
    original
        The buffer's elements as they were written.
    outside
        Which elements of the buffer do not belong to the tensor.
    """

    name: str
    tensor: torch.Tensor
    buffer: torch.Tensor
    original: AnyArray
    outside: npt.NDArray[np.bool_]

    def read(self) -> tuple[AnyArray, Guard]:
        """The tensor's values, and the bytes around it, as they are now: one copy from the device."""
        elements = to_numpy(self.buffer)
        shape, strides = tuple(self.tensor.shape), self.tensor.stride()
        values = _strided(elements, int(self.tensor.storage_offset()), shape, strides).copy()
        return values, self._guard(elements[self.outside])

    def guard(self) -> Guard:
        """The bytes outside alone, as they are now: where they surround the tensor, nothing else is copied."""
        if not self.tensor.is_contiguous() or self.tensor.numel() + self.outside.sum() != len(self.outside):
            return self.read()[1]
        start = int(self.tensor.storage_offset())
        end = start + self.tensor.numel()
        return self._guard(to_numpy(torch.cat([self.buffer[:start], self.buffer[end:]])))

    def _guard(self, found: AnyArray) -> Guard:
        return Guard(self.name, self.original[self.outside].view(np.uint8), found.view(np.uint8))

    def restore(self) -> None:
        """Write the buffer again, the tensor and what is around it."""
        with torch.no_grad():
            self.buffer.copy_(to_torch(self.original))


def place(
    name: str,
    array: AnyArray,
    layout: Layout,
    device: torch.device,
    *,
    floats: int = FLOAT_POISON,
    around: int = GUARD_BYTES,
) -> Placed:
    """Copy `array` (one or two axes) into poisoned memory on `device`, in the given layout.

    CONTIGUOUS begins as aligned as a fresh tensor; MISALIGNED one element later; SLICE three elements later, and with
    two axes its rows are parts of wider rows; STRIDED takes every other element of every axis; TRANSPOSED is stored
    column by column; EXPANDED is one stored element, so all of `array` must be equal. `floats` is the byte that poisons
    floating-point memory; of poison there are `around` bytes before and after.
    """
    start, strides, extent = _geometry(array.shape, layout)
    margin = around // array.dtype.itemsize
    buffer = torch.empty(2 * margin + start + extent, dtype=_torch_dtype(array.dtype))
    elements = _numpy_view(buffer)
    elements.view(np.uint8)[...] = floats if buffer.is_floating_point() else INTEGER_POISON
    outside = np.ones(len(elements), bool)
    offset = margin + start
    if layout is Layout.EXPANDED:
        if array.size:
            elements[offset] = array.reshape(-1)[0]
        outside[offset] = False
    else:
        _strided(elements, offset, array.shape, strides)[...] = array
        _strided(outside, offset, array.shape, strides)[...] = False
    original = elements.copy()
    buffer = upload(buffer, device)
    return Placed(name, buffer.as_strided(array.shape, strides, offset), buffer, original, outside)


def to_torch(array: AnyArray) -> torch.Tensor:
    """A copy on the CPU, of the same shape and type. bf16 goes through its bits, since torch knows no ml-dtypes."""
    copy = np.array(array, order="C")  # torch.from_numpy shares memory, and warns where that is read-only
    if copy.dtype == _BF16:
        return torch.from_numpy(copy.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(copy)


def to_numpy(tensor: torch.Tensor) -> AnyArray:
    """A contiguous copy that shares no memory with the tensor, of the same type."""
    return _numpy_view(download(tensor))


def _geometry(shape: tuple[int, ...], layout: Layout) -> tuple[int, tuple[int, ...], int]:
    """Position of the first element behind the guard, strides, and the elements that the layout spans."""
    size = math.prod(shape)
    wide = shape[1] if len(shape) == 2 else 1
    dense = (wide, 1)[2 - len(shape) :]
    match layout:
        case Layout.CONTIGUOUS:
            return 0, dense, size
        case Layout.MISALIGNED:
            return 1, dense, size
        case Layout.SLICE:
            return (3, (wide + 3, 1), shape[0] * (wide + 3)) if len(shape) == 2 else (3, dense, size)
        case Layout.STRIDED:
            doubled = (4 * wide, 2)[2 - len(shape) :]
            return 0, doubled, size * (4 if len(shape) == 2 else 2)
        case Layout.EXPANDED:
            return 0, (0,) * len(shape), 1
        case Layout.TRANSPOSED:
            if len(shape) != 2:
                raise ValueError(f"an array of shape {shape} has no transposed layout; it needs two axes")
            return 0, (1, shape[0]), size


def _strided(flat: AnyArray, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> AnyArray:
    in_bytes = tuple(stride * flat.dtype.itemsize for stride in strides)
    return np.lib.stride_tricks.as_strided(flat[offset:], shape, in_bytes)


def _torch_dtype(dtype: np.dtype[np.generic]) -> torch.dtype:
    return torch.bfloat16 if dtype == _BF16 else torch.from_numpy(np.empty(0, dtype)).dtype


def _numpy_view(tensor: torch.Tensor) -> AnyArray:
    """The memory of a contiguous CPU tensor."""
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(_BF16)
    found: AnyArray = tensor.numpy()
    return found
