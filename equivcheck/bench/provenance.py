"""Where a measurement was taken: device, driver, versions, commit. What says that two runs are comparable."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import torch

from equivcheck.bench.result import Provenance
from equivcheck.engine import machine, placement
from equivcheck.engine.worker import commit

_PACKAGE = Path(__file__).parents[1]


def provenance(
    device: torch.device, subject: Mapping[str, str], witness: Mapping[str, str], command: Sequence[str]
) -> Provenance:
    """Of this process, now."""
    cuda = device.type == "cuda"
    return Provenance(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=source(),
        device=torch.cuda.get_device_name(device) if cuda else machine.device(),
        driver=placement.driver() if cuda else "",
        cuda=str(torch.version.cuda) if cuda else "",
        host=f"{platform.system()} {platform.release()}, {len(os.sched_getaffinity(0))} cores, "
        f"{torch.get_num_threads()} threads of PyTorch",
        versions=machine.versions() | {"torch": str(torch.__version__)},
        subject=dict(subject),
        witness=dict(witness),
        command=shlex.join(command),
    )


def source() -> str:
    """The checkout's commit, with a plus sign if files differ from it; elsewhere a digest of the package's sources."""
    root = _PACKAGE.parent
    if (root / ".git").exists() and (found := commit(root)):
        return found
    digest = hashlib.sha256()
    for path in sorted(_PACKAGE.rglob("*.py")):
        digest.update(path.relative_to(_PACKAGE).as_posix().encode())
        digest.update(path.read_bytes())
    return f"sources {digest.hexdigest()[:12]}"
