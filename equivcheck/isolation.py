"""Judge a case in a process of its own: whatever a kernel does to its process, the caller gets a verdict.

Processes are forked from a server that has imported what the caller has imported, so that one takes some ten
milliseconds and not the seconds of importing torch. The server itself runs nothing: it has neither threads of OpenMP
nor a CUDA context, which do not survive a fork.

On a GPU a process takes seconds all the same, for its CUDA context and for building the subject. So one that has found
nothing wrong judges the next case, too. What is wrong then may have come from a case before; so it is told only if a
process that has judged nothing before finds it as well.
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
from contextlib import AbstractContextManager
from functools import lru_cache, partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar, cast

from equivcheck import runner
from equivcheck.case import BoundsCheck, Case
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
    spare: _Judge | None = getattr(_SPARE, "judge", None)
    _SPARE.judge = None
    for process in (spare, None):
        if process is None:
            process = _Judge()
        is_new = process.judged == 0
        verdict = process(case, subject, folder, time_limit)
        # An assertion on a GPU, which a fatal bounds check is, leaves a process in which everything raises.
        if verdict.status in _CLEAN and case.bounds_check is not BoundsCheck.FATAL:
            _SPARE.judge = process
        else:
            process.end()
        if is_new or verdict.status in _CLEAN:
            return verdict
    raise AssertionError("a new process judged the case, and its verdict was not taken")


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
        return _how_it_ended(process, Path(output.name), 0, late, time_limit) if answer is None else answer


class _Judge:
    """A process that judges one case after the other, until one of them ends it."""

    def __init__(self) -> None:
        self.judged = 0
        self._output = tempfile.NamedTemporaryFile(prefix="equivcheck-")  # noqa: SIM115  # closed by `end`
        self._requests, serving = _context().Pipe()
        # A daemon ends with its caller, who would otherwise wait for it.
        self._process = _context().Process(target=_serve_cases, args=(serving, self._output.name), daemon=True)
        with _ENDS:
            self._process.start()
        serving.close()

    def __call__(self, case: Case, subject: str, folder: Path | None, time_limit: float) -> Verdict:
        self.judged += 1
        output = Path(self._output.name)
        said = output.stat().st_size
        late, answer = False, None
        with contextlib.suppress(EOFError, OSError):
            self._requests.send((case.to_json(), subject, folder, time_limit))
            late = not self._requests.poll(time_limit + _START_LIMIT)
            answer = None if late else self._requests.recv()
        if answer is not None:
            return cast("Verdict", answer)
        if late:
            self._process.kill()
        with _ENDS:
            self._process.join()
        return _how_it_ended(self._process, output, said, late, time_limit)

    def end(self) -> None:
        """End the process, whatever it is about. A second time does nothing."""
        self._requests.close()
        self._process.kill()
        with _ENDS:
            self._process.join()
        self._output.close()


_CLEAN = (Status.PASSED, Status.MISTRUSTED, Status.UNSUPPORTED)
"""Verdicts after which a process can be trusted with another case."""

_SPARE = threading.local()
"""Each thread's process that has found nothing wrong so far."""


def _how_it_ended(process: BaseProcess, output: Path, said: int, late: bool, time_limit: float) -> Verdict:
    """Verdict of a process that has ended without one, with what it printed from byte `said` on."""
    printed = first_lines(output.read_bytes()[said:])
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


def _serve_cases(requests: Connection, output: str) -> None:
    """Run in the new process: a verdict for each case, until the caller is gone."""
    _print_to(output)
    subjects: dict[str, Subject] = {}
    while True:
        try:
            case, name, folder, time_limit = requests.recv()
        except EOFError:
            os._exit(0)
        try:
            if name not in subjects:
                subjects[name] = Subject.load(name)
            watch = partial(_limiting, time_limit)
            answer = runner.run(Case.from_json(case), subjects[name], folder=folder, watch=watch).verdict
        except Exception:  # not of a kernel, which is answered before: the subject could not be built, say
            answer = Verdict(Status.ERROR, reason=traceback.format_exc(limit=-12))
        requests.send(answer)


def _limiting(seconds: float, case: Case) -> AbstractContextManager[None]:
    return limited(seconds)


def _print_to(output: str) -> None:
    """Let this process print to a file, from which the caller quotes if the process ends early."""
    descriptor = os.open(output, os.O_WRONLY | os.O_APPEND)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    faulthandler.enable(2)


def _serve(function: Callable[..., object], arguments: tuple[Any, ...], sending: Connection, output: str) -> None:
    """Run in the new process."""
    _print_to(output)
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
