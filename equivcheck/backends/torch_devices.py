"""Any device of PyTorch's by its name: whose package brings it, whether it is here, and how one waits for it."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from collections.abc import Callable

import torch

from equivcheck.backends.protocol import BackendUnavailable

VENDORS = {
    "hpu": "habana_frameworks.torch",
    "mlu": "torch_mlu",
    "musa": "torch_musa",
    "npu": "torch_npu",
    "spyre": "torch_spyre",
    "xla": "torch_xla",
}
"""Packages that add a device. Most are imported with torch, through entry points of the group `torch.backends`; those
without one, and environments with TORCH_DEVICE_BACKEND_AUTOLOAD=0, need the import."""

OURS = ("cpu", "cuda")
"""Devices whose promises PyTorch's own tests keep; those of every other are checked here."""


def open_device(name: str) -> torch.device:
    """The device of that name, ready to allocate; `cpu`, `cuda:1`, `spyre`.

    Raises
    ------
    BackendUnavailable
        With a sentence that says what is missing: the package, the hardware, or the device altogether.
    """
    kind = name.partition(":")[0]
    if kind == "meta":
        raise BackendUnavailable("meta tensors hold no values, so there is nothing to judge; name a device with memory")
    _import_vendor(kind)
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        first_line = str(error).splitlines()[0]
        raise BackendUnavailable(f"PyTorch {torch.__version__} cannot use {name!r}: {first_line}") from error


def is_foreign(device: torch.device | str) -> bool:
    """Whether the device's promises are to be checked."""
    kind = device.partition(":")[0] if isinstance(device, str) else device.type
    return kind not in OURS


def synchronise(device: torch.device) -> None:
    """Wait until everything that was asked of the device is done; a device without a queue has nothing to wait for."""
    with contextlib.suppress(RuntimeError, AttributeError):  # get_device_module knows only devices that have one
        wait: Callable[[], None] | None = getattr(torch.get_device_module(device), "synchronize", None)
        if wait is not None:
            wait()


def require_package(name: str) -> None:
    """Raise if the package that adds the device is not installed. Imports nothing.

    Raises
    ------
    BackendUnavailable
        With the package's name.
    """
    kind = name.partition(":")[0]
    package = VENDORS.get(kind, "torch").partition(".")[0]
    if importlib.util.find_spec(package) is None:
        raise BackendUnavailable(
            f"the device {kind!r} is added by the Python package {package}, which is not installed; install it as its "
            "vendor says"
        )


def _import_vendor(kind: str) -> None:
    package = VENDORS.get(kind)
    if package is None or _known(kind):
        return
    require_package(kind)
    try:
        importlib.import_module(package)
    except Exception as error:  # a vendor's package may fail in any way where its driver or hardware is missing
        raise BackendUnavailable(f"{package}, which adds {kind!r}, raised {type(error).__name__}: {error}") from error


def _known(kind: str) -> bool:
    """Whether PyTorch has a module for the device already."""
    return kind == torch._C._get_privateuse1_backend_name() and hasattr(torch, kind)
