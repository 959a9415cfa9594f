"""Workers on GPUs: which GPU each may see, and how many workers their memory is enough for.

A worker sees one GPU, chosen before CUDA starts in its process; which ones there are to choose from is up to the
caller, by CUDA_VISIBLE_DEVICES. Nothing here imports torch. All workers share Triton's cache: it is a folder of the
user's, not of a process.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "CUDA_VISIBLE_DEVICES"

WORKER_MEMORY = 4 * 2**30
"""Bytes of a GPU that a worker may take: a context and the kernels of a system come to 1 GiB; a case of the profile
`thorough` has 2^25 elements of tables, 128 MiB in fp32, in up to six copies with states, poison and saved ones."""

_DRIVER = Path("/proc/driver/nvidia/gpus")
"""A folder for each GPU; missing in some containers."""
_QUERY = ("nvidia-smi", "--query-gpu=index,uuid,memory.total", "--format=csv,noheader,nounits")
_LIMIT = 20.0
"""Seconds that the driver may take to answer: the first question after it was loaded takes some."""


@dataclass(frozen=True)
class Gpu:
    """A GPU as the driver lists it; `memory` in bytes."""

    index: int
    uuid: str
    memory: int


def installed() -> tuple[Gpu, ...]:
    """The GPUs of this machine, in the driver's order; none where there is no driver."""
    try:
        answer = subprocess.run(_QUERY, capture_output=True, text=True, timeout=_LIMIT, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    return read(answer)


def driver() -> str:
    """Version of NVIDIA's driver; empty where there is none."""
    command = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.partition("\n")[0].strip()


def read(answer: str) -> tuple[Gpu, ...]:
    """GPUs from nvidia-smi's answer: a line each, `index, uuid, MiB`. Where memory is no number, it counts as none."""
    found = []
    for line in answer.splitlines():
        index, uuid, memory = (part.strip() for part in line.split(","))
        found.append(Gpu(int(index), uuid, int(memory) * 2**20 if memory.isdecimal() else 0))
    return tuple(found)


def visible(environment: Mapping[str, str], gpus: Sequence[Gpu]) -> tuple[str, ...]:
    """What each worker's CUDA_VISIBLE_DEVICES may be: one name for each device that the caller may use, in order.

    A list is read as CUDA reads it (CUDA C++ Programming Guide, CUDA environment variables): numbers, UUIDs or their
    beginnings, and MIG instances; what comes after a name that names nothing is not visible, and where a device is
    named twice, none is. Names are kept as the caller wrote them: numbers mean what CUDA_DEVICE_ORDER says.
    """
    listed = environment.get(VARIABLE)
    if listed is None:
        return tuple(str(gpu.index) for gpu in gpus)
    names: list[str] = []
    for part in listed.split(","):
        name = part.strip()
        if not _names_something(name, gpus):
            break
        names.append(name)
    devices = {_uuid(name, gpus) for name in names}
    return tuple(names) if len(devices) == len(names) else ()


def choose(worker: int, devices: Sequence[str]) -> str | None:
    """The device of a worker, by its number: in turn, evenly spread. None where all see the same."""
    return devices[worker % len(devices)] if len(devices) > 1 else None


def workers(devices: Sequence[str], gpus: Sequence[Gpu], cores: int) -> int | None:
    """How many workers to start: one a core, as far as the GPUs' memory goes. None where there is no GPU.

    The memory of a MIG instance is not asked for: it gets one worker.
    """
    if not devices:
        return None
    room = sum(max(1, _memory(name, gpus) // WORKER_MEMORY) for name in devices)
    return max(1, min(cores, room))


def place(worker: str, environment: MutableMapping[str, str]) -> None:
    """Let an xdist worker, such as `gw3`, see one of the GPUs that the run may use; before CUDA starts in its process.

    The driver is asked only where there may be several: its program takes about a second.
    """
    number = worker.removeprefix("gw")
    several = "," in environment[VARIABLE] if VARIABLE in environment else len(list(_DRIVER.glob("*"))) != 1
    if not number.isdecimal() or not several:
        return
    device = choose(int(number), visible(environment, installed()))
    if device is not None:
        environment[VARIABLE] = device


def automatic(environment: Mapping[str, str]) -> int | None:
    """Number of workers for `-n auto`; None to leave it to xdist, as where its own variable says how many."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in environment:
        return None
    gpus = installed()
    return workers(visible(environment, gpus), gpus, len(os.sched_getaffinity(0)))


def _names_something(name: str, gpus: Sequence[Gpu]) -> bool:
    if name.startswith("MIG-"):
        return True
    if name.startswith("GPU-"):
        return sum(gpu.uuid.startswith(name) for gpu in gpus) == 1
    return name.isdecimal() and int(name) < len(gpus)


def _uuid(name: str, gpus: Sequence[Gpu]) -> str:
    """The UUID of which a name is the beginning; a number and a MIG instance stand for themselves."""
    return next((gpu.uuid for gpu in gpus if name.startswith("GPU-") and gpu.uuid.startswith(name)), name)


def _memory(name: str, gpus: Sequence[Gpu]) -> int:
    """Memory of a named GPU. Without CUDA_DEVICE_ORDER, CUDA's numbers may differ from the driver's: then the least."""
    if name.isdecimal():
        return min(gpu.memory for gpu in gpus)
    return next((gpu.memory for gpu in gpus if gpu.uuid.startswith(name)), 0)
