"""Points from shard files: the tables that one GPU of a real training job holds, at their full size."""

from __future__ import annotations

from pathlib import Path

import msgspec

from equivcheck import golden, shards
from equivcheck.bench.point import Kind, Point
from equivcheck.case import CaseError, Distribution

LARGEST_BATCH = 8192
"""A GPU's share of a global batch: MLPerf's DLRM-DCNv2 trains 65,536 samples on eight GPUs."""


class Shard(shards.Shard, frozen=True):
    """A shard with what a measurement needs beside the tables: the batch."""

    batch_per_gpu: int = 0
    global_batch_size: int = 0
    batch_size: int = 0


def shipped() -> tuple[Path, ...]:
    """The shard files that come with equivcheck."""
    folder = golden.folder()
    return () if folder is None else tuple(sorted((folder / "shards").glob("*.json")))


def points_of(path: Path, batch: int | None) -> tuple[Point, ...]:
    """Two points of a shard file: indices uniform, and Zipf-like.

    Parameters
    ----------
    batch
        B; by default the file's, see `_batch`.

    Raises
    ------
    CaseError
        With the file and what is wrong in it.
    """
    shard = load(path)
    chosen, notes = (batch, (f"batch {batch:,}: --batch",)) if batch is not None else _batch(path, shard)
    return tuple(
        Point(
            f"{Kind.SHARDS}/{path.stem}-{distribution}",
            Kind.SHARDS,
            shard.rows,
            shard.widths,
            shard.pooling_factors,
            chosen,
            distribution,
            notes=notes,
        )
        for distribution in (Distribution.ZIPF, Distribution.UNIFORM)
    )


def load(path: Path) -> Shard:
    """Read and check a shard file; docs/bench.md has its schema.

    Raises
    ------
    CaseError
        With the file, the value and what to write.
    """
    shards.load_shard(path)
    try:
        shard = msgspec.json.decode(path.read_bytes(), type=Shard)
    except msgspec.DecodeError as error:
        raise CaseError(f"{path} holds no shard: {error}") from None
    for name, values in (("rows", shard.rows), ("pooling_factors", shard.pooling_factors), ("dims", shard.widths)):
        for number, value in enumerate(values):
            if value < 1:
                raise CaseError(f"{path}: {name}[{number}] is {value}; a table has at least one")
    for number, dim in enumerate(shard.widths):
        if dim % 4:
            raise CaseError(f"{path}: dims[{number}] is {dim}; FBGEMM's tables have a multiple of 4 columns")
    for name in ("batch_per_gpu", "global_batch_size", "batch_size"):
        if getattr(shard, name) < 0:
            raise CaseError(f"{path}: {name} is {getattr(shard, name)}; it is positive, or left out")
    return shard


def _batch(path: Path, shard: Shard) -> tuple[int, tuple[str, ...]]:
    """`batch_per_gpu`; else the global batch over the fewest GPUs, a power of two, that have at most `LARGEST_BATCH`.

    Global are both `global_batch_size` and `batch_size`, under which published shards give it.
    """
    if shard.batch_per_gpu:
        return shard.batch_per_gpu, (f"batch {shard.batch_per_gpu:,}: batch_per_gpu of the file",)
    whole = shard.global_batch_size or shard.batch_size
    if not whole:
        raise CaseError(f"{path} gives no batch; write batch_per_gpu or global_batch_size, or use --batch")
    gpus = 1
    while -(-whole // gpus) > LARGEST_BATCH:
        gpus *= 2
    batch = -(-whole // gpus)
    return batch, (f"batch {batch:,}: the file's {whole:,} over {gpus} GPUs",)
