"""One gate at a time in a folder: what a killed one has left there is waited for, and ended if it does not end."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from equivcheck.case import CaseError
from equivcheck.gate import alone as locks
from equivcheck.gate.alone import alone, join, note

ENDS = "import sys; print('ready', flush=True); sys.stdin.read()"
STAYS = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
STAYS += "print('ready', flush=True); signal.pause()"


def forget_nothing(group: int) -> None:
    raise AssertionError(f"group {group} was killed")


@contextmanager
def left_behind(folder: Path, program: str, noted: bool = True) -> Iterator[subprocess.Popen[str]]:
    """A process of a gate that is gone: it has inherited its hold on the folder."""
    with alone(folder, forget_nothing) as running:
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(running.fileno(),),
            process_group=0,
            text=True,
        )
        if noted:
            note(running, process.pid)
        assert process.stdout is not None
        process.stdout.readline()
    with process:
        try:
            yield process
        finally:
            process.kill()


def test_two_gates_do_not_share_a_folder(tmp_path: Path) -> None:
    with (
        alone(tmp_path, forget_nothing),
        pytest.raises(CaseError, match=r"another gate runs in .*; wait for it"),
        alone(tmp_path, forget_nothing),
    ):
        pass


def test_what_ends_by_itself_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with left_behind(tmp_path, ENDS) as process:

        def close_its_input(seconds: float) -> None:
            assert process.stdin is not None
            if not process.stdin.closed:
                process.stdin.close()

        monkeypatch.setattr(time, "sleep", close_its_input)
        with alone(tmp_path, forget_nothing):
            assert process.wait(10) == 0


def test_what_does_not_end_is_killed_and_its_case_not_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(locks, "PATIENCE", 0.1)
    killed: list[int] = []
    with left_behind(tmp_path, STAYS) as process:
        with alone(tmp_path, killed.append):
            assert process.wait(10) == -9
        assert killed == [process.pid]
    assert f"process group {process.pid} did not end within 0.1 s and is killed" in capsys.readouterr().err


def test_what_cannot_be_ended_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "PATIENCE", 0.1)
    with (
        left_behind(tmp_path, STAYS, noted=False) as process,
        pytest.raises(CaseError, match=r"process group unknown\) and do not end; end them"),
        alone(tmp_path, forget_nothing),
    ):
        pass
    assert process.returncode == -9, "by this test"


def test_a_worker_that_has_lost_its_gate_does_not_join_the_next(tmp_path: Path) -> None:
    with alone(tmp_path, forget_nothing):
        join(tmp_path).close()
    with (tmp_path / locks.RUNNING).open("ab") as running:
        locks.take(running, fcntl.LOCK_EX)
        with pytest.raises(CaseError, match="has lost its gate"):
            join(tmp_path)


@pytest.mark.parametrize("ctrl_c", ["SIG_DFL", "SIG_IGN"])
def test_a_child_ends_with_the_process_that_started_it(ctrl_c: str, tmp_path: Path) -> None:
    """pytest in the middle of a test, whose starter is killed and can end nothing, and may run in the background."""
    (tmp_path / "test_waits.py").write_text(
        "import pathlib, time\n\n\ndef test_waits():\n    pathlib.Path('runs').touch()\n    time.sleep(300)\n"
    )
    starter = (
        f"import fcntl, signal\nsignal.signal(signal.SIGINT, signal.{ctrl_c})\n"
        "from pathlib import Path\nfrom equivcheck.engine.child import Child, Request\n"
        "lock = open('lock', 'w')\nfcntl.flock(lock, fcntl.LOCK_EX)\n"
        "child = Child(Request((Path('test_waits.py'),), workers='1'), inherited=(lock.fileno(),))\nsignal.pause()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", starter], cwd=tmp_path)
    wait_until((tmp_path / "runs").exists)
    process.kill()
    process.wait()
    with (tmp_path / "lock").open("rb") as lock:
        wait_until(lambda: locks.take(lock, fcntl.LOCK_EX))


def wait_until(so: Callable[[], bool]) -> None:
    """Wait two minutes at most: pytest imports torch before it runs a test, on a machine that is not free, too."""
    until = time.monotonic() + 120
    while not so():
        assert time.monotonic() < until
        time.sleep(0.05)
