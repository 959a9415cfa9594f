"""Tile sizes, and how kernels are launched.

A tile is (bags or runs) x lookups x columns. A GPU wants small tiles that fit into registers, one row of output a
program; the interpreter pays 60 to 100 us an operation whatever its size up to some ten thousand elements, so there a
program takes many rows.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import triton

from . import MODE, Mode
from .interpreter import prepared

Allocate = Callable[[str, tuple[int, ...], torch.dtype, torch.device], torch.Tensor]
"""Gives a tensor: name, shape, dtype, device. Its values are whatever they are: kernels write all that is read."""


def allocate_plainly(name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """An uninitialised tensor from PyTorch's allocator."""
    return torch.empty(shape, dtype=dtype, device=device)


INTERPRETED_TILE = 32_768
"""Elements. Measured 2026-11-30, Triton 3.7.1: a gather and sum take 1.1 ms at 8,192 elements and 1.6 ms at 32,768."""
INTERPRETED_ROWS = 512
COMPILED_TILE = 2_048
"""Elements: with four warps, sixteen values a thread."""
COMPILED_COLUMNS = 1_024
LOOKUPS = 8
"""Lookups of one bag or run in a tile: as many loads as a GPU's thread keeps in flight."""
SHORT_BAG_LOOKUPS = 2
FLAT = 1_024
"""Elements of one-dimensional tiles, such as lookups to linearise."""
INTERPRETED_FLAT = 8_192


@dataclass(frozen=True)
class Tile:
    """Rows (bags, runs or lookups), lookups of each, and columns, that one program holds at once."""

    rows: int
    lookups: int
    columns: int

    def __str__(self) -> str:
        return f"{self.rows}x{self.lookups}x{self.columns}"


def is_interpreted(device: torch.device) -> bool:
    """Whether kernels on this device's tensors are interpreted."""
    return device.type == "cpu"


def tile(device: torch.device, width: int, lookups: int, *, whole_rows: bool) -> Tile:
    """Tile of rows of `width` columns, `lookups` at a time.

    Parameters
    ----------
    whole_rows
        Whether the tile must hold all columns, because a mean over them is needed.
    """
    columns = triton.next_power_of_2(width)
    if is_interpreted(device):
        most, limit = INTERPRETED_TILE, INTERPRETED_ROWS
        columns = columns if whole_rows else min(columns, 512)
    else:
        most, limit = COMPILED_TILE, 16
        columns = columns if whole_rows else min(columns, COMPILED_COLUMNS)
    while lookups > 1 and lookups * columns > most:
        lookups //= 2
    rows = max(1, min(limit, most // (lookups * columns)))
    return Tile(rows, lookups, columns)


def product_tile(device: torch.device, width: int) -> Tile:
    """Tile of a matrix product with a small table: 16 is the least that tensor cores take of any axis."""
    columns = min(max(16, triton.next_power_of_2(width)), 128)
    return Tile(64 if is_interpreted(device) else 16, LOOKUPS, columns)


def flat(device: torch.device) -> int:
    """Elements of a one-dimensional tile."""
    return INTERPRETED_FLAT if is_interpreted(device) else FLAT


def lookups_a_tile(lookups: int, rows: int) -> int:
    """Lookups of one bag in a tile, by the mean length: tiles of short bags would be mostly empty."""
    return SHORT_BAG_LOOKUPS if lookups <= SHORT_BAG_LOOKUPS * rows else LOOKUPS


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """Run a kernel over a grid; nothing where the grid is empty.

    Products and sums are rounded one by one, never fused: then a GPU and the interpreter have one arithmetic, and
    exact data stay exact.
    """
    if 0 in grid:
        return
    with prepared() if MODE is Mode.INTERPRETED else nullcontext():
        kernel[grid](*arguments, **constants, enable_fp_fusion=False)
