"""Shards: the tables that one GPU of a real training job holds, scaled down to a Case.

A shard file lists rows, widths and mean bag lengths of its tables, as published. What is kept is what decides which
paths a kernel takes side by side: the number of tables, which are large and which hold two rows, which widths stand
next to each other, which features have a hundred lookups a bag and which have one.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from equivcheck.case import Case, CaseError, Distribution, Feature, Optimizer, OptimizerKind, Regime, Traffic, Values
from equivcheck.formats import DType

_LARGEST_ROWS = 1000
_LARGEST_LENGTH = 120


class Shard(msgspec.Struct, frozen=True):
    """Tables of a shard, one feature each: rows, widths, and mean numbers of lookups of a bag."""

    name: str
    source: str
    rows: tuple[int, ...]
    pooling_factors: tuple[int, ...]
    dims: tuple[int, ...] = ()
    embedding_dim: int = 0

    @property
    def widths(self) -> tuple[int, ...]:
        """Columns of each table."""
        return self.dims or (self.embedding_dim,) * len(self.rows)


def load_shard(path: Path) -> Shard:
    """Read a shard file.

    Raises
    ------
    CaseError
        If it cannot be read, or its lists do not have one entry for each table.
    """
    try:
        shard = msgspec.json.decode(path.read_bytes(), type=Shard)
    except (OSError, msgspec.DecodeError) as error:
        raise CaseError(f"{path} holds no shard: {error}") from None
    lengths = {len(shard.rows), len(shard.widths), len(shard.pooling_factors)}
    if len(lengths) != 1 or not shard.rows or min(shard.widths) < 1:
        raise CaseError(f"{path} has {sorted(lengths)} entries for rows, dims and pooling_factors; one for each table")
    return shard


def scaled_cases(shard: Shard) -> tuple[Case, ...]:
    """Cases of a shard in each type of tables and optimizer that real jobs use, in sizes for Triton's interpreter."""
    kinds = (OptimizerKind.ROWWISE_ADAGRAD, OptimizerKind.SGD, OptimizerKind.ADAM)
    return tuple(
        scaled(shard, weights=weights, optimizer=kind, bags=2 + number, lengths=8, widths=16, seed=number)
        for number, (weights, kind) in enumerate((w, k) for w in (DType.FP32, DType.FP16) for k in kinds)
    )


def scaled(
    shard: Shard,
    *,
    bags: int = 2,
    lengths: int = 4,
    widths: int = 8,
    weights: DType = DType.FP32,
    output: DType = DType.FP32,
    optimizer: OptimizerKind = OptimizerKind.ROWWISE_ADAGRAD,
    seed: int = 0,
) -> Case:
    """A case with all tables of a shard.

    Parameters
    ----------
    bags
        B: real ones have tens of thousands.
    lengths, widths
        By what mean bag lengths and widths are divided. A bag keeps at least one lookup on average, and a table a
        width that is a multiple of four.
    seed
        Of the traffic and the values.

    Returns
    -------
    Case
        Tables of more than 1,000 rows have 1,000, so that the hottest ones still repeat. Traffic names rows in
        proportion to 1 / (row + 1), which real traffic resembles more than uniform one.
    """
    features = tuple(
        Feature(
            rows=min(rows, _LARGEST_ROWS),
            dim=max(4, width // widths // 4 * 4),
            traffic=Traffic(
                bags=bags,
                length=max(1, min(length, _LARGEST_LENGTH) // lengths),
                ragged=length > 1,
                distribution=Distribution.ZIPF,
                seed=seed + number,
            ),
        )
        for number, (rows, width, length) in enumerate(
            zip(shard.rows, shard.widths, shard.pooling_factors, strict=True)
        )
    )
    uniform = Values(Regime.UNIFORM)
    return Case(
        features=features,
        weights=weights,
        output=output,
        optimizer=Optimizer(optimizer, learning_rate=2.0**-6, eps=2.0**-27),
        weight_values=uniform,
        gradient_values=uniform,
        state_values=Values(Regime.SAME_SIGN),
        seed=seed,
    )
