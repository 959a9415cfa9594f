"""The gate as a user runs it, in processes: builds of every kind, runs that are ended, shards, baselines."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as xml

import pytest

from equivcheck.gate.result import Result, read

if TYPE_CHECKING:
    from tests.selftest.conftest import Engine

BARE_CASE = '{"equivcheck_case":1,"features":[{"rows":2,"dim":4,"bags":[{"lookups":[[0,%d]]}]}]}'
PAGES = {"result.json", "junit.xml", "summary.md", "events.jsonl", "report.html", "cases", "unsupported.txt"}


FAULTS = "with faults"


def arguments(kernels: Path, kernel: str, out: str, *more: str) -> list[str]:
    """A small gate: the property of the engine's folder, no golden cases, and faults only if `FAULTS` is there."""
    common = ["--suite=test_sums.py", "--profile=quick", "-n1", "--no-golden"]
    faults = [] if FAULTS in more else ["--no-faults"]
    return [
        "gate",
        f"--subject={kernels}:{kernel}",
        *common,
        *faults,
        f"--out={out}",
        *(part for part in more if part != FAULTS),
    ]


def gate(engine: Engine, kernels: Path, kernel: str, *more: str, out: str = "out") -> tuple[int, str, Result]:
    """Exit code, output and result of a run."""
    done = engine.equivcheck(*arguments(kernels, kernel, out, *more))
    return done.returncode, done.stdout + done.stderr, read(engine.folder / out)


def plain(result: Result) -> dict[str, Any]:
    """What must not depend on how a run was cut: everything but times."""
    return {
        "answer": result.answer,
        "statuses": result.statuses,
        "tests": result.tests,
        "coverage": result.coverage.judged,
        "tensors": {p.name: (p.slices, p.counts.statuses, p.counts.tensors) for p in result.properties},
        "failures": sorted((f.source, f.symptom, json.dumps(f.case)) for f in result.failures),
        "reruns": sorted((r.source, r.name, r.status) for r in result.reruns),
        "faults": sorted((f.name, f.caught, f.cases, f.symptom) for f in result.faults),
    }


def test_a_right_build_passes_and_its_gate_can_fail(engine: Engine, kernels: Path) -> None:
    code, said, result = gate(engine, kernels, "Right", FAULTS)
    assert code == 0, said
    assert said.startswith("RIGHT: nothing was wrong in ")
    assert {path.name for path in (engine.folder / "out").iterdir()} >= PAGES
    assert [fault.caught for fault in result.faults if not fault.refused] == [True] * 7
    assert [fault.control for fault in result.faults if fault.control] == []
    assert result.properties[0].counts.types["fp32"].statuses["passed"] == result.judged
    suites = xml.fromstring((engine.folder / "out" / "junit.xml").read_text())
    assert (suites.get("failures"), suites.get("errors")) == ("0", "0")
    assert "RIGHT" in (engine.folder / "out" / "report.html").read_text()


def test_a_wrong_build_fails_and_what_failed_runs_first_the_next_time(engine: Engine, kernels: Path) -> None:
    code, said, result = gate(engine, kernels, "LosesTail")
    assert code == 1, said
    [failure] = result.failures
    assert failure.symptom == "output: not exact"
    assert failure.replay == f"equivcheck replay out/{failure.saved}"
    assert (engine.folder / "out" / failure.saved).is_file()
    assert (engine.folder / "out" / failure.worst).is_file()
    again = engine.equivcheck(*failure.replay.split()[1:])
    assert again.stdout.startswith("SAME"), again.stdout
    suites = xml.fromstring((engine.folder / "out" / "junit.xml").read_text())
    assert suites.get("failures") == "2", "the property, and the answer"

    code, said, result = gate(engine, kernels, "LosesTail")
    assert code == 1
    assert {rerun.status for rerun in result.reruns} == {"failed"}
    names = [rerun.name for rerun in result.reruns]
    code, said, result = gate(engine, kernels, "Right", "--again=out/cases", out="mended")
    assert code == 0, said
    assert [rerun.name for rerun in result.reruns] == names, "saved under the names that they had"
    assert {(rerun.recorded, rerun.status) for rerun in result.reruns} == {("failed", "passed")}

    changed = engine.equivcheck("diff", "out", "mended", "--json")
    assert changed.returncode == 1
    changes = {(c["kind"], c["before"], c["after"]) for c in json.loads(changed.stdout)["changes"]}
    assert ("answer", "wrong", "right") in changes
    assert ("failure", "failed", "") in changes
    assert engine.equivcheck("diff", "out", "out").stdout.startswith("0 changes")


@pytest.mark.parametrize(("kernel", "status"), [("Crashes", "crashed"), ("Killed", "crashed"), ("Hangs", "timeout")])
def test_a_build_that_ends_its_process_is_reported_and_nothing_is_lost(
    engine: Engine, kernels: Path, kernel: str, status: str
) -> None:
    engine.change("max_size=3", "max_size=1")
    code, said, result = gate(engine, kernels, kernel, "--time-limit=1")
    assert code == 1, said
    assert f"the property sums failed ({status})" in said
    [failure] = result.failures
    assert failure.status == status
    assert failure.case["features"][0]["bags"] == [{"lookups": [[0, 3]]}]
    assert result.finished
    assert result.statuses == {"passed": 5, status: 1}
    # The saved case ends its process again, and again it is only that case which is lost.
    code, said, result = gate(engine, kernels, kernel, "--time-limit=1")
    assert code == 1
    assert [rerun.status for rerun in result.reruns] == [status]
    assert result.statuses == {"passed": 5, status: 2}


def test_a_subject_that_is_missing_or_takes_nothing_is_no_answer(engine: Engine, kernels: Path) -> None:
    code, said, result = gate(engine, kernels, "Absent")
    assert (code, result.exit_code) == (2, 2)
    assert "this kernel needs a machine that nobody has" in said
    code, said, result = gate(engine, kernels, "Refuses", out="refuses")
    assert code == 2
    assert "no case was judged, since the subject refuses all: it takes no cases at all" in said
    assert list(result.unsupported) == ["it takes no cases at all"]
    assert (engine.folder / "refuses" / "unsupported.txt").read_text() == "it takes no cases at all\n"


def test_a_budget_that_is_too_short_is_no_answer(engine: Engine, kernels: Path) -> None:
    code, said, result = gate(engine, kernels, "Right", "--budget=1s")
    assert code == 2
    assert not result.finished
    assert "budget" in said


@pytest.mark.parametrize(
    "ending",
    [signal.SIGTERM, signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.soak)],  # one handler for two
    ids=lambda s: s.name,
)
def test_a_run_that_is_ended_leaves_a_valid_result_and_is_taken_up(
    engine: Engine, kernels: Path, ending: signal.Signals
) -> None:
    # The first property ends; the second waits as long as there is a file.
    (engine.folder / "wait").touch()
    ones = (engine.folder / "test_sums.py").read_text().replace("[0, 1, 2, 3, 4, 5]", "[0, 1]")
    (engine.folder / "test_ones.py").write_text(ones.replace("test_sums", "test_ones"))
    command = arguments(kernels, "Waits", "out", "--suite=test_ones.py")
    command = [part for part in command if part != "--suite=test_sums.py"] + ["--suite=test_sums.py"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "equivcheck", *command], cwd=engine.folder, env=kept, stderr=subprocess.PIPE, text=True
    )
    events = engine.folder / "out" / "events.jsonl"
    until = time.monotonic() + 120
    while not (events.exists() and b'"event":"slice"' in events.read_bytes()):
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.1)
    process.send_signal(ending)
    process.communicate(timeout=60)
    result = read(engine.folder / "out")
    assert not result.finished
    if ending is signal.SIGKILL:
        assert process.returncode == -signal.SIGKILL
        assert "the run has not come to its end" in result.reasons
    else:
        assert process.returncode == 2
        assert f"it was ended by {ending.name}" in result.reasons
        assert [part.name for part in result.properties] == ["ones"]
        assert not list((engine.folder / "out" / "cases").glob("*.json")), "a case that was dropped is not deadly"
    (engine.folder / "wait").unlink()
    taken = engine.equivcheck(*command)
    assert taken.returncode == 0, taken.stdout + taken.stderr
    assert "taking up the run of out: 1 of 2 tests are left" in taken.stderr
    whole = read(engine.folder / "out")
    assert whole.finished
    fresh = engine.equivcheck(*command, "--fresh")
    assert fresh.returncode == 0
    assert plain(whole) == plain(read(engine.folder / "out"))


def test_shards_merge_into_what_one_machine_runs(engine: Engine, kernels: Path) -> None:
    more = ("--profile=default", FAULTS)
    _, _, whole = gate(engine, kernels, "LosesTail", *more, out="whole")
    for part in ("1", "2"):
        _, _, shard = gate(engine, kernels, "LosesTail", *more, f"--shard={part}/2", out=f"part{part}")
        assert 0 < shard.tests < whole.tests
    merged = engine.equivcheck("merge", "part1", "part2", "--out=merged")
    assert merged.returncode == 1, merged.stdout + merged.stderr
    result = read(engine.folder / "merged")
    assert plain(result) == plain(whole)
    assert result.shards == [(1, 2), (2, 2)]
    assert all((engine.folder / "merged" / failure.saved).is_file() for failure in result.failures)

    half = engine.equivcheck("merge", "part1", "--out=half")
    assert half.returncode in (1, 2)
    assert any("shard 2/2 is missing" in reason for reason in read(engine.folder / "half").reasons)
    twice = engine.equivcheck("merge", "part1", "part1", "--out=twice")
    assert twice.returncode == 2
    assert "both ran shard 1/2" in twice.stderr
    other = engine.equivcheck("merge", "part1", "whole", "--out=other")
    assert other.returncode == 2
    assert "are no shards of one run" in other.stderr


def test_a_baseline_tells_equal_bits_from_wrong_ones(engine: Engine, kernels: Path) -> None:
    (engine.folder / "three.jsonl").write_text("".join(BARE_CASE % times + "\n" for times in (1, 2, 3)))
    recorded = engine.equivcheck(
        "golden", "record", f"--subject={kernels}:Right", "--cases=three.jsonl", "--out=recorded"
    )
    assert recorded.returncode == 0, recorded.stdout + recorded.stderr
    code, said, result = gate(engine, kernels, "Right", "--baseline=recorded")
    assert code == 0, said
    assert result.baseline is not None
    assert result.baseline.cases == {"bit-equal": 3}
    code, said, result = gate(engine, kernels, "LosesTail", "--baseline=recorded", out="worse")
    assert code == 1
    assert result.baseline is not None
    assert result.baseline.cases == {"bit-equal": 2, "outside": 1}
    assert [failure.source for failure in result.failures].count("baseline") == 1
    assert result.baseline.equal < result.baseline.elements
    missing = engine.equivcheck(*arguments(kernels, "Right", "none", "--baseline=nowhere"))
    assert missing.returncode == 2
    assert "neither a folder of recordings nor a subject" in missing.stderr


@pytest.mark.parametrize("verb", ["gate", "merge", "diff"])
def test_help_fits_a_screen(engine: Engine, verb: str) -> None:
    result = engine.equivcheck(verb, "--help")
    assert result.returncode == 0
    assert len(result.stdout.splitlines()) <= 40


def test_github_gets_a_summary_and_annotations(
    engine: Engine, kernels: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "page.md"))
    code, said, _ = gate(engine, kernels, "LosesTail")
    assert code == 1
    assert "::error title=sums on " in said
    assert "::error title=equivcheck gate::WRONG: " in said
    assert (tmp_path / "page.md").read_text() == (engine.folder / "out" / "summary.md").read_text()
