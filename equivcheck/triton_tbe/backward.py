"""Backward: one update of each row that a lookup names, from the sum of the gradients of its run.

Short runs are summed and applied by one program for several, middle ones by a program each. For long ones, one kernel
sums what lies of them in each chunk of sorted lookups, and the next adds a run's chunks, in their order, and applies.
No atomics: the same inputs give the same bits.

Rows of narrow tables and of wide ones have launches of their own, each with tiles of their width. How many runs there
are is known to the device alone, so programs go through runs in steps of as many programs as were launched.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .forward import TRITON_TYPES
from .layout import FeatureLayout
from .optimizers import Hyper, Rule, State, current, update_rows
from .rounding import widened
from .tiles import Allocate, chunk_tile, launch, programs, run_tile, side_tile
from .transpose import ALL, CHUNK, LONG, LONG_RUN, MIDDLE, MIDDLE_RUN, Runs


class Gradients(NamedTuple):
    """As kernels take it: the gradient of the output, flat and laid out like it, and the weights of the lookups."""

    output: Tensor
    per_sample_weights: Tensor | None


class Chunks(NamedTuple):
    """As kernels take it: sums of a chunk's part of a long run that began before it, and of one that begins in it.

    `partial` (chunks, 2, columns). `before`: see `Runs`.
    """

    partial: Tensor
    before: Tensor


def update(
    state: State,
    gradients: Gradients,
    features: FeatureLayout,
    runs: Runs,
    hyper: Hyper,
    rule: Rule,
    *,
    accumulation: torch.dtype,
    allocate: Allocate,
) -> tuple[str, ...]:
    """Update tables and optimizer states in place: one update a run. Returns the paths taken, with their tiles."""
    device, columns = gradients.output.device, triton.next_power_of_2(features.tables.widest)
    kinds = {"ACCUMULATION": TRITON_TYPES[accumulation], "VECTOR": features.tables.vector}
    changed = (state, hyper, rule.seed, rule.number)
    applying = {"OPTIMIZER": rule.optimizer, "DECAY": rule.decay, "STOCHASTIC": rule.stochastic}
    most_long = sum(runs.most[LONG])
    count = triton.cdiv(runs.lookups, CHUNK) if most_long else 0
    chunks = Chunks(allocate("partial gradients", (count, 2, columns), accumulation, device), runs.before)
    paths = []
    for number, (width, _) in enumerate(features.tables.width_classes):
        common = (runs.pointers, runs.first[:, number:], runs.first.stride(0), features.table_pointers)
        most_short, most_middle = runs.most[ALL][number], runs.most[MIDDLE][number]
        short, middle = run_tile(device, width, partial(runs.lengths, number)), side_tile(device, width, MIDDLE_RUN)
        for is_middle, tile, most in ((False, short, most_short), (True, middle, most_middle)):
            launch(
                _update_whole,
                (programs(device, triton.cdiv(most, tile.rows)),),
                *common,
                gradients,
                *changed,
                IS_MIDDLE=is_middle,
                **applying,
                **kinds,
                MIDDLE_RUN=MIDDLE_RUN,
                **tile.constants,
            )
        paths.append(f"backward: runs below {MIDDLE_RUN} {short}")
        if most_middle:
            paths.append(f"backward: runs from {MIDDLE_RUN} {middle}")
        if runs.most[LONG][number]:
            split = chunk_tile(device, width, 2 * count, CHUNK)
            launch(
                _sum_chunks,
                (triton.cdiv(2 * count, split.rows),),
                *common,
                gradients,
                chunks,
                count,
                **kinds,
                LONG_RUN=LONG_RUN,
                CHUNK=CHUNK,
                STRIDE=columns,
                **split.constants,
            )
            merged = side_tile(device, width, 1)
            launch(
                _update_long,
                (programs(device, runs.most[LONG][number]),),
                *common,
                chunks,
                *changed,
                **applying,
                **kinds,
                CHUNK=CHUNK,
                STRIDE=columns,
                **merged.constants,
            )
            paths.append(f"backward: runs from {LONG_RUN} in chunks of {CHUNK} {split}")
    return tuple(paths)


@triton.jit(do_not_specialize=["lists", "seed", "number"])
def _update_whole(
    runs,
    of_class,
    lists,
    tables,
    gradients,
    state,
    hyper,
    seed,
    number,
    IS_MIDDLE: tl.constexpr,
    OPTIMIZER: tl.constexpr,
    DECAY: tl.constexpr,
    STOCHASTIC: tl.constexpr,
    ACCUMULATION: tl.constexpr,
    VECTOR: tl.constexpr,
    MIDDLE_RUN: tl.constexpr,
    ROWS: tl.constexpr,
    LOOKUPS: tl.constexpr,
    STEPS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Each run below MIDDLE_RUN, or of the list of middle ones: sum its gradients, and apply them.

    ROWS runs at once, LOOKUPS of each side by side.
    """
    if IS_MIDDLE:
        of_class += lists
    runs_end = tl.load(of_class + 1)
    column = tl.arange(0, COLUMNS)
    begin = tl.load(of_class) + tl.program_id(0) * ROWS
    for leading in range(begin, runs_end, tl.num_programs(0) * ROWS):
        run = leading + tl.arange(0, ROWS)
        exists = run < runs_end
        if IS_MIDDLE:
            run = tl.load(runs.middle + run, mask=exists, other=0)
        first = tl.load(runs.start + run, mask=exists, other=0)
        last = tl.load(runs.start + run + 1, mask=exists, other=0)
        row, element, dim = _row_of_run(runs, tables, run, exists, VECTOR)
        live = exists if IS_MIDDLE else exists & (last - first < MIDDLE_RUN)
        now = current(state, row, element, dim, column, live, ACCUMULATION, OPTIMIZER)
        last = tl.where(live, last, first)
        total = _gradient_sum(
            runs, gradients, first, last, dim, column, ACCUMULATION, VECTOR, ROWS, LOOKUPS, STEPS, COLUMNS
        )
        update_rows(
            state, now, hyper, seed, number, total, row, element, dim, column, live, OPTIMIZER, DECAY, STOCHASTIC
        )


@triton.jit(do_not_specialize=["lists", "count"])
def _sum_chunks(
    runs,
    of_class,
    lists,
    tables,
    gradients,
    chunks,
    count,
    ACCUMULATION: tl.constexpr,
    VECTOR: tl.constexpr,
    LONG_RUN: tl.constexpr,
    CHUNK: tl.constexpr,
    STRIDE: tl.constexpr,
    ROWS: tl.constexpr,
    LOOKUPS: tl.constexpr,
    STEPS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Each of ROWS halves of chunks: sum what it holds of a long run's gradients.

    Even halves are of the run that began before the chunk or with it, odd ones of the last that begins within.
    """
    half = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    chunk = half // 2
    is_later = half % 2 == 1
    live = chunk < count
    earlier = tl.load(chunks.before + chunk - 1, mask=live & (chunk > 0), other=0)
    upto = tl.load(chunks.before + chunk, mask=live, other=0)
    # The next run to begin, or the end of all, begins with the chunk or behind its first lookup.
    begin = tl.load(runs.start + earlier, mask=live, other=0)
    run = tl.where(is_later, upto - 1, tl.where(begin > chunk * CHUNK, earlier - 1, earlier))
    live = live & (run >= tl.load(of_class)) & (run < tl.load(of_class + 1))
    begin = tl.load(runs.start + run, mask=live, other=0)
    end = tl.load(runs.start + run + 1, mask=live, other=0)
    live = live & (end - begin >= LONG_RUN) & ((begin > chunk * CHUNK) | (is_later == 0))
    if tl.max(live.to(tl.int32), axis=0) == 0:
        return
    _, _, dim = _row_of_run(runs, tables, run, live, VECTOR)
    first = tl.maximum(begin, chunk * CHUNK)
    last = tl.where(live, tl.minimum(end, chunk * CHUNK + CHUNK), first)
    column = tl.arange(0, COLUMNS)
    total = _gradient_sum(
        runs, gradients, first, last, dim, column, ACCUMULATION, VECTOR, ROWS, LOOKUPS, STEPS, COLUMNS
    )
    tl.store(chunks.partial + half[:, None] * STRIDE + column[None, :], total, mask=live[:, None])


@triton.jit(do_not_specialize=["lists", "seed", "number"])
def _update_long(
    runs,
    of_class,
    lists,
    tables,
    chunks,
    state,
    hyper,
    seed,
    number,
    OPTIMIZER: tl.constexpr,
    DECAY: tl.constexpr,
    STOCHASTIC: tl.constexpr,
    ACCUMULATION: tl.constexpr,
    VECTOR: tl.constexpr,
    CHUNK: tl.constexpr,
    STRIDE: tl.constexpr,
    ROWS: tl.constexpr,
    LOOKUPS: tl.constexpr,
    STEPS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Each long run: add its chunks' sums, LOOKUPS of them side by side, and apply them."""
    of_class += 2 * lists
    runs_end = tl.load(of_class + 1)
    column = tl.arange(0, COLUMNS)
    begin = tl.load(of_class) + tl.program_id(0) * ROWS
    for leading in range(begin, runs_end, tl.num_programs(0) * ROWS):
        entry = leading + tl.arange(0, ROWS)
        live = entry < runs_end
        run = tl.load(runs.long + entry, mask=live, other=0)
        first = tl.load(runs.start + run, mask=live, other=0)
        last = tl.load(runs.start + run + 1, mask=live, other=0)
        row, element, dim = _row_of_run(runs, tables, run, live, VECTOR)
        now = current(state, row, element, dim, column, live, ACCUMULATION, OPTIMIZER)
        chunk = first // CHUNK
        parts = tl.where(live, (last + CHUNK - 1) // CHUNK - chunk, 0)
        sums = tl.zeros((ROWS, LOOKUPS, COLUMNS), ACCUMULATION)
        for step in range(0, tl.max(parts, axis=0), LOOKUPS):
            part = (step + tl.arange(0, LOOKUPS))[None, :]
            is_later = (part == 0) & (first > chunk * CHUNK)[:, None]
            half = 2 * (chunk[:, None] + part) + is_later
            place = chunks.partial + half[:, :, None] * STRIDE + column[None, None, :]
            sums += tl.load(place, mask=(part < parts[:, None])[:, :, None], other=0.0)
        total = tl.sum(sums, axis=1)
        update_rows(
            state, now, hyper, seed, number, total, row, element, dim, column, live, OPTIMIZER, DECAY, STOCHASTIC
        )


@triton.jit
def _gradient_sum(
    runs,
    gradients,
    first,
    last,
    dim,
    column,
    ACCUMULATION: tl.constexpr,
    VECTOR: tl.constexpr,
    ROWS: tl.constexpr,
    LOOKUPS: tl.constexpr,
    STEPS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """(rows, columns): sum of p_i dY[bag of i], by the bag's length in a mean, over sorted lookups first to last."""
    sums = tl.zeros((ROWS, LOOKUPS, COLUMNS), ACCUMULATION)
    inside = (column[None, :] < dim[:, None])[:, None, :]
    leading = first[:, None] + tl.arange(0, LOOKUPS)[None, :]
    for start in range(0, tl.max(last - first, axis=0), STEPS * LOOKUPS):
        for step in tl.static_range(STEPS):
            position = leading + (start + step * LOOKUPS)
            live = position < last[:, None]
            place = tl.multiple_of(tl.load(runs.place + position, mask=live, other=0), (VECTOR, VECTOR))
            source = gradients.output + (place[:, :, None] + column[None, None, :])
            terms = widened(tl.load(source, mask=live[:, :, None] & inside, other=0.0), ACCUMULATION)
            if (gradients.per_sample_weights is not None) | (runs.scale is not None):
                lookup = tl.load(runs.order + position, mask=live, other=0)
            if gradients.per_sample_weights is not None:
                weight = tl.load(gradients.per_sample_weights + lookup, mask=live, other=0.0).to(ACCUMULATION)
                terms = terms * weight[:, :, None]
            if runs.scale is not None:
                terms = terms * tl.load(runs.scale + lookup, mask=live, other=0.0)[:, :, None]
            sums += terms
    return tl.sum(sums, axis=1)


@triton.jit
def _row_of_run(runs, tables, run, live, VECTOR: tl.constexpr):
    """Number, first element and dim of the row that a run updates."""
    row = tl.load(runs.row + run, mask=live, other=0).to(tl.int64)
    table = tl.load(runs.table + run, mask=live, other=0)
    dim = tl.load(tables.dim + table, mask=live, other=0)
    in_table = row - tl.load(tables.row_base + table, mask=live, other=0)
    element = tl.load(tables.element_base + table, mask=live, other=0) + in_table * dim
    return row, tl.multiple_of(element, VECTOR), tl.multiple_of(dim, VECTOR)
