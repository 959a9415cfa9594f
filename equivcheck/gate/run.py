"""Run a gate: pytest in a child process within the budget, every event kept at once, the pages written at the end.

Whatever happens, the folder holds a valid result of what was done: the events are appended as they come, and the result
is made from them anew, now and then and at the end. So a run that was ended is taken up again from its events.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import msgspec

from equivcheck.engine import journal
from equivcheck.engine.child import Child, Request
from equivcheck.engine.events import AnyEvent, Collected, Planned, Stopped, from_line, to_line
from equivcheck.engine.suite import FINDINGS, PREFIX, suite_folder
from equivcheck.gate import orders, pages
from equivcheck.gate.alone import alone, note
from equivcheck.gate.gather import gather
from equivcheck.gate.inputs import Inputs, saved_cases
from equivcheck.gate.orders import SAVED, Orders, key_of, rerun_key
from equivcheck.gate.result import Result, write
from equivcheck.report.progress import watch

EVENTS = "events.jsonl"
CASES = "cases"
_ORDERS, _TESTS, _SUITE = ".orders", ".tests", ".suite.jsonl"
_PARTIAL_EVERY = 30.0
"""Seconds between results on disk: what a machine that loses its power leaves."""
_RESERVE_SHARE, _RESERVE_SECONDS = 0.15, 60.0
"""The part of the budget in which no further test starts: tests under way end, and the pages are written."""
_MOST_SCRIPTS, _SCRIPT_SECONDS = 5, 60.0
_LOG_LINES = 12


class Interrupted(Exception):
    """The gate was told to end: the message says by whom."""


@dataclass
class Gate:
    """One gate in its folder.

    Attributes
    ----------
    inputs
        What was asked for.
    folder
        Where everything is written.
    budget
        Seconds for all of it; 0 for no limit.
    shard
        (i, n), from 1.
    workers
        Processes, or `auto`.
    fresh
        Whether a run that was ended is started anew, not taken up.
    notes
        Sentences for the result.
    """

    inputs: Inputs
    folder: Path
    budget: float = 0.0
    shard: tuple[int, int] = (1, 1)
    workers: str = "auto"
    fresh: bool = False
    notes: list[str] = field(default_factory=list)

    def run(self) -> Result:
        """Run it, and write everything; returns what it comes to.

        Raises
        ------
        CaseError
            If another gate runs in the folder, or one that was killed has left processes there that do not end.
        """
        start = time.time()
        cases = self.folder / CASES
        cases.mkdir(parents=True, exist_ok=True)
        with (
            alone(self.folder, lambda group: journal.forget(cases / ".journal", group)) as self._running,
            _told_to_end(),
        ):
            pinned = self.inputs.pinned(Path.cwd())
            done, saved = self._take_up(pinned)
            write(self._result(ended=False), self.folder)
            with (self.folder / EVENTS).open("ab", buffering=0) as self._events:
                try:
                    self._child(pinned, done, saved, start)
                except Interrupted as interrupted:
                    self._keep(Stopped(str(interrupted), time.time() - start))
            cases.mkdir(exist_ok=True)  # the engine removes it where nothing was saved
            result = self._result()
            with contextlib.suppress(Interrupted):
                self._scripts(result, start)
            result = self._result()
            pages.write(result, self.folder)
            for name in (_ORDERS, _TESTS, _SUITE):
                (self.folder / name).unlink(missing_ok=True)
        return result

    def _take_up(self, pinned: dict[str, str]) -> tuple[tuple[str, ...], tuple[Path, ...]]:
        """Keys of the tests that an earlier part of the same run has done, and the saved cases that are run again.

        Those that an earlier run left in this folder are among them, but for a shard: all shards must run the same.
        The events of any other run are moved away.
        """
        own, unread = saved_cases([self.folder / CASES] if self.shard[1] == 1 else [])
        self.notes += unread
        saved = tuple({path.name: path for path in (*own, *self.inputs.saved)}.values())
        events = list(read_events(self.folder))
        plan = next((event for event in reversed(events) if isinstance(event, Planned)), None)
        path = self.folder / EVENTS
        if plan is not None:
            done = tuple(dict.fromkeys(key for event in events if (key := key_of(event))))
            left = [key for key in plan.mine if key not in set(done) and not key.startswith("test ")]
            same = plan.pinned == pinned and plan.shard == self.shard
            if left and same and not self.fresh:
                _tell(f"taking up the run of {self.folder}: {len(left)} of {len(plan.mine)} tests are left")
                planned = set(plan.every)
                return done, tuple(path for path in saved if rerun_key(SAVED, path.stem) in planned)
            if left and not self.fresh:
                names = sorted(name for name in {*pinned, *plan.pinned} if pinned.get(name) != plan.pinned.get(name))
                what = ", ".join(names) or "the shard"
                _tell(f"the run that was ended in {self.folder} is started anew, for this has changed: {what}")
            path.replace(path.with_suffix(".previous.jsonl"))
        path.write_bytes(b"")
        return (), saved

    def _child(self, pinned: dict[str, str], done: tuple[str, ...], saved: tuple[Path, ...], start: float) -> None:
        self._taken = 0
        reserve = min(_RESERVE_SHARE * self.budget, _RESERVE_SECONDS)
        tests = self.folder / _TESTS
        tests.unlink(missing_ok=True)
        order = Orders(
            tests=str(tests.resolve()),
            shard=self.shard,
            deadline=start + self.budget - reserve if self.budget else 0.0,
            done=done,
            saved=tuple(map(str, saved)),
            golden=str(self.inputs.curated.resolve()) if self.inputs.curated else "",
            baseline=str(self.inputs.baseline) if self.inputs.baseline else "",
            faults=self.inputs.faults,
        )
        path = self.folder / _ORDERS
        path.write_bytes(msgspec.json.encode(order))
        with Child(self._request(path), self.folder / _SUITE, (self._running.fileno(),)) as child:
            note(self._running, child.group)
            try:
                watch(self._following(child, pinned, tests, start))
            except Interrupted as interrupted:
                child.interrupt()
                rest = [event for event in child.events() if event is not None][self._taken :]
                for event in rest:
                    self._take(event, pinned, tests)
                self._keep(Stopped(str(interrupted), time.time() - start))
                return
            status, log = child.exit_status, child.log
        if status not in (0, 1, 5):
            what = f"ended with exit status {status}" if status >= 0 else f"was ended by signal {-status}"
            tail = " | ".join(log.strip().splitlines()[-_LOG_LINES:])
            self._keep(Stopped(f"pytest {what}: {tail}", time.time() - start))

    def _following(self, child: Child, pinned: dict[str, str], tests: Path, start: float) -> Iterator[AnyEvent | None]:
        """The child's events, each kept before it is passed on, until the budget is spent."""
        last = time.monotonic()
        for event in child.events():
            if event is not None:
                self._take(event, pinned, tests)
            if time.monotonic() - last > _PARTIAL_EVERY:
                write(self._result(ended=False), self.folder)
                last = time.monotonic()
            if self.budget and time.time() > start + self.budget:
                raise Interrupted(f"the budget of {self.budget:g} s was spent before the tests were done")
            yield event

    def _take(self, event: AnyEvent, pinned: dict[str, str], tests: Path) -> None:
        """Keep an event of the child's, and once pytest has collected, the plan."""
        self._keep(event)
        self._taken += 1
        found = orders.read_tests(tests) if isinstance(event, Collected) else None
        if found is not None:
            self._keep(Planned(pinned, found.every, found.mine, self.shard, self.budget))

    def _request(self, order: Path) -> Request:
        inputs = self.inputs
        own = Path(__file__).with_name("cases.py")
        suite = inputs.properties or (suite_folder(),)
        findings = () if not inputs.properties else (suite_folder() / f"{PREFIX}{FINDINGS}.py",)
        options = (
            *("-p", "equivcheck.gate.plugin", f"--equivcheck-gate={order.resolve()}"),
            f"--subject={inputs.subject}",
            *(f"--witness={name}" for name in inputs.witnesses),
            *(f"--equivcheck-findings={folder}" for folder in inputs.findings),
            f"--equivcheck-profile={inputs.profile}",
            f"--equivcheck-seed={inputs.seed}",
            f"--equivcheck-failures={self.folder / CASES}",
            f"--equivcheck-time-limit={inputs.time_limit}",
            *([] if inputs.shrink else ["--equivcheck-no-shrink"]),
        )
        return Request((own, *findings, *suite), options, self.workers)

    def _keep(self, event: AnyEvent) -> None:
        self._events.write(to_line(event))

    def _result(self, ended: bool = True) -> Result:
        """What the events come to. Until the run has ended, it says that it did not: whoever kills it leaves that."""
        events = list(read_events(self.folder))
        if not ended:
            events.append(Stopped("the run has not come to its end"))
        result = gather(events, self.folder, self.inputs.accepted)
        if not result.subject:
            result.subject = self.inputs.subject
        result.notes += self.notes
        return result

    def _scripts(self, result: Result, start: float) -> None:
        """A stand-alone script for each of the first failures, as far as the budget goes."""
        folder = self.folder / "scripts"
        chosen: dict[tuple[str, str], str] = {}
        for failure in result.failures:
            chosen.setdefault((failure.source, failure.symptom), failure.saved)
        for saved in list(chosen.values())[:_MOST_SCRIPTS]:
            left = _SCRIPT_SECONDS if not self.budget else min(_SCRIPT_SECONDS, start + self.budget - time.time())
            if left < 1:
                return
            folder.mkdir(exist_ok=True)
            out = folder / f"{Path(saved).stem}.py"
            file = self.folder / saved
            limit = f"--time-limit={self.inputs.time_limit}"
            command = [sys.executable, "-P", "-m", "equivcheck", "script", str(file), f"--out={out}", limit]
            with contextlib.suppress(subprocess.TimeoutExpired, OSError):
                subprocess.run(command, capture_output=True, timeout=left, check=False)
        with contextlib.suppress(OSError):
            folder.rmdir()


def read_events(folder: Path) -> Iterator[AnyEvent]:
    """The events that a gate has left in its folder; a line that was cut off is left out."""
    try:
        lines = (folder / EVENTS).read_bytes().splitlines()
    except FileNotFoundError:
        return
    yield from filter(None, map(from_line, lines))


def _tell(sentence: str) -> None:
    print(f"equivcheck: {sentence}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _told_to_end() -> Iterator[None]:
    """Ctrl-C and SIGTERM raise `Interrupted`, once: the rest is written in peace."""

    def end(number: int, frame: FrameType | None) -> None:
        del frame
        for ours in kept:
            signal.signal(ours, signal.SIG_IGN)
        raise Interrupted(f"it was ended by {signal.Signals(number).name}")

    kept = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
