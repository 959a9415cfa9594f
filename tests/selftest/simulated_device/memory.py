"""The device's memory: blocks of one arena, handed out again as soon as they are free."""

import threading
import weakref
from collections.abc import Callable

import torch

_ARENA = 2**26
_POISON = 0xFF


class Block:
    """Bytes of the arena; `bytes` is a view of them."""

    def __init__(self, data: torch.Tensor) -> None:
        self.bytes = data


class Memory:
    """An arena in blocks of powers of two. The block that was freed last is handed out first."""

    def __init__(self) -> None:
        self._arena = torch.empty(_ARENA, dtype=torch.uint8)
        self._end = 0
        self._free: dict[int, list[torch.Tensor]] = {}
        self._lock = threading.RLock()  # a finaliser may run inside `take`

    def take(self, size: int, when_dropped: Callable[[Callable[[], None]], object]) -> Block:
        """A block of `size` bytes. `when_dropped` gets the function that frees it, once nobody holds it any more."""
        rounded = 1 << max(size - 1, 63).bit_length()
        with self._lock:
            free = self._free.setdefault(rounded, [])
            data = free.pop() if free else self._grow(rounded)
        block = Block(data)
        weakref.finalize(block, when_dropped, lambda: free.append(data))
        return block

    def _grow(self, size: int) -> torch.Tensor:
        if self._end + size > _ARENA:
            raise RuntimeError(f"the simulated device has {_ARENA} bytes, and {size} more were asked for")
        start, self._end = self._end, self._end + size
        return self._arena[start : self._end].fill_(_POISON)
