"""Captured batches: real indices and offsets of a training job, as safetensors beside the Case's JSON.

safetensors holds arrays and no code; dtypes and shapes are checked here before anyone computes with them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save

from equivcheck.case import Captured, CaseError
from equivcheck.formats import AnyArray

MAXIMUM_BYTES = 2**31
"""2 GiB: over 200 million lookups, above which a case is no longer a test case but a training job."""


@dataclass(frozen=True)
class CapturedBatch:
    """Indices (N,) and offsets (T*B+1,), int64, and optional per-sample weights (N,) in fp32 or fp16."""

    indices: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    per_sample_weights: AnyArray | None = None


def save_captured(batch: CapturedBatch, path: Path) -> Captured:
    """Write `batch` to `path` and return the reference that a Case in the same folder holds."""
    tensors: dict[str, AnyArray] = {"indices": batch.indices, "offsets": batch.offsets}
    if batch.per_sample_weights is not None:
        tensors["per_sample_weights"] = batch.per_sample_weights
    data = save({name: np.ascontiguousarray(array) for name, array in tensors.items()})
    path.write_bytes(data)
    return Captured(file=path.name, sha256=hashlib.sha256(data).hexdigest())


def load_captured(reference: Captured, folder: Path) -> CapturedBatch:
    """Read and check the batch that `reference` names in `folder`.

    Raises
    ------
    CaseError
        If the file is missing, a link, too large, of another hash, no safetensors, or holds other arrays.
    """
    path = folder / reference.file
    if path.is_symlink() or not path.is_file():
        raise CaseError(f"captured batch {reference.file!r} is not a file beside the case; copy it there")
    if path.stat().st_size > MAXIMUM_BYTES:
        raise CaseError(f"captured batch {reference.file!r} has {path.stat().st_size:,} bytes, over {MAXIMUM_BYTES:,}")
    data = path.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    if digest != reference.sha256:
        raise CaseError(f"captured batch {reference.file!r} has SHA-256 {digest}, the case names {reference.sha256}")
    try:
        tensors = load(data)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise CaseError(f"captured batch {reference.file!r} is no safetensors file: {error}") from None
    unknown = set(tensors) - {"indices", "offsets", "per_sample_weights"}
    if unknown or not {"indices", "offsets"} <= set(tensors):
        raise CaseError(f"captured batch {reference.file!r} holds {sorted(tensors)}; it needs indices and offsets")
    for name, array in tensors.items():
        allowed = ("float32", "float16") if name == "per_sample_weights" else ("int64",)
        if array.dtype.name not in allowed or array.ndim != 1:
            raise CaseError(
                f"captured {name} are {array.dtype.name} of shape {array.shape}; one axis of {' or '.join(allowed)}"
            )
    batch = CapturedBatch(tensors["indices"], tensors["offsets"], tensors.get("per_sample_weights"))
    _check(batch)
    return batch


def _check(batch: CapturedBatch) -> None:
    offsets, lookups = batch.offsets, len(batch.indices)
    if len(offsets) == 0 or offsets[0] != 0 or offsets[-1] != lookups or (np.diff(offsets) < 0).any():
        raise CaseError(f"captured offsets do not rise from 0 to {lookups}, the number of indices")
    if batch.per_sample_weights is not None and len(batch.per_sample_weights) != lookups:
        raise CaseError(f"captured per_sample_weights are {len(batch.per_sample_weights)}, indices {lookups}")
