"""Plain PyTorch through Inductor: what was compiled is read from the generated code; a case without shows nothing."""

from __future__ import annotations

import shutil

import pytest
import torch

from equivcheck import runner
from equivcheck.backends import registry
from equivcheck.backends.protocol import BackendUnavailable
from equivcheck.backends.torch_embedding_bag import TorchEmbeddingBag
from equivcheck.backends.torch_inductor import Compiled, Inductor, read
from equivcheck.case import Bag, Call, Case, Feature, Lookup, Optimizer, OptimizerKind, Pooling, Regime, Values
from equivcheck.runner import Subject
from equivcheck.verdict import Status

GENERATED = """
cpp_fused_div_0 = async_compile.cpp_pybinding(['const float*', 'float*'], r'''
// Topologically Sorted Source Nodes: [truediv], Original ATen: [aten.div]
''')
async_compile.wait(globals())
    # Original ATen: [aten.sum]
    buf0 = torch.ops.aten._embedding_bag.default(primals_1, primals_2)
    extern_kernels.mm(arg0, arg1, out=buf1)
    cpp_fused_div_0(buf0, buf2)
"""


def case(lengths: tuple[int, ...], **changes: object) -> Case:
    bags = tuple(Bag((Lookup(0, length),)) for length in lengths)
    values = Values(Regime.UNIFORM)
    features = (Feature(rows=7, dim=4, bags=bags),)
    return Case(features=features, weight_values=values, gradient_values=values, **changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def subject() -> Subject:
    """Compiled operations; small graphs, so that the tests take seconds."""
    try:
        return Subject.load("torch:cpu+inductor")
    except BackendUnavailable as missing:
        pytest.skip(str(missing))


def inductor(subject: Subject) -> Inductor:
    backend = subject.backend
    assert isinstance(backend, TorchEmbeddingBag)
    assert backend.inductor is not None
    return backend.inductor


def test_generated_code_is_read() -> None:
    found = read("bags", GENERATED)
    assert found == Compiled("bags", ("cpp_fused_div_0",), ("aten._embedding_bag", "extern_kernels.mm"))
    assert found.paths == (
        "inductor: bags, generated",
        "inductor: bags, eager aten._embedding_bag",
        "inductor: bags, eager extern_kernels.mm",
    )


def test_what_ran_is_told_and_sizes_are_symbolic(subject: Subject) -> None:
    """Other sizes compile nothing anew, where no two were equal and none was one. A size of one does, and counts."""
    first = runner.run(case((2, 3)), subject)
    assert first.verdict.status is Status.PASSED, first.verdict
    assert first.outcome is not None
    assert "inductor: bags, eager aten._embedding_bag" in first.outcome.paths
    assert "inductor: update, generated" in first.outcome.paths
    captured = inductor(subject).captures.total()
    assert runner.run(case((5, 2, 7)), subject).right
    assert inductor(subject).captures.total() == captured
    before = inductor(subject).recompilations
    assert runner.run(case((1,)), subject).right
    assert inductor(subject).recompilations > before


def test_without_pooling_the_lookup_itself_is_generated(subject: Subject) -> None:
    found = runner.run(case((2, 3), pooling=Pooling.NONE), subject)
    assert found.right
    assert found.outcome is not None
    assert {"inductor: rows, generated", "inductor: rows, gradient, generated"} <= set(found.outcome.paths)


def test_a_case_without_a_generated_kernel_shows_nothing(subject: Subject) -> None:
    alone = runner.run(case((2, 3), call=Call.FORWARD_ONLY), subject)
    assert alone.verdict.status is Status.UNSUPPORTED
    assert "nothing is compiled" in alone.verdict.reason
    eager = Inductor(ran={Compiled("bags", (), ("aten._embedding_bag",))})
    assert eager.vacuous() == (
        "no generated kernel ran: all that was computed is left to eager operators (aten._embedding_bag)"
    )
    assert Inductor(ran={Compiled("update", ("cpp_fused_mul_0",), ())}).vacuous() == ""


def test_the_caller_keeps_its_subnormal_numbers(subject: Subject) -> None:
    """Linking with -ffast-math switches subnormal numbers off for the whole process; then every truth were wrong."""
    assert runner.run(case((2, 3), optimizer=Optimizer(OptimizerKind.ADAGRAD, eps=0.125)), subject).right
    assert torch.tensor(1e-45).mul(1.0).item() > 0


def test_a_compiler_that_is_missing_is_told_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(BackendUnavailable, match="Inductor compiles for the CPU with"):
        registry.build("torch:cpu+inductor")


def test_a_device_that_is_missing_is_told_in_a_sentence() -> None:
    with pytest.raises(BackendUnavailable, match="is added by the Python package torch_spyre"):
        TorchEmbeddingBag("spyre")
    with pytest.raises(BackendUnavailable, match="meta tensors hold no values"):
        TorchEmbeddingBag("meta")
    with pytest.raises(ValueError, match="variant 'fast' is unknown; torch has inductor"):
        TorchEmbeddingBag("cpu", "fast")
