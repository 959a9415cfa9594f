"""TorchRec's Triton TBE as a module: found, imported without the rest of TorchRec, and with its launches counted.

Its files are used as they are. They import two things that not everyone has: a module for AMD GPUs that is not public,
which gets an empty stand-in, since nothing of it is called on NVIDIA's; and TorchRec's own packages, whose `__init__`
files import everything there is: for the length of the import, packages stand in their place that import nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.metadata
import importlib.util
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from equivcheck.backends.protocol import BackendUnavailable

_FOLDER = Path("distributed") / "triton_tbe"
_MAIN = "triton_table_batched_embeddings"
_PACKAGES = ("torchrec", "torchrec.distributed")
_FOR_AMD = "ads_mkl.ops.triton.amd.triton_table_batched_embeddings"
"""Imported by both files; it is not in TorchRec's public tree (as of 2026-08-22)."""
NAMES_FOR_AMD = (
    *("_expand_long_runs", "_nbit_TBE_forward_kernel_16bits", "_nbit_TBE_forward_kernel_32bits"),
    *("triton_tbe_forward_unweighted_kernel", "triton_tbe_forward_weighted_kernel"),
    *("triton_tbe_backward_short_run_unweighted", "triton_tbe_backward_short_run_weighted"),
    "triton_tbe_backward_long_run_apply_unweighted",
    *("triton_tbe_backward_long_run_grad_accum_unweighted", "triton_tbe_backward_long_run_grad_accum_weighted"),
)


@dataclass(frozen=True)
class TritonTbe:
    """TorchRec's Triton TBE.

    Attributes
    ----------
    module
        The module that holds `TritonTableBatchedEmbeddingBags`.
    version
        TorchRec's, with the beginning of the SHA-256 of the sources: between releases the number stays.
    launches
        How often each kernel was launched in this process, by name; with the fused bounds check compiled in, also by
        `NAME, fused bounds check`.
    """

    module: Any
    version: str
    launches: Counter[str] = field(default_factory=Counter)


@cache
def load() -> TritonTbe:
    """Import TorchRec's Triton TBE, once a process.

    Raises
    ------
    BackendUnavailable
        If TorchRec is not found, is found without it, or something that it imports is missing.
    """
    package = _find()
    try:
        with _importable(package):
            module: Any = importlib.import_module(f"torchrec.distributed.triton_tbe.{_MAIN}")
    except ImportError as error:
        raise BackendUnavailable(f"TorchRec's Triton TBE in {package / _FOLDER} cannot be imported: {error}") from error
    if not hasattr(module.FeatureGateName, "DISABLE_OFFSETS_ADJUSTMENT"):
        # FBGEMM has this switch since 1.8; before, offsets are always adjusted.
        gate = SimpleNamespace(is_enabled=lambda: False)
        module.FeatureGateName = SimpleNamespace(DISABLE_OFFSETS_ADJUSTMENT=gate)
    found = TritonTbe(module, _version(package))
    for name, of in sorted(sys.modules.items()):
        if name.startswith("torchrec.distributed.triton_tbe."):
            _count_launches(of, found.launches)
    return found


def _find() -> Path:
    """The folder of the package torchrec, installed or on PYTHONPATH, without importing it."""
    spec = importlib.util.find_spec("torchrec")
    places = [] if spec is None else [Path(place) for place in spec.submodule_search_locations or ()]
    for place in places:
        if (place / _FOLDER / f"{_MAIN}.py").is_file():
            return place
    if places:
        raise BackendUnavailable(
            f"the TorchRec in {places[0]} has no distributed/triton_tbe; install a newer one, or put the folder of a "
            "checkout before it on PYTHONPATH"
        )
    raise BackendUnavailable(
        "torchrec-triton needs TorchRec's Triton TBE: install a torchrec that has distributed/triton_tbe, or put the "
        "folder of a checkout on PYTHONPATH"
    )


@contextlib.contextmanager
def _importable(package: Path) -> Iterator[None]:
    """Stand-ins for what the files import and not everyone has. Those for TorchRec's packages are taken away again."""
    if _FOR_AMD not in sys.modules and importlib.util.find_spec(_FOR_AMD.partition(".")[0]) is None:
        _stand_in_for_amd()
    added = [name for name in _PACKAGES if name not in sys.modules]
    for name in added:
        stand_in = ModuleType(name)
        stand_in.__path__ = [str(package.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = stand_in
    try:
        yield
    finally:
        for name in added:
            del sys.modules[name]


def _stand_in_for_amd() -> None:
    parts = _FOR_AMD.split(".")
    for end in range(1, len(parts) + 1):
        stand_in = ModuleType(".".join(parts[:end]))
        stand_in.__path__ = []
        sys.modules[stand_in.__name__] = stand_in
    last: Any = sys.modules[_FOR_AMD]
    last._FIXED_GRID = 0
    for name in NAMES_FOR_AMD:
        setattr(last, name, None)


def _version(package: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted((package / _FOLDER).glob("*.py")):
        digest.update(path.read_bytes())
    beside = package.parent / "version.txt"
    if beside.is_file():
        number = beside.read_text().strip()
    else:
        try:
            number = importlib.metadata.version("torchrec")
        except importlib.metadata.PackageNotFoundError:
            number = "0"
    return f"{number.partition('+')[0]}+{digest.hexdigest()[:12]}"


def _count_launches(module: ModuleType, launches: Counter[str]) -> None:
    """Count the launches of a module's kernels: `kernel[grid](...)` calls the kernel's `run`."""
    from triton.runtime.jit import KernelInterface

    for name, kernel in vars(module).items():
        if isinstance(kernel, KernelInterface) and "run" not in vars(kernel):
            _count(name, kernel, launches)


def _count(name: str, kernel: Any, launches: Counter[str]) -> None:
    launch = kernel.run

    def run(*arguments: Any, grid: Any, **options: Any) -> Any:
        if callable(grid) or all(grid):
            launches[name] += 1
            launches[f"{name}, fused bounds check"] += bool(options.get("FUSED_BOUNDS_CHECK"))
        return launch(*arguments, grid=grid, **options)

    kernel.run = run
