"""Backward: one update of each row that a lookup names, from the sum of the gradients of its run.

A run shorter than LONG_RUN is summed and applied by one program. A longer one is cut into chunks; one kernel sums each
chunk into a buffer, the next sums a run's chunks, in their order, and applies. No atomics: the same inputs give the
same bits.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .forward import TRITON_TYPES
from .layout import Bags, FeatureLayout
from .optimizers import Hyper, Rule, State, update_rows
from .rounding import reciprocal, widened
from .tiles import Allocate, Tile, launch, tile
from .transpose import CHUNK, LONG_RUN, Runs


class Gradients(NamedTuple):
    """As kernels take it: the gradient of the output, flat and laid out like it, and the weights of the lookups."""

    output: Tensor
    per_sample_weights: Tensor | None


def update(
    state: State,
    gradients: Gradients,
    bags: Bags,
    features: FeatureLayout,
    runs: Runs,
    hyper: Hyper,
    rule: Rule,
    *,
    mean: bool,
    accumulation: torch.dtype,
    allocate: Allocate,
) -> tuple[str, ...]:
    """Update tables and optimizer states in place: one update a run. Returns the paths taken, with their tiles."""
    common = (bags.pointers, features.pointers, runs.pointers, bags.owner)
    random = (rule.seed, rule.number)
    applying = {"OPTIMIZER": rule.optimizer, "DECAY": rule.decay, "STOCHASTIC": rule.stochastic}
    summing = {"MEAN": mean}
    device, width = gradients.output.device, features.tables.widest
    kinds = {"ACCUMULATION": TRITON_TYPES[accumulation], "VECTOR": features.tables.vector}

    short = tile(device, width, runs.most, bags.lookups, runs.short_lengths, whole_rows=True)
    launch(
        _update_short,
        (triton.cdiv(runs.most, short.rows),),
        *common,
        gradients,
        state,
        hyper,
        *random,
        LONG_RUN=LONG_RUN,
        **summing,
        **applying,
        **kinds,
        **_sizes(short),
    )
    path = f"backward: runs below {LONG_RUN} {short}"
    long = runs.long
    if long is None:
        return (path,)
    chunks = long.most_chunks
    split = tile(device, width, chunks, chunks * CHUNK, lambda: torch.full((chunks,), CHUNK), whole_rows=True)
    partial = allocate("partial gradients", (chunks, split.columns), accumulation, device)
    launch(
        _sum_chunks,
        (triton.cdiv(chunks, split.rows),),
        *common,
        gradients,
        partial,
        long.pointers,
        CHUNK=CHUNK,
        **summing,
        **kinds,
        **_sizes(split),
    )
    launch(
        _update_long,
        (triton.cdiv(long.most, split.rows),),
        *common,
        partial,
        long.pointers,
        state,
        hyper,
        *random,
        **applying,
        **kinds,
        **_sizes(split),
    )
    return path, f"backward: runs from {LONG_RUN} in chunks of {CHUNK} {split}"


def _sizes(tile: Tile) -> dict[str, int]:
    return {"ROWS": tile.rows, "LOOKUPS": tile.lookups, "COLUMNS": tile.columns}


@triton.jit(do_not_specialize=["seed", "number"])
def _update_short(
    bags,
    features,
    runs,
    owner,
    gradients,
    state,
    hyper,
    seed,
    number,
    LONG_RUN: tl.constexpr,
    MEAN: tl.constexpr,
    OPTIMIZER: tl.constexpr,
    DECAY: tl.constexpr,
    STOCHASTIC: tl.constexpr,
    ACCUMULATION: tl.constexpr,
    VECTOR: tl.constexpr,
    ROWS: tl.constexpr,
    LOOKUPS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Each of ROWS runs, if it is shorter than LONG_RUN: sum its gradients and apply them."""
    run = tl.program_id(0).to(tl.int64) * ROWS
    runs_in_all = tl.load(runs.total)
    if run >= runs_in_all:
        return
    run += tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    live = run < runs_in_all
    first = tl.load(runs.start + run, mask=live, other=0)
    last = tl.load(runs.start + run + 1, mask=live, other=0)
    live = live & (last - first < LONG_RUN)
    row, element, dim = _row_of_run(bags, features, runs, owner, first, live, VECTOR)
    total = _gradient_sum(
        bags,
        runs,
        owner,
        gradients,
        first,
        tl.where(live, last, first),
        dim,
        column,
        MEAN,
        ACCUMULATION,
        VECTOR,
        ROWS,
        LOOKUPS,
        COLUMNS,
    )
    update_rows(state, hyper, seed, number, total, row, element, dim, column, live, OPTIMIZER, DECAY, STOCHASTIC)


@triton.jit
def _sum_chunks(
    bags,
    features,
    runs,
    owner,
    gradients,
    partial,
    long,
    CHUNK: tl.constexpr,
    MEAN: tl.constexpr,
    ACCUMULATION: tl.constexpr,
    VECTOR: tl.constexpr,
    ROWS: tl.constexpr,
    LOOKUPS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Each of ROWS chunks of long runs: sum its gradients into the chunk's row of `partial`."""
    chunk = tl.program_id(0).to(tl.int64) * ROWS
    chunks_in_all = tl.load(long.chunks)
    if chunk >= chunks_in_all:
        return
    chunk += tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    live = chunk < chunks_in_all
    run = tl.load(long.run_of_chunk + chunk, mask=live, other=0)
    begin = tl.load(runs.start + run, mask=live, other=0)
    end = tl.load(runs.start + run + 1, mask=live, other=0)
    _, _, dim = _row_of_run(bags, features, runs, owner, begin, live, VECTOR)
    first = begin + (chunk - _first_chunk(long, run, live)) * CHUNK
    last = tl.minimum(first + CHUNK, end)
    total = _gradient_sum(
        bags,
        runs,
        owner,
        gradients,
        first,
        tl.where(live, last, first),
        dim,
        column,
        MEAN,
        ACCUMULATION,
        VECTOR,
        ROWS,
        LOOKUPS,
        COLUMNS,
    )
    tl.store(partial + chunk[:, None] * COLUMNS + column[None, :], total, mask=live[:, None])


@triton.jit(do_not_specialize=["seed", "number"])
def _update_long(
    bags,
    features,
    runs,
    owner,
    partial,
    long,
    state,
    hyper,
    seed,
    number,
    OPTIMIZER: tl.constexpr,
    DECAY: tl.constexpr,
    STOCHASTIC: tl.constexpr,
    ACCUMULATION: tl.constexpr,
    VECTOR: tl.constexpr,
    ROWS: tl.constexpr,
    LOOKUPS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Each of ROWS long runs: sum its chunks' gradients and apply them."""
    place = tl.program_id(0).to(tl.int64) * ROWS
    runs_in_all = tl.load(long.total)
    if place >= runs_in_all:
        return
    place += tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    live = place < runs_in_all
    run = tl.load(long.run + place, mask=live, other=0)
    row, element, dim = _row_of_run(
        bags, features, runs, owner, tl.load(runs.start + run, mask=live, other=0), live, VECTOR
    )
    first = _first_chunk(long, run, live)
    last = tl.load(long.chunk_end + run, mask=live, other=0)
    total = tl.zeros((ROWS, COLUMNS), ACCUMULATION)
    for step in range(0, tl.max(last - first, axis=0), LOOKUPS):
        chunk = first[:, None] + step + tl.arange(0, LOOKUPS)[None, :]
        sums = partial + chunk[:, :, None] * COLUMNS + column[None, None, :]
        total += tl.sum(tl.load(sums, mask=(chunk < last[:, None])[:, :, None], other=0.0), axis=1)
    update_rows(state, hyper, seed, number, total, row, element, dim, column, live, OPTIMIZER, DECAY, STOCHASTIC)


@triton.jit
def _gradient_sum(
    bags,
    runs,
    owner,
    gradients,
    first,
    last,
    dim,
    column,
    MEAN: tl.constexpr,
    ACCUMULATION: tl.constexpr,
    VECTOR: tl.constexpr,
    ROWS: tl.constexpr,
    LOOKUPS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """(rows, columns): sum of p_i dY[bag of i], by the bag's length where MEAN, over lookups first to last of order."""
    WORK: tl.constexpr = tl.float64 if ACCUMULATION == tl.float64 else tl.float32
    total = tl.zeros((ROWS, COLUMNS), ACCUMULATION)
    inside = (column[None, :] < dim[:, None])[:, None, :]
    leading = first[:, None] + tl.arange(0, LOOKUPS)[None, :]
    for step in range(0, tl.max(last - first, axis=0), LOOKUPS):
        position = leading + step
        live = position < last[:, None]
        lookup = tl.load(runs.order + position, mask=live, other=0)
        bag = tl.load(owner + lookup, mask=live, other=0)
        start = tl.multiple_of(tl.load(bags.output + bag, mask=live, other=0), (VECTOR, VECTOR))
        place = gradients.output + (start[:, :, None] + column[None, None, :])
        terms = widened(tl.load(place, mask=live[:, :, None] & inside, other=0.0), WORK)
        if gradients.per_sample_weights is not None:
            weight = tl.load(gradients.per_sample_weights + lookup, mask=live, other=0.0).to(WORK)
            terms = terms * weight[:, :, None]
        if MEAN:
            length = tl.load(bags.end + bag, mask=live, other=0) - tl.load(bags.begin + bag, mask=live, other=0)
            terms = terms * reciprocal(length, WORK)[:, :, None]
        total += tl.sum(terms.to(ACCUMULATION), axis=1)
    return total


@triton.jit
def _row_of_run(bags, features, runs, owner, first, live, VECTOR: tl.constexpr):
    """Number, first element and dim of the row that a run updates, by the feature of the run's first lookup."""
    bag = tl.load(owner + tl.load(runs.order + first, mask=live, other=0), mask=live, other=0)
    feature = tl.load(bags.feature + bag, mask=live, other=0)
    dim = tl.multiple_of(tl.load(features.dim + feature, mask=live, other=0), VECTOR)
    row = tl.load(runs.row + first, mask=live, other=0).to(tl.int64)
    in_table = row - tl.load(features.row_base + feature, mask=live, other=0)
    element = tl.load(features.element_base + feature, mask=live, other=0) + in_table * dim
    return row, tl.multiple_of(element, VECTOR), dim


@triton.jit
def _first_chunk(long, run, live):
    """A run's first chunk: as many as the runs before it have together."""
    return tl.load(long.chunk_end + run - 1, mask=live & (run > 0), other=0)
