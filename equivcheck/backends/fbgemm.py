"""`fbgemm-cpu` and `fbgemm-cuda`: FBGEMM's SplitTableBatchedEmbeddingBagsCodegen, one adapter for both devices.

What the system refuses is unsupported here, with its reason; what it accepts is run, options that it silently ignores
included. Paths in comments are FBGEMM's at v1.8.0, below fbgemm_gpu/; for CUDA at v1.6.0.
"""

from __future__ import annotations

import abc
import importlib.metadata
import os
import platform

import torch

from equivcheck.arithmetic import Arithmetic, MeanDivision, Sequential, Store, StoreRounding
from equivcheck.backends.driver import drive, supports_call
from equivcheck.backends.fbgemm_module import Tables
from equivcheck.backends.protocol import BackendUnavailable
from equivcheck.case import BoundsCheck, Call, Case, OptimizerKind, Pooling, Rounding
from equivcheck.formats import DType
from equivcheck.outcome import SUPPORTED, Outcome, Support, unsupported
from equivcheck.problem import Problem

_CPU_OPTIMIZERS = (OptimizerKind.SGD, OptimizerKind.ADAGRAD, OptimizerKind.ROWWISE_ADAGRAD)
_LARGEST_CUDA_DIM = 2048
"""codegen/genscript/jinja_environment.py:62, checked in embedding_forward_split_template.cu:497."""
_LONG_RUN = 1024
"""Longer runs are cut and added up with atomics: embedding_backward_split_device_kernel_template, cta_per_row."""


class _Fbgemm(abc.ABC):
    """What both devices share."""

    def __init__(self, device: torch.device, name: str) -> None:
        if "FBGEMM_TBE_BOUNDS_CHECK_MODE" in os.environ:
            raise BackendUnavailable(
                f"FBGEMM_TBE_BOUNDS_CHECK_MODE is set to {os.environ['FBGEMM_TBE_BOUNDS_CHECK_MODE']!r} and would "
                "override the mode of every case; unset it"
            )
        self.device = device
        self.name = name

    def run(self, problem: Problem) -> Outcome:
        """See `Backend`."""
        return self._run(problem, Tables.of(problem, self.device))

    def versions(self) -> dict[str, str]:
        """See `Backend`. FBGEMM's own switches in the environment belong to what is under test."""
        found = {
            "fbgemm_gpu": _fbgemm_version(),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "device": str(self.device),
        }
        if self.device.type == "cuda":
            found["gpu"] = torch.cuda.get_device_name(self.device)
            found["cuda"] = str(torch.version.cuda)
        else:
            found["cpu"] = torch.backends.cpu.get_cpu_capability()
        return found | {name: value for name, value in sorted(os.environ.items()) if name.startswith("FBGEMM_")}

    @abc.abstractmethod
    def _paths(self, case: Case) -> tuple[str, ...]:
        """Names of the paths that a case takes."""

    def _run(self, problem: Problem, tables: Tables) -> Outcome:
        outcome = drive(problem, tables, self._paths(problem.case))
        if outcome.raised is None:
            tables.release()
        return outcome

    def _common(self, case: Case) -> Support:
        """What is refused on both devices."""
        if case.weights is DType.BF16:
            return unsupported("FBGEMM has no bf16 tables: \"split_embedding...\" not implemented for 'BFloat16'")
        for dim in (dim for _, dim in case.table_shapes if dim % 4):
            return unsupported(f"FBGEMM asserts that embedding_dim is a multiple of 4, and a table has {dim}")
        if case.accumulation is not DType.FP32:
            return unsupported(f"FBGEMM accumulates in fp32 and cannot be asked for {case.accumulation}")
        return supports_call(case.call, self.device)


class FbgemmCpu(_Fbgemm):
    """FBGEMM's CPU TBE: `fbgemm-cpu`."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"), "fbgemm-cpu")

    def supports(self, case: Case) -> Support:
        """What FBGEMM 1.8.0 refuses on the CPU by assertions and NotImplementedError, and tables that all are empty."""
        if not (common := self._common(case)):
            return common
        if case.output is DType.BF16:
            return unsupported("FBGEMM's CPU TBE has no bf16 output: split_embedding_cpu_forward_1 refuses 'BFloat16'")
        if case.optimizer.kind not in _CPU_OPTIMIZERS:
            return unsupported(f"FBGEMM asserts: Optimizer {case.optimizer.kind} is not supported in CPU mode")
        if case.ranks and case.optimizer.kind is OptimizerKind.ADAGRAD:
            return unsupported("FBGEMM asserts that variable batches come with exact SGD or row-wise Adagrad")
        if not any(rows for rows, _ in case.table_shapes):
            # use_cpu = host_weights.numel() > 0, in every generated lookup_*.py
            return unsupported(
                "FBGEMM takes tables without any row for a GPU's: weights[0] must be a GPU or MTIA tensor"
            )
        return SUPPORTED

    def arithmetic(self, case: Case) -> Arithmetic:
        """Sums in fp32, one after the other in lookup order, and correctly rounded quotients and roots.

        Products are fused (vfmadd in src/EmbeddingSpMDM.cc, contraction elsewhere) or rounded. MEAN multiplies by a
        reciprocal: fl(1/fl(L)) in fp32 (src/EmbeddingSpMDM.cc:468-499) or in double (FWD:159-164), dY by
        fl32(1.0/L) (FWD:452-465). Row-wise Adagrad sums squares in eight lanes (src/SparseAdagrad.cc) or one
        (genscript/optimizers.py:231-260), Adagrad divides in double (optimizers.py:66-74): neither is worse than fp32
        in some order. Nothing flushes, and every path repeats to the bit for any number of threads.

        Asked for stochastic rounding, FBGEMM documents it, so it is declared; the CPU kernels ignore the argument
        (embedding_backward_split_cpu_template.cpp:431), which the judgement of bias must find.
        """
        stochastic = case.rounding is Rounding.STOCHASTIC and case.weights is not DType.FP32
        return Arithmetic(
            pooling=Sequential(),
            gradient=Sequential(),
            weight_gradient=Sequential(),
            mean_square=Sequential(),
            mean_division=MeanDivision.RECIPROCAL,
            division=1.0,
            square_root=1.0,
            table_store=Store(StoreRounding.STOCHASTIC if stochastic else StoreRounding.NEAREST),
            deterministic=True,
        )

    def _paths(self, case: Case) -> tuple[str, ...]:
        """From the conditions in the source: the system does not say which path it takes."""
        if case.pooling is Pooling.NONE:
            forward = "generic, no bag"
        else:
            forward = "generated code" if case.output is DType.FP32 else "generic"
        generated = (  # embedding_backward_split_cpu_template.cpp:129-132
            case.optimizer.kind is OptimizerKind.ROWWISE_ADAGRAD
            and case.pooling is not Pooling.NONE
            and case.weights is case.output is DType.FP32
            and len(case.table_shapes) == len(case.features)
        )
        return (f"forward: {forward}", f"update: {'generated code' if generated else 'generic'}")


class FbgemmCuda(_Fbgemm):
    """FBGEMM's CUDA TBE: `fbgemm-cuda`, or `fbgemm-cuda+v2` with the second forward for every width.

    Parameters
    ----------
    device
        `cuda` or `cuda:N`.
    """

    def __init__(self, device: str = "cuda", *variants: str) -> None:
        unknown = set(variants) - {"v2"}
        if unknown:
            raise ValueError(f"fbgemm-cuda has no variant {min(unknown)!r}; it has v2")
        if not torch.cuda.is_available():
            raise BackendUnavailable(f"fbgemm-cuda needs a GPU, and PyTorch {torch.__version__} finds none")
        if not torch._C._dispatch_has_kernel_for_dispatch_key("fbgemm::bounds_check_indices", "CUDA"):
            raise BackendUnavailable("the installed fbgemm_gpu has no CUDA kernels; install equivcheck[cuda]")
        device = device or "cuda"
        super().__init__(torch.empty(0, device=device).device, "+".join([f"fbgemm-cuda:{device}", *sorted(variants)]))
        self.experimental = "v2" in variants

    def supports(self, case: Case) -> Support:
        """What FBGEMM refuses on CUDA, by assertions and checks."""
        if not (common := self._common(case)):
            return common
        for dim in (dim for _, dim in case.table_shapes if dim > _LARGEST_CUDA_DIM):
            return unsupported(
                f"FBGEMM's CUDA kernels are built for up to {_LARGEST_CUDA_DIM} columns, a table has {dim}"
            )
        if case.ranks and case.optimizer.kind in (OptimizerKind.ADAGRAD, OptimizerKind.PARTIAL_ROWWISE_ADAM):
            return unsupported(
                f"FBGEMM asserts that variable batches are enabled, which {case.optimizer.kind} is not for"
            )
        if case.ranks and not any(feature.bags or feature.traffic for feature in case.features):
            return unsupported("FBGEMM checks that a variable batch has a sample: max_B_feature_rank is above zero")
        if case.call is Call.GRAPH and case.optimizer.is_adam and case.optimizer.step == 1:
            return unsupported("before its first step FBGEMM fetches Adam's step count, which a graph cannot capture")
        if case.call is Call.GRAPH and case.ranks:
            return unsupported("FBGEMM copies a variable batch's sizes from pageable memory, which no graph captures")
        return SUPPORTED

    def arithmetic(self, case: Case) -> Arithmetic:
        """Fp32 sums in any order; atomics, which flush, for runs beyond 1,024.

        The v2 forward divides by the length, the legacy one multiplies by its reciprocal: the weaker is declared. powf
        is good to 4 ulp (CUDA C++ programming guide, mathematical functions, powf), 8 u. Divisions and square roots
        are correctly rounded, since no fast-math flag is set. Stochastic rounding adds 13 random bits and truncates:
        it saturates (stochastic_rounding.cuh:97-162).
        """
        stochastic = case.rounding is Rounding.STOCHASTIC and case.weights is not DType.FP32
        atomics = case.lookups > _LONG_RUN
        return Arithmetic(
            pooling=Sequential(),
            gradient=Sequential(),
            weight_gradient=Sequential(),
            mean_square=Sequential(),
            mean_division=MeanDivision.RECIPROCAL,
            power=8.0,
            sum_flushes=atomics,
            table_store=Store(StoreRounding.STOCHASTIC, saturates=True) if stochastic else Store(),
            deterministic=not atomics,
        )

    def isolation(self, case: Case) -> str:
        """A fatal bounds check is a device assert by design (embedding_bounds_check_v1.cu, CUDA_KERNEL_ASSERT)."""
        if case.bounds_check is BoundsCheck.FATAL and (case.bad_indices or case.bad_offsets):
            return "on CUDA a fatal bounds check is a device assert, after which the process can use no GPU"
        return ""

    def run(self, problem: Problem) -> Outcome:
        """See `Backend`. Stochastic rounding draws from CUDA's default generator, which is seeded by the case."""
        if problem.case.rounding is Rounding.STOCHASTIC:
            torch.cuda.manual_seed(problem.case.seed)
        return self._run(problem, Tables.of(problem, self.device, experimental=self.experimental))

    def _paths(self, case: Case) -> tuple[str, ...]:
        """From the conditions in the source: the system does not say which path it takes."""
        widest = max(dim for _, dim in case.table_shapes)
        if case.pooling is Pooling.NONE:
            forward = "no bag, small" if widest <= 32 else "no bag"
        else:
            forward = "v2" if (self.experimental or widest > 1024) and not case.ranks else "legacy"
        return (f"forward: {forward}",)


def _fbgemm_version() -> str:
    for package in ("fbgemm-gpu", "fbgemm-gpu-cpu"):
        try:
            return f"{package} {importlib.metadata.version(package)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    return "unknown: fbgemm_gpu is on the path without its package's metadata"
