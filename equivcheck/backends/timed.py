"""What a backend offers so that its speed can be measured, beside the protocol by which it is judged.

A judged run loads tables from the host, lays poison around them and reads everything back. A measured one wants the
same system, with the same options, on tables of full size that are filled on the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch

from equivcheck.backends.driver import Pending
from equivcheck.case import Case
from equivcheck.outcome import Support


class Prepared(Protocol):
    """A system with tables of full size, and nothing around them."""

    @property
    def device(self) -> torch.device:
        """Where the inputs have to lie."""
        ...

    @property
    def tables(self) -> Sequence[torch.Tensor]:
        """Views (rows, dim) of the tables, to be filled and read; optimizer states are zero."""
        ...

    def forward(self, indices: torch.Tensor, offsets: torch.Tensor, per_sample_weights: torch.Tensor | None) -> Pending:
        """Look a batch up: (N,) int64, (features * B + 1,) int64, and (N,) fp32 or None."""
        ...


@runtime_checkable
class Timed(Protocol):
    """A backend whose speed can be measured."""

    def timing(self) -> Support:
        """Whether its speed says something here. Triton's interpreter, for example, is no measure of its kernels."""
        ...

    def prepare(self, case: Case) -> Prepared:
        """Build the system for the tables and options of a case, whose features list no bags."""
        ...
