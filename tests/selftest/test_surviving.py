"""A case that ends its process takes no other case's result with it, and a device assert is told by its kernel."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch

from equivcheck.backends import cuda
from equivcheck.case import BadIndex, BadOffset, Bag, BoundsCheck, Case, Feature, IndexFault, Lookup, OffsetFault
from equivcheck.outcome import Outcome, Raised
from equivcheck.recordings import Provenance, Recordings, write
from equivcheck.surviving import record_surviving, verify_surviving
from equivcheck.verification import Agreement

KERNELS = Path(__file__).parent / "kernels.py"


def bag_of(length: int) -> Case:
    return Case(features=(Feature(rows=2, dim=4, bags=(Bag((Lookup(0, length),)),)),))


def test_the_other_cases_are_recorded() -> None:
    lengths = (1, 2, 3, 4, 5)
    records, refused = record_surviving(map(bag_of, lengths), f"{KERNELS}:Crashes")
    assert [record.case for record in records] == [bag_of(length) for length in lengths if length != 3]
    assert refused == {"the process was ended by SIGSEGV": 1}


FATAL = Case(
    features=(Feature(rows=2, dim=4, bags=(Bag((Lookup(),)),)),),
    bounds_check=BoundsCheck.FATAL,
    bad_indices=(BadIndex(IndexFault.ROWS),),
)
ASSERTION = '/fbgemm/check.cu:60: {}: block: [0,0,0], thread: [12,1,0] Assertion `a >= 0 && "not negative"` failed.\n'
LOST = Outcome((), raised=Raised(0, "AcceleratorError", "CUDA error: device-side assert triggered", after=None))


def hear(*kernels: str, case: Case = FATAL) -> list[str]:
    with cuda.heard(case) as asserted:
        for kernel in kernels:
            os.write(2, ASSERTION.format(kernel).encode())
    return asserted


def judged(monkeypatch: pytest.MonkeyPatch, outcome: Outcome, asserted: list[str]) -> Outcome | str:
    """What comes of an outcome where the context is lost: itself, or the reason why the process would end."""
    reasons: list[str] = []
    monkeypatch.setattr(cuda, "lost", lambda device: True)
    monkeypatch.setattr(cuda, "end_process", reasons.append)
    found = cuda.checked(outcome, torch.device("cpu"), asserted)
    return reasons[0] if reasons else found


def test_an_assert_of_the_bounds_check_is_a_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    asserted = hear("bounds_check_indices_kernel_v1", "bounds_check_indices_kernel_v1")
    assert asserted == ["bounds_check_indices_kernel_v1"] * 2
    assert judged(monkeypatch, LOST, asserted) is LOST


@pytest.mark.parametrize("kernels", [(), ("grad_indice_weights",), ("bounds_check_indices_kernel_v1", "another")])
def test_another_assert_is_none(monkeypatch: pytest.MonkeyPatch, kernels: tuple[str, ...]) -> None:
    assert "device-side assert" in str(judged(monkeypatch, LOST, hear(*kernels)))


@pytest.fixture
def silent_gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Takes the name of what runs. From the fatal check, or "fails", on every wait raises, and nothing is printed."""
    failed: list[str] = []

    def launch(name: str) -> None:
        if name in ("check", "fails"):
            failed.append(name)

    def wait(*_: object) -> None:
        if failed:
            raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(torch.cuda, "synchronize", wait)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.ops.fbgemm, "bounds_check_indices", launch, raising=False)
    return launch


@pytest.mark.parametrize(
    ("names", "heard"),
    [
        (["runs", "check"], ["bounds_check_indices"]),
        (["fails", "check"], []),  # it had failed before
        (["fails"], []),
    ],
)
def test_a_bounds_check_of_which_nothing_is_printed_is_heard(
    monkeypatch: pytest.MonkeyPatch, silent_gpu: Callable[[str], None], names: list[str], heard: list[str]
) -> None:
    with contextlib.suppress(RuntimeError), cuda.heard(FATAL) as asserted:
        for name in names:
            if name == "check":
                torch.ops.fbgemm.bounds_check_indices(name)
            else:
                silent_gpu(name)
    assert asserted == heard
    assert torch.ops.fbgemm.bounds_check_indices is silent_gpu
    found = judged(monkeypatch, LOST, asserted)
    assert found is LOST if heard else "device-side assert" in str(found)


@pytest.mark.usefixtures("silent_gpu")
def test_a_bounds_check_that_passes_is_not_heard() -> None:
    with cuda.heard(FATAL) as asserted:
        torch.ops.fbgemm.bounds_check_indices("passes")
    assert not asserted


def test_an_illegal_access_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert LOST.raised is not None
    illegal = replace(LOST, raised=replace(LOST.raised, message="CUDA error: an illegal memory access was encountered"))
    assert "illegal" in str(judged(monkeypatch, illegal, hear("bounds_check_indices_kernel_v1")))


def test_nothing_is_heard_where_no_assert_is_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    assert not hear("bounds_check_indices_kernel_v1", case=bag_of(1))
    assert "bounds_check_indices_kernel_v1" in capfd.readouterr().err


def test_what_is_heard_is_printed_all_the_same(capfd: pytest.CaptureFixture[str]) -> None:
    hear("bounds_check_indices_kernel_v1")
    assert "bounds_check_indices_kernel_v1" in capfd.readouterr().err


def test_fatal_lookups_into_a_table_without_rows_ask_for_an_assert() -> None:
    without = Case(
        features=(Feature(rows=2, dim=4), Feature(rows=0, dim=4, bags=(Bag((Lookup(),)),))),
        bounds_check=BoundsCheck.FATAL,
    )
    assert cuda.asks_for_assert(without)
    assert not cuda.asks_for_assert(bag_of(1))


def test_verifying_outlives_a_case_too(tmp_path: Path) -> None:
    lengths = (1, 2, 3, 4)
    right = f"{KERNELS}:Right"
    records, _ = record_surviving(map(bag_of, lengths), right)
    write(tmp_path, Provenance(right, {}), records)
    recordings = Recordings(tmp_path)
    for workers in (1, 3):
        found = verify_surviving(recordings, f"{KERNELS}:Crashes", workers=workers)
        assert [comparison.case for comparison in found] == list(recordings.cases)
        agreements = [comparison.agreement for comparison in found]
        assert agreements == [Agreement.BIT_EQUAL] * 2 + [Agreement.OUTSIDE] + [Agreement.BIT_EQUAL]
        assert "SIGSEGV" in found[2].verdict.reason


@pytest.mark.parametrize(
    ("mode", "faults", "gaps"),
    [
        (BoundsCheck.WARNING, (BadOffset(OffsetFault.NEGATIVE, 0),), False),
        (BoundsCheck.WARNING, (BadOffset(OffsetFault.LARGEST, 3),), False),
        (BoundsCheck.WARNING, (BadOffset(OffsetFault.PLUS_ONE, 0),), True),
        (BoundsCheck.WARNING, (BadOffset(OffsetFault.NEGATIVE, 2),), True),
        (BoundsCheck.IGNORE, (BadOffset(OffsetFault.DECREASING, 3),), True),
        (BoundsCheck.WARNING, (), False),
    ],
)
def test_offsets_that_are_repaired_rightly_leave_no_gaps(
    mode: BoundsCheck, faults: tuple[BadOffset, ...], gaps: bool
) -> None:
    bags = (Bag((Lookup(0, 2),)), Bag((Lookup(1, 2),)), Bag((Lookup(0, 1),)))
    case = Case(features=(Feature(rows=2, dim=4, bags=bags),), bounds_check=mode, bad_offsets=faults)
    assert cuda.leaves_gaps(case) is gaps
    if faults and not gaps:
        unchecked = msgspec.structs.replace(case, bad_indices=(BadIndex(IndexFault.ROWS, 4),))
        assert cuda.leaves_gaps(unchecked) is (faults[0].position == 3)
