"""The command line: exit codes, sentences, replay of every status, check on the suite."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.selftest.conftest import Engine

BARE_CASE = '{"equivcheck_case":1,"features":[{"rows":2,"dim":4,"bags":[{"lookups":[[0,3]]}]}]}'


@pytest.fixture
def failed(engine: Engine) -> Path:
    """A saved case of LosesTail."""
    engine.run("LosesTail")
    [path] = [path for path in engine.paths() if "shrunk" in path.name]
    return path


@pytest.mark.parametrize(
    ("kernel", "code", "first", "then"),
    [
        ("Right", 0, "FIXED", "what was recorded"),
        ("LosesTail", 1, "SAME", "output: not exact"),
        ("HalfRate", 1, "DIFFERENT", "updated rows: not exact"),
        ("Crashes", 1, "DIFFERENT", "ended by SIGSEGV"),
        ("Hangs", 1, "DIFFERENT", "timeout: the case took longer than 1 s"),
        ("Refuses", 2, "UNSUPPORTED", "it takes no cases at all"),
        ("Raises", 2, "ERROR", "no path for bags of three"),
        ("Absent", 2, "UNSUPPORTED", "needs a machine that nobody has"),
        ("Sometimes", 1, "SAME in 4 of 10 runs", "output: not exact"),
    ],
)
def test_replay_of_a_saved_case(
    engine: Engine, failed: Path, kernels: Path, kernel: str, code: int, first: str, then: str
) -> None:
    result = engine.equivcheck("replay", str(failed), f"--subject={kernels}:{kernel}", "--time-limit=1")
    assert result.stdout.startswith(f"{first} {failed} on {kernels}:{kernel}\n"), result.stdout + result.stderr
    assert then in result.stdout
    assert result.returncode == code


def test_replay_without_the_subject_shows_truth_and_recorded_value(engine: Engine, failed: Path) -> None:
    document = json.loads(failed.read_text())
    document["provenance"]["subject"] = "./gone.py:Kernel"
    failed.write_text(json.dumps(document))
    result = engine.equivcheck("replay", str(failed))
    assert result.returncode == 2
    assert "gone.py" in result.stdout
    lines = result.stdout.splitlines()
    recorded = lines[lines.index("  what was recorded:") :]
    assert any(line.strip().startswith("kernel ") for line in recorded)
    assert any(line.strip().startswith("truth ") for line in recorded)


def test_replay_runs_the_property_that_failed(engine: Engine) -> None:
    # The fault is in a relation, which judging the case alone does not show.
    engine.change("    check(case)", "    assert check(case).right and len(case.features[0].bags) < 2, 'too many bags'")
    engine.run("Right")
    [path, *_] = engine.paths()
    result = engine.equivcheck("replay", str(path), "--times=1")
    assert result.stdout.startswith("SAME "), result.stdout
    assert "too many bags" in result.stdout


def test_replay_of_a_crash(engine: Engine) -> None:
    engine.change("max_size=3", "max_size=1")
    engine.run("Crashes", "-n1")
    [path] = engine.paths()
    result = engine.equivcheck("replay", str(path), "--times=2")
    assert result.stdout.startswith(f"SAME {path}")
    assert result.returncode == 1


def test_replay_of_a_case_by_itself(engine: Engine, kernels: Path) -> None:
    path = engine.folder / "case.json"
    path.write_text(BARE_CASE)
    result = engine.equivcheck("replay", str(path), f"--subject={kernels}:LosesTail", "--times=1")
    assert result.stdout.startswith("DIFFERENT ")
    assert result.returncode == 1
    without = engine.equivcheck("replay", str(path))
    assert "names no subject; say on which to run it: --subject NAME" in without.stdout
    assert without.returncode == 2


def test_replay_of_several_files_and_json(engine: Engine, failed: Path) -> None:
    (engine.folder / "bad.json").write_text("{")
    result = engine.equivcheck("replay", str(failed), "bad.json", "--times=1", "--json")
    assert result.returncode == 1
    assert [entry["result"] for entry in json.loads(result.stdout)] == ["same", "error"]


def check(engine: Engine, *arguments: str) -> subprocess.CompletedProcess[str]:
    return engine.equivcheck("check", "--profile=quick", "-n2", *arguments)


def test_check_of_a_right_kernel(engine: Engine, kernels: Path) -> None:
    result = check(engine, "run_length", "sharing", f"--subject={kernels}:Right")
    assert result.returncode == 0, result.stdout + result.stderr
    last = result.stdout.splitlines()[-1]
    assert last.startswith("RIGHT: ")
    assert "run_length " in result.stdout
    assert "coverage: edges " in result.stdout
    assert not (engine.folder / "failures").exists()


def test_check_of_a_wrong_kernel(engine: Engine, kernels: Path) -> None:
    result = check(engine, "run_length", f"--subject={kernels}:LosesTail", "--json", "--events=out/events.jsonl")
    assert result.returncode == 1, result.stdout + result.stderr
    answer = json.loads(result.stdout)
    assert answer["exit_code"] == 1
    assert answer["sentence"].startswith("WRONG: ")
    assert (engine.folder / "out" / "events.jsonl").exists()
    [failure, *_] = answer["failures"]
    replayed = engine.python("-m", *failure["replay"].split(), "--times=1")
    assert replayed.stdout.startswith("SAME "), replayed.stdout


@pytest.mark.parametrize(
    ("kernel", "sentence"),
    [
        ("Refuses", "COULD NOT TELL: no case was judged"),
        ("Absent", "does not work here: "),
        ("Nowhere", "names the class 'Nowhere'"),
    ],
)
def test_check_that_cannot_tell(engine: Engine, kernels: Path, kernel: str, sentence: str) -> None:
    result = check(engine, "run_length", f"--subject={kernels}:{kernel}")
    assert result.returncode == 2, result.stdout + result.stderr
    assert sentence in result.stdout.splitlines()[-1]


def test_check_survives_a_kernel_that_always_crashes(engine: Engine, kernels: Path) -> None:
    result = check(engine, "run_length", f"--subject={kernels}:CrashesAlways")
    assert result.returncode == 1, result.stdout + result.stderr
    assert result.stdout.splitlines()[-1].startswith("WRONG: ")


def test_check_names_the_properties_that_there_are(engine: Engine) -> None:
    result = check(engine, "no_such")
    assert result.returncode == 2
    assert "there is no property 'no_such'" in result.stderr


def test_check_tells_a_foreign_folder_named_strategies_apart(engine: Engine, kernels: Path) -> None:
    (engine.folder / "strategies").mkdir()
    (engine.folder / "strategies" / "__init__.py").write_text("raise RuntimeError('not yours')\n")
    assert check(engine, "run_length", f"--subject={kernels}:Right").returncode == 0


def test_pytest_says_whose_strategies_it_found(engine: Engine) -> None:
    # python -m pytest puts the folder that it is started from first on the path; the command pytest does not.
    (engine.folder / "strategies.py").write_text("")
    result = engine.run("Right")
    assert result.returncode != 0
    assert "another package named strategies" in result.stdout


@pytest.mark.parametrize("arguments", [(), ("check",), ("replay",), ("backends",)])
def test_help_fits_a_screen(engine: Engine, arguments: tuple[str, ...]) -> None:
    result = engine.equivcheck(*arguments, "--help")
    assert result.returncode == 0
    assert len(result.stdout.splitlines()) <= 40


def test_backends_lists_what_runs_here(engine: Engine) -> None:
    result = engine.equivcheck("backends", "--json")
    rows = {row["name"]: row for row in json.loads(result.stdout)}
    assert rows["torch"]["runs"]
    assert all(row["runs"] or row["reason"] for row in rows.values())


def test_an_error_of_our_own_is_no_verdict(engine: Engine) -> None:
    code = "from equivcheck import cli; cli.application = lambda: 1 / 0; cli.main()"
    result = engine.python("-c", code)
    assert result.returncode == 2
    assert "this is an error of equivcheck itself" in result.stderr


@pytest.mark.soak
def test_the_wheel_runs_the_suite_in_a_fresh_environment(tmp_path: Path, kernels: Path) -> None:
    root = Path(__file__).parents[2]
    venv, wheels = tmp_path / "venv", tmp_path / "wheels"
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", wheels, root], check=True
    )
    # The packages of this environment, but not its editable equivcheck: what is installed is the wheel.
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    [wheel] = wheels.glob("*.whl")
    python = venv / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--no-deps", wheel], check=True)
    site = next(path for path in map(Path, sys.path) if path.name == "site-packages")
    [own] = venv.glob("lib/python*/site-packages")
    for path in site.iterdir():
        if "equivcheck" not in path.name and not (own / path.name).exists():
            (own / path.name).symlink_to(path)
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PYTHONPATH"))}
    subject = f"--subject={kernels}:Right"
    for command in (
        (venv / "bin" / "equivcheck", "check", "run_length", "--profile=quick", subject),
        (python, "-P", "-m", "pytest", "--pyargs", "equivcheck.suite", "-k", "run_length", "-n2", subject),
    ):
        result = subprocess.run(command, cwd=tmp_path, env=outside, capture_output=True, text=True)
        assert result.returncode == 0, result.stdout + result.stderr
        assert "run_length " in result.stdout
