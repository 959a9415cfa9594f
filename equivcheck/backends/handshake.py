"""A device's promises, tried out once a type before cases are judged on it.

Each trial asks for something that has one right answer in every arithmetic (the bits that were sent), so that a breach
needs no bound and has a name of its own. What a trial needs and the device lacks is no breach: missing operators are
`torch_operators`' business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache

import torch
import torch.nn.functional as F

from equivcheck.backends.torch_devices import synchronise
from equivcheck.backends.transfers import crossing, download
from equivcheck.outcome import Breach, Promise

_ROWS, _COLUMNS = 64, 32
_BUSY = 32
"""Operations that a queue is given, so that it is behind when the question is asked."""


@lru_cache(maxsize=64)
def handshake(device: torch.device, dtype: torch.dtype) -> tuple[Breach, ...]:
    """The promises that the device breaks with tensors of a type; each is told once."""
    found: dict[Promise, Breach] = {}
    for trial in (_waits, _keeps_type_and_strides, _owns_its_memory, _reuses_late, _keeps_bits):
        with crossing() as crossed:
            try:
                breaches = [*trial(device, dtype)]
            except (RuntimeError, NotImplementedError, TypeError):  # not there, or refused
                breaches = []
        for breach in (*crossed.breaches, *breaches):
            found.setdefault(breach.promise, breach)
        if Promise.LAGGING_COPY in found:  # what is read too early tells nothing else
            return (found[Promise.LAGGING_COPY],)
    return tuple(found.values())


def _sample(dtype: torch.dtype) -> torch.Tensor:
    """(64, 32) numbers that use every bit of a significand, or of a positive integer."""
    count = _ROWS * _COLUMNS
    if not dtype.is_floating_point:
        top = torch.iinfo(dtype).max
        return (top - torch.arange(count, dtype=torch.int64)).to(dtype).reshape(_ROWS, _COLUMNS)
    unit = torch.finfo(dtype).eps
    steps = torch.arange(1, count + 1, dtype=torch.float64) * 2 - 1
    return (1 + (steps % (1 / unit)) * unit).to(dtype).reshape(_ROWS, _COLUMNS)


def _differs(one: torch.Tensor, other: torch.Tensor) -> int:
    """Elements that differ in value."""
    return int((one != other).sum()) if one.shape == other.shape else one.numel()


def _keeps_type_and_strides(device: torch.device, dtype: torch.dtype) -> Iterator[Breach]:
    sent = _sample(dtype)
    there = sent.to(device)
    if there.device.type != device.type:
        yield Breach(Promise.FELL_BACK, "tensor.to(device)", f"the tensor is on {there.device}, not on {device}")
    if there.dtype != dtype:
        yield Breach(Promise.DTYPE_CHANGED, "tensor.to(device)", f"{dtype} became {there.dtype}")
    for name, view in (("a fresh tensor", there), ("every other column", there[:, ::2]), ("a transpose", there.t())):
        alike = {"a fresh tensor": sent, "every other column": sent[:, ::2], "a transpose": sent.t()}[name]
        if view.shape != alike.shape or view.stride() != alike.stride():
            detail = f"shape {tuple(view.shape)}, strides {view.stride()}; PyTorch's are {alike.stride()}"
            yield Breach(Promise.STRIDES_CHANGED, name, detail)
        elif _differs(download(view), alike.contiguous()) > _differs(download(there), sent):
            yield Breach(Promise.STRIDES_CHANGED, name, "read back, its elements are others than the strides say")
    if not there.t().contiguous().is_contiguous():
        yield Breach(Promise.STRIDES_CHANGED, "contiguous()", "its result is not contiguous")


def _owns_its_memory(device: torch.device, dtype: torch.dtype) -> Iterator[Breach]:
    sent = _sample(dtype)
    there = sent.to(device)
    before = download(there)
    sent.zero_()
    if _differs(download(there), before):
        yield Breach(Promise.HOST_POINTER, "tensor.to(device)", "writing to the host's tensor changed the device's")
    here = there.cpu()
    there.zero_()
    synchronise(device)
    if _differs(here, before):
        yield Breach(Promise.HOST_POINTER, "tensor.cpu()", "writing to the device's tensor changed the host's")


def _waits(device: torch.device, dtype: torch.dtype) -> Iterator[Breach]:
    """Read the end of a chain of operations: `download` sees what arrives too late."""
    there = _sample(dtype).to(device)
    for _ in range(_BUSY):
        there = there.clone()
    download(there)
    yield from ()


def _reuses_late(device: torch.device, dtype: torch.dtype) -> Iterator[Breach]:
    """Keep the queue busy, and send two tensors: the second may not overwrite what the first is still read from."""
    sent, other = _sample(dtype), _sample(dtype).flip(0)
    expected = download(sent.to(device))
    busy = sent.to(device)
    for _ in range(_BUSY):
        busy = busy.clone()
    first, second = sent.to(device), other.to(device)
    if _differs(download(first), expected) or _differs(download(second), expected.flip(0)):
        detail = "of two tensors sent one after the other, one arrived with the bytes of the other"
        yield Breach(Promise.REUSED_BUFFER, "tensor.to(device)", detail)


def _keeps_bits(device: torch.device, dtype: torch.dtype) -> Iterator[Breach]:
    """Send numbers there and back, and through operations that change nothing."""
    sent = _sample(dtype)
    wrong = _differs(download(sent.to(device)), sent)
    if wrong:
        example = download(sent.to(device)).reshape(-1)
        at = int((example != sent.reshape(-1)).nonzero()[0])
        detail = (
            f"{sent.reshape(-1)[at].item()!r} came back as {example[at].item()!r}; {wrong} of {sent.numel()} differ"
        )
        yield Breach(Promise.DOWN_CAST, f"{dtype} there and back", detail)
        return
    if not dtype.is_floating_point:
        return
    for name, identity in _IDENTITIES:
        try:
            got = download(identity(sent.to(device)))
        except (RuntimeError, NotImplementedError, TypeError):
            continue
        if got.dtype != dtype:
            yield Breach(Promise.DTYPE_CHANGED, name, f"{dtype} became {got.dtype}")
        elif _differs(got, sent):
            detail = f"it changes nothing, and yet {_differs(got, sent)} of {sent.numel()} elements of {dtype} changed"
            yield Breach(Promise.DOWN_CAST, name, detail)


def _every_row(table: torch.Tensor) -> torch.Tensor:
    return torch.arange(len(table)).to(table.device)


def _one_row_bags(table: torch.Tensor) -> torch.Tensor:
    rows = _every_row(table)
    ends = torch.arange(len(table) + 1).to(table.device)
    return F.embedding_bag(rows, table, ends, mode="sum", include_last_offset=True)


_IDENTITIES: tuple[tuple[str, Callable[[torch.Tensor], torch.Tensor]], ...] = (
    ("x * 1", lambda x: x * 1),
    ("x / 1", lambda x: x / 1),
    ("x.clone()", lambda x: x.clone()),
    ("x.index_select(0, every row)", lambda x: x.index_select(0, _every_row(x))),
    ("embedding_bag over single rows", _one_row_bags),
)
"""Operations of the adapter on numbers that they must not change, in any arithmetic of the type."""
