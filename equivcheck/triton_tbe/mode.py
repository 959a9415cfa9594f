"""Whether kernels are compiled or interpreted: Triton reads TRITON_INTERPRET while it is imported, once for all."""

from __future__ import annotations

import enum
import os
import sys

import torch

VARIABLE = "TRITON_INTERPRET"


class Mode(enum.Enum):
    """How Triton runs kernels in this process."""

    COMPILED = "compiled"
    INTERPRETED = "interpreted"

    @property
    def device(self) -> torch.device:
        """Where tensors must lie."""
        return torch.device("cuda") if self is Mode.COMPILED else torch.device("cpu")


def settle() -> Mode:
    """As TRITON_INTERPRET says; where it says nothing, compiled if there is a GPU.

    Raises
    ------
    RuntimeError
        If Triton has been imported in the other mode.
    """
    said = os.environ.get(VARIABLE)
    if said is None:
        mode = Mode.COMPILED if torch.cuda.is_available() else Mode.INTERPRETED
    else:
        mode = Mode.INTERPRETED if said.lower() in ("1", "true", "yes", "on", "y") else Mode.COMPILED
    if "triton" not in sys.modules:
        os.environ[VARIABLE] = str(int(mode is Mode.INTERPRETED))
        return mode
    import triton

    # Triton's own library of kernels shows how it was imported.
    settled = Mode.COMPILED if isinstance(triton.language.cdiv, triton.JITFunction) else Mode.INTERPRETED
    if settled is not mode:
        raise RuntimeError(
            f"kernels shall be {mode.value}, but Triton was imported for {settled.value} ones; set {VARIABLE}="
            f"{int(mode is Mode.INTERPRETED)} before this process starts"
        )
    return mode
