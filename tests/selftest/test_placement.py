"""Workers on GPUs: every form of CUDA_VISIBLE_DEVICES, and numbers of workers."""

from __future__ import annotations

from collections import Counter
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
        ("GPU-2222-aaaa,GPU-2222", ()),
        ("0,1,GPU-2222,2", ("0", "1", "GPU-2222", "2")),
        ("3,2,1,0", ("3", "2", "1", "0")),
        ("0,", ("0",)),
        (",0", ()),
        ("gpu-2222-aaaa", ()),
        ("0x1", ()),
        ("4", ()),
        ("MIG-a,9,MIG-b", ("MIG-a",)),
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
        ("MIG-b,MIG-a", ["MIG-b", "MIG-a", "MIG-b", "MIG-a", "MIG-b"]),
        ("3,-1,1", ["3,-1,1"] * 5),
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


@pytest.mark.parametrize("listed", [None, "1,3,0", "GPU-3333,GPU-1111", "MIG-a,MIG-b,MIG-c"])
@pytest.mark.parametrize("workers", [4, 13, 16])
def test_workers_are_spread_evenly_over_what_the_caller_may_use(
    monkeypatch: pytest.MonkeyPatch, listed: str | None, workers: int
) -> None:
    monkeypatch.setattr(placement, "installed", lambda: FOUR)
    monkeypatch.setattr(placement, "_DRIVER", Path("/no/such/folder"))
    given: dict[str, str] = {} if listed is None else {VARIABLE: listed}
    seen: Counter[str] = Counter()
    for number in range(workers):
        environment = dict(given)
        placement.place(f"gw{number}", environment)
        seen[environment[VARIABLE]] += 1
    assert tuple(sorted(seen)) == tuple(sorted(placement.visible(given, FOUR)))
    assert max(seen.values()) - min(seen.values()) <= 1


def test_a_worker_that_was_placed_stays_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes that a worker starts have its environment, and are placed by it."""
    monkeypatch.setattr(placement, "installed", lambda: FOUR)
    environment = {VARIABLE: "3,1"}
    placement.place("gw1", environment)
    placement.place("gw2", environment)
    assert environment == {VARIABLE: "1"}


def test_the_order_in_which_numbers_are_meant_is_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "installed", lambda: FOUR)
    environment = {VARIABLE: "2,0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    placement.place("gw0", environment)
    assert environment == {VARIABLE: "2", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


@pytest.mark.parametrize(
    ("listed", "expected"), [(None, 4), ("3,1", 2), ("", None), ("GPU-2222", 1), ("MIG-a,MIG-b", 2)]
)
def test_the_number_of_workers_follows_the_subset(
    monkeypatch: pytest.MonkeyPatch, listed: str | None, expected: int | None
) -> None:
    monkeypatch.setattr(placement, "installed", lambda: tuple(Gpu(g.index, g.uuid, 6 * GIB) for g in FOUR))
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(6)))
    found = placement.automatic({} if listed is None else {VARIABLE: listed})
    assert found == expected
