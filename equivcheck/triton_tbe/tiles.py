"""Tile sizes, and how kernels are launched.

A tile is (rows: bags or runs) x lookups x columns. A GPU wants tiles that fit into registers. The interpreter pays by
the operation, whatever its size up to some ten thousand elements, so there a program takes many rows and lookups.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from . import MODE, Mode
from .interpreter import prepared

Allocate = Callable[[str, tuple[int, ...], torch.dtype, torch.device], Tensor]
"""Gives a tensor: name, shape, dtype, device. Its values are whatever they are: kernels write all that is read."""


def allocate_plainly(name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """An uninitialised tensor from PyTorch's allocator."""
    return torch.empty(shape, dtype=dtype, device=device)


COMPILED_TILE = 2_048
"""Elements: with four warps, sixteen values a thread."""
COMPILED_ROWS = 16
COMPILED_COLUMNS = 1_024
"""Columns of a forward's tile: wider tables are cut."""
PRODUCT_COLUMNS = 64
"""Columns of a matrix product: pieces of both factors then take 57 KB of shared memory; gfx942 has 64."""
LOOKUPS = 8
"""Lookups of one bag or run in a tile: as many loads as a GPU's thread keeps in flight."""
SHORT_LOOKUPS = 2
FLAT = 1_024
"""Elements of one-dimensional tiles, such as lookups to linearise."""

INTERPRETED_TILE = 131_072
INTERPRETED_ROWS = (1, 8, 64, 512)
INTERPRETED_LOOKUPS = (1, 8, 64, 512)
INTERPRETED_COLUMNS = 512
INTERPRETED_PRODUCT_COLUMNS = 256
"""NumPy's OpenBLAS multiplies 16 x 64 x 256 and less on one thread; more threads wait for each other ten times as long
where every core has a worker of the suite (measured 2026-11-30)."""
INTERPRETED_FLAT = 8_192
PROGRAM_COST, STEP_COST, ELEMENT_COST = 3.0e-3, 0.9e-3, 30e-9
"""Seconds that the interpreter takes for a program, for a step of its loop, and for an element of a step's tile.
Measured 2026-11-30, Triton 3.7.1: a gather and sum of 8,192 elements takes 1.1 ms, of 131,072 four."""


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


def tile(
    device: torch.device, width: int, rows: int, lookups: int, lengths: Callable[[], Tensor], *, whole_rows: bool
) -> Tile:
    """Tile for `rows` rows of at most `width` columns and `lookups` lookups together.

    Parameters
    ----------
    lengths
        Gives (rows,), how many lookups each has. Called only for the interpreter: a GPU would have to be waited for.
    whole_rows
        Whether the tile must hold all columns, because a mean over them is needed.
    """
    columns = triton.next_power_of_2(width)
    if is_interpreted(device):
        columns = columns if whole_rows else min(columns, INTERPRETED_COLUMNS)
        return _cheapest(lengths(), columns)
    columns = columns if whole_rows else min(columns, COMPILED_COLUMNS)
    most = SHORT_LOOKUPS if lookups <= SHORT_LOOKUPS * rows else LOOKUPS  # a mean length
    most = max(1, min(most, COMPILED_TILE // columns))
    return Tile(max(1, min(COMPILED_ROWS, COMPILED_TILE // (most * columns))), most, columns)


def row_tile(device: torch.device, width: int) -> Tile:
    """Tile of single lookups, with all columns of each."""
    columns = triton.next_power_of_2(width)
    limits = (INTERPRETED_TILE, 2 * INTERPRETED_FLAT) if is_interpreted(device) else (COMPILED_TILE, COMPILED_ROWS)
    return Tile(max(1, min(limits[1], limits[0] // columns)), 1, columns)


def product_tile(device: torch.device, width: int) -> Tile:
    """Tile of a matrix product with a small table: 16 is the least that tensor cores take of any axis."""
    columns = max(16, triton.next_power_of_2(width))
    if is_interpreted(device):
        return Tile(16, 32, min(columns, INTERPRETED_PRODUCT_COLUMNS))
    return Tile(16, LOOKUPS, min(columns, PRODUCT_COLUMNS))


def flat(device: torch.device) -> int:
    """Elements of a one-dimensional tile."""
    return INTERPRETED_FLAT if is_interpreted(device) else FLAT


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """Run a kernel over a grid; nothing where the grid is empty.

    Products and sums are rounded one by one, never fused: then a GPU and the interpreter have one arithmetic, and
    exact data stay exact.
    """
    if 0 in grid:
        return
    with prepared() if MODE is Mode.INTERPRETED else nullcontext():
        kernel[grid](*arguments, **constants, enable_fp_fusion=False)


def _cheapest(lengths: Tensor, columns: int) -> Tile:
    """The interpreter's tile that takes least time: each block of rows steps through its longest one."""
    best, least = Tile(1, INTERPRETED_LOOKUPS[0], columns), float("inf")
    for rows in INTERPRETED_ROWS:
        blocks = -(-len(lengths) // rows)
        padded = torch.nn.functional.pad(lengths, (0, blocks * rows - len(lengths))).view(blocks, rows)
        longest = padded.amax(1) if blocks else padded.new_zeros(0)
        for lookups in INTERPRETED_LOOKUPS:
            elements = rows * lookups * columns
            if elements > INTERPRETED_TILE and (rows, lookups) != (1, INTERPRETED_LOOKUPS[0]):
                continue
            steps = int(((longest + (lookups - 1)) // lookups).sum())
            cost = blocks * PROGRAM_COST + steps * (STEP_COST + elements * ELEMENT_COST)
            if cost < least:
                best, least = Tile(rows, lookups, columns), cost
    return best
