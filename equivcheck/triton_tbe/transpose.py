"""The index transpose: from lookups in bag order to runs, the lookups of one row together.

Lookups are linearised (a row gets its number through all tables, so that features that share a table meet), sorted by
that number (stable, so that each run keeps the order of its lookups), and run-length encoded. All sizes stay on the
device: what is launched over runs is launched over as many as there can be.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .layout import Bags, FeatureLayout
from .tiles import Allocate, flat, is_interpreted, launch

LONG_RUN = 256
"""Lookups from which a run is split over several programs."""
CHUNK = 256
"""Lookups of a long run that one program sums."""


class RunPointers(NamedTuple):
    """As kernels take it: run r is lookups `order[start[r] : start[r + 1]]`, of the row with number `row[start[r]]`.

    `order` (lookups,) int64. `row` (lookups,), int32 or int64: lookups that update nothing are at the end, with a
    number above every row's. `total` (1,): how many runs there are.
    """

    order: Tensor
    row: Tensor
    start: Tensor
    total: Tensor


class LongRunPointers(NamedTuple):
    """As kernels take it: long runs and their chunks.

    `run` (long runs,): their numbers among all runs. `total` (1,): how many. `chunk_end` (runs,): the number of chunks
    up to and with each run. `run_of_chunk` (chunks,). `chunks` (1,): how many.
    """

    run: Tensor
    total: Tensor
    chunk_end: Tensor
    run_of_chunk: Tensor
    chunks: Tensor


@dataclass(frozen=True)
class LongRuns:
    """Runs of LONG_RUN lookups and more, cut into chunks of CHUNK lookups; how many of both to launch for."""

    pointers: LongRunPointers
    most: int
    most_chunks: int


@dataclass(frozen=True)
class Runs:
    """Lookups sorted into runs; how many to launch for. `long` is None where there cannot be long runs."""

    pointers: RunPointers
    most: int
    long: LongRuns | None

    def short_lengths(self) -> Tensor:
        """(most,) lookups of each run, zero for long ones."""
        lengths = self.pointers.start[: self.most + 1].diff()
        return torch.where(lengths < LONG_RUN, lengths, 0)


def transpose(indices: Tensor, bags: Bags, features: FeatureLayout, allocate: Allocate) -> Runs:
    """Sort and encode the lookups of all bags."""
    count, device = len(indices), indices.device
    end = features.tables.rows
    keys = allocate("row numbers", (count,), torch.int32 if end < 2**31 else torch.int64, device)
    size = flat(device)
    launch(
        _linearise,
        (triton.cdiv(count, size),),
        keys,
        indices,
        bags.owner,
        bags.pointers,
        features.pointers,
        count,
        end,
        SIZE=size,
    )
    rows, order = torch.sort(keys, stable=True)
    return _encode(rows, order, end)


def _encode(rows: Tensor, order: Tensor, end: int) -> Runs:
    """Run-length encoding. A lookup whose row differs from the one before it starts a run."""
    count, device = len(rows), rows.device
    starts_run = rows < end
    starts_run[1:] &= rows[1:] != rows[:-1]
    run = torch.cumsum(starts_run, 0) - 1
    most = min(count, end)
    # Runs that do not exist start where the last one ends. Lookups that start nothing write behind the array.
    starts = (rows < end).sum().repeat(most + 2)
    position = torch.arange(count, device=device)
    starts.scatter_(0, torch.where(starts_run, run, most + 1), position)
    runs = starts_run.sum().reshape(1)
    if is_interpreted(device):  # reading a number back costs nothing here, and every program a millisecond
        most = int(runs)
    long = _long_runs(starts[: most + 1], count) if count >= LONG_RUN else None
    return Runs(RunPointers(order, rows, starts, runs), most, long)


def _long_runs(starts: Tensor, lookups: int) -> LongRuns | None:
    device = starts.device
    lengths = starts.diff()
    is_long = lengths >= LONG_RUN
    count = is_long.sum().reshape(1)
    chunk_end = torch.cumsum(torch.where(is_long, (lengths + (CHUNK - 1)) // CHUNK, 0), 0)
    most, most_chunks = lookups // LONG_RUN, lookups // CHUNK + lookups // LONG_RUN
    if is_interpreted(device):
        most = int(count)
        if not most:
            return None
        most_chunks = int(chunk_end[-1])
    # The k-th long run is written to place k; the others behind the array.
    place = torch.where(is_long, torch.cumsum(is_long, 0) - 1, most)
    run = torch.empty(most + 1, dtype=torch.int64, device=device)
    run.scatter_(0, place, torch.arange(len(lengths), device=device))
    run_of_chunk = torch.searchsorted(chunk_end, torch.arange(most_chunks, device=device), right=True)
    return LongRuns(LongRunPointers(run, count, chunk_end, run_of_chunk, chunk_end[-1:]), most, most_chunks)


@triton.jit(do_not_specialize=["lookups", "end"])
def _linearise(
    keys,
    indices,
    owner,
    bags,
    features,
    lookups,
    end,
    SIZE: tl.constexpr,
):
    """Row's number of each lookup; `end`, above all, where a lookup updates nothing."""
    lookup = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    live = lookup < lookups
    bag = tl.load(owner + lookup, mask=live, other=-1)
    owned = bag >= 0
    feature = tl.load(bags.feature + bag, mask=owned, other=0)
    rows = tl.load(features.rows + feature, mask=owned, other=0)
    row = tl.load(indices + lookup, mask=owned, other=-1).to(tl.int64)
    named = (row >= 0) & (row < rows)
    number = tl.where(named, tl.load(features.row_base + feature, mask=owned, other=0) + row, end)
    tl.store(keys + lookup, number.to(keys.dtype.element_ty), mask=live)
