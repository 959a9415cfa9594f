"""Put the shards of one run together.

The guarantee: what is merged is what one machine would have run. Every shard wrote down all tests of the run and which
are its own, and all that they depend on; here all must agree, no test may be in two shards, and each must be in one.
A test's cases follow from the run's seed and its own name, and nothing from what ran before it.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from equivcheck import refusals
from equivcheck.case import CaseError
from equivcheck.engine.events import AnyEvent, Collected, Planned, Stopped, to_line
from equivcheck.gate import pages
from equivcheck.gate.gather import gather
from equivcheck.gate.result import Result
from equivcheck.gate.run import CASES, EVENTS, read_events
from equivcheck.store import write_atomically


def merge(folders: Sequence[Path], out: Path, unsupported: Path | None = None) -> Result:
    """Merge the folders of gates into `out`, and write everything there that a gate writes.

    Parameters
    ----------
    unsupported
        File with a reason a line for which the subject may refuse cases; the built-in one otherwise.

    Returns
    -------
    Result
        Could not tell, if a shard is missing or did not finish and nothing was wrong.

    Raises
    ------
    CaseError
        If a folder holds no run, two differ in anything on which results depend, or a shard is there twice.
    """
    events: list[AnyEvent] = []
    plans: list[Planned] = []
    versions: list[dict[str, dict[str, str]]] = []
    for folder in folders:
        found = list(read_events(folder))
        plan = next((event for event in reversed(found) if isinstance(event, Planned)), None)
        if plan is None:
            raise CaseError(f"{folder} holds no run of a gate that came to its tests; equivcheck gate --out makes one")
        plans.append(plan)
        versions += [event.versions for event in found if isinstance(event, Collected)]
        events += found
    _agree(folders, plans)
    if any(other != versions[0] for other in versions):
        raise CaseError(f"the shards ran on other versions of the subject: {versions}; merge shards of one build")
    absent = _absent(plans)
    if absent:
        events.append(Stopped(f"shard {', '.join(absent)} is missing"))
    (out / CASES).mkdir(parents=True, exist_ok=True)
    for folder in folders:
        for part in (CASES, "scripts"):
            for path in sorted((folder / part).glob("*")) if folder.resolve() != out.resolve() else []:
                (out / part).mkdir(exist_ok=True)
                shutil.copyfile(path, out / part / path.name)
    write_atomically(out / EVENTS, b"".join(map(to_line, events)))
    pinned = plans[0].pinned
    file = unsupported or refusals.recorded_file(pinned["subject"], on_gpu="driver" in pinned)
    accepted = None if file is None else refusals.read(file)
    result = gather(events, out, accepted, whole=True)
    pages.write(result, out)
    return result


def _agree(folders: Sequence[Path], plans: Sequence[Planned]) -> None:
    first = plans[0]
    for folder, plan in zip(folders, plans, strict=True):
        names = sorted(n for n in {*first.pinned, *plan.pinned} if first.pinned.get(n) != plan.pinned.get(n))
        if names:
            apart = "; ".join(f"{n} is {first.pinned.get(n)!r} and {plan.pinned.get(n)!r}" for n in names)
            raise CaseError(f"{folders[0]} and {folder} are no shards of one run: {apart}")
        if plan.every != first.every or plan.shard[1] != first.shard[1]:
            raise CaseError(f"{folders[0]} and {folder} are no shards of one run: they collected other tests")
    seen: dict[str, Path] = {}
    for folder, plan in zip(folders, plans, strict=True):
        for key in plan.mine:
            if key in seen:
                raise CaseError(f"{seen[key]} and {folder} both ran shard {plan.shard[0]}/{plan.shard[1]}: {key}")
            seen[key] = folder


def _absent(plans: Sequence[Planned]) -> list[str]:
    """Shards that are not there; if all are, their tests are all tests."""
    number = plans[0].shard[1]
    there = {plan.shard[0] for plan in plans}
    absent = [f"{part}/{number}" for part in range(1, number + 1) if part not in there]
    if not absent and {key for plan in plans for key in plan.mine} != set(plans[0].every):
        raise CaseError("the shards together have not all tests of the run; this is an error of equivcheck itself")
    return absent
