"""Run the suite in a child process and follow its events: what check, gate and faults have in common."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from equivcheck.engine.events import AnyEvent, from_line
from equivcheck.engine.suite import suite_folder

PATIENCE = 20.0
"""Seconds for pytest to end after it was asked to: execnet gives its workers 15."""
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Request:
    """What a child process is to run.

    Attributes
    ----------
    paths
        Files or folders of properties.
    options
        Options of pytest, those of equivcheck among them, without the events' file.
    workers
        Processes of xdist: a number, or `auto`. Never none, since a kernel that ends its process ends pytest otherwise.
    """

    paths: tuple[Path, ...]
    options: tuple[str, ...] = ()
    workers: str = "auto"


class Child:
    """pytest in a process group of its own. A context manager, which ends the group if it still runs.

    The child ends if this process does, in whatever way (`equivcheck.engine.lifeline`).
    """

    def __init__(self, request: Request, events: Path | None = None, inherited: tuple[int, ...] = ()) -> None:
        """Start pytest.

        Parameters
        ----------
        events
            Where the events are kept; in a temporary file otherwise.
        inherited
            Descriptors that stay open in the child.
        """
        self._folder = tempfile.TemporaryDirectory(prefix="equivcheck-")
        self._log_path = Path(self._folder.name) / "pytest.log"
        self._events = events or Path(self._folder.name) / "events.jsonl"
        self._events.parent.mkdir(parents=True, exist_ok=True)
        self._events.write_bytes(b"")
        lifeline, self._lifeline = os.pipe()
        with self._log_path.open("wb") as log:
            self._process: subprocess.Popen[bytes] = subprocess.Popen(
                _command(request, self._events, lifeline),
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                pass_fds=(lifeline, *inherited),
                process_group=0,
            )
        os.close(lifeline)

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.interrupt()
        if self._process.poll() is None:
            os.killpg(self.group, signal.SIGKILL)
            self._process.wait()
        os.close(self._lifeline)
        self._folder.cleanup()

    @property
    def group(self) -> int:
        """The process group of pytest and its workers."""
        return self._process.pid

    def interrupt(self) -> None:
        """Let pytest end as by Ctrl-C: cases under way are dropped, not taken for deadly."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(PATIENCE)

    @property
    def exit_status(self) -> int:
        """pytest's exit status, negative where a signal ended it. To be asked after the events."""
        return self._process.wait()

    @property
    def log(self) -> str:
        """What pytest printed."""
        return self._log_path.read_text(errors="replace")

    def events(self) -> Iterator[AnyEvent | None]:
        """The events as they come, until the process ends; None while there is nothing new."""
        with self._events.open("rb") as file:
            rest = b""
            while True:
                ended = self._process.poll() is not None
                *lines, rest = (rest + file.read()).split(b"\n")
                yield from filter(None, map(from_line, lines))
                if ended:
                    return
                yield None
                time.sleep(_POLL_SECONDS)


def _command(request: Request, events: Path, lifeline: int) -> tuple[str, ...]:
    """The command line: the suite alone, whatever folder it starts from and whatever that configures for pytest."""
    return (
        sys.executable,
        "-P",  # a folder named `strategies` where the user happens to be is not ours
        "-m",
        "pytest",
        *("-c", os.devnull, "--rootdir", str(Path.cwd()), "--confcutdir", str(suite_folder())),
        *("-p", "equivcheck.pytest_plugin", "-p", "no:cacheprovider", "--import-mode=importlib"),
        *("-q", "--tb=short", "-n", request.workers),
        *("--equivcheck-events", str(events.resolve()), f"--equivcheck-lifeline={lifeline}"),
        *request.options,
        *map(str, request.paths),
    )
