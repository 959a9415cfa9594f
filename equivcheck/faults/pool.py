"""Many hunts at once, in processes that may end: a fault may take its process with it, and that is a kill, too."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from equivcheck.faults.catalogue import by_name
from equivcheck.faults.hunt import Hunted, Kill, ordered
from equivcheck.faults.worker import Entry, Request

LIMIT = 900.0
"""Seconds for one hunt: all properties at the default profile, seen by none, take eight minutes in the interpreter."""


def hunt(requests: Iterable[Request], processes: int, limit: float = LIMIT) -> Iterator[Hunted]:
    """Results as they come, in no order.

    Parameters
    ----------
    limit
        Seconds after which a hunt is ended. If it ends a case, that case was killing: it does not come back.
    """
    waiting: queue.SimpleQueue[Request] = queue.SimpleQueue()
    count = 0
    for request in requests:
        waiting.put(request)
        count += 1
    done: queue.SimpleQueue[Hunted | BaseException] = queue.SimpleQueue()
    for _ in range(min(processes, count)):
        threading.Thread(target=_serve, args=(waiting, done, limit), daemon=True).start()
    for _ in range(count):
        result = done.get()
        if isinstance(result, BaseException):
            raise result
        yield result


def _serve(waiting: queue.SimpleQueue[Request], done: queue.SimpleQueue[Hunted | BaseException], limit: float) -> None:
    try:
        with tempfile.TemporaryDirectory(prefix="equivcheck-faults-") as folder:
            journal = Path(folder) / "journal"
            process: subprocess.Popen[bytes] | None = None
            try:
                while True:
                    try:
                        request = waiting.get_nowait()
                    except queue.Empty:
                        return
                    if process is None or process.poll() is not None:
                        process = _start(journal)
                    done.put(_ask(process, request, journal, limit))
            finally:
                if process is not None:
                    _end(process)
    except BaseException as error:  # told to whoever waits
        done.put(error)


def _start(journal: Path) -> subprocess.Popen[bytes]:
    one = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "equivcheck.faults.worker", str(journal)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **one},
    )


def _ask(process: subprocess.Popen[bytes], request: Request, journal: Path, limit: float) -> Hunted:
    assert process.stdin is not None
    assert process.stdout is not None
    journal.unlink(missing_ok=True)
    started = time.perf_counter()
    late = threading.Event()

    def end() -> None:
        late.set()
        process.kill()

    timer = threading.Timer(limit, end)
    timer.start()
    try:
        process.stdin.write(msgspec.json.encode(request) + b"\n")
        process.stdin.flush()
        line = process.stdout.readline()
    except BrokenPipeError:
        line = b""
    finally:
        timer.cancel()
    if line:
        return msgspec.json.decode(line, type=Hunted)
    seconds = time.perf_counter() - started
    process.wait()
    return _ended(request, journal, seconds, "time limit" if late.is_set() else f"process ended ({process.returncode})")


def _ended(request: Request, journal: Path, seconds: float, how: str) -> Hunted:
    """The result of a hunt that took its process with it: the case in the journal killed it, unless time ran out."""
    fault, subject, profile, seed = request.fault, request.subject, request.profile, request.seed
    names = request.only or ordered(by_name(fault))
    if not journal.exists() or how == "time limit":
        return Hunted(fault, subject, profile, seed, None, 0, seconds, names, how)
    entry = msgspec.json.decode(journal.read_bytes(), type=Entry)
    case = msgspec.json.decode(entry.case)
    kill = Kill(entry.property, 0, entry.cases + 1, 0, seconds, how, case)
    return Hunted(fault, subject, profile, seed, kill, entry.cases + 1, seconds, names)


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()
