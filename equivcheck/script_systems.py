"""How the systems are imported, built and called in stand-alone scripts: as their users do, every option explicit."""

from __future__ import annotations

import math
from dataclasses import dataclass

from equivcheck.case import BoundsCheck, CaseError, Decay, OptimizerKind, Pooling, Rounding
from equivcheck.formats import DType
from equivcheck.problem import Problem, output_shape

_SPARSE = {DType.FP32: "FP32", DType.FP16: "FP16", DType.BF16: "BF16"}
_TORCH = {DType.FP32: "torch.float32", DType.FP16: "torch.float16", DType.BF16: "torch.bfloat16"}
_OPTIMIZER = {
    OptimizerKind.SGD: "EXACT_SGD",
    OptimizerKind.ADAGRAD: "EXACT_ADAGRAD",
    OptimizerKind.ROWWISE_ADAGRAD: "EXACT_ROWWISE_ADAGRAD",
    OptimizerKind.ADAM: "ADAM",
    OptimizerKind.PARTIAL_ROWWISE_ADAM: "PARTIAL_ROWWISE_ADAM",
}
_STATES = {
    OptimizerKind.SGD: 0,
    OptimizerKind.ADAGRAD: 1,
    OptimizerKind.ROWWISE_ADAGRAD: 1,
    OptimizerKind.ADAM: 2,
    OptimizerKind.PARTIAL_ROWWISE_ADAM: 2,
}
_DECAY = {Decay.NONE: "NONE", Decay.L2: "L2", Decay.DECOUPLED: "DECOUPLE"}
_BOUNDS = {
    BoundsCheck.NONE: "NONE",
    BoundsCheck.IGNORE: "IGNORE",
    BoundsCheck.WARNING: "WARNING",
    BoundsCheck.FATAL: "FATAL",
}
_POOLING = {Pooling.SUM: "SUM", Pooling.MEAN: "MEAN", Pooling.NONE: "NONE"}

_FBGEMM_IMPORTS = """\
from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import BoundsCheckMode, EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
    WeightDecayMode,
)"""
_TORCHREC_IMPORTS = """\
import torchrec.distributed.triton_tbe.triton_table_batched_embeddings as triton_tbe
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import BoundsCheckMode

if not hasattr(triton_tbe.FeatureGateName, "DISABLE_OFFSETS_ADJUSTMENT"):  # FBGEMM before 1.8
    off = types.SimpleNamespace(is_enabled=lambda: False)
    triton_tbe.FeatureGateName = types.SimpleNamespace(DISABLE_OFFSETS_ADJUSTMENT=off)"""


@dataclass(frozen=True)
class Lines:
    """Source lines of a system.

    Attributes
    ----------
    build, after_load
        The module as `tbe`, and what is set once its tables and states are written.
    rate
        Sets the learning rate, with {} for it.
    restore
        Saves and loads into a new module.
    memory
        Names of the module's tensors that hold all tables, and each of their states.
    """

    device: str
    imports: str
    build: str
    rate: str
    memory: tuple[str, ...]
    restore: tuple[str, ...]
    after_load: str = ""
    torchrec: bool = False
    names_for_amd: tuple[str, ...] = ()
    deterministic: bool = False
    frozen: str = ""

    def forward(self, problem: Problem, step: int) -> str:
        """The call of a step."""
        arguments = [f"indices_{step}", f"offsets_{step}"]
        if problem.batches[step].per_sample_weights is not None:
            arguments.append(f"per_sample_weights=per_sample_weights_{step}")
        if self.frozen:
            arguments.append(f"feature_requires_grad={self.frozen}")
        sizes = problem.batches[step].batch_sizes
        if sizes is not None:
            arguments.append(f"batch_size_per_feature_per_rank={[list(ranks) for ranks in sizes]}")
        return f"tbe({', '.join(arguments)})"

    def before_forward(self, problem: Problem, step: int) -> tuple[str, ...]:
        """On a GPU, NaN in the memory that the output will be given: what is not written then shows."""
        if self.device != "cuda":
            return ()
        size = math.prod(output_shape(problem, problem.batches[step]))
        if not size:
            return ()
        dtype = _TORCH[problem.case.output]
        lines = [f"del [torch.full(({size},), nan, dtype={dtype}, device=device) for _ in range(4)][:]"]
        if problem.case.bad_offsets:  # and what is sorted where no bag covers a lookup
            lookups = len(problem.batches[step].indices)
            for kind in ("int32", "int64"):
                lines.append(
                    f"del [torch.full(({lookups},), -1, dtype=torch.{kind}, device=device) for _ in range(4)][:]"
                )
        return tuple(lines)


def system(subject: str, problem: Problem) -> Lines:
    """The lines of a subject's system, for a problem.

    Raises
    ------
    CaseError
        If the subject is none of FBGEMM's and TorchRec's.
    """
    head, *variants = subject.split("+")
    match head.partition(":")[0]:
        case "fbgemm-cpu":
            return _fbgemm(problem, "cpu", variants)
        case "fbgemm-cuda":
            return _fbgemm(problem, "cuda", variants)
        case "torchrec-triton":
            return _torchrec(problem, variants)
    raise CaseError(
        f"{subject} has no stand-alone script: scripts are for systems that others maintain, fbgemm-cpu, fbgemm-cuda "
        "and torchrec-triton"
    )


def _fbgemm(problem: Problem, device: str, variants: list[str]) -> Lines:
    case, optimizer = problem.case, problem.case.optimizer
    location, compute = ("HOST", "CPU") if device == "cpu" else ("DEVICE", "CUDA")
    specs = ", ".join(
        f"({rows}, {dim}, EmbeddingLocation.{location}, ComputeDevice.{compute})" for rows, dim in case.table_shapes
    )
    options = [
        f"[{specs}]",
        f"feature_table_map={list(problem.feature_tables)}",
        f"weights_precision=SparseType.{_SPARSE[case.weights]}",
        f"output_dtype=SparseType.{_SPARSE[case.output]}",
        *([f"cache_precision=SparseType.{_SPARSE[case.weights]}"] if device == "cuda" else []),
        f"optimizer=EmbOptimType.{_OPTIMIZER[optimizer.kind]}",
        f"learning_rate={optimizer.learning_rate!r}",
        f"eps={optimizer.eps!r}",
        f"beta1={optimizer.beta1!r}",
        f"beta2={optimizer.beta2!r}",
        f"weight_decay={optimizer.weight_decay!r}",
        f"weight_decay_mode=WeightDecayMode.{_DECAY[optimizer.decay]}",
        f"stochastic_rounding={case.rounding is Rounding.STOCHASTIC}",
        f"pooling_mode=PoolingMode.{_POOLING[case.pooling]}",
        f"bounds_check_mode=BoundsCheckMode.{_BOUNDS[case.bounds_check]}",
        *(["use_experimental_tbe=True"] if "v2" in variants else []),
        "device=device",
    ]
    build = _function("SplitTableBatchedEmbeddingBagsCodegen", options)
    momenta = [f"momentum{number}" for number in range(1, _STATES[optimizer.kind] + 1)]
    step = optimizer.step - 1
    after = f"tbe.iter.fill_({step})\ntbe.iter_cpu.fill_({step})\n" if optimizer.is_adam else ""
    frozen = ""
    if any(problem.frozen):
        frozen = f"torch.tensor({[int(not f) for f in problem.frozen]}, dtype=torch.int32, device=device)"
    return Lines(
        device=device,
        imports=_FBGEMM_IMPORTS,
        build=build,
        rate="tbe.set_learning_rate({!r})",
        memory=tuple(f"{name}_{'host' if device == 'cpu' else 'dev'}" for name in ("weights", *momenta)),
        restore=(
            "saved = tbe.state_dict()",
            "tbe = build()",
            "tbe.load_state_dict(saved)",
            "tables, states = tbe.split_embedding_weights(), tbe.split_optimizer_states()",
        ),
        after_load=after,
        deterministic="deterministic" in variants,
        frozen=frozen,
    )


def _torchrec(problem: Problem, variants: list[str]) -> Lines:
    from equivcheck.backends.torchrec_source import NAMES_FOR_AMD

    case, optimizer = problem.case, problem.case.optimizer
    options = [
        f"embedding_specs={list(case.table_shapes)}",
        f"feature_table_map={list(problem.feature_tables)}",
        f"weights_precision={_TORCH[case.weights]}",
        f"output_dtype={_TORCH[case.output]}",
        f"stochastic_rounding={case.rounding is Rounding.STOCHASTIC}",
        f"learning_rate={optimizer.learning_rate!r}",
        f"eps={optimizer.eps!r}",
        f"optimizer=EmbOptimType.{_OPTIMIZER[optimizer.kind]}",
        f"hoist_transpose_to_forward={'hoist' in variants}",
        f"bag_size_hints={[64] * len(problem.feature_tables) if 'small-tables' in variants else None}",
        f"fused_bounds_check={'fused-bounds' in variants}",
        "device=device",
    ]
    mode = _BOUNDS[case.bounds_check]
    mode = mode if mode == "NONE" else f"V2_{mode}"
    build = _function("triton_tbe.TritonTableBatchedEmbeddingBags", options)
    return Lines(
        device="cuda",
        imports=_TORCHREC_IMPORTS,
        build=f"{build}\ntbe.bounds_check_mode = BoundsCheckMode.{mode}",
        rate="tbe.learning_rate = {!r}",
        memory=("weight",) if optimizer.kind is OptimizerKind.SGD else ("weight", "momentum"),
        restore=(
            "old = tbe",
            "tbe = build()",
            f"tbe.bounds_check_mode = BoundsCheckMode.{mode}",
            "tbe.weight.data.copy_(old.weight.data)",
            "tbe.momentum.copy_(old.momentum)",
            "tables, states = tbe.split_embedding_weights(), tbe.split_optimizer_states()",
        ),
        torchrec=True,
        names_for_amd=("_FIXED_GRID", *NAMES_FOR_AMD),
    )


def _function(name: str, options: list[str]) -> str:
    body = "".join(f"        {option},\n" for option in options)
    return f"\ndef build():\n    return {name}(\n{body}    )\n\n\ntbe = build()"
