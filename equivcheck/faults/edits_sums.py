"""Source edits of the Triton TBE that change what is summed: forward, runs, weight gradients, small tables."""

from __future__ import annotations

from equivcheck.faults.fault import Edit, Fault, Kind, Reach, Subtlety

_FBGEMM = "https://github.com/pytorch/FBGEMM"
_TORCHREC = "https://github.com/meta-pytorch/torchrec"
_GROSS, _EDGE, _FEW, _BITS = Subtlety.GROSS, Subtlety.EDGE, Subtlety.FEW, Subtlety.BITS
_COMPILED_ONLY = "The interpreter computes the edited text as exactly as the clean one: "


def _forward(old: str, new: str) -> tuple[Edit, ...]:
    return (Edit("forward.py", old, new),)


def _backward(old: str, new: str) -> tuple[Edit, ...]:
    return (Edit("backward.py", old, new),)


def _transpose(old: str, new: str) -> tuple[Edit, ...]:
    return (Edit("transpose.py", old, new),)


def _weight_gradient(old: str, new: str) -> tuple[Edit, ...]:
    return (Edit("weight_gradient.py", old, new),)


def _small(old: str, new: str) -> tuple[Edit, ...]:
    return (Edit("small_tables.py", old, new),)


_MORE_RUNS_THAN_ROWS = _transpose("most = min(count, end)", "most = count")

FORWARD: tuple[Fault, ...] = (
    Fault(
        "tail-of-tile-lost",
        Kind.LOOKUPS,
        "A bag longer than a tile of lookups loses what is left behind the last full tile.",
        _EDGE,
        _forward(
            "for first in range(0, longest, STEPS * LOOKUPS):",
            "ends = longest // (STEPS * LOOKUPS) * (STEPS * LOOKUPS)\n"
            "    for first in range(0, tl.maximum(ends, tl.minimum(longest, 1)), STEPS * LOOKUPS):",
        ),
    ),
    Fault(
        "lookup-33-lost",
        Kind.LOOKUPS,
        "Lookup number 33 of a bag is not added: a warp's edge.",
        _EDGE,
        _forward(
            "named = (row >= 0) & (row < rows[:, None])",
            "named = (row >= 0) & (row < rows[:, None]) & (lookup - begin[:, None] != 32)",
        ),
    ),
    Fault(
        "bag-end-included",
        Kind.LOOKUPS,
        "A bag takes the first lookup of the next.",
        _GROSS,
        _forward("mask=lookup < end[:, None], other=-1)", "mask=lookup <= end[:, None], other=-1)"),
    ),
    Fault(
        "row-zero-not-read",
        Kind.LOOKUPS,
        "Lookups of row 0 add nothing.",
        _EDGE,
        _forward("named = (row >= 0) & (row < rows[:, None])", "named = (row > 0) & (row < rows[:, None])"),
    ),
    Fault(
        "last-row-not-read",
        Kind.LOOKUPS,
        "Lookups of a table's last row add nothing.",
        _EDGE,
        _forward("named = (row >= 0) & (row < rows[:, None])", "named = (row >= 0) & (row < rows[:, None] - 1)"),
    ),
    Fault(
        "wide-lanes-of-uneven-tables",
        Kind.WIDTH,
        "Lanes of tables of nine columns and more are counted as wide ones, where another table has those.",
        _EDGE,
        (Edit("tiles.py", "self.wide and width % self.wide == 0", "self.wide and width >= self.wide"),),
        reach=Reach.GPU,
        proof="Interpreted programs have lanes of one width.",
    ),
    Fault(
        "bags-of-last-tile-lost",
        Kind.UNWRITTEN,
        "Bags behind the last full tile of bags are not written.",
        _EDGE,
        _forward("(triton.cdiv(lanes, tile.lanes),)", "(max(1, lanes // tile.lanes),)"),
    ),
    Fault(
        "columns-by-the-first-feature",
        Kind.WIDTH,
        "Lanes cover the first feature's columns; what other features have beyond is not written.",
        _EDGE,
        (
            Edit(
                "lanes.py",
                "[-(-width // tile.columns_of(width)) for width in features.widths]",
                "[-(-min(width, features.widths[0]) // tile.columns_of(width)) for width in features.widths]",
            ),
        ),
    ),
    Fault(
        "width-one-lost",
        Kind.WIDTH,
        "Tables of one column are taken for tables without columns.",
        _EDGE,
        _forward(
            "mask=named[:, :, None] & inside[:, None, :]",
            "mask=named[:, :, None] & inside[:, None, :] & (dim > 1)[:, None, None]",
        ),
    ),
    Fault(
        "vector-tail-not-read",
        Kind.WIDTH,
        "Columns beyond the last multiple of four are read as zero.",
        _EDGE,
        _forward(
            "mask=named[:, :, None] & inside[:, None, :]",
            "mask=named[:, :, None] & inside[:, None, :] & (column < dim[:, None] // 4 * 4)[:, None, :]",
        ),
    ),
    Fault(
        "output-one-column-too-wide",
        Kind.WIDTH,
        "A bag writes one column more than its feature has.",
        _EDGE,
        # The lanes of compiled kernels end with their feature: only a store of its own goes beyond.
        _forward(
            "column, stored, mask=inside)",
            "column, stored, mask=inside)\n"
            "    beyond = live[:, None] & (column + 1 == dim[:, None])\n"
            "    tl.store(output + first[:, None] + column + 1, stored, mask=beyond)",
        ),
    ),
    Fault(
        "empty-bag-not-written",
        Kind.UNWRITTEN,
        "Sums of zero are not stored: an empty bag keeps what was there.",
        _EDGE,
        _forward(
            "column, stored, mask=inside)",
            "column, stored, mask=inside & (total != 0.0))",
        ),
        report="https://github.com/pytorch/pytorch/issues/4169",
    ),
    Fault(
        "lone-lookups-unweighted",
        Kind.PAIRING,
        "Where 32 lanes or more of a program sum one lookup each, rows are stored as they are.",
        _EDGE,
        _forward(
            "terms = terms * weight[:, :, None]",
            "lone = tl.sum((end - begin == 1).to(tl.int32), axis=0) >= 32\n"
            "                terms = terms * tl.where(lone & (longest == 1), 1.0, weight)[:, :, None]",
        ),
        first=("lone_lookups", "pooling"),
    ),
    Fault(
        "weights-one-ahead",
        Kind.PAIRING,
        "Per-sample weights are read one lookup too late.",
        _GROSS,
        _forward(
            "tl.load(per_sample_weights + lookup, mask=named",
            "tl.load(per_sample_weights + lookup + 1, mask=named & (lookup + 1 < end[:, None])",
        ),
    ),
    Fault(
        "weights-not-advanced",
        Kind.PAIRING,
        "A bag's second tile takes the weights of its first: the pointer does not move.",
        _EDGE,
        _forward("tl.load(per_sample_weights + lookup, mask=named", "tl.load(per_sample_weights + leading, mask=named"),
        report=f"{_FBGEMM}/pull/4199",
    ),
    Fault(
        "zero-weights-taken-for-none",
        Kind.PAIRING,
        "Lookups with a weight of zero take the weight one.",
        _FEW,
        _forward(
            "terms = terms * weight[:, :, None]",
            "terms = terms * tl.where(named & (weight == 0.0), 1.0, weight)[:, :, None]",
        ),
    ),
    Fault(
        "terms-in-fp16",
        Kind.ACCUMULATOR,
        "Weighted rows are rounded to fp16 before they are added.",
        _BITS,
        _forward(
            "total += tl.sum(terms.to(ACCUMULATION), axis=1)",
            "total += tl.sum(terms.to(tl.float16).to(ACCUMULATION), axis=1)",
        ),
    ),
    Fault(
        "sum-in-fp16-between-tiles",
        Kind.ACCUMULATOR,
        "The accumulator is fp16 between tiles of lookups.",
        _BITS,
        _forward(
            "total += tl.sum(terms.to(ACCUMULATION), axis=1)",
            "total = (total + tl.sum(terms.to(ACCUMULATION), axis=1)).to(tl.float16).to(ACCUMULATION)",
        ),
    ),
    Fault(
        "sum-loses-ten-bits",
        Kind.ACCUMULATOR,
        "The sum of a tile keeps 14 of its 24 bits.",
        _BITS,
        _forward(
            "total += tl.sum(terms.to(ACCUMULATION), axis=1)",
            "part = tl.sum(terms.to(ACCUMULATION), axis=1)\n"
            "            if ACCUMULATION == tl.float32:\n"
            "                part = (part.to(tl.uint32, bitcast=True) & 0xFFFFFC00).to(tl.float32, bitcast=True)\n"
            "            total += part",
        ),
    ),
    Fault(
        "fp64-sums-in-fp32",
        Kind.ACCUMULATOR,
        "Outputs for which fp64 is asked are summed in fp32.",
        _BITS,
        first=("forward", "around_the_call"),
        edits=(
            Edit(
                "module.py",
                "accumulation=module.accumulation,\n            tile=lane_tile(",
                "accumulation=torch.float32,\n            tile=lane_tile(",
            ),
        ),
    ),
    Fault(
        "mean-ignored",
        Kind.MEAN,
        "MEAN gives the sum.",
        _GROSS,
        _forward("total = (total.to(WORK) * reciprocal(end - begin, WORK)[:, None]).to(ACCUMULATION)", "total = total"),
    ),
    Fault(
        "mean-length-in-a-byte",
        Kind.MEAN,
        "MEAN divides by at most 255.",
        _EDGE,
        _forward("reciprocal(end - begin, WORK)", "reciprocal(tl.minimum(end - begin, 255), WORK)"),
    ),
    Fault(
        "mean-length-in-fp16",
        Kind.MEAN,
        "MEAN divides by a length in fp16: odd ones from 2,049 on are rounded, 65,520 and more are infinite.",
        _EDGE,
        _forward("reciprocal(end - begin, WORK)", "reciprocal((end - begin).to(tl.float16), WORK)"),
        first=("long_bags",),
    ),
    Fault(
        "mean-length-in-bf16",
        Kind.MEAN,
        "MEAN divides by a length in bf16: odd ones from 257 on are rounded.",
        _EDGE,
        _forward(
            "reciprocal(end - begin, WORK)",
            "reciprocal((end - begin).to(tl.float32).to(tl.bfloat16).to(tl.float32), WORK)",
        ),
        first=("long_bags",),
    ),
    Fault(
        "mean-padded-to-vectors",
        Kind.MEAN,
        "MEAN divides by a length rounded up to an even number, from 3 on.",
        _FEW,
        _forward(
            "reciprocal(end - begin, WORK)",
            "reciprocal(tl.where(end - begin > 2, (end - begin + 1) // 2 * 2, end - begin), WORK)",
        ),
    ),
    Fault(
        "mean-of-approximate-reciprocal",
        Kind.HARDWARE,
        "1 / length is good to 2^-21 only.",
        _BITS,
        _forward(
            "reciprocal(end - begin, WORK)[:, None]",
            "reciprocal(end - begin, WORK)[:, None] * (1.0 + 4.76837158203125e-07)",
        ),
    ),
    Fault(
        "offsets-of-15-bits",
        Kind.OFFSETS,
        "The number of an element is cut to 15 bits, as 2^31 elements do to 32.",
        _EDGE,
        _forward(
            "start = tl.multiple_of(table[:, None] + row * dim[:, None], (VECTOR, VECTOR))",
            "start = (table[:, None] + row * dim[:, None]) & 0x7FFF",
        ),
        report=f"{_FBGEMM}/pull/1186",
    ),
    Fault(
        "offsets-of-32-bits",
        Kind.OFFSETS,
        "The number of an element has 32 bits.",
        _EDGE,
        _forward(
            "start = tl.multiple_of(table[:, None] + row * dim[:, None], (VECTOR, VECTOR))",
            "start = (table[:, None] + row * dim[:, None]).to(tl.int32).to(tl.int64)",
        ),
        reach=Reach.LARGE,
        report=f"{_FBGEMM}/pull/1186",
        proof="Tables of fewer than 2^31 elements give the same bits: conversion to 32 bits changes no number of "
        "theirs. The default profile's tables have 2^16.",
    ),
    Fault(
        "pairs-in-fp16",
        Kind.ACCUMULATOR,
        "Rows of fp16 are added in fp16 two by two.",
        _BITS,
        _forward(
            "total += tl.sum(terms.to(ACCUMULATION), axis=1)",
            "if (STEPS > 1) and (weights.dtype.element_ty == tl.float16) and (per_sample_weights is None):\n"
            "                if step % 2 == 0:\n"
            "                    pair = tl.sum(terms.to(tl.float16), axis=1)\n"
            "                else:\n"
            "                    total += (pair + tl.sum(terms.to(tl.float16), axis=1)).to(ACCUMULATION)\n"
            "            else:\n"
            "                total += tl.sum(terms.to(ACCUMULATION), axis=1)",
        ),
        reach=Reach.GPU,
        first=("updated_rows", "forward"),
        proof=_COMPILED_ONLY + "its tiles hold all lookups of a step, of which compiled ones have eight under way.",
    ),
    Fault(
        "indices-ahead-not-advanced",
        Kind.LOOKUPS,
        "Indices that are read ahead do not advance: a bag's third tile is its second again.",
        _EDGE,
        (Edit("forward.py", "leading + (first + STEPS * LOOKUPS), end", "leading + STEPS * LOOKUPS, end"),),
    ),
    Fault(
        "lookups-beyond-8192-lost",
        Kind.LOOKUPS,
        "Lookups of a bag from the 8,193rd on are lost.",
        _EDGE,
        (
            Edit(
                "forward.py",
                "named = (row >= 0) & (row < rows[:, None])",
                "named = (row >= 0) & (row < rows[:, None]) & (lookup - begin[:, None] < 8192)",
            ),
        ),
        first=("long_bags",),
    ),
    Fault(
        "bag-length-of-16-bits",
        Kind.OFFSETS,
        "A bag's length is counted in 16 bits.",
        _EDGE,
        (
            Edit(
                "forward.py",
                "longest = tl.max((end - begin).to(LENGTH), axis=0)",
                "longest = tl.max((end - begin).to(tl.int16), axis=0).to(tl.int32)",
            ),
        ),
        first=("long_bags",),
    ),
    Fault(
        "mean-without-pruned",
        Kind.MEAN,
        "A mean's length does not count pruned lookups.",
        _EDGE,
        (
            Edit(
                "forward.py",
                "    for first in range(0, longest, STEPS * LOOKUPS):",
                "    counted = tl.zeros((LANES,), tl.int64)\n    for first in range(0, longest, STEPS * LOOKUPS):",
            ),
            Edit(
                "forward.py",
                "            start = tl.multiple_of(table[:, None]",
                "            counted += tl.sum(named.to(tl.int64), axis=1)\n"
                "            start = tl.multiple_of(table[:, None]",
            ),
            Edit("forward.py", "reciprocal(end - begin, WORK)", "reciprocal(counted, WORK)"),
        ),
        first=("edges", "bounds"),
    ),
    Fault(
        "fp64-mean-by-fp32-reciprocal",
        Kind.ACCUMULATOR,
        "Means in fp64 are scaled by a reciprocal in fp32.",
        _BITS,
        (
            Edit(
                "forward.py",
                "reciprocal(end - begin, WORK)[:, None]",
                "reciprocal(end - begin, tl.float32).to(WORK)[:, None]",
            ),
        ),
        first=("pooling", "forward"),
    ),
)

_FURTHER = (
    "behind = position + LONG_RUN\n"
    "    further = is_long & (row == tl.load(rows + behind, mask=is_long & (behind < count), other=-1).to(tl.int64))\n"
)
"""Runs longer than LONG_RUN."""

_EIGHTH = (
    "eighth = tl.load(rows + position - 8, mask=(position >= 8) & (position < count), other=-1).to(tl.int64)\n    "
)
_NO_LONGER_RUNS = _transpose("is_middle = is_run & (row ==", "is_middle = is_run & (behind < 0) & (row ==")
"""Lists of longer runs stay empty: what is edited cuts all runs into short ones."""

_STEPS = "    for leading in range(begin, runs_end, tl.num_programs(0) * ROWS):\n"

RUNS: tuple[Fault, ...] = (
    Fault(
        "run-of-255-lost",
        Kind.RUNS,
        "The path of middle runs takes those below 255, that of long ones those from 256.",
        _EDGE,
        _transpose(
            "return is_middle & (is_long == 0), is_long",
            "behind = position + (LONG_RUN - 2)\n"
            "    nearly = tl.load(rows + behind, mask=is_middle & (behind < count), other=-1).to(tl.int64)\n"
            "    return is_middle & (row != nearly), is_long",
        ),
    ),
    Fault(
        "run-of-256-twice",
        Kind.RUNS,
        "A run of 256 is updated by the paths of middle runs and of long ones.",
        _EDGE,
        _transpose(
            "return is_middle & (is_long == 0), is_long", _FURTHER + "    return is_middle & (further == 0), is_long"
        ),
    ),
    Fault(
        "run-of-256-never",
        Kind.RUNS,
        "The path of long runs takes those above 256, that of middle ones those below.",
        _EDGE,
        _transpose(
            "return is_middle & (is_long == 0), is_long", _FURTHER + "    return is_middle & (is_long == 0), further"
        ),
    ),
    Fault(
        "run-of-31-lost",
        Kind.RUNS,
        "The path of short runs takes those below 31, that of middle ones those from 32.",
        _EDGE,
        _backward("(last - first < MIDDLE_RUN)", "(last - first < MIDDLE_RUN - 1)"),
    ),
    Fault(
        "run-of-32-twice",
        Kind.RUNS,
        "A run of 32 is updated by the paths of short runs and of middle ones.",
        _EDGE,
        _backward("(last - first < MIDDLE_RUN)", "(last - first <= MIDDLE_RUN)"),
    ),
    Fault(
        "chunk-loses-its-last",
        Kind.RUNS,
        "A full chunk of a long run loses its last lookup.",
        _EDGE,
        _backward("tl.minimum(end, chunk * CHUNK + CHUNK)", "tl.minimum(end, chunk * CHUNK + CHUNK - 1)"),
    ),
    Fault(
        "first-chunk-alone",
        Kind.RUNS,
        "Of a long run's chunks only the first is applied.",
        _EDGE,
        _backward(
            "mask=(part < parts[:, None])[:, :, None]", "mask=(part < tl.minimum(parts, 1)[:, None])[:, :, None]"
        ),
    ),
    Fault(
        "chunk-of-the-next-run",
        Kind.RUNS,
        "A long run takes the first chunk of the next, too.",
        _EDGE,
        _backward("mask=(part < parts[:, None])[:, :, None]", "mask=(part <= parts[:, None])[:, :, None]")
        + _backward("range(0, tl.max(parts, axis=0), LOOKUPS)", "range(0, tl.max(parts, axis=0) + 1, LOOKUPS)"),
    ),
    Fault(
        "run-lookup-33-lost",
        Kind.RUNS,
        "Lookup number 33 of a run is not added.",
        _EDGE,
        _backward(
            "live = position < last[:, None]", "live = (position < last[:, None]) & (position - first[:, None] != 32)"
        ),
    ),
    Fault(
        "update-per-lookup",
        Kind.RUNS,
        "Every lookup is a run of its own; all update from the same old row.",
        _FEW,
        _transpose("begins = row != previous", "begins = (row != previous) | (row < end)")
        + _NO_LONGER_RUNS
        + _MORE_RUNS_THAN_ROWS,
        report=f"{_FBGEMM}/pull/586",
    ),
    Fault(
        "run-cut-after-eight",
        Kind.RUNS,
        "Lookups of a run from the ninth on are runs of their own.",
        _EDGE,
        _transpose("begins = row != previous", _EIGHTH + "begins = (row != previous) | ((row == eighth) & (row < end))")
        + _NO_LONGER_RUNS
        + _MORE_RUNS_THAN_ROWS,
    ),
    Fault(
        "runs-beyond-3000-lost",
        Kind.RUNS,
        "A list of short runs holds 3,000 of tables of about one width.",
        _EDGE,
        _backward(
            "        exists = run < runs_end\n",
            "        exists = (run < runs_end) & (IS_MIDDLE | (run < tl.load(of_class) + 3000))\n",
        ),
        first=("many_rows",),
    ),
    Fault(
        "second-step-lost",
        Kind.RUNS,
        "Programs that go through runs in steps take the first step alone.",
        _EDGE,
        _backward(
            _STEPS + "        run = leading",
            "    for leading in range(begin, tl.minimum(runs_end, begin + 1), tl.num_programs(0) * ROWS):\n"
            "        run = leading",
        ),
        first=("many_runs", "many_rows"),
    ),
    Fault(
        "second-step-of-long-runs-lost",
        Kind.RUNS,
        "Programs that go through long runs in steps take the first step alone.",
        _EDGE,
        _backward(
            _STEPS + "        entry = leading",
            "    for leading in range(begin, tl.minimum(runs_end, begin + 1), tl.num_programs(0) * ROWS):\n"
            "        entry = leading",
        ),
    ),
    Fault(
        "last-row-not-updated",
        Kind.RUNS,
        "A table's last row is never updated.",
        _EDGE,
        _transpose("(row >= 0) & (row < rows[:, None])", "(row >= 0) & (row < rows[:, None] - 1)"),
    ),
    Fault(
        "row-zero-not-updated",
        Kind.RUNS,
        "Row 0 is never updated.",
        _EDGE,
        _transpose("(row >= 0) & (row < rows[:, None])", "(row > 0) & (row < rows[:, None])"),
    ),
    Fault(
        "pruned-updates-the-row-before",
        Kind.BOUNDS,
        "Index -1 is a row of the buffer: the one before the table.",
        _EDGE,
        _transpose("(row >= 0) & (row < rows[:, None])", "(row >= -1) & (row < rows[:, None])"),
        report=f"{_TORCHREC}/pull/3727",
    ),
    Fault(
        "tables-share-runs",
        Kind.SHARING,
        "Rows are not numbered through all tables: equal rows of two tables make one run.",
        _EDGE,
        _transpose(
            "tl.load(features.row_base + feature, mask=live", "tl.load(features.row_base + feature * 0, mask=live"
        ),
    ),
    Fault(
        "keys-of-12-bits",
        Kind.OFFSETS,
        "Numbers of rows are cut to 12 bits before they are sorted.",
        _EDGE,
        _transpose(
            "tl.store(keys + lookup, number.to(keys.dtype.element_ty), mask=inside)",
            "number = tl.where(number < end, number & 0xFFF, number)\n"
            "        tl.store(keys + lookup, number.to(keys.dtype.element_ty), mask=inside)",
        ),
    ),
    Fault(
        "keys-of-16-bits",
        Kind.OFFSETS,
        "Numbers of rows are cut to 16 bits before they are sorted.",
        _EDGE,
        _transpose(
            "tl.store(keys + lookup, number.to(keys.dtype.element_ty), mask=inside)",
            "number = tl.where(number < end, number & 0xFFFF, number)\n"
            "        tl.store(keys + lookup, number.to(keys.dtype.element_ty), mask=inside)",
        ),
        first=("many_rows",),
    ),
    Fault(
        "sort-by-16-bits",
        Kind.OFFSETS,
        "The sort compares 16 bits of the rows' numbers: lookups of rows 2^16 apart stay mixed.",
        _FEW,
        _transpose(
            "rows, order = torch.sort(keys, stable=True)",
            "order = torch.sort(torch.where(keys < end, keys.long() & 0xFFFF, end), stable=True).indices\n"
            "    rows = keys[order]",
        ),
        first=("many_rows",),
    ),
    Fault(
        "weights-not-permuted",
        Kind.PAIRING,
        "Row gradients take the weights in the order of the sort, unpermuted.",
        _FEW,
        _backward(
            "tl.load(gradients.per_sample_weights + lookup, mask=live",
            "tl.load(gradients.per_sample_weights + position, mask=live",
        ),
        report=f"{_FBGEMM}/pull/753",
    ),
    Fault(
        "weights-left-out-of-gradient",
        Kind.PAIRING,
        "Row gradients are summed without the weights.",
        _GROSS,
        _backward("terms = terms * weight[:, :, None]", "terms = terms"),
    ),
    Fault(
        "mean-left-out-of-gradient",
        Kind.MEAN,
        "Row gradients of MEAN are those of SUM.",
        _GROSS,
        _backward("terms * tl.load(runs.scale + lookup, mask=live, other=0.0)[:, :, None]", "terms"),
        report=f"{_TORCHREC}/issues/2362",
    ),
    Fault(
        "mean-gradient-by-length-in-fp16",
        Kind.MEAN,
        "Row gradients of MEAN are divided by a length in fp16.",
        _EDGE,
        _transpose(
            "reciprocal(stop - begin, scale.dtype.element_ty)",
            "reciprocal((stop - begin).to(tl.float16), scale.dtype.element_ty)",
        ),
        first=("long_bags",),
    ),
    Fault(
        "mean-gradient-by-length-in-bf16",
        Kind.MEAN,
        "Row gradients of MEAN are divided by a length in bf16.",
        _EDGE,
        _transpose(
            "reciprocal(stop - begin, scale.dtype.element_ty)",
            "reciprocal((stop - begin).to(tl.float32).to(tl.bfloat16).to(tl.float32), scale.dtype.element_ty)",
        ),
        first=("long_bags",),
    ),
    Fault(
        "gradient-in-fp16",
        Kind.ACCUMULATOR,
        "Terms of a row's gradient are rounded to fp16.",
        _BITS,
        _backward("sums += terms\n", "sums += terms.to(tl.float16).to(ACCUMULATION)\n"),
    ),
    Fault(
        "partial-sums-in-fp16",
        Kind.ACCUMULATOR,
        "Chunks' sums are kept in fp16.",
        _BITS,
        edits=_backward(
            "STRIDE + column[None, :], total, mask",
            "STRIDE + column[None, :], total.to(tl.float16).to(ACCUMULATION), mask",
        ),
        first=("run_length",),
    ),
    Fault(
        "fp64-gradients-in-fp32",
        Kind.ACCUMULATOR,
        "Row gradients for which fp64 is asked are summed in fp32.",
        _BITS,
        first=("forward", "around_the_call"),
        edits=(
            Edit(
                "module.py",
                "return torch.float64 if self.module.accumulation is torch.float64 else torch.float32",
                "return torch.float32",
            ),
        ),
    ),
    Fault(
        "vector-tail-without-gradient",
        Kind.WIDTH,
        "Columns beyond a multiple of four get no gradient.",
        _EDGE,
        _backward(
            "inside = (column[None, :] < dim[:, None])[:, None, :]",
            "inside = (column[None, :] < dim[:, None] // 4 * 4)[:, None, :]",
        ),
    ),
    Fault(
        "chunks-by-atomics",
        Kind.RACES,
        "Chunks are added by atomics, in the order of their arrival, though the path is declared deterministic.",
        _BITS,
        (
            Edit(
                "backward.py",
                "(count, 2, columns), accumulation, device)",
                "(count, 2, columns), accumulation, device).zero_()",
            ),
            Edit(
                "backward.py",
                "tl.store(chunks.partial + half[:, None] * STRIDE",
                "half = 2 * (begin // CHUNK) + (begin > begin // CHUNK * CHUNK)\n"
                "    tl.atomic_add(chunks.partial + half[:, None] * STRIDE",
            ),
        ),
        reach=Reach.GPU,
        first=("run_length", "determinism"),
        proof="The interpreter runs programs one after the other, so the order is the same each time; and it does not "
        "flush subnormal sums, as atomics on a GPU's global memory do (PTX ISA, atom.add).",
    ),
    Fault(
        "chunks-not-awaited",
        Kind.RACES,
        "Chunks are summed on a stream of their own, for which the update of long runs does not wait.",
        _EDGE,
        (
            Edit(
                "backward.py",
                "            launch(\n                _sum_chunks,",
                "            here = torch.cuda.current_stream() if device.type == 'cuda' else None\n"
                "            if here is not None:\n"
                "                torch.cuda.synchronize()\n"
                "                torch.cuda.set_stream(torch.cuda.Stream())\n"
                "                torch.cuda._sleep(10_000_000)\n"
                "            launch(\n                _sum_chunks,",
            ),
            Edit(
                "backward.py",
                "            launch(\n                _update_long,",
                "            if here is not None:\n"
                "                torch.cuda.set_stream(here)\n"
                "            launch(\n                _update_long,",
            ),
        ),
        reach=Reach.GPU,
        first=("run_length",),
        proof=_COMPILED_ONLY + "it has no streams.",
    ),
    Fault(
        "order-within-runs-shuffled",
        Kind.RACES,
        "The sort leaves lookups of a row in another order each time.",
        _BITS,
        _transpose(
            "rows, order = torch.sort(keys, stable=True)",
            "shuffled = torch.randperm(len(keys), device=keys.device)\n"
            "    rows, order = torch.sort(keys[shuffled], stable=True)\n"
            "    order = shuffled[order]",
        ),
    ),
    Fault(
        "order-within-runs-reversed",
        Kind.RACES,
        "The sort leaves lookups of a row in reverse order.",
        _BITS,
        _transpose(
            "rows, order = torch.sort(keys, stable=True)",
            "rows, order = torch.sort(keys.flip(0), stable=True)\n    order = len(keys) - 1 - order",
        ),
        reach=Reach.NOBODY,
        proof="Weights and gradients are found through the same permutation, so each row's sum has the same terms; "
        "every order of summation is right (numerics.md, Sums), and the same input gives the same order.",
    ),
    Fault(
        "run-of-32-at-the-end-lost",
        Kind.RUNS,
        "A run of 32 whose last lookup is the last of all is in no list.",
        _EDGE,
        (
            Edit(
                "transpose.py",
                "mask=is_run & (behind < count), other=-1",
                "mask=is_run & (behind < count - 1), other=-1",
            ),
        ),
    ),
    Fault(
        "long-run-at-a-border-of-chunks",
        Kind.RUNS,
        "A long run that begins at a later chunk's border is taken for one that begins within.",
        _EDGE,
        (
            Edit(
                "backward.py",
                "is_later = (part == 0) & (first > chunk * CHUNK)[:, None]",
                "is_later = (part == 0) & ((first > chunk * CHUNK) | (chunk > 0))[:, None]",
            ),
        ),
    ),
    Fault(
        "long-runs-of-wide-tables-in-the-narrow-class",
        Kind.RUNS,
        "Long runs of wide tables are looked for among those of narrow ones.",
        _EDGE,
        (
            Edit(
                "backward.py",
                "        if runs.most[LONG][number]:",
                "        if runs.most[LONG][0 if len(runs.most[LONG]) > 1 else number]:",
            ),
        ),
    ),
    Fault(
        "long-runs-without-decay",
        Kind.OPTIMIZER,
        "Long runs are updated without weight decay.",
        _EDGE,
        (
            Edit(
                "backward.py",
                "of_class += 2 * lists\n    runs_end",
                "of_class += 2 * lists\n    DECAY: tl.constexpr = 0\n    runs_end",
            ),
        ),
    ),
    Fault(
        "second-moment-of-long-runs-from-zero",
        Kind.OPTIMIZER,
        "Long runs take zero for Adam's second moment.",
        _EDGE,
        (
            Edit(
                "backward.py",
                "        chunk = first // CHUNK\n        parts",
                "        now = now[0], now[1], now[2] * 0.0\n        chunk = first // CHUNK\n        parts",
            ),
        ),
    ),
    Fault(
        "long-runs-beyond-16-lost",
        Kind.RUNS,
        "A list of long runs holds 16 of tables of about one width.",
        _EDGE,
        _backward(
            "        live = entry < runs_end\n        run = tl.load(runs.long",
            "        live = (entry < runs_end) & (entry < tl.load(of_class) + 16)\n        run = tl.load(runs.long",
        ),
        first=("many_runs",),
    ),
)

WEIGHT_GRADIENT: tuple[Fault, ...] = (
    Fault(
        "weight-gradient-not-divided",
        Kind.WEIGHT_GRADIENT,
        "dL/dp of MEAN is that of SUM.",
        _EDGE,
        _weight_gradient("total = (total.to(WORK) * reciprocal(length, WORK)).to(ACCUMULATION)", "total = total"),
    ),
    Fault(
        "weight-gradient-by-length-in-fp16",
        Kind.WEIGHT_GRADIENT,
        "dL/dp of MEAN is divided by a length in fp16.",
        _EDGE,
        _weight_gradient("reciprocal(length, WORK)", "reciprocal(length.to(tl.float16), WORK)"),
        first=("long_bags",),
    ),
    Fault(
        "weight-gradient-by-length-in-bf16",
        Kind.WEIGHT_GRADIENT,
        "dL/dp of MEAN is divided by a length in bf16.",
        _EDGE,
        _weight_gradient(
            "reciprocal(length, WORK)", "reciprocal(length.to(tl.float32).to(tl.bfloat16).to(tl.float32), WORK)"
        ),
        first=("long_bags",),
    ),
    Fault(
        "weight-gradient-loses-a-column",
        Kind.WEIGHT_GRADIENT,
        "dL/dp leaves out the last column of widths of 4 k + 3.",
        _EDGE,
        _weight_gradient(
            "mask = column[None, :] < dim[:, None]",
            "mask = column[None, :] < tl.where(dim % 4 == 3, dim - 1, dim)[:, None]",
        ),
    ),
    Fault(
        "weight-gradient-of-frozen",
        Kind.WEIGHT_GRADIENT,
        "Frozen features' weights get a gradient.",
        _EDGE,
        _weight_gradient("named = named & (tl.load(asks + feature, mask=owned, other=0) != 0)", "named = named"),
    ),
    Fault(
        "weight-gradient-unwritten",
        Kind.UNWRITTEN,
        "dL/dp of a lookup of no row is not written.",
        _EDGE,
        _weight_gradient("result.dtype.element_ty), mask=live)", "result.dtype.element_ty), mask=named)"),
        report=f"{_FBGEMM}/pull/4006",
    ),
    Fault(
        "weight-gradient-in-fp16",
        Kind.ACCUMULATOR,
        "Products of dL/dp are rounded to fp16.",
        _BITS,
        _weight_gradient(
            "total = tl.sum((weight * gradient).to(ACCUMULATION), axis=1)",
            "total = tl.sum((weight * gradient).to(tl.float16).to(ACCUMULATION), axis=1)",
        ),
    ),
    Fault(
        "weight-gradient-last-lookups-lost",
        Kind.WEIGHT_GRADIENT,
        "Lookups behind the last multiple of 32 get no gradient, from 33 on.",
        _EDGE,
        _weight_gradient(
            "live = lookup < lookups", "live = lookup < tl.where(lookups > 32, lookups // 32 * 32, lookups)"
        ),
        report=f"{_FBGEMM}/pull/4925",
    ),
    Fault(
        "weight-gradient-missing",
        Kind.WEIGHT_GRADIENT,
        "The backward returns no gradient for fp16 weights.",
        _EDGE,
        (
            Edit(
                "module.py",
                "return None, gradient, None",
                "half = gradient is not None and gradient.dtype is torch.float16\n"
                "        return None, torch.zeros_like(gradient) if half else gradient, None",
            ),
        ),
        report=f"{_TORCHREC}/pull/4602",
    ),
)

SMALL_TABLES: tuple[Fault, ...] = (
    Fault(
        "third-piece-of-rows-lost",
        Kind.SMALL_TABLES,
        "The last bits of fp32 rows are left out of the product.",
        _BITS,
        _small(
            "total = tl.dot(histogram1, table - table1 - table2, total, input_precision=PRECISION)", "total = total"
        ),
        variants=("small-tables",),
        report="https://github.com/triton-lang/triton/issues/4603",
    ),
    Fault(
        "second-piece-of-counts-lost",
        Kind.SMALL_TABLES,
        "Sums of weights keep 11 bits.",
        _BITS,
        _small("total = tl.dot(histogram2, table1, total, input_precision=PRECISION)", "total = total"),
        variants=("small-tables",),
    ),
    Fault(
        "bags-above-1024-cut",
        Kind.SMALL_TABLES,
        "Only the first 1,024 lookups of a bag are counted.",
        _EDGE,
        _small(
            "for part in range(0, longest, COUNTED):", "for part in range(0, tl.minimum(longest, COUNTED), COUNTED):"
        ),
        variants=("small-tables",),
    ),
    Fault(
        "zero-times-infinity",
        Kind.NON_FINITE,
        "Tables with values that are not finite are multiplied, too.",
        _EDGE,
        _small("moderate = _all_moderate(table)", "moderate = (rows > 0).to(tl.int32)"),
        variants=("small-tables",),
    ),
    Fault(
        "small-mean-ignored",
        Kind.SMALL_TABLES,
        "MEAN of the small-table path gives the sum.",
        _EDGE,
        _small("total *= reciprocal(end - begin, tl.float32)[:, None]", "total = total"),
        variants=("small-tables",),
    ),
    Fault(
        "small-mean-length-in-fp16",
        Kind.SMALL_TABLES,
        "The product's mean divides by a length in fp16: odd ones from 2,049 on are rounded.",
        _EDGE,
        _small("reciprocal(end - begin, tl.float32)", "reciprocal((end - begin).to(tl.float16), tl.float32)"),
        variants=("small-tables",),
        first=("long_bags",),
    ),
    Fault(
        "repeats-in-a-tile-merged",
        Kind.SMALL_TABLES,
        "Lookups of one row in a tile count by the largest weight.",
        _FEW,
        _small(
            "histogram += tl.sum(tl.where(hits, weight[:, :, None], 0.0), axis=1)",
            "histogram += tl.max(tl.where(hits, weight[:, :, None], 0.0), axis=1)",
        ),
        variants=("small-tables",),
    ),
    Fault(
        "row-64-lost",
        Kind.SMALL_TABLES,
        "Tables of 65 rows take the path for 64.",
        _EDGE,
        _small("return 1 <= shape[0] <= MOST_ROWS", "return 1 <= shape[0] <= MOST_ROWS + 1"),
        variants=("small-tables",),
    ),
    Fault(
        "small-bags-by-rank",
        Kind.SMALL_TABLES,
        "Of a variable batch, as many bags of a feature are computed as its largest rank has.",
        _EDGE,
        (Edit("layout.py", "int(counts.sum(axis=1).max()),", "int(counts.max()),"),),
        variants=("small-tables",),
        report=f"{_TORCHREC}/pull/3941",
    ),
    Fault(
        "pieces-of-12-bits",
        Kind.SMALL_TABLES,
        "Numbers are cut into pieces of 12 bits, of which TF32 holds 11.",
        _BITS,
        _small("0xFFFFE000", "0xFFFFF000"),
        variants=("small-tables",),
        reach=Reach.GPU,
        report="https://github.com/triton-lang/triton/issues/8654",
        proof=_COMPILED_ONLY + "its tl.dot multiplies fp32, and products of 12-bit pieces are exact in it, too.",
    ),
    Fault(
        "whole-rows-in-tf32",
        Kind.SMALL_TABLES,
        "Rows and counts are given to tensor cores as they are: TF32 keeps 11 of their bits.",
        _BITS,
        _small(
            "return (values.to(tl.uint32, bitcast=True) & 0xFFFFE000).to(tl.float32, bitcast=True)", "return values"
        ),
        variants=("small-tables",),
        reach=Reach.GPU,
        report="https://github.com/triton-lang/triton/issues/8407",
        proof=_COMPILED_ONLY + "its tl.dot multiplies fp32.",
    ),
    Fault(
        "product-reads-a-row-too-many",
        Kind.SMALL_TABLES,
        "The product loads the row behind the table.",
        _EDGE,
        _small(
            "inside = (row < rows)[:, None] & (column < dim)[None, :]",
            "inside = (row <= rows)[:, None] & (column < dim)[None, :]",
        ),
        variants=("small-tables",),
        reach=Reach.NOBODY,
        proof="The row behind meets a count of zero, which adds nothing if it is finite; if it is not, the check for "
        "moderate sizes sends the bags the other way, which is right. Only speed is lost, and a read out of bounds "
        "that a sanitizer sees.",
    ),
)
