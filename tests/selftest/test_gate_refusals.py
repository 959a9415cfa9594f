"""What subjects refuse: reasons without their numbers, and the lists that come with equivcheck."""

from __future__ import annotations

from pathlib import Path

import pytest

from equivcheck import golden, refusals
from equivcheck.backends.protocol import BackendUnavailable
from equivcheck.runner import Subject

FOLDER = golden.folder()
assert FOLDER is not None
LISTS = sorted((FOLDER / refusals.FOLDER).glob("*.txt"))


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("dim 33 is no multiple of 4", "dim # is no multiple of #"),
        ("dim 1,024 needs 2.5 GiB", "dim # needs # GiB"),
        ("fp16 accumulation is for fp16 tables, not bf16", "fp16 accumulation is for fp16 tables, not bf16"),
        ("weights[3] of int32 and BFloat16", "weights[#] of int32 and BFloat16"),
        ("no graphs\nwhat follows is a traceback", "no graphs"),
    ],
)
def test_a_reason_is_the_same_for_every_case(said: str, reason: str) -> None:
    assert refusals.reason_of(said) == reason


@pytest.mark.parametrize(
    ("subject", "on_gpu", "name"),
    [
        ("triton", False, "triton-cpu.txt"),
        ("triton:cpu", True, "triton-cpu.txt"),
        ("fbgemm-cpu", False, "fbgemm-cpu.txt"),
        ("nobody", False, None),
        ("./kernel.py:Mine", False, None),
        ("triton+", False, None),
    ],
)
def test_each_subject_has_its_own_list(subject: str, on_gpu: bool, name: str | None) -> None:
    found = refusals.recorded_file(subject, on_gpu)
    assert (found.name if found else None) == name


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_a_list_holds_all_that_its_subject_refuses(path: Path) -> None:
    names = {refusals.file_name(name): name for name in ("triton:cpu", "torch:cpu", "fbgemm-cpu")}
    if path.name not in names:
        pytest.skip(f"{path.stem} needs a GPU")
    try:
        backend = Subject.load(names[path.name]).backend
    except BackendUnavailable as missing:
        pytest.skip(str(missing))
    found = refusals.survey(backend, refusals.drawn(2000))
    recorded = refusals.read(path)
    assert set(found) <= recorded, "record it anew: equivcheck golden unsupported"
    assert refusals.as_text(recorded) == path.read_text(), "sorted, each once"
    assert found, "none of these systems takes everything"
