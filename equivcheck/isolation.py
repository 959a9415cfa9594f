"""Judge a case in a process of its own: whatever a kernel does to its process, the caller gets a verdict.

Processes are forked from a server that has imported what the caller has imported, so that one takes some ten
milliseconds and not the seconds of importing torch. The server itself runs nothing: it has neither threads of OpenMP
nor a CUDA context, which do not survive a fork.
"""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from functools import lru_cache
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any, TypeVar

from equivcheck import runner
from equivcheck.case import Case
from equivcheck.runner import Subject
from equivcheck.verdict import Status, Verdict

_PRELOADED = (
    *("torch", "triton", "fbgemm_gpu", "scipy.sparse", "pytest", "equivcheck.runner", "equivcheck.traits"),
    *("equivcheck.compare", "equivcheck.oracle", "equivcheck.backends.driver", "equivcheck.backends.registry"),
    *("equivcheck.backends.fbgemm", "equivcheck.backends.torchrec_module"),
)
"""Each takes part in every case, or has taken part in one of the caller's; importing ours takes 0.1 s a process."""
_START_LIMIT = 120.0
"""Seconds for everything but the case itself: importing torch and building a subject, on a loaded machine."""

_OUTPUT_LINES = 16

_ENDS = threading.Lock()
"""Where several threads wait for processes: each start asks all processes of this one whether they have ended, and of
two threads that ask the same one, only the first hears how."""

Answer = TypeVar("Answer")


def judge(case: Case, subject: str, folder: Path | None, time_limit: float) -> Verdict:
    """The verdict on `case`; CRASHED or TIMEOUT, with what the process printed, where it ended otherwise."""
    return call(_judge, (case.to_json(), subject, folder, time_limit), time_limit)


def call(function: Callable[..., Answer], arguments: tuple[Any, ...], time_limit: float) -> Answer | Verdict:
    """Call a function of a module in a process of its own, and return what it returns, or how the process ended.

    `function` limits the time of a case by `limited(time_limit)`; the process as a whole gets two minutes more.
    """
    receiving, sending = _context().Pipe(duplex=False)
    with tempfile.NamedTemporaryFile(prefix="equivcheck-") as output, receiving:
        process = _context().Process(target=_serve, args=(function, arguments, sending, output.name))
        with _ENDS:
            process.start()
        sending.close()
        answer: Answer | None = None
        # A closed pipe wakes the caller too: then there is no verdict, and the process has ended or is ending.
        late = not receiving.poll(time_limit + _START_LIMIT)
        if late:
            process.kill()
        else:
            with contextlib.suppress(EOFError):
                answer = receiving.recv()
        wait([process.sentinel])
        with _ENDS:
            process.join()
        if answer is not None:
            return answer
        printed = first_lines(Path(output.name).read_bytes())
        if late or "Timeout (" in printed:
            return Verdict(Status.TIMEOUT, reason=f"the case took longer than {time_limit:g} s\n{printed}".rstrip())
        return Verdict(Status.CRASHED, reason=f"{_ending(process.exitcode)}\n{printed}".rstrip())


def prepare() -> None:
    """Let the server import the large packages that are installed, though this process has not: for many calls."""
    _context().set_forkserver_preload(list(_PRELOADED))


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """End the process if the block takes longer, and print where it was."""
    faulthandler.dump_traceback_later(seconds, exit=True, file=2)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def first_lines(printed: bytes) -> str:
    """What a dying process printed, as far as it tells something: the top of the traceback.

    faulthandler prints the innermost frame first, and names every extension module at the end.
    """
    lines = printed.decode(errors="replace").splitlines()
    return "\n".join([line for line in lines if not line.startswith("Extension modules:")][:_OUTPUT_LINES])


def _judge(case: bytes, subject: str, folder: Path | None, time_limit: float) -> Verdict:
    loaded = Subject.load(subject)
    return runner.run(Case.from_json(case), loaded, folder=folder, watch=lambda _: limited(time_limit)).verdict


def _serve(function: Callable[..., object], arguments: tuple[Any, ...], sending: Connection, output: str) -> None:
    """Run in the new process. Its output goes to a file, from which the caller quotes if the process ends early."""
    descriptor = os.open(output, os.O_WRONLY | os.O_APPEND)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    faulthandler.enable(2)
    try:
        answer = function(*arguments)
    except Exception:  # not of a kernel, which is answered before: the subject could not be built, say
        answer = Verdict(Status.ERROR, reason=traceback.format_exc(limit=-12))
    sending.send(answer)
    sending.close()
    # Not an ordinary exit: a heap that the kernel damaged is noticed, if at all, while the process takes it apart.
    os._exit(0)


@lru_cache(maxsize=1)
def _context() -> ForkServerContext:
    """The server's context. It starts with the first call, and imports then what this process has imported.

    FBGEMM asks while it is imported whether there is a GPU. PyTorch would ask CUDA, which no fork of that process could
    use any more; so it is told to ask the driver's management library.
    """
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([name for name in _PRELOADED if name in sys.modules])
    return context


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        return f"the process was ended by {signal.Signals(-code).name}"
    return f"the process ended with exit code {code}"
