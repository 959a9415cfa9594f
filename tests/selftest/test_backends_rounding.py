"""The torch backend's own rounding: once, to nearest; and stochastic rounding that is a neighbour, fair and seeded."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from equivcheck.backends.layouts import TORCH_DTYPES, to_numpy
from equivcheck.backends.torch_optimizers import narrow, store
from equivcheck.formats import DType, down, up
from equivcheck.formats import store as numpy_store

NARROW = (DType.FP16, DType.BF16)


def values(dtype: torch.dtype, count: int = 4000) -> torch.Tensor:
    """Numbers of all magnitudes that the 16-bit types have, ties among them."""
    generator = torch.Generator().manual_seed(1)
    wide = (torch.rand(count, generator=generator, dtype=torch.float64) - 0.5) * torch.pow(
        2.0, torch.randint(-30, 19, (count,), generator=generator).double()
    )
    ties = 1 + (2 * torch.arange(64, dtype=torch.float64) + 1) * 2.0**-11
    return torch.cat([wide, ties, ties * (1 + 2.0**-40), ties * (1 - 2.0**-40), torch.tensor([0.0, -0.0])]).to(dtype)


def drawn(given: torch.Tensor, seed: int) -> torch.Tensor:
    """The random numbers of stochastic rounding."""
    return torch.rand(given.shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("wide", [torch.float32, torch.float64])
@pytest.mark.parametrize("dtype", NARROW)
def test_nearest_rounds_once(dtype: DType, wide: torch.dtype) -> None:
    given = values(wide)
    expected = numpy_store(given.double().numpy(), dtype)
    assert to_numpy(narrow(given, TORCH_DTYPES[dtype])).tobytes() == expected.tobytes()


@pytest.mark.parametrize("wide", [torch.float32, torch.float64])
@pytest.mark.parametrize("dtype", NARROW)
def test_stochastic_rounding_gives_a_neighbour(dtype: DType, wide: torch.dtype) -> None:
    given = values(wide)
    found = store(given, TORCH_DTYPES[dtype], drawn(given, 0)).double().numpy()
    exact = given.double().numpy()
    inside = np.abs(exact) <= dtype.info.maximum
    low, high = down(exact, dtype), up(exact, dtype)
    assert ((found == low) | (found == high))[inside].all()
    assert np.isfinite(found[inside]).all()
    kept = low == high
    assert kept.any()
    assert (found == exact)[kept & inside].all()


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("share", [1 / 8, 1 / 2, 7 / 8])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_stochastic_rounding_is_fair(dtype: DType, share: float, sign: float) -> None:
    """Hoeffding: a mean of n coins is off by more than sqrt(ln(2/p) / 2n) with probability p; here p = 1e-9."""
    ulp, count = 2 * dtype.info.unit_roundoff, 20_000
    given = torch.full((count,), sign * (1 + share * ulp))
    found = store(given, TORCH_DTYPES[dtype], drawn(given, 7)).double().abs()
    up_share = float((found > 1).double().mean())
    assert abs(up_share - share) < math.sqrt(math.log(2 / 1e-9) / (2 * count))


def test_stochastic_rounding_repeats_from_its_seed_and_leaves_fp32_alone() -> None:
    given = values(torch.float32)
    first, again, other = (store(given, torch.float16, drawn(given, seed)) for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(store(given, torch.float32, drawn(given, 0)), given)


@pytest.mark.parametrize("dtype", NARROW)
def test_beyond_the_largest_number_rounding_is_to_nearest(dtype: DType) -> None:
    largest = dtype.info.maximum
    half_ulp = largest * dtype.info.unit_roundoff / (2 - 2 * dtype.info.unit_roundoff)
    given = torch.tensor([largest + half_ulp / 2, -(largest + half_ulp / 2), largest + half_ulp, math.inf, math.nan])
    found = store(given.double(), TORCH_DTYPES[dtype], drawn(given, 0)).tolist()
    assert found[:4] == [largest, -largest, math.inf, math.inf]
    assert math.isnan(found[4])
