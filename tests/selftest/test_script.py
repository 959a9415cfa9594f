"""Stand-alone scripts: every finding on a system that runs here has one that fails as it is recorded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import equivcheck
from equivcheck import findings
from equivcheck.arithmetic import Arithmetic
from equivcheck.backends.protocol import BackendUnavailable
from equivcheck.case import (
    BadIndex,
    Bag,
    Call,
    Case,
    CaseError,
    Feature,
    IndexFault,
    Layout,
    Lookup,
    Optimizer,
    OptimizerKind,
    PerSampleWeights,
    Regime,
    Values,
)
from equivcheck.formats import DType
from equivcheck.problem import materialise
from equivcheck.runner import Subject
from equivcheck.script import Evidence, _laid_out, literal, script
from equivcheck.verdict import Discrepancy, Status, Symptom, Tensor, Verdict

FOLDER = findings.built_in_folder()
FILES = sorted(FOLDER.glob("*.json")) if FOLDER is not None else []
LIMIT = 300


def command(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, cwd=folder, timeout=LIMIT, check=False
    )


def shows(path: Path) -> bool:
    """Whether the finding's subject runs here, and its sign is one of a single run."""
    finding = findings.load_finding(path)
    try:
        Subject.load(finding.subject.rstrip("*").replace("*", "+"))
    except BackendUnavailable:
        return False
    return not any(symptom.value == "statistic" for sign in finding.signs for symptom in sign.symptoms)


@pytest.mark.parametrize("path", FILES[:: max(1, len(FILES) // 6)], ids=lambda path: path.stem)
def test_a_findings_script_fails_today(path: Path, tmp_path: Path) -> None:
    """A few of them: each takes seconds, for which torch is imported twice."""
    if not shows(path):
        pytest.skip("the system does not run here, or many runs show the fault")
    made = command("-m", "equivcheck", "script", str(path), "--out", str(tmp_path / "s.py"), folder=Path.cwd())
    assert made.returncode == 0, made.stderr
    text = (tmp_path / "s.py").read_text()
    assert "equivcheck" not in text
    ran = command("s.py", folder=tmp_path)
    assert ran.returncode != 0, ran.stdout
    raises = any(sign.tensor is Tensor.CALL for sign in findings.load_finding(path).signs)
    assert ran.returncode < 0 or "AssertionError" in ran.stderr or (raises and "RuntimeError" in ran.stderr), ran.stderr
    assert "right" not in ran.stdout.splitlines()


def test_a_crash_is_told_without_this_package_and_where_others_lie() -> None:
    ours = f'  File "{Path(equivcheck.__file__).parent}/backends/driver.py", line 204 in _act'
    trace = f'Fatal Python error\n  File "/somewhere/site-packages/torch/_ops.py", line 1350 in __call__\n{ours}'
    crashed = Verdict(Status.CRASHED, reason=trace)
    plain = Case(features=(Feature(rows=3, dim=4, bags=(Bag((Lookup(1),)),)),))
    text = script(Evidence("It crashes.", "fbgemm-cpu", materialise(plain), crashed, Arithmetic(), None, {}))
    assert '  File "torch/_ops.py", line 1350 in __call__' in text
    assert "somewhere" not in text
    assert "driver.py" not in text
    assert "equivcheck" not in text


@pytest.mark.parametrize("name", ["fbgemm-cuda", "fbgemm-cuda+v2", "torchrec-triton", "torchrec-triton+small-tables"])
def test_scripts_of_systems_on_a_gpu_compile(name: str) -> None:
    case = Case(
        features=(Feature(rows=3, dim=64, bags=(Bag((Lookup(1),)),)),),
        weights=DType.FP16,
        weight_values=Values(Regime.UNIFORM),
    )
    wrong = Verdict(Status.FAILED, (Discrepancy(Tensor.ROWS, Symptom.OUT_OF_BOUND, 1, "table 0, row 1, column 0"),))
    text = script(Evidence("It is wrong.", name, materialise(case), wrong, Arithmetic(), None, {"torch": "2.11"}))
    compile(text, "script.py", "exec")
    assert text.startswith('"""It is wrong.')
    assert "check(" in text


PRUNED = Case(
    features=(Feature(rows=3, dim=4, bags=(Bag((Lookup(0),)),)),),
    optimizer=Optimizer(OptimizerKind.ROWWISE_ADAGRAD),
    bad_indices=(BadIndex(IndexFault.PRUNED),),
)
BESIDE = Verdict(
    Status.FAILED,
    (Discrepancy(Tensor.OUTPUT, Symptom.NOT_EXACT, 0, ""), Discrepancy(Tensor.GUARDS, Symptom.BYTES, -1, "weight")),
)
ROW_BEFORE = """
class RowBefore(torch.autograd.Function):
    @staticmethod
    def forward(ctx, start):
        return start + READ * beside(tbe.weights_host, 4)

    @staticmethod
    def backward(ctx, gradient):
        beside(tbe.weights_host, 4).sub_(WRITTEN * gradient.flatten())
        beside(tbe.momentum1_host, 1).add_(COUNTED)


def beside(tensor, size):
    return tensor.detach().as_strided((size,), (1,), tensor.storage_offset() - size)


output_0 = RowBefore.apply(torch.zeros(1, 4, requires_grad=True))
"""


@pytest.mark.parametrize("name", ["fbgemm-cuda", "torchrec-triton"])
@pytest.mark.parametrize(
    "verdict",
    [BESIDE, Verdict(Status.FAILED, BESIDE.discrepancies[1:]), Verdict(Status.FAILED, BESIDE.discrepancies[:1])],
)
def test_tables_lie_in_memory_of_the_script_where_what_is_beside_them_matters(name: str, verdict: Verdict) -> None:
    text = script(Evidence("", name, materialise(PRUNED), verdict, Arithmetic(), None, {}))
    compile(text, "script.py", "exec")
    states = "momentum1_dev" if name == "fbgemm-cuda" else "momentum"
    assert f'check_around("{states}")' in text.splitlines()
    seen = verdict.discrepancies[-1].tensor is Tensor.GUARDS
    assert ("backward(" in text) == seen
    assert ('check("output"' in text) == (verdict.discrepancies[0].tensor is Tensor.OUTPUT)


@pytest.mark.parametrize(
    ("read", "written", "counted", "sign"),
    [
        (0, 0, 0, "right"),
        (1, 0, 0, "output: 4 of 4 elements are wrong"),
        (0, 1, 0, "weights_host has 12 elements, and elements [-4, -3, -2, -1] were written"),
        (0, 0, 1, "momentum1_host has 3 elements, and elements [-1] were written"),
    ],
)
def test_a_row_before_the_table_is_seen(tmp_path: Path, read: int, written: int, counted: int, sign: str) -> None:
    """FBGEMM's CPU TBE refuses -1; what its CUDA kernels do instead is done here to its tables."""
    if not shows(FILES[0]):
        pytest.skip("the system does not run here")
    text = script(Evidence("", "fbgemm-cpu", materialise(PRUNED), BESIDE, Arithmetic(), None, {}))
    call = "output_0 = tbe(indices_0, offsets_0)\n"
    assert call in text
    fault = ROW_BEFORE.replace("READ", str(read)).replace("WRITTEN", str(written)).replace("COUNTED", str(counted))
    (tmp_path / "s.py").write_text(text.replace(call, fault))
    ran = command("s.py", folder=tmp_path)
    assert sign in (ran.stdout if sign == "right" else ran.stderr), ran.stderr
    assert (ran.returncode == 0) == (sign == "right")


def test_a_right_systems_script_with_memory_of_its_own_passes(tmp_path: Path) -> None:
    if not shows(FILES[0]):
        pytest.skip("the system does not run here")
    right = Case(features=PRUNED.features, optimizer=PRUNED.optimizer, weight_values=Values(Regime.UNIFORM))
    text = script(Evidence("", "fbgemm-cpu", materialise(right), BESIDE, Arithmetic(), None, {}))
    (tmp_path / "s.py").write_text(text)
    ran = command("s.py", folder=tmp_path)
    assert (ran.returncode, ran.stdout.splitlines()[-1:]) == (0, ["right"]), ran.stderr
    assert "check_around" in text


def test_scripts_of_findings_on_a_gpu_compile() -> None:
    from equivcheck.commands.script import _evidence

    for path in FILES:
        finding = findings.load_finding(path)
        if not finding.subject.startswith(("fbgemm-cuda", "torchrec-triton")) or finding.shown_by:
            continue
        text = script(_evidence(path, None, LIMIT))
        compile(text, path.stem, "exec")
        if path.stem.endswith("pruned-index"):
            assert text.count("check_around(") == 2
            assert 'check("output"' in text


def test_a_script_of_an_ended_process_looks_at_every_result(tmp_path: Path) -> None:
    """A process that ends in one run may be wrong in another; on a right system the script passes."""
    if not shows(FILES[0]):
        pytest.skip("the system does not run here")
    case = Case(
        features=(Feature(rows=3, dim=4, bags=(Bag((Lookup(1), Lookup(2, 2))), Bag())),),
        weight_values=Values(Regime.UNIFORM),
        optimizer=Optimizer(OptimizerKind.ROWWISE_ADAGRAD),
        per_sample_weights=PerSampleWeights(gradient=True),
    )
    text = script(Evidence("", "fbgemm-cpu", materialise(case), Verdict(Status.CRASHED), Arithmetic(), None, {}))
    checks = [line.partition(",")[0] for line in text.splitlines() if line.startswith("check(")]
    assert checks == ['check("output"', 'check("tables[0]"', 'check("states[0][0]"', 'check("per_sample_weights.grad"']
    (tmp_path / "s.py").write_text(text)
    ran = command("s.py", folder=tmp_path)
    assert (ran.returncode, ran.stdout.splitlines()[-1]) == (0, "right"), ran.stderr


def test_what_has_no_script_is_said() -> None:
    problem = materialise(Case(call=Call.GRAPH))
    verdict = Verdict(Status.CRASHED)
    with pytest.raises(CaseError, match="captured CUDA graph"):
        script(Evidence("", "fbgemm-cuda", problem, verdict, Arithmetic(), None, {}))
    with pytest.raises(CaseError, match="triton has no stand-alone script"):
        script(Evidence("", "triton", materialise(Case()), verdict, Arithmetic(), None, {}))
    with pytest.raises(CaseError, match="nothing for a script to show"):
        script(Evidence("", "fbgemm-cpu", materialise(Case()), Verdict(Status.PASSED), Arithmetic(), None, {}))


def evaluated(text: str) -> object:
    import base64
    import zlib
    from math import inf, nan

    import torch

    def unpack(data: str, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
        raw = bytearray(zlib.decompress(base64.b64decode(data)))
        return torch.frombuffer(raw, dtype=dtype).reshape(shape).clone()

    return eval(text, {"torch": torch, "inf": inf, "nan": nan, "unpack": unpack, "device": "cpu"})


@pytest.mark.parametrize("dtype", [DType.FP32, DType.FP16, DType.BF16])
@pytest.mark.parametrize("shape", [(0, 4), (1, 1), (3, 5), (40, 20)])
def test_literals_are_exact(dtype: DType, shape: tuple[int, int]) -> None:
    from equivcheck.backends.layouts import to_numpy

    values = np.random.default_rng(1).standard_normal(shape).astype(np.float32).astype(dtype.numpy)
    if values.size > 3:
        values[0, 0], values[-1, -1], values[-1, 0] = np.nan, np.inf, -0.0
    for array in (values, np.full_like(values, 0.1)):
        found = to_numpy(evaluated(literal(array)))  # type: ignore[arg-type]
        assert (found.dtype, found.shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(found.astype(float), array.astype(float))


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("shape", [(5,), (3, 4)])
def test_layouts_hold_the_same_values(layout: Layout, shape: tuple[int, ...]) -> None:
    import torch

    if layout is Layout.TRANSPOSED and len(shape) == 1:
        return
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    if layout is Layout.EXPANDED:
        array[...] = 3
    found = evaluated(_laid_out(literal(array), array, layout))
    assert isinstance(found, torch.Tensor)
    np.testing.assert_array_equal(found.numpy(), array)
    dense = layout is Layout.CONTIGUOUS or layout is Layout.MISALIGNED or (layout is Layout.SLICE and len(shape) == 1)
    assert found.is_contiguous() == dense
