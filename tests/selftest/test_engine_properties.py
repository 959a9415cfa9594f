"""The engine through its surface: pytest on a property and a kernel from a file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.selftest.conftest import Engine


def test_a_right_kernel_passes_and_is_counted(engine: Engine) -> None:
    result = engine.run("Right")
    assert result.returncode == 0, result.stdout
    assert re.search(r"sums +20 +20 +100 % +100 % +0 % ", result.stdout)
    [slice_] = engine.events("slice")
    assert slice_["counts"]["statuses"] == {"passed": 20}
    assert slice_["outcome"] == "passed"
    assert not (engine.folder / "failures").exists()


def test_the_header_names_versions_seed_profile_and_subjects(engine: Engine) -> None:
    header = engine.run("Right", "--equivcheck-seed=7", "--collect-only").stdout
    assert "--equivcheck-profile quick --equivcheck-seed 7" in header
    assert "subjects" in header
    assert "kernels.py:Right" in header
    assert re.search(r"equivcheck: \S+ on .*; python 3\.\d+\.\d+, numpy ", header)


def test_a_failure_is_shrunk_saved_and_ends_with_its_replay(engine: Engine) -> None:
    result = engine.run("LosesTail", "-n2")
    assert result.returncode == 1
    assert "output: not exact at " in result.stdout
    assert "Case(features=(Feature(rows=2, dim=4, bags=(Bag(lookups=(Lookup(times=3),)),)),))" in result.stdout
    assert "SUM: the sum over the bag." in result.stdout
    for line in ("  kernel ", "  truth  ", "  error  "):
        assert line in result.stdout
    [slice_] = engine.events("slice")
    [failure] = slice_["failures"]
    assert failure["text"].splitlines()[-1] == failure["replay"]
    path = engine.folder / failure["replay"].removeprefix("equivcheck replay ")
    document = json.loads(path.read_text())
    assert document["case"]["features"][0]["bags"] == [{"lookups": [[0, 3]]}]
    assert document["provenance"]["versions"]["kernels"] == "1.2.3"
    assert document["provenance"]["seed"] == 0


def test_the_worst_case_is_saved_beside_the_shrunk_one(engine: Engine) -> None:
    engine.run("LosesTail")
    kinds = {document["kind"] for document in engine.saved()}
    assert kinds == {"shrunk", "worst"}


def test_one_fault_does_not_hide_another(engine: Engine) -> None:
    engine.run("TwoFaults")
    [slice_] = engine.events("slice")
    assert {failure["symptom"] for failure in slice_["failures"]} == {"output: not exact", "updated rows: not exact"}


def test_without_shrinking_the_case_is_saved_as_drawn(engine: Engine) -> None:
    engine.run("LosesTail", "--equivcheck-no-shrink")
    assert {document["kind"] for document in engine.saved()} <= {"drawn", "worst"}


def test_a_kernel_that_warns_and_overflows_is_not_blamed(engine: Engine) -> None:
    assert engine.run("Warns", "-W", "error").returncode == 0


def test_an_adapter_that_raises_is_an_error_with_its_traceback(engine: Engine) -> None:
    result = engine.run("Raises")
    assert result.returncode == 1
    assert "error: RuntimeError" in result.stdout
    assert "no path for bags of three" in result.stdout
    assert engine.saved()[0]["status"] == "error"


def test_a_subject_that_refuses_everything_is_skipped_with_its_reason(engine: Engine) -> None:
    result = engine.run("Refuses", "-rs")
    assert result.returncode == 0
    assert "supports none of the cases: it takes no cases at all (" in result.stdout
    [slice_] = engine.events("slice")
    assert slice_["outcome"] == "skipped"
    assert set(slice_["counts"]["statuses"]) == {"unsupported"}


def test_a_subject_that_does_not_work_fails_with_its_reason(engine: Engine) -> None:
    result = engine.run("Absent")
    assert result.returncode == 1
    assert "this kernel needs a machine that nobody has" in result.stdout


def test_a_property_that_draws_nothing_fails(engine: Engine) -> None:
    engine.change("@property_(CASES)", "@property_(CASES.filter(lambda _: 0))")
    result = engine.run("Right")
    assert result.returncode == 1
    assert "judged nothing" in result.stdout


def test_a_property_of_untrusted_cases_is_red_as_a_whole(engine: Engine) -> None:
    # Every case that the kernel runs is said to be mistrusted, as the verdict says of cases that could show nothing.
    (engine.folder / "conftest.py").write_text(
        "from dataclasses import replace\n"
        "from equivcheck import runner\n"
        "from equivcheck.verdict import Status\n"
        "judge = runner.judge\n"
        "runner.judge = lambda *given: replace(judge(*given), status=Status.MISTRUSTED)\n"
    )
    result = engine.run("Right")
    assert result.returncode == 1
    assert "20 of 20 judged cases could hardly have shown anything" in result.stdout
    assert engine.events("finished")[0]["problems"]


def test_collection_is_the_same_in_every_worker_and_alone(engine: Engine, kernels: Path) -> None:
    options = ("--collect-only", "-q", "--equivcheck-profile=default")
    alone = engine.run("Right", *options).stdout
    assert re.findall(r"test_sums\[.*\]", alone) == [f"test_sums[{kernels}:Right-{part}]" for part in (0, 1)]
    assert engine.run("Right", "-n3", "--equivcheck-profile=default").returncode == 0


def test_the_same_seed_gives_the_same_cases_and_another_gives_others(engine: Engine) -> None:
    def digest(*options: str) -> Any:
        engine.run("Right", *options)
        return engine.events("slice")[0]["counts"]["tensors"]

    assert digest() == digest("-n2")
    assert digest() != digest("--equivcheck-seed=1")


def test_junit_has_the_counts(engine: Engine) -> None:
    engine.run("LosesTail", "-n2", "--junitxml=junit.xml")
    text = (engine.folder / "junit.xml").read_text()
    assert '<property name="equivcheck.failed" value="1"' in text
    assert '<property name="equivcheck.replay" value="equivcheck replay failures/' in text


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--equivcheck-seed=x",), "--equivcheck-seed is 'x'; give a number"),
        (("--equivcheck-time-limit=0",), "--equivcheck-time-limit is 0.0; give the seconds"),
    ],
)
def test_wrong_options_are_refused_with_a_sentence(engine: Engine, options: tuple[str, ...], sentence: str) -> None:
    result = engine.run("Right", *options)
    assert result.returncode == 4
    assert sentence in result.stderr + result.stdout


def test_a_relation_of_two_runs_fails_with_its_sentence(engine: Engine) -> None:
    engine.change(
        "    check(case)",
        "    first, second = check(case), check(case)\n"
        "    if first.outcome.results[0].output.any():\n"
        "        first.outcome.results[0].output[:] += 1\n"
        "    check.same_bits(second, first, 'two runs agree')",
    )
    result = engine.run("Right")
    assert result.returncode == 1
    assert "two runs agree" in result.stdout


def test_an_assertion_of_a_property_is_saved_too(engine: Engine) -> None:
    engine.change("    check(case)", "    assert len(case.features[0].bags) < 2, 'too many bags'")
    result = engine.run("Right")
    assert result.returncode == 1
    assert "too many bags" in result.stdout
    assert engine.saved()[0]["status"] == "error"


def test_a_failure_that_does_not_repeat_is_told(engine: Engine) -> None:
    result = engine.run("Sometimes")
    assert result.returncode == 1
    assert "equivcheck replay failures/" in result.stdout
    assert "only sometimes" in result.stdout


def test_importing_the_plugin_imports_nothing_heavy(engine: Engine) -> None:
    code = (
        "import sys, equivcheck.pytest_plugin;"
        "print([m for m in ('torch', 'triton', 'hypothesis', 'numpy') if m in sys.modules])"
    )
    result = engine.python("-c", code)
    assert result.stdout.strip() == "[]"


def test_a_run_without_properties_leaves_nothing_behind(engine: Engine) -> None:
    (engine.folder / "test_sums.py").write_text("def test_plain(): pass\n")
    result = engine.python("-m", "pytest", "-p", "equivcheck.pytest_plugin", "-n1")
    assert result.returncode == 0, result.stdout
    assert {path.name for path in engine.folder.iterdir()} <= {"pytest.ini", "test_sums.py", "__pycache__"}
