"""Results of hunts: kept line by line, taken up again, and turned into the tables of a page."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from equivcheck.faults import kept, tables
from equivcheck.faults.catalogue import by_name
from equivcheck.faults.hunt import Hunted, Kill, ordered, properties
from equivcheck.faults.matrix import chosen
from equivcheck.faults.worker import Request

SUBJECT = "triton:cpu"


def hunted(fault: str, seen: str = "", only: tuple[str, ...] = (), error: str = "") -> Hunted:
    """A result, of a kill by the property `seen` at its third case."""
    kill = Kill(seen, 0, 3, 5, 1.5, "output: not exact", {}) if seen else None
    names = only or ordered(by_name(fault))
    return Hunted(fault, SUBJECT, "quick", 0, kill, 8, 2.0, names, error, {"numpy": "2.4"}, "2026-11-30")


def asked(fault: str, only: tuple[str, ...] = ()) -> Request:
    return Request(fault, SUBJECT, "quick", 0, only)


def test_what_is_kept_is_not_hunted_again(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    for result in (hunted("mean-ignored", "pooling"), hunted("stale-output"), hunted("run-of-255-lost", error="late")):
        kept.append(file, result)
    requests = [asked("mean-ignored"), asked("stale-output"), asked("run-of-255-lost"), asked("lookup-33-lost")]
    done = kept.read([file])
    # A fault that lived was hunted; one whose hunt was ended was not.
    assert [request.fault for request in kept.missing(requests, done)] == ["run-of-255-lost", "lookup-33-lost"]
    assert kept.missing([asked("mean-ignored", ("forward",))], done)
    assert [result.fault for result in kept.among(requests, done)] == [
        "mean-ignored",
        "stale-output",
        "run-of-255-lost",
    ]


def test_a_line_that_was_cut_off_is_left_out_and_any_other_is_told(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    kept.append(file, hunted("mean-ignored", "pooling"))
    with file.open("ab") as opened:
        opened.write(b'{"fault": "stale-')
    assert len(kept.read([file])) == 1
    kept.append(file, hunted("lookup-33-lost", "forward"))
    assert [result.fault for result in kept.read([file])] == ["mean-ignored", "lookup-33-lost"]
    file.write_bytes(b"{}\n" + file.read_bytes())
    with pytest.raises(ValueError, match=r"line 1 of .* is no result of a hunt"):
        kept.read([file])


def test_a_fault_that_is_gone_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    kept.append(file, msgspec.structs.replace(hunted("mean-ignored"), fault="no longer there"))
    assert kept.read([file]) == []


def test_the_matrix_asks_each_property_alone() -> None:
    requests = list(kept.every_property([asked("mean-ignored"), asked("stale-output")], ()))
    assert len(requests) == 2 * len(properties())
    assert {request.only for request in requests} == {(name,) for name in properties()}


def test_parts_of_the_catalogue_are_the_whole() -> None:
    whole = chosen([], [], SUBJECT, compiled=False, all_=True)
    again = chosen([fault.name for fault in reversed(whole)], [], SUBJECT, compiled=False, all_=True)
    assert [fault.name for fault in again] == [fault.name for fault in whole]


def test_tables_of_first_kills() -> None:
    text = tables.first_kills(
        [hunted("mean-ignored", "pooling"), hunted("stale-output"), hunted("fp16-overflows")], compiled=False
    )
    assert text.startswith(f"2026-11-30, `{SUBJECT}` (numpy 2.4), profile quick, seed 0: 24 cases, 6 s")
    assert "| mean pooling | 1 | 0 | 1 of 1 | 8 | mean-ignored, 8 |" in text
    assert "| mean-ignored | MEAN gives the sum. | edit | pooling | 5 + 3 | 1.5 | output: not exact |" in text
    assert "| wrapper | **not seen** | 8 | 2.0 | |" in text
    assert "| all | 3 | 2 | 1 of 2 |" in text
    assert "Seen first by: pooling 1." in text
    assert "| approximate-root |" in text


def test_what_one_property_alone_sees() -> None:
    names = ("pooling", "forward")
    results = [hunted("mean-ignored", name, (name,)) for name in names]
    results += [hunted("stale-output", "pooling", ("pooling",)), hunted("stale-output", "", ("forward",))]
    text = tables.by_property(results)
    assert "| pooling | 2 | stale-output |" in text
    assert "| forward | 1 |  |" in text
    assert "| mean-ignored | pooling 3, forward 3 |" in text


def test_a_block_of_a_page_is_filled_in() -> None:
    page = "before\n<!-- faults: interpreted -->\nold\n<!-- faults: end -->\nafter\n"
    new = tables.filled(page, "interpreted", "new")
    assert new == "before\n<!-- faults: interpreted -->\n\nnew\n\n<!-- faults: end -->\nafter\n"
    assert tables.filled(new, "interpreted", "new") == new
    with pytest.raises(ValueError, match="has no block <!-- faults: compiled -->"):
        tables.filled(page, "compiled", "new")


def test_reports_are_links_by_their_number() -> None:
    assert tables.link("https://github.com/pytorch/FBGEMM/pull/586") == (
        " ([FBGEMM 586](https://github.com/pytorch/FBGEMM/pull/586))"
    )
    assert tables.link("") == ""


def test_the_command_shows_what_is_kept_and_says_what_is_missing(tmp_path: Path) -> None:
    file, page = tmp_path / "results.jsonl", tmp_path / "page.md"
    kept.append(file, hunted("mean-ignored", "pooling"))
    command = [sys.executable, "-m", "equivcheck", "faults", "--subject", SUBJECT, "--profile", "quick", "--no-hunt"]
    options = ["--results", str(file), "--markdown", str(page)]
    done = subprocess.run([*command, "mean-ignored", *options], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "| mean-ignored | MEAN gives the sum. |" in page.read_text()
    missing = subprocess.run([*command, "mean-ignored", "stale-output", *options], cwd=tmp_path, capture_output=True)
    assert missing.returncode == 2
    wrong = subprocess.run([*command, "--shard", "3/2"], cwd=tmp_path, capture_output=True, text=True)
    assert wrong.returncode == 2
    assert "3/2" in wrong.stderr
