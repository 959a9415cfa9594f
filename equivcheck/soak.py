"""Soak: right kernels, many fresh seeds, and no alarm that is not explained.

Cases are drawn from seeds without Hypothesis, ten times as fast, and small: a bound does not depend on how large a case
is. Seed k takes the k-th of the strategies' menus in turn, so that each property's cases come up. Seeds are handed to
processes in chunks. A process that ends takes only its own chunk with it: the case is in its journal, is an alarm, and
the rest of the chunk runs in a new process.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from equivcheck import words
from equivcheck.case import Case
from equivcheck.coverage import Coverage
from equivcheck.engine.counts import Counts, add
from equivcheck.formats import DType
from equivcheck.outcome import Outcome
from equivcheck.runner import Run, Subject
from equivcheck.verdict import Status, Tensor, Verdict

if TYPE_CHECKING:
    import strategies

CHUNK = 500
"""Cases of one chunk: several seconds on the CPU TBE, so that handing over costs nothing."""
SLOW_CHUNK = 50
"""The same for kernels that are interpreted, or compiled while they run, and take a hundred times as long."""
SIGNATURES = 16
"""Combinations of types, widths, optimizer and so on of a soak of compiled kernels: each is compiled for a while.
A slow chunk of cases has one: 16 processes then compile for different ones at first, and later find them on disk."""
ISOLATED = 64
"""Of the cases that need a process of their own, one in so many is run on a GPU, where such a process takes ten seconds
and a case a hundredth: 50,000 cases then have a few dozen of them."""
SIZES = 2**9
"""Elements of a case's work, tables and outputs. Fixed costs of a step then outweigh its elements."""


QUANTILES = (0.1, 0.5, 0.9, 0.99)
"""Shares of cases of which the error is shown."""


class Alarm(msgspec.Struct, frozen=True):
    """A case that a kernel taken for right failed: where it came from, what was wrong, and the case."""

    subject: str
    seed: int
    menu: str
    status: str
    symptom: str
    case: dict[str, Any]


class Ratios(msgspec.Struct):
    """Cases of one tensor and storage type: exact in every element, or by their worst error as a share of the bound.

    `hundredths` counts cases by that share: the k-th those above (k - 1) and up to k hundredths, the first those of
    zero, whose results are the truth rounded once. `worst` is the largest share of all.
    """

    exact: int = 0
    hundredths: list[int] = msgspec.field(default_factory=lambda: [0] * 101)
    worst: float = 0.0

    @property
    def bounded(self) -> int:
        """Cases that were judged by a bound."""
        return sum(self.hundredths)

    def count(self, ratio: float) -> None:
        """Count one case that was judged by a bound."""
        self.hundredths[min(math.ceil(100 * ratio), 100)] += 1
        self.worst = max(self.worst, ratio)

    def quantile(self, share: float) -> float:
        """Share of the bound that this share of the bounded cases does not exceed, up to the next hundredth."""
        wanted, seen = share * self.bounded, 0
        for hundredth, number in enumerate(self.hundredths):
            seen += number
            if number and seen >= wanted:
                return hundredth / 100
        return 0.0

    def merge(self, other: Ratios) -> None:
        """Count all of `other` in."""
        self.exact += other.exact
        self.hundredths = [mine + theirs for mine, theirs in zip(self.hundredths, other.hundredths, strict=True)]
        self.worst = max(self.worst, other.worst)


class Soaked(msgspec.Struct):
    """What was counted on one subject.

    Attributes
    ----------
    counts
        By status, tensor and finding.
    ratios
        By tensor and storage type, such as `output bf16`.
    seconds, processor_seconds
        In the processes: with drawing, truth and comparison; and how much of it they had a processor. Where others want
        it too, the second says how fast a core is.
    left_out
        Cases that need a process of their own and were not run; they are not counted anywhere else.
    first, last
        Seeds that were taken, `last` excluded: every one, unless time ended the last chunks.
    """

    subject: str
    counts: Counts = msgspec.field(default_factory=Counts)
    ratios: dict[str, Ratios] = msgspec.field(default_factory=dict)
    alarms: list[Alarm] = msgspec.field(default_factory=list)
    coverage: dict[str, Any] = msgspec.field(default_factory=lambda: Coverage().to_builtins())
    seconds: float = 0.0
    processor_seconds: float = 0.0
    left_out: int = 0
    first: int = 0
    last: int = 0

    @property
    def cases(self) -> int:
        """Cases that were drawn and run, refused ones included."""
        return sum(self.counts.statuses.values())

    def merge(self, other: Soaked) -> None:
        """Count another chunk in."""
        self.counts.merge(other.counts)
        for name, ratios in other.ratios.items():
            self.ratios.setdefault(name, Ratios()).merge(ratios)
        self.alarms += other.alarms
        coverage = Coverage.from_builtins(self.coverage)
        coverage.merge(Coverage.from_builtins(other.coverage))
        self.coverage = coverage.to_builtins()
        self.seconds += other.seconds
        self.processor_seconds += other.processor_seconds
        self.left_out += other.left_out
        self.last = max(self.last, other.last)

    def count(self, run: Run, seed: int, menu: str) -> None:
        """Count one run."""
        verdict = run.verdict
        self.counts.count(verdict)
        for name in run.findings:
            add(self.counts.findings, name)
        if verdict.status in _ALARMING:
            case = msgspec.json.decode(run.case.to_json())
            worst = verdict.discrepancies[0] if verdict.discrepancies else None
            symptom = f"{worst.tensor}: {worst.symptom}" if worst is not None else verdict.reason.partition("\n")[0]
            self.alarms.append(Alarm(self.subject, seed, menu, verdict.status.value, symptom, case))
        if not run.right:
            return
        for report in verdict.reports:
            dtype = _storage(report.tensor, run.case)
            if dtype is None or not report.judged:
                continue
            ratios = self.ratios.setdefault(f"{report.tensor} {dtype}", Ratios())
            if report.exact >= report.judged:
                ratios.exact += 1
            else:
                ratios.count(report.worst_ratio)


_ALARMING = (Status.FAILED, Status.ERROR, Status.CRASHED, Status.TIMEOUT)


@dataclass(frozen=True)
class Plan:
    """What to soak: a subject, seeds from `first` on, until so many cases or seconds, in so many processes.

    `until` is the end in the time of `time.monotonic`, which `soak` sets.
    """

    subject: str
    first: int = 0
    cases: int | None = None
    seconds: float | None = None
    processes: int = 1
    chunk: int = CHUNK
    time_limit: float = 120.0
    coverage: bool = False
    until: float = math.inf


def soak(plan: Plan, folder: Path, progress: Callable[[Soaked], None] = lambda soaked: None) -> Soaked:
    """Run cases until the plan's end.

    Parameters
    ----------
    folder
        Exists; holds a journal for each process.
    progress
        Told after each chunk.

    Raises
    ------
    RuntimeError
        If a process ends before its first case: the subject does not work here.
    """
    total = Soaked(plan.subject, first=plan.first, last=plan.first)
    if plan.seconds is not None:
        plan = replace(plan, until=time.monotonic() + plan.seconds)  # of this machine's clock, whatever the process
    chunks = _chunks(plan)
    running: dict[Connection, _Process] = {}
    for number, chunk in enumerate(islice(chunks, plan.processes)):  # no more processes than there are chunks
        process = _Process(plan, folder / f"journal-{number}")
        running[process.connection] = process
        process.take(chunk)
    while running:
        for connection in wait(list(running)):
            assert isinstance(connection, Connection)
            process = running.pop(connection)
            found, rest = process.result()
            total.merge(found)
            progress(total)
            late = time.monotonic() >= plan.until
            if not process.alive:
                process = _Process(plan, process.journal)
            following = None if late else rest or next(chunks, None)
            process.take(following)
            if following is not None:
                running[process.connection] = process
    return total


def _chunks(plan: Plan) -> Iterator[tuple[int, int]]:
    first, last = plan.first, math.inf if plan.cases is None else plan.first + plan.cases
    while first < last:
        following = int(min(first + plan.chunk, last))
        yield first, following
        first = following


class _Process:
    """A process that takes chunks, seen from outside."""

    def __init__(self, plan: Plan, journal: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.journal, self._plan = journal, plan
        self._chunk: tuple[int, int] = (0, 0)
        journal.unlink(missing_ok=True)
        self._process: BaseProcess = context.Process(target=_serve, args=(plan, theirs, str(journal)))
        self._process.start()
        theirs.close()

    @property
    def alive(self) -> bool:
        """Whether it can take another chunk."""
        return self._process.exitcode is None

    def take(self, chunk: tuple[int, int] | None) -> None:
        """Hand a chunk over; None ends the process."""
        if chunk is None:
            self.connection.send(None)
            self._process.join()
            self.connection.close()
            return
        self._chunk = chunk
        self.connection.send(chunk)

    def result(self) -> tuple[Soaked, tuple[int, int] | None]:
        """What a chunk came to. Where the process ended, an alarm, and what is left of the chunk."""
        try:
            answer: bytes = self.connection.recv()
            return msgspec.json.decode(answer, type=Soaked), None
        except (EOFError, ConnectionResetError):
            self._process.join()
        if not self.journal.exists():
            raise RuntimeError(
                f"{self._plan.subject} ended its process ({self._process.exitcode}) before its first case"
            )
        seed = int(self.journal.read_text())
        case, menu = draw(seed, self._plan.subject, self._plan.first)
        ended = Soaked(self._plan.subject, first=seed, last=seed + 1)
        add(ended.counts.statuses, Status.CRASHED.value)
        data = msgspec.json.decode(case.to_json())
        how = f"the process ended with {self._process.exitcode}"
        ended.alarms.append(Alarm(self._plan.subject, seed, menu, Status.CRASHED.value, how, data))
        return ended, (seed + 1, self._chunk[1]) if seed + 1 < self._chunk[1] else None


def draw(seed: int, subject: str, first: int = 0) -> tuple[Case, str]:
    """The case of a seed, and the name of its menu; `first` is the soak's first seed: signatures depend on it."""
    from equivcheck.engine.subjects import load_subject

    return _Drawing(load_subject(subject), first).case(seed)


class _Drawing:
    """Menus without what a subject refuses, in turn; with few signatures in a soak where kernels are compiled."""

    def __init__(self, subject: Subject, first: int) -> None:
        import strategies
        from strategies import choices

        supports = subject.backend.supports
        menus = [menu.supported(supports) for menu in choices.MENUS if menu is not choices.LARGE]
        small = strategies.Budget(SIZES, SIZES, SIZES)

        def drawn(seed: int) -> tuple[Case, str]:
            menu = menus[seed % len(menus)]
            return strategies.random_case(seed, small, menu), menu.name

        def signed(seed: int) -> tuple[Case, str]:
            signature, narrowed = signatures[(seed - first) // SLOW_CHUNK % SIGNATURES]
            menu = narrowed[seed % len(narrowed)]
            return signature.applied(strategies.random_case(seed, small, menu)), menu.name

        if _compiles(subject):
            drawn_from = strategies.signatures(menus, first, SIGNATURES, supports)
            signatures = [(signature, _shares(signature, drawn_from, menus)) for signature in drawn_from]
        self.case = signed if _compiles(subject) else drawn


def _shares(
    signature: strategies.Signature, others: Sequence[strategies.Signature], menus: list[strategies.Menu]
) -> list[strategies.Menu]:
    """The menus that have a signature, each the more often the fewer of the others it has."""
    found = []
    for menu in menus:
        narrowed = signature.narrowed(menu)
        if narrowed is not None:
            having = sum(other.narrowed(menu) is not None for other in others)
            found += [narrowed] * (len(others) // having)
    return found


def _compiles(subject: Subject) -> bool:
    """Whether the subject compiles kernels for the types of a case, which takes longer than everything else."""
    return bool(getattr(subject.backend, "compiles_for_widths", False)) or subject.name.startswith("triton:cuda")


def _serve(plan: Plan, connection: Connection, journal: str) -> None:
    """Answer chunks until there are none, or until whoever gave them has ended."""
    from equivcheck import isolation, runner
    from equivcheck.engine.placement import place
    from equivcheck.engine.subjects import load_subject
    from equivcheck.facts_of_case import facts
    from equivcheck.findings import built_in_folder, load_findings

    place(Path(journal).name.rpartition("-")[2], os.environ)  # before the subject starts CUDA
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for standard in (1, 2):  # FBGEMM prints a line for every bad index
        os.dup2(nowhere, standard)
    subject: Subject = load_subject(plan.subject)
    built_in = built_in_folder()
    findings = load_findings((built_in,) if built_in else ())
    concerned = tuple(finding for finding in findings if finding.concerns(subject.name, subject.versions))
    drawing = _Drawing(subject, plan.first)
    with Path(journal).open("w") as noted:
        while (chunk := _received(connection)) is not None:
            started, used = time.perf_counter(), time.process_time()
            found, coverage = Soaked(plan.subject, first=chunk[0], last=chunk[1]), Coverage()
            for seed in range(*chunk):
                if time.monotonic() >= plan.until:
                    found.last = seed
                    break
                case, menu = drawing.case(seed)
                noted.seek(0)
                noted.write(f"{seed:<20}")
                noted.flush()
                isolate: runner.Isolate = partial(isolation.judge, time_limit=plan.time_limit)
                if "gpu" in subject.versions and words.derive(seed, "isolated") % ISOLATED:
                    isolate = _leave_out
                run = runner.run(
                    case,
                    subject,
                    findings=concerned,
                    watch=lambda _: isolation.limited(plan.time_limit),
                    isolate=isolate,
                )
                if run.verdict is _LEFT_OUT:
                    found.left_out += 1
                    continue
                found.count(run, seed, menu)
                if plan.coverage:
                    judged = run.verdict.status is not Status.UNSUPPORTED
                    coverage.add(facts(case, run.problem), judged=judged, paths=_paths(run.outcome))
            found.coverage = coverage.to_builtins()
            found.seconds, found.processor_seconds = time.perf_counter() - started, time.process_time() - used
            connection.send(msgspec.json.encode(found))


_LEFT_OUT = Verdict(Status.UNSUPPORTED, reason="it needs a process of its own")


def _leave_out(case: Case, subject: str, folder: Path | None) -> Verdict:
    """In place of judging it in a process of its own."""
    return _LEFT_OUT


def _received(connection: Connection) -> tuple[int, int] | None:
    try:
        chunk: tuple[int, int] | None = connection.recv()
    except EOFError:
        return None
    return chunk


def _paths(outcome: Outcome | None) -> tuple[str, ...]:
    return () if outcome is None else outcome.paths


def _storage(tensor: Tensor, case: Case) -> DType | None:
    """The type in which a tensor is stored; None for what no bound judges."""
    match tensor:
        case Tensor.OUTPUT:
            return case.output
        case Tensor.ROWS:
            return case.weights
        case Tensor.MOMENTUM1 | Tensor.MOMENTUM2:
            return DType.FP32
        case Tensor.WEIGHT_GRADIENT:
            return None if case.per_sample_weights is None else case.per_sample_weights.dtype
        case _:
            return None


def as_text(soaked: Soaked, elapsed: float) -> Iterator[str]:
    """What was found, in lines."""
    counts = soaked.counts
    statuses = ", ".join(f"{number:,} {status}" for status, number in counts.statuses.items())
    rate, core = (soaked.cases / s if s else 0.0 for s in (soaked.seconds, soaked.processor_seconds))
    yield f"{soaked.subject}: seeds {soaked.first} to {soaked.last}: {soaked.cases:,} cases ({statuses})"
    yield f"{rate:.0f} cases a second and process, {core:.0f} a second of processor time; {elapsed:.0f} s in all"
    if soaked.left_out:
        yield f"{soaked.left_out:,} cases that need a process of their own were left out, all but one in {ISOLATED}"
    for name, number in sorted(counts.findings.items()):
        yield f"  {number:>8,}  {name}"
    yield "worst error of a case as a share of the bound, of cases that are not exact:"
    quantiles = " ".join(f"{f'{100 * share:g} %':>7}" for share in QUANTILES)
    yield f"{'':24} {'exact':>9} {'bounded':>9} {quantiles} {'worst':>9}"
    for name, ratios in sorted(soaked.ratios.items()):
        shares = " ".join(f"{ratios.quantile(share):>7.2f}" for share in QUANTILES)
        yield f"{name:24} {ratios.exact:>9,} {ratios.bounded:>9,} {shares} {ratios.worst:>9.6f}"
    for alarm in soaked.alarms:
        yield f"ALARM seed {alarm.seed} of menu {alarm.menu}: {alarm.status}: {alarm.symptom}"
        yield f"  {msgspec.json.encode(alarm.case).decode()}"
