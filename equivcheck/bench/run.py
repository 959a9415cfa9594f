"""A run: all points judged, then measured one after the other, and written down after each."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch

from equivcheck.backends.cuda import lost
from equivcheck.backends.timed import Timed
from equivcheck.bench import agreement, inputs, measure
from equivcheck.bench.clock import Clock, clock_of
from equivcheck.bench.judging import Order, judge_all
from equivcheck.bench.point import Point, Setting, limited
from equivcheck.bench.provenance import provenance
from equivcheck.bench.result import FORMAT_VERSION, Agreement, Document, Judged, Machine, Measured, Row, System, save
from equivcheck.bench.sibling import sibling
from equivcheck.runner import Subject
from equivcheck.verdict import Status

RESULT = "bench.json"
CASES = "cases"
_SHARE_OF_GPU = 0.75
"""Of the free memory, for tables and states: the rest is for batches, outputs, workspaces and graphs."""
_SHARE_OF_HOST = 0.25
"""On the host other programs live, too."""


class CannotMeasure(ValueError):
    """A subject, or a pair, cannot be measured here. The message is a sentence."""


@dataclass(frozen=True)
class Request:
    """What to measure, and where to write it.

    Attributes
    ----------
    witness
        Empty for none.
    rows, batch
        Limits, or None.
    budget
        Seconds after which no further point is begun, or None.
    workers
        Processes that judge at once.
    """

    subject: str
    witness: str
    points: tuple[Point, ...]
    setting: Setting
    folder: Path
    rows: int | None = None
    batch: int | None = None
    budget: float | None = None
    workers: int = 1
    command: tuple[str, ...] = ()


def run(request: Request, tell: Callable[[str], None], told: Callable[[Row], None]) -> Document:
    """Judge, measure and write `bench.json`, again after every point.

    Parameters
    ----------
    tell, told
        Get a line about what is done, and each finished row.

    Raises
    ------
    CannotMeasure
        If a subject's speed cannot be measured, or witness and subject are on devices of different kinds.
    """
    started = time.perf_counter()
    systems = {name: _timed(name) for name in (request.subject, request.witness) if name}
    device = _device(systems)
    memory = _memory(device)
    points = [limited(point, request.setting, request.rows, request.batch, memory) for point in request.points]
    tell(f"judging {len(points)} points on {' and '.join(systems)} by small siblings")
    verdicts = judge_all(points, request.setting, tuple(systems), request.workers)
    _save_wrong(request, points, verdicts)
    tell(f"judged in {time.perf_counter() - started:.0f} s")
    clock = clock_of(device)
    machine = clock.machine()
    witness = systems.get(request.witness)
    document = Document(
        FORMAT_VERSION,
        request.subject,
        request.witness,
        request.setting,
        provenance(
            device,
            systems[request.subject].subject.versions,
            {} if witness is None else witness.subject.versions,
            request.command,
        ),
        machine,
        (),
        tuple(point.name for point in points),
    )
    gc.freeze()  # collecting after each system then looks at what it left, not at every imported module
    run_ = _Run(request, systems, device, clock, machine, verdicts)
    for number, point in enumerate(points):
        if request.budget is not None and time.perf_counter() - started > request.budget:
            tell(f"the budget of {request.budget:.0f} s is used up; {len(points) - number} points are left out")
            break
        try:
            row = run_.row(point, turned=number % 2 == 1)
        except KeyboardInterrupt:
            tell(f"interrupted; {len(points) - number} points are left out")
            break
        told(row)
        document = msgspec.structs.replace(
            document,
            rows=(*document.rows, row),
            left_out=tuple(point.name for point in points[number + 1 :]),
            seconds=time.perf_counter() - started,
        )
        save(document, request.folder / RESULT)
        if device.type == "cuda" and lost(device):
            tell(f"the CUDA context is lost; {len(points) - number - 1} points are left out")
            break
    save(document, request.folder / RESULT)
    return document


@dataclass(frozen=True)
class _System:
    subject: Subject
    timed: Timed
    device: torch.device


@dataclass(frozen=True)
class _Run:
    request: Request
    systems: dict[str, _System]
    device: torch.device
    clock: Clock
    machine: Machine
    verdicts: dict[Order, Judged]

    def row(self, point: Point, *, turned: bool) -> Row:
        """Measure a point. `turned` begins with the witness, so that neither always runs on the warmer device."""
        judged = {name: self.verdicts[Order(point.name, name)] for name in self.systems}
        right = [name for name, found in judged.items() if found.status in (Status.PASSED, Status.MISTRUSTED)]
        if not right:
            return self._row(point, {name: System(found) for name, found in judged.items()})
        try:
            made = inputs.make(point, self.request.setting, self.device, seed=1)
        except RuntimeError as error:
            reason = f"no inputs: {_first_line(error)}"
            return self._row(point, {name: System(found, error=reason) for name, found in judged.items()})
        found: dict[str, System] = {name: System(verdict) for name, verdict in judged.items()}
        results: dict[str, agreement.Results] = {}
        for name in reversed(right) if turned else right:
            measured, result, failed = self._measure(name, point, made)
            found[name] = System(judged[name], measured, failed)
            if result is not None:
                results[name] = result
        agreed: Agreement | None = None
        if len(results) == 2:
            pair = results[self.request.subject], results[self.request.witness]
            agreed = agreement.compare(*pair, self.request.setting, made.longest_bag)
            if not agreed.within:
                reason = f"outputs differ by {agreed.largest:.3g}, over {agreed.bound:.3g}: one is wrong at full size"
                found = {name: System(judged[name], error=reason) for name in found}
        row = self._row(point, found)
        counts = made.counts
        return msgspec.structs.replace(
            row,
            lookups=sum(counts.lookups),
            distinct=sum(counts.distinct),
            longest_run=made.longest_run,
            agreement=agreed,
        )

    def _row(self, point: Point, found: dict[str, System]) -> Row:
        return Row(point, found[self.request.subject], found.get(self.request.witness))

    def _measure(
        self, name: str, point: Point, made: inputs.Inputs
    ) -> tuple[Measured | None, agreement.Results | None, str]:
        try:
            measured, result = measure.measure(
                self.systems[name].timed, point, self.request.setting, made, self.clock, self.machine.copy_bandwidth
            )
        except (RuntimeError, ValueError, NotImplementedError, AssertionError) as error:
            return None, None, f"{type(error).__name__}: {_first_line(error)}"
        finally:
            measure.release(self.device)
        return measured, result, ""


def _save_wrong(request: Request, points: Sequence[Point], verdicts: Mapping[Order, Judged]) -> None:
    """The siblings that were not right, as `cases/DIGEST.json`, for `equivcheck replay`."""
    for point in points:
        case = sibling(point, request.setting)
        judged = [verdicts[Order(point.name, name)] for name in (request.subject, request.witness) if name]
        if any(found.status is not Status.PASSED for found in judged):
            path = request.folder / CASES / f"{case.digest}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(case.to_json())


def _timed(name: str) -> _System:
    subject = Subject.load(name)
    backend = subject.backend
    if not isinstance(backend, Timed):
        raise CannotMeasure(f"{name} offers no timing; its class needs `timing` and `prepare`: see docs/bench.md")
    support = backend.timing()
    if not support:
        raise CannotMeasure(f"{name} is not measured: {support.reason}")
    device = getattr(backend, "device", None)
    if not isinstance(device, torch.device):
        raise CannotMeasure(f"{name} has no device; its class needs a torch.device by that name: see docs/bench.md")
    return _System(subject, backend, device)


def _device(systems: dict[str, _System]) -> torch.device:
    devices = {name: system.device for name, system in systems.items()}
    if len({device.type for device in devices.values()}) > 1:
        where = " and ".join(f"{name} on {device}" for name, device in devices.items())
        raise CannotMeasure(f"{where} cannot be compared; take two systems on one device")
    return next(iter(devices.values()))


def _memory(device: torch.device) -> int:
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(_SHARE_OF_GPU * free)
    return int(_SHARE_OF_HOST * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
