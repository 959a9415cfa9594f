"""The catalogue of faults: every edit applies, right copies pass, and the suite sees faults of every class.

The quick part hunts one fault of each class. `pytest -m soak tests/selftest/test_faults.py` hunts all of them, and
shows that those which cannot be seen are not. `equivcheck faults` is the same, spread over processes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from equivcheck.backends.protocol import BackendUnavailable
from equivcheck.faults.catalogue import FAULTS, by_name, control, faulty
from equivcheck.faults.fault import ORDER, Edit, Fault, FaultError, Kind, Reach, Subtlety
from equivcheck.faults.hunt import Hunting, first_kill, properties
from equivcheck.faults.matrix import Matrix
from equivcheck.faults.pool import hunt
from equivcheck.faults.simulated import Kernel
from equivcheck.faults.source import edited, sources
from equivcheck.faults.worker import Request
from equivcheck.runner import Subject

SUBJECT = "triton:cpu"

ONE_OF_EACH = {
    Kind.LOOKUPS: "lookup-33-lost",
    Kind.WIDTH: "vector-tail-not-updated",
    Kind.ACCUMULATOR: "gradient-in-fp16",
    Kind.ROUNDING: "output-through-fp16",
    Kind.STOCHASTIC: "rounding-not-stochastic",
    Kind.PAIRING: "weights-not-permuted",
    Kind.WEIGHT_GRADIENT: "weight-gradient-not-divided",
    Kind.MEAN: "mean-padded-to-vectors",
    Kind.UNWRITTEN: "empty-bag-not-written",
    Kind.RUNS: "run-cut-after-eight",
    Kind.OPTIMIZER: "mean-over-padded-width",
    Kind.STATE: "rate-of-the-backward",
    Kind.SHARING: "columns-by-table",
    Kind.VARIABLE_BATCH: "width-of-the-first-feature",
    Kind.BOUNDS: "index-of-rows-passes",
    Kind.NON_FINITE: "zero-times-infinity",
    Kind.SMALL_TABLES: "repeats-in-a-tile-merged",
    Kind.LAYOUT: "weights-taken-for-contiguous",
    Kind.OFFSETS: "keys-of-12-bits",
    Kind.CALLS: "step-of-the-backward",
    Kind.RACES: "order-of-atomics",
    Kind.HARDWARE: "quotient-to-22-bits",
}


@pytest.fixture(scope="module", autouse=True)
def interpreter() -> None:
    """Kernels are interpreted here, or nothing of this runs."""
    try:
        control(SUBJECT)
    except BackendUnavailable as absent:
        pytest.skip(str(absent))


# The catalogue
def test_it_is_large_and_mostly_subtle() -> None:
    assert len(FAULTS) >= 80
    assert sum(fault.subtle for fault in FAULTS.values()) >= len(FAULTS) / 2
    assert {fault.kind for fault in FAULTS.values()} == set(Kind)
    assert {fault.injection for fault in FAULTS.values()} == {"source edit", "wrapper", "simulated kernel"}


def test_every_edit_applies_and_is_python() -> None:
    for fault in FAULTS.values():
        if fault.edits:
            for name, text in edited(fault.edits).items():
                compile(text, f"{fault.name}/{name}", "exec")


def test_classes_name_properties_that_there_are() -> None:
    assert set(ORDER) == set(Kind)
    assert {name for names in ORDER.values() for name in names} <= set(properties())


def test_what_cannot_be_seen_says_why() -> None:
    for fault in FAULTS.values():
        assert bool(fault.proof) == (fault.reach is not Reach.HERE), fault.name
    with pytest.raises(FaultError, match="says no reason"):
        Fault("x", Kind.MEAN, "", Subtlety.BITS, (Edit("module.py", "a", "b"),), reach=Reach.NOBODY)


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        (Edit("forward.py", "no such text", ""), "occurs 0 times"),
        (Edit("forward.py", "bag", ""), "not once"),
        (Edit("missing.py", "bag", ""), "does not have"),
    ],
)
def test_an_edit_that_does_not_apply_is_refused(edit: Edit, sentence: str) -> None:
    with pytest.raises(FaultError, match=sentence):
        edited((edit,))


def test_the_clean_sources_stay() -> None:
    before = sources()
    faulty(by_name("mean-ignored"), SUBJECT)
    assert sources() == before


def test_an_edit_fits_the_triton_tbe_alone() -> None:
    with pytest.raises(FaultError, match="cannot be put into torch"):
        faulty(by_name("mean-ignored"), "torch:cpu")
    with pytest.raises(FaultError, match="there is no fault"):
        by_name("nothing")


# Controls
@pytest.mark.parametrize("name", ["run_length", "optimizer_state", "bounds"])
def test_an_unedited_copy_passes(name: str) -> None:
    backend = control(SUBJECT)
    assert Hunting(Subject("control", backend), "quick", 0).kill(properties()[name]) is None


@pytest.mark.parametrize("name", ["forward", "updated_rows", "optimizer_state", "determinism", "pooling"])
def test_the_simulated_kernel_passes(name: str) -> None:
    hunting = Hunting(Subject("simulated", Kernel()), "default", 0)
    assert hunting.kill(properties()[name]) is None
    assert hunting.cases > 50


# Kills
@pytest.mark.parametrize("kind", Kind)
def test_a_fault_of_each_class_is_seen(kind: Kind) -> None:
    name = ONE_OF_EACH[kind]
    assert by_name(name).kind is kind
    # In a process of its own: a kernel that writes past its buffers may end it, which is a kill, too.
    (found,) = hunt([Request(name, SUBJECT, "default", only=ORDER[kind])], 1)
    assert found.kill is not None, f"{name} lives through {found.cases} cases of {', '.join(ORDER[kind])}"


def test_a_killing_case_is_made_smaller() -> None:
    drawn = first_kill("mean-ignored", SUBJECT, "quick", only=("pooling",)).kill
    small = first_kill("mean-ignored", SUBJECT, "quick", only=("pooling",), minimal=True).kill
    assert drawn is not None
    assert small is not None
    assert small.minimal
    assert len(json.dumps(small.case)) <= len(json.dumps(drawn.case))


def test_hunts_run_in_processes_and_are_told() -> None:
    requests = [
        Request("stale-output", SUBJECT, "quick", only=("pooling",)),
        Request("no such fault", SUBJECT, "quick"),
    ]
    results = {result.fault: result for result in hunt(requests, 2)}
    assert results["stale-output"].kill is None  # pooling runs one step a case
    assert results["stale-output"].cases > 0
    assert "there is no fault" in results["no such fault"].error


def test_a_survivor_makes_the_matrix_red() -> None:
    matrix = Matrix()
    matrix.add(first_kill("stale-output", SUBJECT, "quick", only=("pooling",)))
    assert matrix.survivors == ["stale-output"]
    assert matrix.exit_code == 1
    assert "NOT SEEN" in matrix.rows()[0]
    assert json.loads(matrix.to_json())["exit_code"] == 1


def test_the_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "equivcheck", "faults", "output-dtype-fp32", f"--subject={SUBJECT}", "--json"]
    done = subprocess.run([*command, "--property=forward"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    entry = json.loads(done.stdout)["faults"][0]
    assert entry["result"]["kill"]["symptom"] == "output: dtype"
    assert entry["report"].startswith("https://")


# All of them
@pytest.mark.soak
@pytest.mark.parametrize("name", [fault.name for fault in FAULTS.values() if fault.reach is Reach.HERE])
def test_every_visible_fault_is_seen(name: str) -> None:
    (found,) = hunt([Request(name, SUBJECT, "default")], 1)
    assert found.kill is not None


@pytest.mark.soak
@pytest.mark.parametrize("name", [fault.name for fault in FAULTS.values() if fault.reach is Reach.NOBODY])
def test_no_invisible_fault_is_seen(name: str) -> None:
    assert first_kill(name, SUBJECT, "quick").kill is None
