"""Memory that ran out: whose, by the exception that says so; and giving back what is kept for later.

Nothing is imported for it: where PyTorch was not loaded, no device has run out.
"""

from __future__ import annotations

import enum
import gc
import sys
import traceback
from collections.abc import Iterator


class Memory(enum.StrEnum):
    """Where memory can run out."""

    HOST = "host"
    DEVICE = "device"


def ran_out(error: BaseException) -> Memory | None:
    """Whose memory ran out, if that is what an exception says, or one that led to it; None if not.

    PyTorch's allocator has a type of its own for a device, and none for the host (`c10/core/impl/alloc_cpu.cpp`:
    "DefaultCPUAllocator: can't allocate memory"). CUDA's and Triton's own calls say "out of memory" in a RuntimeError.
    """
    return next((found for one in _chain(error) if (found := _of(one))), None)


def release(error: BaseException) -> None:
    """Let go of what a failed call has left: its frames' variables, and the blocks that PyTorch keeps for later."""
    for one in _chain(error):
        traceback.clear_frames(one.__traceback__)
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _of(error: BaseException) -> Memory | None:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(error, torch.OutOfMemoryError):
        return Memory.DEVICE
    if isinstance(error, MemoryError) or "DefaultCPUAllocator: can't allocate memory" in str(error):
        return Memory.HOST
    if isinstance(error, RuntimeError) and "out of memory" in str(error):
        return Memory.DEVICE
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__cause__ or one.__context__
