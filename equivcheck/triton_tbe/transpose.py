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
from .rounding import reciprocal
from .tiles import Allocate, bag_tile, chunks_at_once, is_interpreted, launch

MIDDLE_RUN = 32
"""Lookups from which a run is summed by a whole program."""
LONG_RUN = 256
"""Lookups from which a run is summed by several programs."""
ALL, MIDDLE, LONG = range(3)
"""Lists of runs: of all, of those from MIDDLE_RUN below LONG_RUN, and of those from LONG_RUN."""
CHUNK = 256
"""Sorted lookups of which one program sums those of a long run. Not more than LONG_RUN, so that in each chunk at most
one long run begins and one goes on."""


class RunPointers(NamedTuple):
    """As kernels take it: run r is sorted lookups `start[r]` to `start[r + 1]`, of row `row[r]` of table `table[r]`.

    `order` (lookups,) int64 is each sorted lookup's place in the batch; `place` (lookups,) int64 the element of the
    gradient of the output where its bag's columns start; `scale` (lookups in the batch,), in a mean, the reciprocal of
    the length of each one's bag. Tables are numbered as in `TablePointers`, rows through all tables. Lookups that
    update nothing are behind all runs. `middle` and `long` are the numbers of such runs among all.
    """

    order: Tensor
    place: Tensor
    scale: Tensor | None
    start: Tensor
    row: Tensor
    table: Tensor
    middle: Tensor
    long: Tensor


@dataclass(frozen=True)
class Runs:
    """Lookups sorted into runs.

    Attributes
    ----------
    before
        (lists * chunks,) int64: how many runs begin in each chunk of CHUNK sorted lookups or before it; behind these,
        and counted on from them, the same of each further list.
    first
        (lists, classes + 1) int64: in each list, runs of rows of width class c are `first[c]` up to the next, excluded.
    most
        (lists, classes): how many runs of a list and class there may be, which is what to launch for.
    """

    pointers: RunPointers
    before: Tensor
    first: Tensor
    most: tuple[tuple[int, ...], ...]

    @property
    def lookups(self) -> int:
        """How many lookups there are, with those that update nothing."""
        return len(self.pointers.order)

    def lengths(self, number: int) -> Tensor:
        """(runs of a class,) lookups of each; zero from MIDDLE_RUN on. Waits for the device."""
        first, last = self.first[ALL, number : number + 2].tolist()
        lengths = self.pointers.start[first : last + 1].diff()
        return torch.where(lengths < MIDDLE_RUN, lengths, 0)


def transpose(
    indices: Tensor, bags: Bags, features: FeatureLayout, scaling: torch.dtype | None, allocate: Allocate
) -> Runs:
    """Sort and encode the lookups of all bags. `scaling` is the type of the reciprocal lengths, None without a mean."""
    count, device = len(indices), indices.device
    end = features.tables.rows
    keys = allocate("row numbers", (count,), _key_type(end), device)
    if bags.places.is_unpooled:
        keys.fill_(end)  # lookups of no bag may stand anywhere
    places = allocate("gradient places", (count,), torch.int64, device)
    scale = None if scaling is None else allocate("reciprocal lengths", (count,), scaling, device)
    tile = bag_tile(device, len(bags), count, lambda: bags.lengths)
    launch(
        _linearise,
        (triton.cdiv(max(1, len(bags)), tile.rows),),
        keys,
        places,
        scale,
        indices,
        bags.pointers,
        features.pointers,
        len(bags),
        count,
        end,
        BAGS=tile.rows,
        LOOKUPS=tile.lookups,
    )
    rows, order = torch.sort(keys, stable=True)
    return _encode(rows, order, places, scale, features, allocate)


def _key_type(end: int) -> torch.dtype:
    """Narrowest type that holds numbers up to `end`: a sort takes time by the bit."""
    return next(kind for kind in (torch.int16, torch.int32, torch.int64) if end <= torch.iinfo(kind).max)


def _encode(
    rows: Tensor, order: Tensor, places: Tensor, scale: Tensor | None, features: FeatureLayout, allocate: Allocate
) -> Runs:
    """Run-length encoding: a lookup whose row differs from the one before it begins a run, and so does the end."""
    count, device, end = len(rows), rows.device, features.tables.rows
    classes = len(features.class_rows) - 1
    most = min(count, end)
    chunks = count // CHUNK + 1  # the end may be alone in the last
    at_once = chunks_at_once(device)
    begun = allocate("runs begun", (3, chunks), torch.int64, device)
    sizes = {"CHUNKS": at_once, "CHUNK": CHUNK, "MIDDLE_RUN": MIDDLE_RUN, "LONG_RUN": LONG_RUN}
    launch(_count_runs, (triton.cdiv(chunks, at_once),), begun, rows, chunks, count, end, **sizes)
    before = torch.cumsum(begun.view(-1), 0)  # over all lists: PyTorch scans one dimension ten times as fast as two
    pointers = RunPointers(
        order,
        allocate("sorted gradient places", (count,), torch.int64, device),
        scale,
        allocate("run starts", (most + 1,), torch.int64, device),
        allocate("run rows", (most,), rows.dtype, device),
        allocate("run tables", (most,), torch.int32, device),
        allocate("middle runs", (count // MIDDLE_RUN,), torch.int64, device),
        allocate("long runs", (count // LONG_RUN,), torch.int64, device),
    )
    first = allocate("first runs", (3, classes + 1), torch.int64, device)
    launch(
        _encode_runs,
        (triton.cdiv(chunks, at_once),),
        pointers,
        first,
        rows,
        places,
        before,
        features.table_pointers.row_base,
        features.class_rows,
        len(features.tables.shapes),
        chunks,
        count,
        end,
        TABLE_BITS=(len(features.tables.shapes) - 1).bit_length(),
        EDGES=classes + 1,
        **sizes,
    )
    if is_interpreted(device):  # reading numbers back costs nothing here, and every program a millisecond
        of_lists = tuple(map(tuple, first.diff(dim=1).tolist()))
    else:
        limits = (count, count // MIDDLE_RUN, count // LONG_RUN)
        of_lists = tuple(tuple(min(limit, rows) for rows in features.rows_of_classes) for limit in limits)
    return Runs(pointers, before, first, of_lists)


@triton.jit(do_not_specialize=["count", "lookups", "end"])
def _linearise(
    keys,
    places,
    scale,
    indices,
    bags,
    features,
    count,
    lookups,
    end,
    BAGS: tl.constexpr,
    LOOKUPS: tl.constexpr,
):
    """Row's number of each lookup, or `end`, above all, where it updates nothing; what its bag's gradient needs."""
    bag = tl.program_id(0).to(tl.int64) * BAGS + tl.arange(0, BAGS)
    live = bag < count
    begin = tl.load(bags.begin + bag, mask=live, other=0).to(tl.int64)
    stop = tl.load(bags.end + bag, mask=live, other=0).to(tl.int64)
    feature = tl.load(bags.feature + bag, mask=live, other=0)
    rows = tl.load(features.rows + feature, mask=live, other=0)
    base = tl.load(features.row_base + feature, mask=live, other=0)
    place = tl.broadcast_to(tl.load(bags.output + bag, mask=live, other=0)[:, None], (BAGS, LOOKUPS))
    if scale is not None:
        length = tl.broadcast_to(reciprocal(stop - begin, scale.dtype.element_ty)[:, None], (BAGS, LOOKUPS))
    for first in range(0, tl.max(stop - begin, axis=0), LOOKUPS):
        lookup = begin[:, None] + (first + tl.arange(0, LOOKUPS))[None, :]
        inside = lookup < stop[:, None]
        row = tl.load(indices + lookup, mask=inside, other=-1).to(tl.int64)
        number = tl.where((row >= 0) & (row < rows[:, None]), base[:, None] + row, end)
        tl.store(keys + lookup, number.to(keys.dtype.element_ty), mask=inside)
        tl.store(places + lookup, place, mask=inside)
        if scale is not None:
            tl.store(scale + lookup, length, mask=inside)
    # Lookups of no bag stand before the first bag or behind the last, where bags are not single lookups.
    if tl.program_id(0) == 0:
        before = tl.load(bags.begin, mask=count > 0, other=0).to(tl.int64)
        behind = tl.load(bags.end + count - 1, mask=count > 0, other=0).to(tl.int64)
        _no_rows(keys, 0, before, end, BAGS * LOOKUPS)
        _no_rows(keys, behind, lookups, end, BAGS * LOOKUPS)


@triton.jit
def _no_rows(keys, first, last, end, SIZE: tl.constexpr):
    """Lookups `first` to `last` (excluded) update nothing."""
    for lookup in range(first, last, SIZE):
        position = lookup + tl.arange(0, SIZE)
        tl.store(keys + position, tl.full((SIZE,), end, tl.int64).to(keys.dtype.element_ty), mask=position < last)


@triton.jit(do_not_specialize=["chunks", "count", "end"])
def _count_runs(
    begun,
    rows,
    chunks,
    count,
    end,
    CHUNKS: tl.constexpr,
    CHUNK: tl.constexpr,
    MIDDLE_RUN: tl.constexpr,
    LONG_RUN: tl.constexpr,
):
    """How many runs of each list begin in each chunk."""
    chunk, position = _positions(CHUNKS, CHUNK)
    row, _, begins = _neighbours(rows, position, count, end)
    is_run = begins & (row < end)
    is_middle, is_long = _longer(rows, row, is_run, position, count, MIDDLE_RUN, LONG_RUN)
    inside = chunk < chunks
    tl.store(begun + chunk, tl.sum(is_run.to(tl.int32), axis=1), mask=inside)
    tl.store(begun + chunks + chunk, tl.sum(is_middle.to(tl.int32), axis=1), mask=inside)
    tl.store(begun + 2 * chunks + chunk, tl.sum(is_long.to(tl.int32), axis=1), mask=inside)


@triton.jit(do_not_specialize=["tables", "chunks", "count", "end"])
def _encode_runs(
    runs,
    first,
    rows,
    places,
    before,
    row_base,
    class_rows,
    tables,
    chunks,
    count,
    end,
    TABLE_BITS: tl.constexpr,
    EDGES: tl.constexpr,
    CHUNKS: tl.constexpr,
    CHUNK: tl.constexpr,
    MIDDLE_RUN: tl.constexpr,
    LONG_RUN: tl.constexpr,
):
    """Start, row and table of each run; lists of runs, with the first of each class; each lookup's gradient's place."""
    chunk, position = _positions(CHUNKS, CHUNK)
    live = position < count
    place = tl.load(places + tl.load(runs.order + position, mask=live, other=0), mask=live, other=0)
    tl.store(runs.place + position, place, mask=live)

    row, previous, begins = _neighbours(rows, position, count, end)
    is_run = begins & (row < end)
    is_middle, is_long = _longer(rows, row, is_run, position, count, MIDDLE_RUN, LONG_RUN)
    follows = (chunk > 0) & (chunk < chunks)
    run = _numbered(before, 0, is_run, chunk, follows)
    middle = _numbered(before, chunks, is_middle, chunk, follows)
    long = _numbered(before, 2 * chunks, is_long, chunk, follows)
    tl.store(runs.start + run, position, mask=begins)
    tl.store(runs.row + run, row.to(runs.row.dtype.element_ty), mask=is_run)
    tl.store(runs.table + run, _table_of(row_base, tables, row, is_run, TABLE_BITS), mask=is_run)
    tl.store(runs.middle + middle, run, mask=is_middle)
    tl.store(runs.long + long, run, mask=is_long)
    for edge in tl.static_range(EDGES):
        class_row = tl.load(class_rows + edge)
        crossed = begins & (previous < class_row) & (class_row <= row)
        tl.store(first + edge + run * 0, run, mask=crossed)
        tl.store(first + EDGES + edge + run * 0, middle, mask=crossed)
        tl.store(first + 2 * EDGES + edge + run * 0, long, mask=crossed)


@triton.jit
def _numbered(before, counts, chosen, chunk, follows):
    """Numbers of the runs that are chosen, counted from the first chunk on; of others, that of the next.

    The counts of their list stand in `before` from `counts` on, and count on from those of the list before.
    """
    others = tl.load(before + counts - 1, mask=counts > 0, other=0)
    earlier = tl.load(before + counts + chunk - 1, mask=follows, other=0)
    ones = chosen.to(tl.int32)
    return tl.where(follows, earlier - others, 0)[:, None] + (tl.cumsum(ones, axis=1) - ones)


@triton.jit
def _longer(rows, row, is_run, position, count, MIDDLE_RUN: tl.constexpr, LONG_RUN: tl.constexpr):
    """Of lookups that begin a run, whether it is of middle length, and whether long: by the row that far behind."""
    behind = position + (MIDDLE_RUN - 1)
    is_middle = is_run & (row == tl.load(rows + behind, mask=is_run & (behind < count), other=-1).to(tl.int64))
    behind = position + (LONG_RUN - 1)
    is_long = is_middle & (row == tl.load(rows + behind, mask=is_middle & (behind < count), other=-1).to(tl.int64))
    return is_middle & (is_long == 0), is_long


@triton.jit
def _positions(CHUNKS: tl.constexpr, CHUNK: tl.constexpr):
    """Chunks of this program, and (chunks, CHUNK) their sorted lookups."""
    chunk = tl.program_id(0).to(tl.int64) * CHUNKS + tl.arange(0, CHUNKS)
    return chunk, chunk[:, None] * CHUNK + tl.arange(0, CHUNK)[None, :]


@triton.jit
def _neighbours(rows, position, count, end):
    """Row of each sorted lookup, that of the one before it, and whether the two differ.

    Before the first stands -1, behind the last the end.
    """
    row = tl.load(rows + position, mask=position < count, other=end).to(tl.int64)
    previous = tl.load(rows + position - 1, mask=(position > 0) & (position <= count), other=-1).to(tl.int64)
    previous = tl.where(position <= count, previous, row)
    begins = row != previous
    return row, previous, begins


@triton.jit
def _table_of(row_base, tables, row, live, BITS: tl.constexpr):
    """Number of the last table whose first row is not above `row`, by bisection. There are at most 2^BITS tables."""
    found = (row * 0).to(tl.int32)
    for bit in tl.static_range(BITS):
        table = found + (1 << (BITS - 1 - bit))
        base = tl.load(row_base + table, mask=live & (table < tables), other=-1)
        found = tl.where((table < tables) & (base <= row), table, found)
    return found
