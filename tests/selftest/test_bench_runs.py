"""Runs of the bench, end to end on the CPU: a wrong kernel has no speed, and what was measured is written down."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from equivcheck.bench import run as bench
from equivcheck.bench.conclusion import conclude
from equivcheck.bench.picture import as_svg
from equivcheck.bench.point import Kind, Point, Setting
from equivcheck.bench.result import Document, Method, Row, load
from equivcheck.bench.run import CannotMeasure, Request
from equivcheck.bench.table import as_markdown, notes, print_document
from equivcheck.case import Case, Distribution, OptimizerKind
from equivcheck.formats import DType
from equivcheck.runner import Subject
from equivcheck.runner import run as judge
from equivcheck.verdict import Status
from tests.selftest.conftest import Engine

KERNELS = Path(__file__).with_name("bench_kernels.py")
POINTS = (
    Point("few_tables/a", Kind.FEW_TABLES, (40,), (8,), (3,), 4),
    Point("long_runs/b", Kind.LONG_RUNS, (2, 3), (4, 8), (5, 1), 8, Distribution.ZIPF, ragged=True),
)


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve repetitions of everything, and little to overwrite."""
    monkeypatch.setattr("equivcheck.bench.measure.QUANTITY_SECONDS", 0.0)
    monkeypatch.setattr("equivcheck.bench.clock._FLUSHED_ON_CPU", 4096)


def kernel(name: str) -> str:
    return f"{KERNELS}:{name}"


def judge_again(case: Case, subject: str) -> bool:
    return judge(case, Subject.load(subject)).right


def measure(
    folder: Path,
    subject: str,
    witness: str = "",
    *,
    points: tuple[Point, ...] = POINTS,
    setting: Setting = Setting(),  # noqa: B008  # frozen
    budget: float | None = None,
    told: Callable[[Row], None] = lambda row: None,
) -> Document:
    request = Request(subject, witness, points, setting, folder, budget=budget)
    return bench.run(request, lambda line: None, told)


def test_a_right_subject_and_its_witness_are_measured(tmp_path: Path) -> None:
    document = measure(tmp_path, "fbgemm-cpu", "torch:cpu")
    assert [row.point for row in document.rows] == list(POINTS)
    for row in document.rows:
        assert row.witness is not None
        assert row.agreement is not None
        assert row.agreement.within
        assert row.agreement.equal_outputs > 0.9
        assert (row.lookups > 0, 0 < row.distinct <= sum(row.point.rows)) == (True, True)
        for system in (row.subject, row.witness):
            assert system.judged.status is Status.PASSED
            measured = system.measured
            assert measured is not None
            for phase in (measured.forward, measured.backward, measured.both):
                assert phase.method is Method.WALL
                assert 0 < phase.device.least <= phase.device.median <= phase.device.p99
                seconds = phase.device.median / 1e6
                assert phase.share == pytest.approx(phase.fewest_bytes / seconds / document.machine.copy_bandwidth)
                assert phase.fewest_bytes <= phase.bytes_by_lookups
            assert measured.both.fewest_bytes == measured.forward.fewest_bytes + measured.backward.fewest_bytes
    assert load(tmp_path / "bench.json") == document
    assert conclude(document)[0] == 0


@pytest.mark.parametrize(
    "setting",
    [Setting(weighted=True), Setting(DType.FP32, DType.FP16, OptimizerKind.SGD)],
    ids=["weighted", "sgd"],
)
def test_other_settings_are_measured(tmp_path: Path, setting: Setting) -> None:
    document = measure(tmp_path, "torch:cpu", "fbgemm-cpu", points=POINTS[:1], setting=setting)
    [row] = document.rows
    assert row.subject.measured is not None
    assert row.witness is not None
    assert row.witness.measured is not None


def test_a_wrong_kernel_has_no_speed(tmp_path: Path) -> None:
    document = measure(tmp_path, kernel("Doubled"), "torch:cpu")
    for row in document.rows:
        assert row.subject.judged.status is Status.FAILED
        assert row.subject.measured is None
        assert row.witness is not None
        assert row.witness.measured is not None
    assert conclude(document)[0] == 1
    page = as_markdown(document)
    assert page.count("| WRONG / PASSED |") == 2
    assert "WRONG: output" in page
    for row in document.rows:
        saved = Case.from_json((tmp_path / "cases" / f"{row.subject.judged.case}.json").read_bytes())
        assert not judge_again(saved, kernel("Doubled"))
        assert judge_again(saved, "torch:cpu")


def test_what_is_wrong_at_full_size_alone_has_no_speed_either(tmp_path: Path) -> None:
    document = measure(tmp_path, kernel("WrongAtSize"), "torch:cpu", points=POINTS[:1])
    [row] = document.rows
    assert row.agreement is not None
    assert not row.agreement.within
    assert row.subject.measured is None
    assert row.witness is not None
    assert row.witness.measured is None
    assert "one is wrong at full size" in row.subject.error
    assert conclude(document)[0] == 1
    assert "| DISAGREE |" in as_markdown(document)


@pytest.mark.parametrize(
    ("name", "status", "code", "says"),
    [
        ("Refuses", Status.UNSUPPORTED, 2, "UNSUPPORTED: it takes no cases at all"),
        ("Crashes", Status.CRASHED, 1, "WRONG: the process was ended by SIGSEGV"),
        (
            "NoMemory",
            Status.PASSED,
            2,
            "not measured: RuntimeError: out of memory: 51 GB: few_tables/a",
        ),
    ],
)
def test_what_was_not_measured_says_why(tmp_path: Path, name: str, status: Status, code: int, says: str) -> None:
    document = measure(tmp_path, kernel(name), points=POINTS[:1])
    [row] = document.rows
    assert (row.subject.judged.status, row.subject.measured) == (status, None)
    assert conclude(document)[0] == code
    assert any(says in line for line in notes(document)), notes(document)


def test_the_document_is_rewritten_after_every_point(tmp_path: Path) -> None:
    seen: list[tuple[int, tuple[str, ...]]] = []

    def told(row: Row) -> None:
        path = tmp_path / "bench.json"
        if path.exists():
            document = load(path)
            seen.append((len(document.rows), document.left_out))
        if len(seen) == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(tmp_path, "torch:cpu", told=told)
    assert seen == [(1, ("long_runs/b",))]
    assert load(tmp_path / "bench.json").rows[0].subject.measured is not None


def test_a_budget_leaves_points_out_and_names_them(tmp_path: Path) -> None:
    document = measure(tmp_path, "torch:cpu", budget=0.0)
    assert (document.rows, document.left_out) == ((), ("few_tables/a", "long_runs/b"))
    assert conclude(document) == (2, "COULD NOT TELL: nothing was measured.")
    assert load(tmp_path / "bench.json") == document


def test_an_interrupt_keeps_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = bench._Run.row

    def interrupted(self: bench._Run, point: Point, *, turned: bool) -> Row:
        if point.name == POINTS[1].name:
            raise KeyboardInterrupt
        return row(self, point, turned=turned)

    monkeypatch.setattr(bench._Run, "row", interrupted)
    document = measure(tmp_path, "torch:cpu")
    assert (len(document.rows), document.left_out) == (1, ("long_runs/b",))


def test_systems_without_timing_or_on_two_devices_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CannotMeasure, match="offers no timing; its class needs `timing` and `prepare`"):
        measure(tmp_path, kernel("Untimed"))
    with pytest.raises(CannotMeasure, match="triton:cpu is not measured: Triton's interpreter"):
        measure(tmp_path, "triton:cpu")
    import torch

    from equivcheck.backends.fbgemm import FbgemmCpu

    start = FbgemmCpu.__init__

    def elsewhere(self: FbgemmCpu) -> None:
        start(self)
        self.device = torch.device("meta")

    monkeypatch.setattr(FbgemmCpu, "__init__", elsewhere)
    with pytest.raises(CannotMeasure, match="torch:cpu on cpu and fbgemm-cpu on meta cannot be compared"):
        measure(tmp_path, "torch:cpu", "fbgemm-cpu")


def test_table_page_and_picture_hold_every_point(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = measure(tmp_path, "torch:cpu", "fbgemm-cpu")
    print_document(document)
    printed = capsys.readouterr().out
    for text in (printed, as_markdown(document)):
        assert "few_tables/a" in text
        assert "measured by the wall clock" in text
        assert "copy bandwidth" in text
    root = ElementTree.fromstring(as_svg(document))
    titles = [node.text or "" for node in root.iter("{http://www.w3.org/2000/svg}title")]
    assert sum("long_runs/b" in title for title in titles) == 4
    alone = msgspec.structs.replace(
        document, witness="", rows=tuple(msgspec.structs.replace(row, witness=None) for row in document.rows)
    )
    assert "share of copy bandwidth over mean run length" in as_svg(alone)
    assert "ratio" not in as_markdown(alone)
    nothing = msgspec.structs.replace(document, rows=())
    assert "nothing was measured" in as_svg(nothing)


def bench_command(engine: Engine, *arguments: str) -> subprocess.CompletedProcess[str]:
    return engine.equivcheck("bench", "--batch-limit=4", "--rows-limit=20", "-n2", *arguments)


def test_the_command_writes_three_files_and_compares_them(engine: Engine) -> None:
    options = ["--subject=torch:cpu", "--witness=fbgemm-cpu", "--points=run2048-D32", "--out=out"]
    result = bench_command(engine, *options)
    assert result.returncode == 0, result.stdout + result.stderr
    assert sorted(path.name for path in (engine.folder / "out").iterdir()) == ["bench.json", "bench.md", "bench.svg"]
    last = result.stdout.splitlines()[-1]
    assert last.startswith("MEASURED: 1 of 1 points. torch:cpu is as fast as fbgemm-cpu times: forward ")
    assert last.endswith("out/bench.json")
    compared = engine.equivcheck("bench", "--compare", "out/bench.json", "out/bench.json")
    assert compared.returncode == 0, compared.stderr
    assert "forward: median 1.00, 1.00 to 1.00" in compared.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--subject=triton:cpu"], "COULD NOT TELL: triton:cpu is not measured: Triton's interpreter"),
        (["--subject=nobody"], "names the backend 'nobody', which does not exist"),
        (["--weights=fp8"], "weights 'fp8' do not exist"),
        (["--class=tiny"], "class 'tiny' does not exist"),
        (["missing.json"], "missing.json holds no shard"),
        (["--compare", "missing.json", "missing.json"], "COULD NOT TELL: missing.json cannot be read"),
        (["--workers=several"], "--workers is 'several'; give a number, or auto"),
    ],
)
def test_the_command_says_what_is_wrong(engine: Engine, arguments: list[str], sentence: str) -> None:
    result = bench_command(engine, *arguments)
    assert result.returncode == 2
    assert sentence in " ".join(result.stderr.replace("│", " ").split()), result.stderr
