"""One gate at a time in a folder, and none beside the processes that a killed one has left.

Two files are locked. `.lock` is the gate's own. `.running` is held by its tests as well: pytest inherits the locked
descriptor, and each worker locks the file when it starts. So whoever gets all of `.running` knows that nobody else
writes, whatever became of the gate that started them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from equivcheck.case import CaseError
from equivcheck.engine.child import PATIENCE

_LOCK, RUNNING = ".lock", ".running"
_KILLED_WITHIN = 10.0
"""Seconds for killed processes to end: a driver that takes a GPU's context apart may take some."""
_POLL_SECONDS = 0.05


@contextlib.contextmanager
def alone(folder: Path, forget: Callable[[int], None]) -> Iterator[IO[bytes]]:
    """Hold the folder's locks; processes that a killed gate has left there are waited for, and then ended.

    Parameters
    ----------
    forget
        Called with a process group that had to be killed: what it was doing then was not what ended it.

    Yields
    ------
    The file that the tests' process must inherit, and to which `note` writes its group.

    Raises
    ------
    CaseError
        If another gate runs in the folder, or what one has left does not end.
    """
    with (folder / _LOCK).open("ab") as ours, (folder / RUNNING).open("a+b", buffering=0) as running:
        if not take(ours, fcntl.LOCK_EX):
            raise CaseError(f"another gate runs in {folder}; wait for it, or give another --out")
        if not take(running, fcntl.LOCK_EX):
            _end_left(folder, running, forget)
        running.truncate(0)
        fcntl.flock(running, fcntl.LOCK_SH)
        yield running


def note(running: IO[bytes], group: int) -> None:
    """Write down the process group of the tests, for whoever finds them without their gate."""
    running.truncate(0)
    running.write(str(group).encode())


def join(folder: Path) -> IO[bytes]:
    """Hold the folder as one of the tests' processes, until the returned file is closed.

    Raises
    ------
    CaseError
        If a later gate has the folder, since this process has lost its own.
    """
    running = (folder / RUNNING).open("rb")
    if not take(running, fcntl.LOCK_SH):
        running.close()
        raise CaseError(f"this worker has lost its gate, and another one runs in {folder}; nothing is to be done")
    return running


def take(file: IO[bytes], how: int) -> bool:
    """Lock a file if nobody holds it otherwise, and say whether that worked."""
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _end_left(folder: Path, running: IO[bytes], forget: Callable[[int], None]) -> None:
    """Wait until the tests of a killed gate have ended: they notice by themselves. Kill them if they do not."""
    running.seek(0)
    group = int(running.read() or 0)
    _tell(f"a gate was killed in {folder}; its tests (process group {group or 'unknown'}) are waited for")
    if _within(PATIENCE, running):
        return
    if group:
        # The number is still theirs: it is not given to others while one of the group lives, and one holds the lock.
        # The leader goes first, or it would take the workers' end for their cases' doing.
        _tell(f"process group {group} did not end within {PATIENCE:g} s and is killed")
        for kill in (os.kill, os.killpg):
            with contextlib.suppress(ProcessLookupError):
                kill(group, signal.SIGKILL)
        if _within(_KILLED_WITHIN, running):
            forget(group)
            return
    raise CaseError(
        f"tests of a killed gate still run in {folder} (process group {group or 'unknown'}) and do not end; "
        "end them, or give another --out"
    )


def _within(seconds: float, running: IO[bytes]) -> bool:
    until = time.monotonic() + seconds
    while not (taken := take(running, fcntl.LOCK_EX)) and time.monotonic() < until:
        time.sleep(_POLL_SECONDS)
    return taken


def _tell(sentence: str) -> None:
    print(f"equivcheck: {sentence}", file=sys.stderr, flush=True)
