"""Tile sizes, and how kernels are launched.

A tile is (rows: bags or runs) x lookups x columns. A GPU wants tiles that fit into registers. The interpreter pays by
the operation, whatever its size up to some ten thousand elements, so there a program takes many rows and lookups.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache
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


LANE_COLUMNS = 8
"""Columns of a lane at most: eight of 16 bits are 16 bytes, the widest load of a GPU's thread."""
SHORT_BAG = 10
"""Lookups of a mean bag below which a forward waits for the loads before a bag's first row, not for rows."""
SHORT_LANES, WIDE_LANES, NARROW_LANES, LONE_LANES = (64, 2, 1), (32, 4, 1), (64, 4, 1), (32, 8, 1)
"""Of a forward: lanes of a program, loads that each has under way, and warps: of short bags; where lanes have
LANE_COLUMNS columns; where they have fewer; and where the widest bag has MOST_LONE at most."""
MOST_LONE = 4
SHORT_TILE, SHORT_STEPS, SHORT_WARPS, MOST_ROWS = 256, 1, 1, 32
"""Of short runs: elements of a program's tile, gradients of a run under way at once, warps, and rows at most."""
CHUNK_TILE, CHUNK_STEPS, CHUNK_WARPS = 128, 8, 1
"""The same of chunks of long runs."""
SIDE_TILE, SIDE_STEPS, SIDE_WARPS, SIDE_LOOKUPS = 512, 4, 4, (2, 32)
"""The same of a run whose gradients are summed side by side, and how many of them at least and at most."""
PROGRAMS_PER_PROCESSOR = 128
"""Programs, for each multiprocessor, that go through runs whose number the host does not know."""
ROW_TILE = 2_048
"""Elements of lookups' rows."""
PRODUCT_COLUMNS = 64
"""Columns of a matrix product: pieces of both factors then take 57 KB of shared memory; gfx942 has 64."""
LOOKUPS = 8
"""Lookups of one bag or run in a tile of a matrix product, or of partial sums."""
BAG_TILE, BAG_LOOKUPS = 512, 128
"""Of bags whose lookups are linearised: elements of a program's tile, and lookups of a bag at most."""
FLAT = 1_024
"""Elements of one-dimensional tiles, such as lookups to check."""

INTERPRETED_TILE = 131_072
INTERPRETED_ROWS = (1, 8, 64, 512, 4_096)
INTERPRETED_LOOKUPS = (1, 8, 64, 512)
INTERPRETED_COLUMNS = 512
INTERPRETED_PRODUCT_COLUMNS = 256
"""NumPy's OpenBLAS multiplies 16 x 64 x 256 and less on one thread; more threads wait for each other ten times as long
where every core has a worker of the suite (measured 2026-11-30)."""
INTERPRETED_FLAT = 8_192
INTERPRETED_PROGRAMS = 2
"""So that cases small enough for the interpreter take the second step, for which a GPU needs 100,000 runs."""
PROGRAM_COST, STEP_COST, ELEMENT_COST = 3.0e-3, 0.9e-3, 30e-9
"""Seconds that the interpreter takes for a program, for a step of its loop, and for an element of a step's tile.
Measured 2026-11-30, Triton 3.7.1: a gather and sum of 8,192 elements takes 1.1 ms, of 131,072 four."""


@dataclass(frozen=True)
class LaneTile:
    """Lanes that one program holds at once, lookups of each in a load, loads under way, and columns of a lane.

    A span of `span` lanes, which is 1 or `lanes`, belongs to one segment. Where `wide` is not 0, lanes of features that
    it divides have so many columns. `options` are the compiler's.
    """

    lanes: int
    lookups: int
    steps: int
    columns: int
    span: int
    wide: int = 0
    options: Mapping[str, int] = field(default_factory=dict)

    def columns_of(self, width: int) -> int:
        """Columns of a lane of a feature of `width` columns."""
        return self.wide if self.wide and width % self.wide == 0 else self.columns

    def __str__(self) -> str:
        columns = f"{self.columns} or {self.wide}" if self.wide else f"{self.columns}"
        return f"{self.lanes}x{self.lookups * self.steps}x{columns}"


@dataclass(frozen=True)
class Tile:
    """Rows (bags, runs or lookups), lookups of each in a load, columns, and loads under way, of one program.

    `options` are the compiler's.
    """

    rows: int
    lookups: int
    columns: int
    steps: int = 1
    options: Mapping[str, int] = field(default_factory=dict)

    @property
    def constants(self) -> dict[str, int]:
        """As kernels of runs take it."""
        sizes = {"ROWS": self.rows, "LOOKUPS": self.lookups, "STEPS": self.steps, "COLUMNS": self.columns}
        return {**sizes, **self.options}

    def __str__(self) -> str:
        return f"{self.rows}x{self.lookups * self.steps}x{self.columns}"


def is_interpreted(device: torch.device) -> bool:
    """Whether kernels on this device's tensors are interpreted."""
    return device.type == "cpu"


def is_captured(device: torch.device) -> bool:
    """Whether what is launched now goes into a CUDA graph."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def lane_tile(
    device: torch.device, widths: Sequence[int], bags: int, lookups: int, lengths: Callable[[int], Tensor]
) -> LaneTile:
    """Tile of a forward of `bags` bags with `lookups` lookups together, for features of `widths` columns.

    `lengths` gives (lanes,) lookups of each lane of so many columns. Called only for the interpreter: a GPU would have
    to be waited for.
    """
    if is_interpreted(device):
        columns = min(INTERPRETED_COLUMNS, triton.next_power_of_2(min(widths)))
        chosen = _cheapest(lengths(columns), columns)
        return LaneTile(chosen.rows, chosen.lookups, 1, columns, 1)
    columns = math.gcd(LANE_COLUMNS, *widths)
    wide = LANE_COLUMNS if columns < LANE_COLUMNS and any(width % LANE_COLUMNS == 0 for width in widths) else 0
    if lookups < SHORT_BAG * bags:
        sizes = SHORT_LANES
    elif max(widths) <= MOST_LONE * columns:
        sizes = LONE_LANES
    else:
        sizes = WIDE_LANES if wide or columns == LANE_COLUMNS else NARROW_LANES
    lanes, steps, warps = sizes
    return LaneTile(lanes, 1, steps, columns, lanes, wide, {"num_warps": warps})


def run_tile(device: torch.device, width: int, lengths: Callable[[], Tensor]) -> Tile:
    """Tile of short runs, with all of at most `width` columns of each.

    `lengths` gives (runs,) lookups; see `lane_tile`.
    """
    columns = triton.next_power_of_2(width)
    if is_interpreted(device):
        return _cheapest(lengths(), columns)
    return Tile(_rows(SHORT_TILE, columns), 1, columns, SHORT_STEPS, {"num_warps": SHORT_WARPS})


def chunk_tile(device: torch.device, width: int, count: int, length: int) -> Tile:
    """Tile of `count` halves of chunks of `length` lookups."""
    columns = triton.next_power_of_2(width)
    if is_interpreted(device):
        return _cheapest(torch.full((count,), length), columns)
    return Tile(_rows(CHUNK_TILE, columns), 1, columns, CHUNK_STEPS, {"num_warps": CHUNK_WARPS})


def side_tile(device: torch.device, width: int, length: int) -> Tile:
    """Tile of one run at a time of at least `length` gradients or sums of gradients, which lie side by side in it."""
    columns = triton.next_power_of_2(width)
    if is_interpreted(device):
        return _cheapest(torch.full((1,), length), columns)
    lookups = max(SIDE_LOOKUPS[0], min(SIDE_LOOKUPS[1], SIDE_TILE // columns))
    return Tile(1, lookups, columns, SIDE_STEPS, {"num_warps": SIDE_WARPS})


def _rows(elements: int, columns: int) -> int:
    return max(1, min(MOST_ROWS, elements // columns))


def bag_tile(device: torch.device, bags: int, lookups: int, lengths: Callable[[], Tensor]) -> Tile:
    """Tile of bags of which one number a lookup is computed, such as its row's."""
    if is_interpreted(device):
        return _cheapest(lengths(), 1)
    most = min(BAG_LOOKUPS, triton.next_power_of_2(max(1, lookups // max(1, bags))))  # about a mean bag's
    return Tile(BAG_TILE // most, most, 1)


def row_tile(device: torch.device, width: int) -> Tile:
    """Tile of single lookups, with all columns of each."""
    columns = triton.next_power_of_2(width)
    limits = (INTERPRETED_TILE, 2 * INTERPRETED_FLAT) if is_interpreted(device) else (ROW_TILE, MOST_ROWS)
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


def programs(device: torch.device, tiles: int) -> int:
    """How many programs to launch that go through at most `tiles` tiles, in steps of as many."""
    most = PROGRAMS_PER_PROCESSOR * _processors(device) if device.type == "cuda" else INTERPRETED_PROGRAMS
    return min(tiles, most)


@cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def chunks_at_once(device: torch.device) -> int:
    """Chunks of a few hundred sorted lookups that one program encodes."""
    return 32 if is_interpreted(device) else 1


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
