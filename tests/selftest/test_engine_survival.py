"""What a kernel does to its process: the case is saved, and the run goes on."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.selftest.conftest import Engine


def test_a_worker_that_crashes_leaves_a_case_and_the_slice_goes_on(engine: Engine) -> None:
    # Every third drawn case has a bag of three: the slice ends two processes, and is given up at the third.
    result = engine.run("Crashes", "-n1")
    assert result.returncode == 1
    deaths = engine.events("ended")
    assert [death["again"] for death in deaths] == [True, True, False]
    for death in deaths:
        assert death["failure"]["status"] == "crashed"
        assert death["failure"]["text"].splitlines()[-1] == death["failure"]["replay"]
        assert "Fatal Python error: Segmentation fault" in death["failure"]["text"]
        assert death["failure"]["replay"] in result.stdout
    assert {document["status"] for document in engine.saved()} == {"crashed"}
    assert len({death["failure"]["saved"] for death in deaths}) == 3
    assert "the rest of the slice is not run" in result.stdout


def test_a_slice_goes_on_past_a_case_that_crashed(engine: Engine) -> None:
    # One bag only, so that there are six cases: one of them ends its process.
    engine.change("max_size=3", "max_size=1")
    result = engine.run("Crashes", "-n2")
    assert result.returncode == 1
    [death] = engine.events("ended")
    assert death["again"]
    [slice_] = engine.events("slice")
    assert slice_["outcome"] == "passed"
    assert slice_["counts"]["statuses"]["crashed"] == 1
    assert slice_["counts"]["statuses"]["passed"] == 5
    assert not (engine.folder / "failures" / ".journal").exists()


def test_after_a_crash_the_slice_draws_the_cases_that_it_would_have_drawn(engine: Engine) -> None:
    profile = "--equivcheck-profile=default"
    assert engine.run("Noted", "-n1", profile).returncode == 0
    notes = engine.folder / "noted.txt"
    expected = set(notes.read_text().splitlines())
    assert "[3, 3]" in expected
    assert len(expected) > 50
    notes.unlink()
    assert engine.run("NotedCrash", "-n1", profile).returncode == 1
    assert len(engine.events("ended")) == 1
    assert set(notes.read_text().splitlines()) == expected


def test_a_worker_that_hangs_is_ended_at_the_time_limit(engine: Engine) -> None:
    engine.change("max_size=3", "max_size=1")
    result = engine.run("Hangs", "-n1", "--equivcheck-time-limit=1")
    assert result.returncode == 1
    [death] = engine.events("ended")
    assert death["failure"]["status"] == "timeout"
    assert "the case took longer than 1 s" in result.stdout
    assert "in run" in death["failure"]["text"], "the traceback says where"
    [slice_] = engine.events("slice")
    assert slice_["counts"]["statuses"] == {"passed": 5, "timeout": 1}


@pytest.mark.parametrize(("kernel", "status"), [("Crashes", "crashed"), ("Hangs", "timeout")])
def test_without_workers_the_next_run_saves_the_case(engine: Engine, kernel: str, status: str) -> None:
    engine.change("max_size=3", "max_size=1")
    first = engine.run(kernel, "--equivcheck-time-limit=1")
    assert first.returncode not in (0, 2, 3, 4, 5)
    assert re.search("Fatal Python error|Timeout", first.stderr), "whoever watches is told where"
    assert not engine.paths()
    second = engine.run("Right")
    assert second.returncode == 0, second.stdout
    [document] = engine.saved()
    assert document["status"] == status
    assert document["case"]["features"][0]["bags"] == [{"lookups": [[0, 3]]}]
    assert f"an earlier run ended at a case ({status}), now saved: equivcheck replay failures/" in second.stdout


def test_a_cut_off_journal_is_no_case(engine: Engine) -> None:
    folder = engine.folder / "failures" / ".journal" / "1-abc"
    folder.mkdir(parents=True)
    (folder / "lock").touch()
    (folder / "main.json").write_text('{"case": {"equivcheck_')
    assert engine.run("Right").returncode == 0
    assert not engine.paths()
    assert not folder.exists()


def test_the_journal_of_a_run_that_lives_is_left_alone(engine: Engine) -> None:
    import fcntl

    folder = engine.folder / "failures" / ".journal" / "1-abc"
    folder.mkdir(parents=True)
    (folder / "main.json").write_text("{}")
    with (folder / "lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        assert engine.run("Right").returncode == 0
    assert (folder / "main.json").exists()
