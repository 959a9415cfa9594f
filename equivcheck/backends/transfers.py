"""Every copy between host and device goes through here: it is counted, timed, and looked at.

While a `Crossing` is open, copies are added to it. On a device that another project keeps, a copy to the host is read
twice, before and after waiting for the device: what arrives after the call returned came too late.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from equivcheck.backends.torch_devices import is_foreign, synchronise
from equivcheck.outcome import Breach, Promise, Transfers

_POISON = 0xA5
"""What the host's memory holds before a copy arrives: a small number in no type, and not zero."""


@dataclass
class Crossing:
    """What crossed since it was opened, and the promises that were broken on the way."""

    copies: int = 0
    to_device_bytes: int = 0
    to_host_bytes: int = 0
    to_device_seconds: float = 0.0
    to_host_seconds: float = 0.0
    breaches: list[Breach] = field(default_factory=list)

    def transfers(self) -> Transfers:
        """The counts."""
        return Transfers(
            self.copies, self.to_device_bytes, self.to_host_bytes, self.to_device_seconds, self.to_host_seconds
        )


_OPEN: list[Crossing] = []


@contextlib.contextmanager
def crossing() -> Iterator[Crossing]:
    """Count and watch the copies inside the block."""
    found = Crossing()
    _OPEN.append(found)
    try:
        yield found
    finally:
        _OPEN.remove(found)


def upload(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A copy of a CPU tensor on the device; the tensor itself where the device is the CPU."""
    if device.type == "cpu":
        return tensor
    start = time.perf_counter()
    there = tensor.to(device)
    for found in _OPEN:
        found.copies += 1
        found.to_device_bytes += tensor.nbytes
        found.to_device_seconds += time.perf_counter() - start
    return there


def download(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous copy on the CPU that shares no memory with the tensor."""
    given = tensor.detach()
    if given.device.type == "cpu":
        return given.clone(memory_format=torch.contiguous_format)
    start = time.perf_counter()
    if not is_foreign(given.device):
        here = given.cpu().contiguous()
        _count(here, start)
        return here
    here = torch.empty(given.shape, dtype=given.dtype)
    here.reshape(-1).view(torch.uint8).fill_(_POISON)
    here.copy_(given)
    _count(here, start)
    early = here.clone()
    synchronise(given.device)
    if not torch.equal(early.reshape(-1).view(torch.uint8), here.reshape(-1).view(torch.uint8)):
        detail = f"a copy of {here.nbytes:,} bytes had returned, and its bytes still changed until the device was idle"
        for found in _OPEN:
            found.breaches.append(Breach(Promise.LAGGING_COPY, "a copy to the host", detail))
    return early


def _count(here: torch.Tensor, start: float) -> None:
    for found in _OPEN:
        found.copies += 1
        found.to_host_bytes += here.nbytes
        found.to_host_seconds += time.perf_counter() - start
