"""Batches of a point, made on the device: several, so that no measurement repeats the last one's rows."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch

from equivcheck.backends.layouts import TORCH_DTYPES
from equivcheck.bench.point import Point, Setting
from equivcheck.bench.traffic import Counts
from equivcheck.case import Distribution

_MOST_SETS = 8
_SETS_BYTES = 2**30
"""Of all index sets together."""


@dataclass(frozen=True)
class Batch:
    """(N,) int64 indices, (T B + 1,) int64 offsets, feature-major, and (N,) fp32 per-sample weights or None."""

    indices: torch.Tensor
    offsets: torch.Tensor
    per_sample_weights: torch.Tensor | None

    def copy_from(self, other: Batch) -> None:
        """Overwrite this batch: kernels then find other rows at the same addresses, as a CUDA graph wants it."""
        self.indices.copy_(other.indices)
        self.offsets.copy_(other.offsets)
        if self.per_sample_weights is not None and other.per_sample_weights is not None:
            self.per_sample_weights.copy_(other.per_sample_weights)


@dataclass(frozen=True)
class Inputs:
    """Batches of equal size, one output gradient for all, and what the first batch comes to.

    `touched` are the distinct rows of each table in the first batch, at most some thousand of them; `longest_run` its
    most frequent row's lookups.
    """

    batches: tuple[Batch, ...]
    gradient: torch.Tensor
    counts: Counts
    longest_run: int
    touched: tuple[torch.Tensor, ...]
    longest_bag: int


def make(point: Point, setting: Setting, device: torch.device, seed: int) -> Inputs:
    """Batches drawn from one seed: two systems get the same."""
    generator = torch.Generator(device).manual_seed(seed)
    host = torch.Generator().manual_seed(seed)
    tables = len(point.rows)
    lengths = _lengths(point, host)
    per_table = lengths.sum(1)
    lookups = int(per_table.sum())
    rows = torch.tensor(point.rows, dtype=torch.float64, device=device).repeat_interleave(per_table.to(device))
    number = max(2, min(_MOST_SETS, _SETS_BYTES // max(1, 8 * lookups)))
    batches = []
    for _ in range(number):
        if point.ragged:  # the same bags in another order: every batch then has the same size
            lengths = torch.stack([row[torch.randperm(point.batch, generator=host)] for row in lengths])
        offsets = torch.zeros(tables * point.batch + 1, dtype=torch.int64, device=device)
        offsets[1:] = lengths.reshape(-1).cumsum(0).to(device)
        weights = torch.rand(lookups, generator=generator, device=device) if setting.weighted else None
        batches.append(Batch(_indices(point, rows, generator), offsets, weights))
    width = sum(point.dims)
    gradient = torch.rand(point.batch, width, generator=generator, device=device).mul_(2).sub_(1)
    counts, longest, touched = _count(point, batches[0].indices, per_table)
    gradient = gradient.to(TORCH_DTYPES[setting.output])
    return Inputs(tuple(batches), gradient, counts, longest, touched, int(lengths.max()))


def _lengths(point: Point, host: torch.Generator) -> torch.Tensor:
    """(T, B) lookups of each bag: equal, or uniform from 0 to twice the mean."""
    mean = torch.tensor(point.lengths)[:, None]
    if not point.ragged:
        return mean.expand(-1, point.batch)
    drawn = torch.rand(len(point.rows), point.batch, generator=host, dtype=torch.float64)
    return (drawn * (2 * mean + 1)).long()


def _indices(point: Point, rows: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Rows by the inverse of the distribution function.

    Zipf-like is P(row) = log(1 + 1 / (row + 1)) / log(rows + 1), which can be inverted, and is 1 / (row + 1) times a
    factor from log 2 to 1, up to a constant.
    """
    drawn = torch.rand(len(rows), generator=generator, device=rows.device, dtype=torch.float64)
    zipf = point.distribution is Distribution.ZIPF
    values = (drawn * rows.log1p()).exp_().sub_(1) if zipf else drawn * rows
    return torch.minimum(values.long(), (rows - 1).long())


_SAMPLED_ROWS = 1024
"""Of each table, for the comparison of updated rows."""


def _count(
    point: Point, indices: torch.Tensor, per_table: torch.Tensor
) -> tuple[Counts, int, tuple[torch.Tensor, ...]]:
    device = indices.device
    first = torch.tensor([0, *point.rows]).cumsum(0)
    base = first[:-1].repeat_interleave(per_table).to(device)
    named, times = torch.unique(indices + base, return_counts=True)
    edges = torch.searchsorted(named, first.to(device)).tolist()
    touched = []
    for table, (begin, end) in enumerate(pairwise(edges)):
        step = max(1, (end - begin) // _SAMPLED_ROWS)
        touched.append(named[begin:end:step][:_SAMPLED_ROWS] - first[table].item())
    distinct = [end - begin for begin, end in pairwise(edges)]
    longest = int(times.max()) if len(times) else 0
    return Counts(per_table.tolist(), distinct), longest, tuple(touched)
