"""The lookups of one feature in PyTorch's own operators: what is eager, or compiled, or a device's.

Everything is a tensor, nothing depends on a value, so that `torch.compile` takes each function whole.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def rows(table: torch.Tensor, indices: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
    """(lookups, dim): each looked-up row, times its weight."""
    found = table.index_select(0, indices)
    return found if weights is None else found * weights[:, None]


def bags(
    table: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    weights: torch.Tensor | None,
    lengths: torch.Tensor | None,
) -> torch.Tensor:
    """(bags, dim): sums over bags, divided by `lengths` (bags,) where they are given.

    Parameters
    ----------
    offsets
        (bags + 1,), in the type of the indices.
    """
    sums = F.embedding_bag(indices, table, offsets, mode="sum", per_sample_weights=weights, include_last_offset=True)
    return sums if lengths is None else sums / lengths[:, None]


def rank_major(blocks: list[torch.Tensor], sizes: tuple[tuple[int, ...], ...]) -> torch.Tensor:
    """For each rank, each feature's samples, flat. `sizes` are samples by feature and rank."""
    by_feature = [torch.split_with_sizes(block, ranks) for block, ranks in zip(blocks, sizes, strict=True)]
    return torch.cat([by_feature[f][rank].reshape(-1) for rank in range(len(sizes[0])) for f in range(len(blocks))])
