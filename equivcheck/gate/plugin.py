"""pytest plugin of the gate: what was wrong before comes first, then one slice of every property, then the next.

So whatever the budget allows is spread evenly over the properties, and each shard gets a part of everything.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from equivcheck.engine.events import Erred, Event
from equivcheck.gate import orders as keys
from equivcheck.gate.alone import join
from equivcheck.gate.orders import Orders, Tests
from equivcheck.store import write_atomically

OPTION = "equivcheck_gate"
ARGUMENT = "gate_case"
"""Argument of the gate's own tests, through which they get their case."""
EVENT = pytest.StashKey[Event]()
_ORDERS = pytest.StashKey[Orders]()
_FIRST = ("fault", "finding", "saved", "golden", "recorded")
"""Kinds of tests that run before the slices, in this order: without a proof that it can fail a gate says nothing."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take the file with the orders."""
    parser.getgroup("equivcheck").addoption("--equivcheck-gate", metavar="FILE", help="orders of equivcheck gate")


def orders_of(config: pytest.Config) -> Orders:
    """The orders of a run, read once a process."""
    if _ORDERS not in config.stash:
        config.stash[_ORDERS] = msgspec.json.decode(Path(config.getoption(OPTION)).read_bytes(), type=Orders)
    return config.stash[_ORDERS]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the tests, write down their keys, and leave those of this shard that are not done."""
    orders = orders_of(config)
    ours = [item for item in items if not _empty(item)]
    ours.sort(key=_rank)  # stable: within a rank, as collected
    every = [_key(item) for item in ours]
    mine = orders.mine(every)
    done = set(orders.done)
    chosen = tuple(key for key, kept in zip(every, mine, strict=True) if kept)
    write_atomically(Path(orders.tests), msgspec.json.encode(Tests(tuple(every), chosen)))
    run = [item for item, key, kept in zip(ours, every, mine, strict=True) if kept and key not in done]
    kept_ids = set(map(id, run))
    config.hook.pytest_deselected(items=[item for item in items if id(item) not in kept_ids])
    items[:] = run


def pytest_runtest_setup(item: pytest.Item) -> None:
    """After the deadline, no test starts."""
    deadline = orders_of(item.config).deadline
    if deadline and time.time() > deadline:
        pytest.skip("the budget is spent")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach what a test of the gate's own found, as plain data, which xdist carries."""
    report = yield
    if call.when == "call" and EVENT in item.stash:
        event = item.stash[EVENT]
    elif report.failed and not hasattr(report, "equivcheck"):
        event = Erred(_key(item), report.longreprtext)
    else:
        return report
    report.equivcheck_event = msgspec.to_builtins(event)  # type: ignore[attr-defined]
    return report


def pytest_configure(config: pytest.Config) -> None:
    """In a worker, hold the gate's folder; pytest itself has inherited its hold."""
    if hasattr(config, "workerinput"):
        config.add_cleanup(join(Path(orders_of(config).tests).parent).close)


def _parameters(item: pytest.Item) -> dict[str, Any]:
    callspec = getattr(item, "callspec", None)
    return {} if callspec is None else callspec.params


def _empty(item: pytest.Item) -> bool:
    """Whether pytest made the test only to say that there is nothing to run it on."""
    return any(value.__class__.__name__ == "NotSetType" for value in _parameters(item).values())


def _key(item: pytest.Item) -> str:
    found = _parameters(item)
    if ARGUMENT in found:
        return str(found[ARGUMENT].key)
    if "equivcheck_slice" in found:
        part = found["equivcheck_slice"]
        return keys.slice_key(item.originalname.removeprefix("test_"), part.subject, part.witness or "", part.number)  # type: ignore[attr-defined]
    if "recorded_finding" in found:
        finding, subject = found["recorded_finding"]
        return keys.finding_key(finding.name, subject)
    return f"test {item.nodeid.rpartition('/')[2]}"


def _rank(item: pytest.Item) -> int:
    kind = _key(item).partition(" ")[0]
    if kind in _FIRST:
        return _FIRST.index(kind)
    part = _parameters(item).get("equivcheck_slice")
    return len(_FIRST) + (0 if part is None else part.number)
