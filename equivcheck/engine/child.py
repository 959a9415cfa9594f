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
    """pytest in a process of its own. A context manager, which ends the process if it still runs."""

    def __init__(self, request: Request, events: Path | None = None) -> None:
        """Start pytest.

        Parameters
        ----------
        events
            Where the events are kept; in a temporary file otherwise.
        """
        self._folder = tempfile.TemporaryDirectory(prefix="equivcheck-")
        self._log_path = Path(self._folder.name) / "pytest.log"
        self._events = events or Path(self._folder.name) / "events.jsonl"
        self._events.parent.mkdir(parents=True, exist_ok=True)
        self._events.write_bytes(b"")
        with self._log_path.open("wb") as log:
            self._process: subprocess.Popen[bytes] = subprocess.Popen(
                _command(request, self._events), stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
            )

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait()
        self._folder.cleanup()

    def interrupt(self, patience: float) -> None:
        """Let pytest end as by Ctrl-C: cases under way are dropped, not taken for deadly. `patience` in seconds."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(patience)

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


def _command(request: Request, events: Path) -> tuple[str, ...]:
    """The command line: the suite alone, whatever folder it starts from and whatever that configures for pytest."""
    return (
        sys.executable,
        "-P",  # a folder named `strategies` where the user happens to be is not ours
        "-m",
        "pytest",
        *("-c", os.devnull, "--rootdir", str(Path.cwd()), "--confcutdir", str(suite_folder())),
        *("-p", "equivcheck.pytest_plugin", "-p", "no:cacheprovider", "--import-mode=importlib"),
        *("-q", "--tb=short", "-n", request.workers),
        *("--equivcheck-events", str(events.resolve())),
        *request.options,
        *map(str, request.paths),
    )
