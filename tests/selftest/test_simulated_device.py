"""A device of PyTorch's that nobody has: it passes as it is, and each of its faults is caught by name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch.utils import backend_registration

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

pytestmark = pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this release of PyTorch cannot register a device from Python (2.11 and 2.13 can)",
)

Results = dict[str, dict[str, dict[str, Any]]]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A package that adds the device, as a vendor's does: PyTorch imports it through its entry point."""
    site = tmp_path_factory.mktemp("site")
    info = site / "simulated_device-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: simulated-device\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[torch.backends]\nsimulated_device = simulated_device:autoload\n")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
    return {**kept, "PYTHONPATH": os.pathsep.join(map(str, (site, HERE, ROOT)))}


@pytest.fixture(scope="module")
def trial(environment: dict[str, str]) -> Results:
    """Every fault on four cases, in one process: registering the device cannot be undone."""
    done = _python(environment, "-m", "simulated_device.trial")
    assert done.returncode == 0, done.stderr[-3000:]
    found: Results = json.loads(done.stdout)
    return found


def _python(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)


@pytest.mark.parametrize("pace", ["AT_ONCE", "LATE"])
def test_a_right_device_passes_however_late_its_queue_works(trial: Results, pace: str) -> None:
    for name, found in trial[f"NONE {pace}"].items():
        assert found["status"] == "passed", (name, found)


BREACHES = {
    "LAGGING_COPY": "lagging copy",
    "REUSED_STAGING": "reused buffer",
    "DOWN_CAST_MEMORY": "silent down-cast",
    "DOWN_CAST_LOOKUP": "silent down-cast",
    "FALL_BACK": "silent fall-back to the CPU",
    "HOST_POINTER": "host pointer handed over",
    "OTHER_DTYPE": "other dtype on the device",
    "OTHER_STRIDES": "other strides on the device",
}


@pytest.mark.parametrize("fault", BREACHES)
def test_a_fault_is_caught_by_its_name_and_by_no_other(trial: Results, fault: str) -> None:
    found = trial[f"{fault} AT_ONCE"]
    failed = [case for case in found.values() if case["status"] == "failed"]
    assert failed
    assert {symptom for case in failed for symptom in case["symptoms"]} == {BREACHES[fault]}
    assert {case["status"] for case in found.values()} <= {"failed", "passed"}


def test_a_fault_of_an_operator_or_a_type_leaves_the_cases_alone_that_do_without(trial: Results) -> None:
    assert trial["FALL_BACK AT_ONCE"]["none"]["status"] == "passed"
    assert trial["OTHER_DTYPE AT_ONCE"]["sum"]["status"] == "passed"
    assert trial["OTHER_DTYPE AT_ONCE"]["double"]["status"] == "failed"


def test_a_missing_operator_is_declared_and_named(trial: Results) -> None:
    found = trial["MISSING_SQRT AT_ONCE"]
    assert {name: case["status"] for name, case in found.items()} == {
        "sum": "passed",
        "mean": "unsupported",
        "none": "passed",
        "double": "unsupported",
    }
    assert found["mean"]["reason"] == "simulated does not have aten.sqrt of float32 (step: exact_adagrad in fp32)"


def test_a_missing_type_is_declared_and_named(trial: Results) -> None:
    found = trial["MISSING_DOUBLE AT_ONCE"]
    assert [name for name, case in found.items() if case["status"] != "passed"] == ["double"]
    assert "aten._embedding_bag of float64" in found["double"]["reason"]


def test_what_crosses_is_counted(trial: Results) -> None:
    """Step by step: the table of 5 x 4, one state for Adagrad, inputs in their buffers, offsets, rows and weights."""
    plain, adagrad = trial["NONE AT_ONCE"]["sum"], trial["NONE AT_ONCE"]["mean"]
    assert plain["copies"] > 10
    assert plain["to_device_bytes"] > 5 * 4 * 4
    more = adagrad["to_device_bytes"] - plain["to_device_bytes"]
    assert more == 5 * 4 * 4 + 3 * 4 * 2  # Adagrad's state, and the lengths of the bags in forward and backward


def test_the_suite_runs_on_it(environment: dict[str, str], tmp_path: Path) -> None:
    """End to end: the name of the device finds its package, its operators are tried, transfers are summed up."""
    suite = ROOT / "tests" / "equivalence"
    done = _python(
        environment,
        *("-m", "pytest", "-p", "equivcheck.pytest_plugin", "-c", os.devnull, "--rootdir", str(tmp_path), "-q"),
        *("-p", "no:cacheprovider", "--import-mode=importlib", f"--equivcheck-failures={tmp_path}"),
        *("--equivcheck-profile=quick", "--subject=torch:simulated"),
        str(suite / "test_pooling.py"),
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert "transfers: " in done.stdout


def test_its_operators_are_listed(environment: dict[str, str]) -> None:
    wrong = {**environment, "SIMULATED_DEVICE_FAULT": "there is no square root"}
    done = _python(wrong, "-m", "equivcheck", "backends", "--operators", "torch:simulated")
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    assert any("aten.sqrt" in line and "missing" in line for line in lines)
    assert any("aten._embedding_bag " in line and "runs" in line for line in lines)
