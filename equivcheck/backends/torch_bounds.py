"""Bounds checking of the contract in torch operations, for systems that have none of their own."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from equivcheck.backends.driver import Inputs
from equivcheck.case import BoundsCheck
from equivcheck.problem import Problem


@dataclass(frozen=True)
class Repaired:
    """Inputs that name only rows that exist.

    Attributes
    ----------
    indices, offsets
        (N,) and (bags + 1,), in the type of the caller's.
    counts
        (N,) whether a lookup contributes: it lies in a bag, is not pruned (-1), and its table has rows.
    warnings
        Indices repaired to row 0, and one if the offsets were malformed.
    """

    indices: torch.Tensor
    offsets: torch.Tensor
    counts: torch.Tensor
    warnings: int


def repair(problem: Problem, inputs: Inputs) -> Repaired:
    """Apply the contract's table of bounds checking; the caller's tensors stay as they are.

    Offsets become the running maximum of their values clipped to [0, N], and the last becomes N.

    Raises
    ------
    IndexError
        In mode FATAL, for an index or offset that the other modes repair.
    """
    device, lookups = inputs.indices.device, inputs.indices.numel()
    given = inputs.offsets.to(torch.int64)
    offsets = torch.cummax(given.clamp(0, lookups), 0).values
    offsets[-1] = lookups
    malformed = bool((offsets != given).any()) or bool(given[0] != 0)

    first_bag = torch.tensor([0, *inputs.batch.bags], device=device).cumsum(0)
    edges = offsets[first_bag]
    rows = torch.tensor([len(problem.initial.tables[t]) for t in problem.feature_tables], device=device)
    limit = torch.full((lookups,), -1, dtype=torch.int64, device=device)
    limit[edges[0] : edges[-1]] = torch.repeat_interleave(rows, edges.diff())

    indices = inputs.indices.to(torch.int64)
    exists = limit > 0
    invalid = exists & ((indices >= limit) | (indices < -1))
    counts = exists & (indices != -1)
    wrong = int(invalid.sum()) + malformed
    if problem.case.bounds_check is BoundsCheck.FATAL and wrong:
        what = (
            f"{int(invalid.sum())} indices are out of bounds" if invalid.any() else f"offsets {given.tolist()[:8]}..."
        )
        raise IndexError(
            f"{what}: with bounds_check fatal, every index names a row and offsets rise from 0 to {lookups}"
        )
    kind = inputs.indices.dtype
    return Repaired(torch.where(invalid, 0, indices).to(kind), offsets.to(kind), counts, wrong)
