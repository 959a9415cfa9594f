"""Shard files as points: the batch that a GPU gets, and sentences about what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from equivcheck.bench.shards import points_of, shipped
from equivcheck.case import CaseError, Distribution

SHARD = {"name": "n", "source": "s", "rows": [10, 2], "pooling_factors": [3, 1], "embedding_dim": 8, "batch_per_gpu": 4}


def write(folder: Path, **changed: Any) -> Path:
    path = folder / "mine.json"
    path.write_text(json.dumps({**SHARD, **changed}))
    return path


def test_the_shipped_ones_keep_their_size_and_get_a_gpus_batch() -> None:
    dlrm, mixed = (points_of(path, None)[0] for path in shipped())
    assert (max(dlrm.rows), dlrm.dims[0], dlrm.batch) == (40_000_000, 128, 8192)
    assert dlrm.notes == ("batch 8,192: the file's 65,536 over 8 GPUs",)
    assert (len(mixed.rows), mixed.batch) == (66, 4608)
    assert mixed.notes == ("batch 4,608: the file's 294,912 over 64 GPUs",)


def test_a_shard_is_measured_uniform_and_skewed(tmp_path: Path) -> None:
    zipf, uniform = points_of(write(tmp_path), None)
    assert (zipf.name, uniform.name) == ("shards/mine-zipf", "shards/mine-uniform")
    assert (zipf.distribution, uniform.distribution) == (Distribution.ZIPF, Distribution.UNIFORM)
    assert (zipf.rows, zipf.dims, zipf.lengths, zipf.batch) == ((10, 2), (8, 8), (3, 1), 4)


def test_the_callers_batch_counts(tmp_path: Path) -> None:
    assert points_of(write(tmp_path), 7)[0].batch == 7
    assert points_of(write(tmp_path, batch_per_gpu=0), 7)[0].notes == ("batch 7: --batch",)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"batch_per_gpu": 0}, "gives no batch; write batch_per_gpu or global_batch_size, or use --batch"),
        ({"batch_per_gpu": -1}, "batch_per_gpu is -1; it is positive, or left out"),
        ({"rows": [10, 0]}, r"rows\[1\] is 0; a table has at least one"),
        ({"pooling_factors": [3, -2]}, r"pooling_factors\[1\] is -2"),
        ({"dims": [8, 6]}, r"dims\[1\] is 6; FBGEMM's tables have a multiple of 4 columns"),
        ({"rows": [10]}, "one for each table"),
        ({"rows": ["ten", 2]}, "holds no shard"),
        ({"global_batch_size": "many"}, "holds no shard"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, changed: dict[str, Any], sentence: str) -> None:
    with pytest.raises(CaseError, match=sentence):
        points_of(write(tmp_path, **changed), None)
