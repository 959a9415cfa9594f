"""The gate on wrong builds: a fault of every class turns it red, and one that ends its process loses nothing.

Half an hour together, so only with `pytest -m soak`. A fault's gate runs the two properties that are the first to look
for its class: the cases of a test do not depend on what else runs. `--junitxml=FILE` keeps the rows of docs/gate.md.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from equivcheck.backends.protocol import BackendUnavailable
from equivcheck.faults.catalogue import by_name, control
from equivcheck.faults.fault import ORDER, Kind
from equivcheck.faults.hunt import properties
from equivcheck.gate.result import Answer, read
from tests.selftest.test_faults import ONE_OF_EACH

if TYPE_CHECKING:
    from tests.selftest.conftest import Engine

FAULTY = Path(__file__).with_name("faulty.py")


@pytest.mark.soak
@pytest.mark.parametrize("kind", ONE_OF_EACH, ids=lambda kind: kind.name.lower())
def test_a_fault_of_every_class_turns_the_gate_red(
    engine: Engine, kind: Kind, record_property: Callable[[str, object], None]
) -> None:
    try:
        control("triton")
    except BackendUnavailable as absent:
        pytest.skip(str(absent))
    fault = by_name(ONE_OF_EACH[kind])
    files = dict.fromkeys(properties()[name].file for name in list(dict.fromkeys((*fault.first, *ORDER[kind])))[:2])
    options = ["--profile=default", "--no-golden", "--no-faults", "--no-shrink", "--budget=4m", "-n1", "--out=out"]
    suite = [f"--suite={path}" for path in files]
    done = engine.equivcheck("gate", f"--subject={FAULTY}:kernel+{fault.name}", *options, *suite)
    result = read(engine.folder / "out")
    saved = len(list((engine.folder / "out" / "cases").glob("*.json")))
    record_property("row", f"{kind.value} | {fault.name} | {result.seconds:.0f} s | {result.judged} | {saved}")
    assert done.returncode == 1, done.stdout + done.stderr
    assert result.answer is Answer.WRONG
    assert saved >= 1
    assert all((engine.folder / "out" / failure.saved).is_file() for failure in result.failures)


@pytest.mark.soak
@pytest.mark.parametrize(("way", "status"), [("crashes", "crashed"), ("hangs", "timeout"), ("eats", "error")])
def test_a_build_that_ends_its_process_loses_no_other_case(
    engine: Engine, way: str, status: str, record_property: Callable[[str, object], None]
) -> None:
    options = ["--profile=default", "--no-golden", "--no-faults", "--no-shrink", "--budget=4m", "-n2", "--out=out"]
    limit = "--time-limit=10" if way == "hangs" else "--time-limit=60"  # a loaded machine takes seconds for a case
    suite = [f"--suite={properties()[name].file}" for name in ("forward", "pooling", "sharing")]
    done = engine.equivcheck("gate", f"--subject={FAULTY}:dying+{way}", limit, *options, *suite)
    result = read(engine.folder / "out")
    saved = len(list((engine.folder / "out" / "cases").glob("*.json")))
    ended = result.statuses.get(status, 0)
    record_property("row", f"{way} | {result.seconds:.0f} s | {result.judged} | {ended} {status} | {saved}")
    assert done.returncode == 1, done.stdout + done.stderr
    assert result.finished, result.missing
    assert {failure.status for failure in result.failures} == {status}
    assert result.statuses[status] >= len(result.failures) > 1
    assert set(result.statuses) <= {"passed", "mistrusted", "unsupported", status}
    assert all((engine.folder / "out" / failure.saved).is_file() for failure in result.failures)
