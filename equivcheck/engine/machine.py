"""What a run stands on, without importing any of it: versions from packages' metadata, the device from the system."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path

from equivcheck import __version__
from equivcheck.engine.options import Options

PACKAGES = (
    *("numpy", "scipy", "hypothesis", "torch", "triton"),
    *("fbgemm-gpu", "fbgemm-gpu-cpu", "fbgemm-gpu-nightly", "torchrec"),
)


def describe(options: Options) -> list[str]:
    """Lines for pytest's header."""
    found = ", ".join(f"{name} {version}" for name, version in versions().items() if name != "equivcheck")
    subjects = ", ".join(options.subjects) or "all available here"
    witnesses = f", witnesses {', '.join(options.witnesses)}" if options.witnesses else ""
    return [
        f"equivcheck: {__version__} on {device()}; {found}",
        f"equivcheck: subjects {subjects}{witnesses}; --equivcheck-profile {options.profile} "
        f"--equivcheck-seed {options.seed}",
    ]


def versions() -> dict[str, str]:
    """Python's version and those of the installed packages that matter."""
    found = {"equivcheck": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def device() -> str:
    """GPUs as the driver lists them, or the processor."""
    gpus = sorted(
        value.strip()
        for path in Path("/proc/driver/nvidia/gpus").glob("*/information")
        for key, _, value in (line.partition(":") for line in path.read_text().splitlines())
        if key == "Model"
    )
    if gpus:
        return ", ".join(f"{gpus.count(name)} x {name}" for name in dict.fromkeys(gpus))
    cores = len(os.sched_getaffinity(0))
    return f"{_processor()}, {cores} cores"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
