"""Workers on GPUs: every form of CUDA_VISIBLE_DEVICES, and numbers of workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from equivcheck.engine import placement
from equivcheck.engine.placement import VARIABLE, WORKER_MEMORY, Gpu

GIB = 2**30
H200 = 140 * GIB
FOUR = tuple(Gpu(i, f"GPU-{i}{i}{i}{i}-aaaa", H200) for i in range(4))


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        (None, ("0", "1", "2", "3")),
        ("", ()),
        ("-1", ()),
        ("NoDevFiles", ()),
        ("2", ("2",)),
        ("3,1", ("3", "1")),
        (" 3 , 1 ", ("3", "1")),
        ("0,-1,1", ("0",)),
        ("1,7,2", ("1",)),
        ("1,1", ()),
        ("GPU-2222-aaaa,GPU-0000-aaaa", ("GPU-2222-aaaa", "GPU-0000-aaaa")),
        ("GPU-3", ("GPU-3",)),
        ("GPU-", ()),
        ("GPU-9999", ()),
        ("MIG-5c1e-1,MIG-5c1e-2", ("MIG-5c1e-1", "MIG-5c1e-2")),
        ("MIG-GPU-2222-aaaa/1/0", ("MIG-GPU-2222-aaaa/1/0",)),
    ],
)
def test_the_callers_devices(listed: str | None, expected: tuple[str, ...]) -> None:
    environment = {} if listed is None else {VARIABLE: listed}
    assert placement.visible(environment, FOUR) == expected


def test_without_a_driver_there_is_nothing_to_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "_QUERY", ("no-such-program-as-this",))
    assert placement.installed() == ()
    assert placement.visible({}, ()) == ()
    assert placement.automatic({}) is None
    environment: dict[str, str] = {}
    placement.place("gw0", environment)
    assert environment == {}


def test_the_drivers_answer() -> None:
    answer = "0, GPU-0000-aaaa, 143771\n1, GPU-1111-aaaa, [N/A]\n"
    assert placement.read(answer) == (
        Gpu(0, "GPU-0000-aaaa", 143771 * 2**20),
        Gpu(1, "GPU-1111-aaaa", 0),
    )


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        (None, ["0", "1", "2", "3", "0"]),
        ("3,1", ["3", "1", "3", "1", "3"]),
        ("GPU-2222,GPU-0000", ["GPU-2222", "GPU-0000", "GPU-2222", "GPU-0000", "GPU-2222"]),
        ("2", ["2"] * 5),
        ("GPU-2222-aaaa", ["GPU-2222-aaaa"] * 5),
        ("", [""] * 5),
    ],
)
def test_workers_take_turns(monkeypatch: pytest.MonkeyPatch, listed: str | None, expected: list[str]) -> None:
    monkeypatch.setattr(placement, "installed", lambda: FOUR)
    monkeypatch.setattr(placement, "_DRIVER", Path("/no/such/folder"))
    seen = []
    for number in range(5):
        environment = {} if listed is None else {VARIABLE: listed}
        placement.place(f"gw{number}", environment)
        seen.append(environment[VARIABLE])
    assert seen == expected


def test_one_gpu_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "0000:01:00.0").mkdir()
    monkeypatch.setattr(placement, "_DRIVER", tmp_path)
    monkeypatch.setattr(placement, "installed", lambda: pytest.fail("the driver was asked"))
    environment: dict[str, str] = {}
    placement.place("gw0", environment)
    assert environment == {}


def test_the_process_that_people_watch_is_not_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "installed", lambda: FOUR)
    environment: dict[str, str] = {}
    placement.place("main", environment)
    assert environment == {}


@pytest.mark.parametrize(
    ("devices", "memory", "cores", "expected"),
    [
        ((), H200, 16, None),
        (("0",), H200, 16, 16),
        (("0",), H200, 64, 35),
        (("0", "1", "2", "3"), H200, 200, 140),
        (("0", "1"), 24 * GIB, 64, 12),
        (("0",), 2 * GIB, 8, 1),
        (("MIG-a", "MIG-b"), H200, 16, 2),
        (("GPU-1111",), 8 * GIB, 16, 2),
    ],
)
def test_as_many_workers_as_memory_and_cores_allow(
    devices: tuple[str, ...], memory: int, cores: int, expected: int | None
) -> None:
    assert WORKER_MEMORY == 4 * GIB
    gpus = tuple(Gpu(gpu.index, gpu.uuid, memory) for gpu in FOUR)
    assert placement.workers(devices, gpus, cores) == expected


def test_xdists_own_variable_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "installed", lambda: FOUR)
    assert placement.automatic({"PYTEST_XDIST_AUTO_NUM_WORKERS": "3"}) is None
    assert placement.automatic({}) is not None
