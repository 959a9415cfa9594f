"""What adapters for CUDA have in common: poison where kernels will write, and the end of a process without its GPU.

A kernel that reads or writes where it may not can take the CUDA context with it. Every later call in the process then
fails, whichever case it belongs to; so the process ends at once, while the journal still names the case that did it.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import tempfile
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
import torch

from equivcheck import one_pass
from equivcheck.backends.layouts import FINITE_POISON, FLOAT_POISON, GUARD_BYTES, Placed, place, to_numpy
from equivcheck.case import BoundsCheck, Case, Layout
from equivcheck.outcome import Outcome
from equivcheck.problem import materialise

_BLOCKS = 4
"""Free blocks of a size that are poisoned: the allocator takes the smallest that fits, and a call asks for several."""
_LARGEST_SEVERAL = 2**24
"""Of blocks above 16 MiB one is poisoned: they come from memory of their own, where few others can be in the way."""

DEVICE_ASSERT = "device-side assert"
"""In the text of the error after which a context is lost because a kernel said so."""
_ASSERTION = re.compile(r": (?P<kernel>\w+): block: .* Assertion `.*` failed")
"""What the driver prints of each thread whose assertion failed."""
_BOUNDS_CHECK = "bounds_check_indices"
"""FBGEMM's operator that asserts by design. Its kernels' names begin so, too."""


def asks_for_assert(case: Case) -> bool:
    """Whether a right kernel may answer the case with a device assert: inputs out of bounds in the mode FATAL.

    For FBGEMM every index into a table without rows is out of bounds.
    """
    outside = bool(case.bad_indices or case.bad_offsets) or any(rows == 0 for rows, _ in case.table_shapes)
    return case.bounds_check is BoundsCheck.FATAL and outside


def leaves_gaps(case: Case) -> bool:
    """Whether FBGEMM's bounds check may leave lookups that no bag covers, or whose rows it has not looked at.

    It moves no first offset, moves a last one after it has looked at rows, and repairs in one pass over the bags.
    """
    if not case.bad_offsets or case.captured is not None:
        return bool(case.bad_offsets)
    always = case.bounds_check is BoundsCheck.IGNORE
    for batch in materialise(case).batches:
        lookups = len(batch.indices)
        unseen = bool(case.bad_indices) and int(batch.offsets[-1]) != lookups
        if unseen or int(batch.offsets[0]) > 0 or not one_pass.repairs(batch.offsets, lookups, always=always):
            return True
    return False


def samples(case: Case) -> tuple[int, ...]:
    """Samples of a variable batch in each step, over all features and ranks."""
    counts: dict[tuple[int, int], int] = {}
    for number, feature in enumerate(case.features):
        for bag in feature.bags:
            counts[number, bag.rank] = counts.get((number, bag.rank), 0) + bag.copies
        if feature.traffic is not None:
            counts[number, 0] = feature.traffic.bags
    return tuple(
        sum(count if step.bags is None else min(count, step.bags) for count in counts.values()) for step in case.steps
    )


def poison_free_memory(device: torch.device, *sizes: int) -> None:
    """Fill what the allocator will hand out next for these sizes, in bytes, with NaN.

    An element that a kernel should have written and did not is then a NaN, and not what an earlier case left there,
    which is often the right value. Does nothing while a graph is captured, since that has memory of its own.
    """
    if torch.cuda.is_current_stream_capturing():
        return
    for size in sizes:
        if size:
            count = _BLOCKS if size <= _LARGEST_SEVERAL else 1
            blocks = [torch.full((size,), FLOAT_POISON, dtype=torch.uint8, device=device) for _ in range(count)]
            del blocks


def into_poison(name: str, tensor: torch.Tensor, widest: int) -> Placed:
    """Give a module's tensor of tables or states zeros in poisoned memory, in the place of its own.

    Around it there is room for a row of `widest` elements on both sides: FBGEMM 1.6.0 and TorchRec's Triton TBE take
    the index -1 of a first table for the row before it, and an index into a last table without rows for the row behind.
    """
    around = GUARD_BYTES + 4 * widest
    around += -around % GUARD_BYTES  # the tensor stays as aligned as a fresh one
    zeros = np.zeros(tuple(tensor.shape), to_numpy(tensor.detach()[:0]).dtype)
    placed = place(name, zeros, Layout.CONTIGUOUS, tensor.device, floats=FINITE_POISON, around=around)
    tensor.data = placed.tensor
    return placed


@lru_cache
def identity(device: torch.device) -> str:
    """Which device it is: a GPU by its UUID, as nvidia-smi lists it, whatever number the process has for it."""
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}" if device.type == "cuda" else str(device)


@contextlib.contextmanager
def watched(device: torch.device) -> Iterator[None]:
    """End the process if the block raises and the context of a GPU is lost."""
    try:
        yield
    except Exception as error:
        if lost(device):
            end_process(f"{type(error).__name__}: {error}")
        raise


def lost(device: torch.device) -> bool:
    """Whether the context of a GPU is lost in this process. Waits for all kernels."""
    if device.type != "cuda":
        return False
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return True
    return False


@contextlib.contextmanager
def seeded(device: torch.device, seed: int) -> Iterator[None]:
    """Seed PyTorch's generators, and set them back afterwards. `torch.random.fork_rng` raises in a lost context."""
    host, accelerator = torch.get_rng_state(), torch.cuda.get_rng_state(device)
    torch.cuda.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(host)
        with contextlib.suppress(RuntimeError):  # `checked` and `watched` see to a lost context
            torch.cuda.set_rng_state(accelerator, device)


@contextlib.contextmanager
def heard(case: Case) -> Iterator[list[str]]:
    """The kernels whose assertions fail in the block, for a case that may ask for that; they are printed all the same.

    The driver prints to the process's standard error, while a failed kernel is waited for. It printed nothing where a
    launch of Triton's noticed the failure, so FBGEMM's bounds check is waited for at once.
    """
    kernels: list[str] = []
    if not asks_for_assert(case):
        yield kernels
        return
    standard = os.dup(2)
    with tempfile.TemporaryFile() as printed:
        os.dup2(printed.fileno(), 2)
        try:
            with _bounds_check_awaited(kernels):
                yield kernels
        finally:
            os.dup2(standard, 2)
            os.close(standard)
            printed.seek(0)
            text = printed.read()
            os.write(2, text)
            kernels.extend(match["kernel"] for match in _ASSERTION.finditer(text.decode(errors="replace")))


@contextlib.contextmanager
def _bounds_check_awaited(kernels: list[str]) -> Iterator[None]:
    """Wait for the GPU before and after each of FBGEMM's bounds checks, and list the check if it has asserted.

    What fails between the two waits is the check, whether the driver prints its name or not.
    """
    namespace = torch.ops.fbgemm
    check = getattr(namespace, _BOUNDS_CHECK, None)

    def awaited(*arguments: object, **named: object) -> object:
        assert check is not None
        if torch.cuda.is_current_stream_capturing():  # where nothing may be waited for, and nothing runs
            return check(*arguments, **named)
        torch.cuda.synchronize()
        result = check(*arguments, **named)
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
            if DEVICE_ASSERT in str(error):
                kernels.append(_BOUNDS_CHECK)
            raise
        return result

    if check is None:  # FBGEMM is not loaded
        yield
        return
    setattr(namespace, _BOUNDS_CHECK, awaited)  # both modules look the operator up at each call
    try:
        yield
    finally:
        setattr(namespace, _BOUNDS_CHECK, check)


def checked(outcome: Outcome, device: torch.device, asserted: Sequence[str]) -> Outcome:
    """The outcome, if the context is whole, or was lost by the bounds check's own assert, which counts as a raise.

    Parameters
    ----------
    asserted
        What `heard` heard. A kernel that asserts for another reason has lost the context, as an illegal access has.
    """
    raised = outcome.raised
    by_design = bool(asserted) and all(kernel.startswith(_BOUNDS_CHECK) for kernel in asserted)
    if by_design and raised is not None and raised.after is None and DEVICE_ASSERT in raised.message:
        return outcome
    if lost(device):
        end_process(f"{raised.kind}: {raised.message}" if raised is not None else "a kernel failed after the last call")
    return outcome


def end_process(reason: str) -> None:
    """Say why and abort: the journal's traceback then names the case, and later cases get a process with a GPU."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the core of a process with a GPU is as large as its memory
    os.write(2, f"the CUDA context is lost: {reason}\n".encode())
    os.abort()
