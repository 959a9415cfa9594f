"""Batches on the device: equal sizes, other rows each time, the distribution, and what is counted of the first."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from equivcheck.bench import inputs
from equivcheck.bench.point import Kind, Point, Setting
from equivcheck.case import Distribution
from equivcheck.formats import DType

CPU = torch.device("cpu")
POINT = Point("p", Kind.UNIFORM, (50, 3), (4, 8), (5, 2), 64)


def test_bags_are_equal_and_rows_in_their_tables() -> None:
    made = inputs.make(POINT, Setting(weighted=True), CPU, 0)
    assert made.gradient.shape == (64, 12)
    for batch in made.batches:
        assert batch.offsets.diff().tolist() == [5] * 64 + [2] * 64
        first, second = batch.indices[: 5 * 64], batch.indices[5 * 64 :]
        assert (int(first.min()), int(first.max())) == (0, 49)
        assert (int(second.min()), int(second.max())) == (0, 2)
        assert batch.per_sample_weights is not None
        assert len(batch.per_sample_weights) == len(batch.indices)
    assert not torch.equal(made.batches[0].indices, made.batches[1].indices)


def test_ragged_batches_have_one_size_and_other_bags() -> None:
    ragged = Point("p", Kind.LONG_BAGS, (50, 3), (4, 8), (5, 2), 64, ragged=True)
    made = inputs.make(ragged, Setting(), CPU, 0)
    sizes = {int(batch.offsets[-1]) for batch in made.batches}
    assert sizes == {len(made.batches[0].indices)}
    first, second = (batch.offsets.diff() for batch in made.batches[:2])
    assert not torch.equal(first, second)
    assert torch.equal(first[:64].sort().values, second[:64].sort().values)
    assert (int(first[:64].min()) == 0, 8 <= int(first[:64].max()) <= 10) == (True, True)
    assert made.longest_bag == int(first.max())


def test_equal_seeds_give_equal_batches() -> None:
    first, second = (inputs.make(POINT, Setting(), CPU, 3) for _ in range(2))
    assert all(torch.equal(a.indices, b.indices) for a, b in zip(first.batches, second.batches, strict=True))
    assert torch.equal(first.gradient, second.gradient)


def test_counts_are_those_of_numpy() -> None:
    made = inputs.make(POINT, Setting(), CPU, 0)
    indices = made.batches[0].indices.numpy()
    tables = indices[: 5 * 64], indices[5 * 64 :]
    assert made.counts.lookups == [5 * 64, 2 * 64]
    assert made.counts.distinct == [len(np.unique(table)) for table in tables]
    assert made.longest_run == max(int(np.bincount(table).max()) for table in tables)
    for touched, table in zip(made.touched, tables, strict=True):
        assert touched.tolist() == np.unique(table).tolist()


def test_of_many_touched_rows_a_sample_from_all_over_the_table_is_kept() -> None:
    made = inputs.make(Point("p", Kind.UNIFORM, (5000,), (4,), (100,), 1000), Setting(), CPU, 0)
    assert len(made.touched[0]) == 1024
    assert int(made.touched[0].max()) > 4000


@pytest.mark.parametrize("distribution", [Distribution.UNIFORM, Distribution.ZIPF])
def test_rows_follow_the_distribution(distribution: Distribution) -> None:
    rows = 16
    made = inputs.make(Point("p", Kind.SKEWED, (rows,), (4,), (100,), 2000, distribution), Setting(), CPU, 0)
    found = np.bincount(made.batches[0].indices.numpy(), minlength=rows) / 200_000
    number = np.arange(rows)
    zipf = np.log1p(1 / (number + 1)) / np.log1p(rows)
    wanted = zipf if distribution is Distribution.ZIPF else np.full(rows, 1 / rows)
    # Six standard deviations of a share are at most 6 / (2 sqrt(200,000)) = 0.0067.
    assert np.abs(found - wanted).max() < 0.0067


def test_the_gradient_has_the_outputs_type() -> None:
    assert inputs.make(POINT, Setting(output=DType.FP16), CPU, 0).gradient.dtype is torch.float16
