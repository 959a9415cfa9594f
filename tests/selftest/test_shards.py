"""Shards of real jobs, scaled down: what decides about a kernel's paths is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from equivcheck.case import CaseError
from equivcheck.problem import materialise
from equivcheck.shards import load_shard, scaled, scaled_cases

FOLDER = Path(__file__).parents[2] / "golden" / "shards"
FILES = sorted(FOLDER.glob("*.json"))


def test_both_files_are_there() -> None:
    assert [path.stem for path in FILES] == ["dlrm_dcnv2", "mixed_66_tables"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_table_becomes_a_feature_of_its_own(path: Path) -> None:
    shard = load_shard(path)
    case = scaled(shard, bags=3, lengths=4, widths=8)
    assert len(case.features) == len(shard.rows) == len(case.table_shapes)
    for feature, rows, width in zip(case.features, shard.rows, shard.widths, strict=True):
        assert feature.rows == min(rows, 1000)
        assert feature.dim % 4 == 0
        assert feature.dim == max(4, width // 32 * 4)
        assert feature.traffic is not None
        assert feature.traffic.bags == 3
    lengths = [f.traffic.length for f in case.features if f.traffic is not None]
    order = sorted(range(len(lengths)), key=lambda i: shard.pooling_factors[i])
    assert [lengths[i] for i in order] == sorted(lengths)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_cases_are_small_and_materialise(path: Path) -> None:
    for case in scaled_cases(load_shard(path)):
        problem = materialise(case)
        assert 0 < len(problem.batches[0].indices) < 10_000
        assert sum(rows * dim for rows, dim in case.table_shapes) < 2**19


def test_lists_of_different_lengths_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "shard.json"
    path.write_text('{"name": "n", "source": "s", "rows": [1, 2], "pooling_factors": [1], "embedding_dim": 4}')
    with pytest.raises(CaseError, match="one for each table"):
        load_shard(path)
    with pytest.raises(CaseError, match="holds no shard"):
        load_shard(tmp_path / "nowhere.json")
