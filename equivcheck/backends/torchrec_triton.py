"""`torchrec-triton`: TorchRec's Triton TBE, `TritonTableBatchedEmbeddingBags`, on an NVIDIA GPU.

Its optional paths are variants, each for the cases that can take it: `+small-tables` (`bag_size_hints`), `+hoist`
(`hoist_transpose_to_forward`), `+fused-bounds` (`fused_bounds_check`). A run in which the path was not taken counts as
vacuous. Paths in comments are below torchrec/distributed/triton_tbe/ on 2026-08-22, TorchRec 1.9.0a0; TBE stands for
triton_table_batched_embeddings.py.
"""

from __future__ import annotations

import platform
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from equivcheck.arithmetic import Arithmetic, Grouped, Sequential, Store, StoreRounding, Summation, TensorCore
from equivcheck.backends.cuda import asks_for_assert, checked, heard, leaves_gaps, samples, watched
from equivcheck.backends.driver import drive, supports_call
from equivcheck.backends.protocol import BackendUnavailable
from equivcheck.case import BoundsCheck, Call, Case, Decay, Layout, OptimizerKind, Pooling, Rounding
from equivcheck.formats import DType
from equivcheck.outcome import SUPPORTED, Outcome, Support, unsupported
from equivcheck.problem import Problem

if TYPE_CHECKING:
    from equivcheck.backends.torchrec_module import PlainTables

VARIANTS = ("small-tables", "hoist", "fused-bounds")

_LONG_RUN = 256
"""Runs from here on are cut and added up with atomics: _LONG_RUN_THRESHOLD, triton_tbe_backward_utils.py:73."""
_RUNS_A_BLOCK = 1024
"""Runs are numbered block by block in the order of atomics, and random numbers go by the number: utils:107-117."""
_MOST_SMALL_ROWS = 64
_SMALL_DIMS = range(64, 129)
_LEAST_HINT = 64
"""What makes a table small: TBE:2648."""
_PRODUCT = 64
"""Terms to which a matrix product pads its sums, at least: the depth of a tile in cuBLAS's kernels for 16-bit types."""

_FORWARDS = {
    "table_batched_embedding_bag_forward_unweighted_kernel": "forward: unweighted",
    "table_batched_embedding_bag_forward_weighted_kernel": "forward: weighted",
    "table_batched_embedding_bag_forward_small_table_kernel": "forward: small table",
    "triton_tbe_backward_histogram_apply_rowwise_adagrad": "backward: saved histogram",
    "_bounds_check_offsets_kernel": "fused bounds check",
}
"""Kernels that say which path was taken. Those of short and of long runs are launched whether there are any or not."""


class TorchrecTriton:
    """TorchRec's Triton TBE with some of its optional paths.

    Parameters
    ----------
    device
        `cuda`; its kernels run on PyTorch's current device.
    variants
        `small-tables`, `hoist`, `fused-bounds`.

    Raises
    ------
    ValueError
        If a variant is unknown, or two exclude each other.
    BackendUnavailable
        If there is no GPU, no CUDA build of FBGEMM, or no TorchRec with a Triton TBE.
    """

    compiles_for_widths = True
    """The sum of the features' widths is a constant of its kernels: a pool of widths keeps compiling within limits."""

    def __init__(self, device: str = "", *variants: str) -> None:
        if unknown := sorted(set(variants) - set(VARIANTS)):
            raise ValueError(f"torchrec-triton has no variant {unknown[0]!r}; it has {', '.join(VARIANTS)}")
        if device not in ("", "cuda"):
            raise ValueError(f"torchrec-triton runs on cuda, PyTorch's current device, not on {device!r}")
        if {"hoist", "fused-bounds"} <= set(variants):
            raise ValueError("hoist switches the fused bounds check off (TBE:2855); ask for one of the two")
        if not torch.cuda.is_available():
            raise BackendUnavailable(f"torchrec-triton needs a GPU, and PyTorch {torch.__version__} finds none")
        try:
            import fbgemm_gpu  # noqa: F401  # registers the operators that the module calls
        except ImportError as error:
            raise BackendUnavailable(
                f"torchrec-triton calls FBGEMM's operators: install equivcheck[cuda] ({error})"
            ) from error
        if not torch._C._dispatch_has_kernel_for_dispatch_key("fbgemm::transpose_embedding_input", "CUDA"):
            raise BackendUnavailable(
                "torchrec-triton calls FBGEMM's CUDA operators, which the installed fbgemm_gpu lacks; install "
                "equivcheck[cuda]"
            )
        self._start(torch.empty(0, device="cuda").device, variants)

    def _start(self, device: torch.device, variants: tuple[str, ...]) -> None:
        from equivcheck.backends.torchrec_source import load

        self.system = load()
        self.device = device
        self.variants = frozenset(variants)
        self.name = "+".join(["torchrec-triton", *(variant for variant in VARIANTS if variant in variants)])

    def supports(self, case: Case) -> Support:
        """What the module has no option for, or refuses, and for a variant what cannot take its path."""
        for has, reason in self._refused(case):
            if has:
                return unsupported(reason)
        for variant, reason in self._elsewhere(case):
            if variant in self.variants and reason:
                return unsupported(f"this case does not take the path of +{variant}: {reason}")
        return supports_call(case.call, self.device)

    def arithmetic(self, case: Case) -> Arithmetic:
        """Fp32, but pooled fp32 tables: groups of four in fp32, added in fp64 (TBE:190-240), then rounded to fp32.

        Tiles of a run and columns are added by trees, which is some order; runs from 256 on by atomics, which flush.
        Triton's `/` is `div.full` with 2 ulp and `tl.sqrt` is `sqrt.approx.ftz`, with a relative error of 2^-23 and
        subnormal operands taken for zero (PTX ISA, floating-point instructions; read in the PTX for sm_90). Counts
        times a small table run on tensor cores; so does the histogram's backward, in two products whose operands are
        the halves of dY in fp16. That those have fewer bits than dY is not declared: the contract has it otherwise.

        A seed is drawn for each backward, and the number of a run chooses among its random numbers. The method is
        round-to-nearest and then, perhaps, the neighbour on the other side (utils:28-70).
        """
        stochastic = case.rounding is Rounding.STOCHASTIC and case.weights is not DType.FP32
        atomics = case.lookups >= _LONG_RUN
        sums = Grouped(4, DType.FP32, DType.FP64) if case.weights is DType.FP32 else Sequential()
        arithmetic = Arithmetic(
            pooling=sums,
            gradient=Sequential(),
            weight_gradient=Sequential(),
            mean_square=Sequential(),
            division=4.0,
            square_root=2.0,
            optimizer_flushes=case.optimizer.kind is OptimizerKind.ROWWISE_ADAGRAD,
            sum_flushes=atomics,
            table_store=Store(StoreRounding.STOCHASTIC) if stochastic else Store(),
            deterministic=not atomics and not (stochastic and case.lookups > _RUNS_A_BLOCK),
        )
        if "small-tables" not in self.variants:
            return arithmetic
        return replace(arithmetic, pooling=_counted(case), gradient=TensorCore(_padded(max(_bags(case)))))

    def isolation(self, case: Case) -> str:
        """What may end in a device assert, by design or not, or reach memory that is not the module's.

        Tables lie between guards of a row, so that a row before the first or behind the last does no harm and shows.
        """
        if asks_for_assert(case):
            return "on CUDA a fatal bounds check is a device assert, after which the process can use no GPU"
        if leaves_gaps(case):
            return "FBGEMM sorts what it finds at positions that no bag covers, and those rows are updated"
        if case.ranks and min(samples(case)) < len(case.features):
            return "FBGEMM divides by the number of samples per feature, here zero, and the process ends by SIGFPE"
        if Layout.STRIDED in (case.layouts.indices, case.layouts.offsets):
            return "the kernels read strided indices and offsets as if they were contiguous"
        return ""

    def run(self, problem: Problem) -> Outcome:
        """See `Backend`. PyTorch's generator on the CPU seeds stochastic rounding, and is set back afterwards."""
        from equivcheck.backends.torchrec_module import HOISTED, Tables

        before = Counter(self.system.launches)
        with watched(self.device), torch.random.fork_rng(devices=[]), heard(problem.case) as asserted:
            torch.default_generator.manual_seed(problem.case.seed)
            tables = Tables(problem, self.system, self.device, self._options(len(problem.feature_tables)))
            tables.load(problem.initial, 0)
            outcome = drive(problem, tables)
        outcome = checked(outcome, self.device, asserted)
        launched = self.system.launches - before
        paths = [path for kernel, path in _FORWARDS.items() if launched[kernel]]
        if tables.seen[HOISTED]:
            paths.append(HOISTED)
        return replace(outcome, paths=tuple(paths), vacuous=self._vacuous(outcome, paths))

    def versions(self) -> dict[str, str]:
        """See `Backend`. Between releases of TorchRec, the digest of the sources tells versions apart."""
        import triton

        from equivcheck.backends.fbgemm import fbgemm_version

        found = {
            "torchrec": self.system.version,
            "fbgemm_gpu": fbgemm_version(),
            "torch": torch.__version__,
            "triton": triton.__version__,
            "python": platform.python_version(),
            "device": str(self.device),
        }
        if self.device.type == "cuda":
            found["gpu"] = torch.cuda.get_device_name(self.device)
            found["cuda"] = str(torch.version.cuda)
        return found

    def timing(self) -> Support:
        """See `equivcheck.backends.timed.Timed`."""
        return SUPPORTED

    def prepare(self, case: Case) -> PlainTables:
        """See `equivcheck.backends.timed.Timed`."""
        from equivcheck.backends.torchrec_module import PlainTables

        return PlainTables(case, self.system, self.device, self._options(len(case.features)))

    def _refused(self, case: Case) -> list[tuple[bool, str]]:
        bags = samples(case) if case.ranks else _bags(case)
        updates = case.call is not Call.FORWARD_ONLY
        hoisted = "hoist" in self.variants
        return [
            (
                case.optimizer.kind not in (OptimizerKind.SGD, OptimizerKind.ROWWISE_ADAGRAD),
                f"TorchRec's Triton TBE has SGD and row-wise Adagrad: OPTIM_TYPE_TO_INT has no {case.optimizer.kind}",
            ),
            (
                case.pooling is not Pooling.SUM,
                f"TorchRec's Triton TBE pools by sums and has no {case.pooling}",
            ),
            (case.optimizer.decay is not Decay.NONE, "TorchRec's Triton TBE has no option for weight decay"),
            (
                case.accumulation is not DType.FP32,
                f"TorchRec's Triton TBE cannot be asked to accumulate in {case.accumulation}",
            ),
            (any(feature.frozen for feature in case.features), "TorchRec's Triton TBE takes no feature_requires_grad"),
            (
                not any(rows for rows, _ in case.table_shapes),
                "TorchRec's Triton TBE takes the logarithm of the number of rows (TBE:2584), and no table has one",
            ),
            (
                case.ranks > 0 and min(bags) == 0,
                "FBGEMM checks that a variable batch has a sample: max_B_feature_rank > 0",
            ),
            (
                min(bags) == 0 and (updates or hoisted),
                "FBGEMM's get_infos_metadata checks that B is positive, which the backward of an empty batch calls",
            ),
            (
                case.ranks > 0 and case.call is Call.GRAPH,
                "FBGEMM copies a variable batch's sizes from the host, which a graph cannot capture",
            ),
        ]

    def _elsewhere(self, case: Case) -> list[tuple[str, str]]:
        """For each variant, why a case cannot take its path; empty where it can."""
        unweighted = "" if case.per_sample_weights is None else "it has per-sample weights"
        fixed = "it is a variable batch" if case.ranks else ""
        empty = "" if case.lookups else "it has no lookup"
        return [
            ("small-tables", _not_small(case) or unweighted or fixed or empty),
            ("hoist", empty or ("it has no backward" if case.call is Call.FORWARD_ONLY else "")),
            (
                "fused-bounds",
                ("" if case.bounds_check is BoundsCheck.WARNING else "its bounds check does not warn")
                or unweighted
                or fixed
                or empty,
            ),
        ]

    def _options(self, features: int) -> dict[str, object]:
        """The module's options for the variants. The hint says what the bags are, up to what keeps the backward's path.

        A longer bag makes the backward fall back by itself (TBE:2023-2028); that belongs to the path.
        """
        hints = None
        if "small-tables" in self.variants:
            hints = [_LEAST_HINT] * features
        return {
            "hoist_transpose_to_forward": "hoist" in self.variants,
            "bag_size_hints": hints,
            "fused_bounds_check": "fused-bounds" in self.variants,
        }

    def _vacuous(self, outcome: Outcome, paths: list[str]) -> str:
        """What is missing of a variant's path. A call that raised may have raised before it."""
        wanted = {
            "small-tables": "forward: small table",
            "hoist": "hoisted transpose",
            "fused-bounds": "fused bounds check",
        }
        missing = [name for variant, name in wanted.items() if variant in self.variants and name not in paths]
        if not missing or outcome.raised is not None:
            return ""
        return f"the path {missing[0]!r} was not taken; taken were {', '.join(paths) or 'none'}"


def _is_small(shape: tuple[int, int]) -> bool:
    return shape[0] <= _MOST_SMALL_ROWS and shape[1] in _SMALL_DIMS


def _not_small(case: Case) -> str:
    if case.weights is not DType.FP16 or case.output is not DType.FP32:
        return "small tables are fp16 and their output is fp32 (TBE:2640)"
    if not any(_is_small(shape) for shape in case.table_shapes):
        return f"no table has up to {_MOST_SMALL_ROWS} rows of {_SMALL_DIMS[0]} to {_SMALL_DIMS[-1]} columns"
    return ""


def _counted(case: Case) -> Summation:
    """Counts of up to 64 rows times the table; lookups beyond the first 256 of a bag are added."""
    rows = max((rows for rows, dim in case.table_shapes if _is_small((rows, dim))), default=0)
    return TensorCore(_padded(rows))


def _padded(terms: int) -> int:
    return max(_PRODUCT, -(-terms // _PRODUCT) * _PRODUCT)


def _bags(case: Case) -> tuple[int, ...]:
    """Bags of the longest feature in each step; of a captured batch, which is read later, at least one."""
    most = max(
        sum(bag.copies for bag in feature.bags) + (feature.traffic.bags if feature.traffic is not None else 0)
        for feature in case.features
    )
    most = max(most, 1) if case.captured is not None else most
    return tuple(most if step.bags is None else min(most, step.bags) for step in case.steps)
