"""`fbgemm-cpu` and `fbgemm-cuda`: FBGEMM's SplitTableBatchedEmbeddingBagsCodegen, one adapter for both devices.

What the system refuses is unsupported here, with its reason; what it accepts is run, options that it silently ignores
included. Paths in comments are FBGEMM's at v1.8.0, below fbgemm_gpu/; for CUDA at v1.6.0.
"""

from __future__ import annotations

import abc
import contextlib
import importlib.metadata
import os
import platform
from collections.abc import Iterator
from typing import Any

import torch

from equivcheck.arithmetic import Arithmetic, MeanDivision, Sequential, Store, StoreRounding
from equivcheck.backends.cuda import asks_for_assert, checked, heard, leaves_gaps, samples, seeded, watched
from equivcheck.backends.driver import drive, supports_call
from equivcheck.backends.fbgemm_module import PlainTables, Tables, check_options
from equivcheck.backends.protocol import BackendUnavailable
from equivcheck.case import Call, Case, IndexFault, Layout, OptimizerKind, Pooling, Rounding
from equivcheck.formats import DType
from equivcheck.outcome import SUPPORTED, Outcome, Support, unsupported
from equivcheck.problem import Problem

_CPU_OPTIMIZERS = (OptimizerKind.SGD, OptimizerKind.ADAGRAD, OptimizerKind.ROWWISE_ADAGRAD)
_LARGEST_CUDA_DIM = 2048
"""codegen/genscript/jinja_environment.py:62, checked in embedding_forward_split_template.cu:497."""
_WIDEST_FIRST_FORWARD = 1024
"""Wider pooled lookups take the second forward: embedding_forward_split_template.cu:840."""
_LONG_RUN = 1024
"""Longer runs are cut and added up with atomics: embedding_backward_split_device_kernel_template, cta_per_row."""


_OVERRIDES = {
    "FBGEMM_TBE_BOUNDS_CHECK_MODE": "would override the mode of every case",
    # split_table_batched_embeddings_ops_training.py:1457, embedding_split_host_pt2_autograd_template.cpp:1272
    "FBGEMM_EXPERIMENTAL_TBE": "may choose the second forward, which fbgemm-cuda+v2 is for",
    "FBGEMM_TBE_V2": "may choose the second forward, which fbgemm-cuda+v2 is for",
}
"""Environment variables with which FBGEMM does something else than it is told."""


class _Fbgemm(abc.ABC):
    """What both devices share."""

    def __init__(self, device: torch.device, name: str) -> None:
        for variable, effect in _OVERRIDES.items():
            if variable in os.environ:
                raise BackendUnavailable(f"{variable} is set to {os.environ[variable]!r} and {effect}; unset it")
        check_options(device)
        self.device = device
        self.name = name

    def run(self, problem: Problem) -> Outcome:
        """See `Backend`."""
        return self._run(problem, Tables.of(problem, self.device))

    def versions(self) -> dict[str, str]:
        """See `Backend`. FBGEMM's own switches in the environment belong to what is under test."""
        found = {
            "fbgemm_gpu": fbgemm_version(),
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

    def timing(self) -> Support:
        """See `equivcheck.backends.timed.Timed`."""
        return SUPPORTED

    def prepare(self, case: Case) -> PlainTables:
        """See `equivcheck.backends.timed.Timed`."""
        return PlainTables(case, self.device)

    @abc.abstractmethod
    def _paths(self, case: Case) -> tuple[str, ...]:
        """Names of the paths that a case takes."""

    def _run(self, problem: Problem, tables: Tables) -> Outcome:
        outcome = drive(problem, tables, self._paths(problem.case))
        if outcome.raised is None:
            tables.release(outcome.guards)
        return outcome

    @staticmethod
    def _common(case: Case) -> Support:
        """What is refused on both devices."""
        if case.weights is DType.BF16:
            return unsupported("FBGEMM has no bf16 tables: \"split_embedding...\" not implemented for 'BFloat16'")
        for dim in (dim for _, dim in case.table_shapes if dim % 4):
            return unsupported(f"FBGEMM asserts that embedding_dim is a multiple of 4, and a table has {dim}")
        if case.accumulation is not DType.FP32:
            return unsupported(f"FBGEMM accumulates in fp32 and cannot be asked for {case.accumulation}")
        return SUPPORTED


class FbgemmCpu(_Fbgemm):
    """FBGEMM's CPU TBE: `fbgemm-cpu`."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"), "fbgemm-cpu")

    def supports(self, case: Case) -> Support:
        """What FBGEMM 1.8.0 refuses on the CPU by assertions and NotImplementedError, and tables that all are empty."""
        if not (common := self._common(case) and supports_call(case.call, self.device)):
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
    """FBGEMM's CUDA TBE: `fbgemm-cuda`.

    Variants: `+v2` takes the second forward for every width, `+deterministic` asks PyTorch for deterministic
    algorithms, for which FBGEMM adds up long runs in one block instead of by atomics.

    Parameters
    ----------
    device
        `cuda` or `cuda:N`.
    """

    def __init__(self, device: str = "", *variants: str) -> None:
        if unknown := set(variants) - {"v2", "deterministic"}:
            raise ValueError(f"fbgemm-cuda has no variant {min(unknown)!r}; it has v2 and deterministic")
        if device and torch.device(device).type != "cuda":
            raise ValueError(f"fbgemm-cuda runs on cuda or cuda:N, not on {device!r}")
        if not torch.cuda.is_available():
            raise BackendUnavailable(f"fbgemm-cuda needs a GPU, and PyTorch {torch.__version__} finds none")
        if not torch._C._dispatch_has_kernel_for_dispatch_key("fbgemm::bounds_check_indices", "CUDA"):
            raise BackendUnavailable("the installed fbgemm_gpu has no CUDA kernels; install equivcheck[cuda]")
        name = f"fbgemm-cuda:{device}" if device else "fbgemm-cuda"
        super().__init__(torch.empty(0, device=device or "cuda").device, "+".join([name, *sorted(variants)]))
        self.experimental = "v2" in variants
        self.deterministic = "deterministic" in variants

    def supports(self, case: Case) -> Support:
        """See `takes`; and what has no second forward, where that is asked for."""
        if self.experimental and (case.ranks or case.pooling is Pooling.NONE):
            return unsupported("FBGEMM has its second forward for pooled batches of fixed size")
        return self.takes(case) and supports_call(case.call, self.device)

    @staticmethod
    def takes(case: Case) -> Support:
        """What FBGEMM refuses on CUDA, by assertions and checks. Needs no GPU."""
        if not (common := _Fbgemm._common(case)):
            return common
        for dim in (dim for _, dim in case.table_shapes if dim > _LARGEST_CUDA_DIM):
            return unsupported(
                f"FBGEMM's CUDA kernels are built for up to {_LARGEST_CUDA_DIM} columns, a table has {dim}"
            )
        if case.optimizer.kind is OptimizerKind.ADAM and case.weights is DType.FP16:
            return unsupported("FBGEMM checks in Adam's backward that 'row_counter_dev' is fp32, and makes it fp16")
        if case.ranks:
            if case.optimizer.kind in (OptimizerKind.ADAGRAD, OptimizerKind.PARTIAL_ROWWISE_ADAM):
                return unsupported(
                    f"FBGEMM asserts that variable batches are enabled, which {case.optimizer.kind} is not for"
                )
            if min(samples(case)) == 0:
                return unsupported("FBGEMM checks that a variable batch has a sample: max_B_feature_rank > 0")
            if case.call is Call.GRAPH:
                return unsupported("FBGEMM copies a variable batch's sizes from the host, which a graph cannot capture")
        if case.call is Call.GRAPH and case.optimizer.is_adam and case.optimizer.step == 1:
            return unsupported("before its first step FBGEMM fetches Adam's step count, which a graph cannot capture")
        return SUPPORTED

    def arithmetic(self, case: Case) -> Arithmetic:
        """Fp32 sums in any order; atomics, which flush, for runs beyond 1,024.

        The v2 forward divides by the length, the legacy one multiplies by its reciprocal: the weaker is declared. powf
        is good to 4 ulp (CUDA C++ programming guide, mathematical functions, powf), 8 u. Divisions and square roots
        are correctly rounded, since no fast-math flag is set. Stochastic rounding adds 13 random bits and truncates:
        it saturates (stochastic_rounding.cuh:97-162).

        Not declared, since the contract has it otherwise: MEAN's dY / L in the type of a 16-bit output
        (embedding_backward_split_grad_template.cu:201).
        """
        stochastic = case.rounding is Rounding.STOCHASTIC and case.weights is not DType.FP32
        atomics = case.lookups > _LONG_RUN and not self.deterministic
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
        """See `danger`."""
        return self.danger(case, experimental=self.experimental)

    @staticmethod
    def danger(case: Case, *, experimental: bool = False) -> str:
        """What may end in a device assert, by design or not, or reach memory that is not the module's. Needs no GPU.

        Tables lie between guards of a row, so that a row before the first or behind the last does no harm and shows.
        """
        second_forward = _takes_second_forward(case, experimental)
        if asks_for_assert(case):
            return "on CUDA a fatal bounds check is a device assert, after which the process can use no GPU"
        if leaves_gaps(case):
            return (
                "FBGEMM sorts uninitialised positions where bags do not cover all lookups, and updates what they name"
            )
        if case.ranks and min(samples(case)) < len(case.features):
            return "FBGEMM divides by the number of samples per feature, here zero, and the process ends by SIGFPE"
        outside = any(bad.fault is IndexFault.PRUNED for bad in case.bad_indices) or not all(
            rows for rows, _ in case.table_shapes
        )
        # The gradient of per-sample weights is computed whether they ask for it or not.
        if outside and (case.per_sample_weights is not None or second_forward):
            return "FBGEMM's kernels assert, or leave the address space, for rows that no table has"
        if not any(rows for rows, _ in case.table_shapes) and case.lookups:
            return "tables without any row have no memory at all"
        if Layout.STRIDED in (case.layouts.indices, case.layouts.offsets) and second_forward:
            return "FBGEMM's second forward reads strided indices as if they were contiguous"
        return ""

    def run(self, problem: Problem) -> Outcome:
        """See `Backend`. The default generator seeds stochastic rounding, and is set back afterwards."""
        case = problem.case
        with watched(self.device), seeded(self.device, case.seed), self._algorithms(), heard(case) as asserted:
            outcome = self._run(problem, Tables.of(problem, self.device, experimental=self.experimental))
        return checked(outcome, self.device, asserted)

    def timing(self) -> Support:
        """Not for `+deterministic`, which is a switch of the whole process, set around single calls."""
        if self.deterministic:
            return unsupported("fbgemm-cuda+deterministic switches PyTorch for single calls; its speed is not measured")
        return SUPPORTED

    def prepare(self, case: Case) -> PlainTables:
        """See `equivcheck.backends.timed.Timed`."""
        return PlainTables(case, self.device, experimental=self.experimental)

    @contextlib.contextmanager
    def _algorithms(self) -> Iterator[None]:
        """PyTorch's switch. It also fills new tensors with NaN, which `cuda.poison_free_memory` does for all variants.

        It only warns of operations that PyTorch itself has no deterministic form of: FBGEMM's are under test.
        """
        before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
        fills: Any = torch.utils.deterministic  # a module with a property, which no types describe
        filled = fills.fill_uninitialized_memory
        torch.use_deterministic_algorithms(self.deterministic, warn_only=True)
        fills.fill_uninitialized_memory = False
        try:
            yield
        finally:
            fills.fill_uninitialized_memory = filled
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])

    def _paths(self, case: Case) -> tuple[str, ...]:
        """From the conditions in the source: the system does not say which path it takes."""
        widest = max(dim for _, dim in case.table_shapes)
        if case.pooling is Pooling.NONE:
            forward = "no bag, small" if widest <= 32 else "no bag"
        else:
            forward = "v2" if _takes_second_forward(case, self.experimental) else "legacy"
        return (f"forward: {forward}", *(("deterministic",) if self.deterministic else ()))


def _takes_second_forward(case: Case, experimental: bool) -> bool:
    """FBGEMM's "v2": for wide tables, or where it is asked for."""
    pooled = case.pooling is not Pooling.NONE and not case.ranks
    return pooled and (experimental or max(dim for _, dim in case.table_shapes) > _WIDEST_FIRST_FORWARD)


def fbgemm_version() -> str:
    """The installed FBGEMM, with its distribution's name."""
    for package in ("fbgemm-gpu", "fbgemm-gpu-cpu"):
        try:
            return f"{package} {importlib.metadata.version(package)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    return "unknown: fbgemm_gpu is on the path without its package's metadata"
