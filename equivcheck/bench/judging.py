"""Every point's sibling on every subject, judged by the suite before anything is timed, each in a process of its own.

Processes leave the measuring one without poison, guards and the memory of judged runs; several at once compile the
kernels on as many cores into Triton's cache, from where the measurement takes them. A crash costs one verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from equivcheck import isolation
from equivcheck.bench.point import Point, Setting
from equivcheck.bench.result import Judged
from equivcheck.bench.sibling import sibling
from equivcheck.case import CaseError
from equivcheck.verdict import Status, Verdict

TIME_LIMIT = 120.0
"""Seconds for one case, compiling included."""


@dataclass(frozen=True)
class Order:
    """A point on a subject."""

    point: str
    subject: str


def judge_all(
    points: Sequence[Point],
    setting: Setting,
    subjects: Sequence[str],
    workers: int,
    progress: Callable[[Order, Judged], None] = lambda order, judged: None,
) -> dict[Order, Judged]:
    """Verdicts on the siblings of all points."""
    found: dict[Order, Judged] = {}
    with ThreadPoolExecutor(max_workers=workers) as pool:
        asked: dict[Future[Judged], Order] = {
            pool.submit(_judge, point, setting, subject): Order(point.name, subject)
            for point in points
            for subject in subjects
        }
        try:
            for future in as_completed(asked):
                order = asked[future]
                found[order] = future.result()
                progress(order, found[order])
        except BaseException:  # an interrupt shall not wait for what has not begun
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return found


def _judge(point: Point, setting: Setting, subject: str) -> Judged:
    case = sibling(point, setting)
    try:
        verdict = isolation.judge(case, subject, None, TIME_LIMIT)
    except CaseError as error:
        return Judged(Status.ERROR, case.digest, str(error))
    return Judged(verdict.status, case.digest, _detail(verdict))


def _detail(verdict: Verdict) -> str:
    if verdict.reason:
        return verdict.reason.partition("\n")[0]
    return "; ".join(f"{d.tensor} {d.symptom} at {d.where}" for d in verdict.discrepancies[:2])
