"""FBGEMM's TBE module: built with every option explicit, kept for the next case of the same kind, loaded and read."""

from __future__ import annotations

import contextlib
import inspect
import io
import logging
import warnings
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, Self

import numpy as np
import torch

from equivcheck.backends.cuda import into_poison, poison_free_memory
from equivcheck.backends.driver import Inputs
from equivcheck.backends.layouts import FINITE_POISON, Placed, place, to_numpy, to_torch
from equivcheck.backends.protocol import BackendUnavailable
from equivcheck.case import BoundsCheck, Case, Decay, Feature, Layout, Optimizer, OptimizerKind, Pooling, Rounding
from equivcheck.formats import DType
from equivcheck.outcome import Guard
from equivcheck.problem import Problem, Snapshot, output_shape

with warnings.catch_warnings():
    # Two optimizers that the build leaves out: split_embedding_codegen_lookup_invokers/__init__.py:172 and 184.
    warnings.simplefilter("ignore", DeprecationWarning)
    from fbgemm_gpu.split_embedding_configs import EmbOptimType as EmbOptimType  # also for torchrec_module
    from fbgemm_gpu.split_embedding_configs import SparseType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import BoundsCheckMode as BoundsCheckMode
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import (
        CacheAlgorithm,
        EmbeddingLocation,
        PoolingMode,
        RecordCacheMetrics,
    )
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
        UserEnabledConfigDefinition,
        WeightDecayMode,
    )

_SINCE_1_6 = {"is_qr_tbe", "preallocated_host_buffers", "ar_alpha", "ema_beta", "min_shrinkage"}
"""Options of the constructor that 1.6 does not have: the first two came with 1.8, the others with 1.9."""
_VERSIONS = "FBGEMM 1.6 to 1.9"
_KEPT_MODULES = 64
_KEPT_ELEMENTS = 2**18
"""A kept module holds its tables: at most 64 of 1 MiB. Larger ones are built each time, since copying the tables in
costs more than the constructor's 0.4 ms (measured on 2026-11-30)."""

_PRECISION = {DType.FP32: SparseType.FP32, DType.FP16: SparseType.FP16, DType.BF16: SparseType.BF16}
_POOLING = {Pooling.SUM: PoolingMode.SUM, Pooling.MEAN: PoolingMode.MEAN, Pooling.NONE: PoolingMode.NONE}
_OPTIMIZER = {
    OptimizerKind.SGD: EmbOptimType.EXACT_SGD,
    OptimizerKind.ADAGRAD: EmbOptimType.EXACT_ADAGRAD,
    OptimizerKind.ROWWISE_ADAGRAD: EmbOptimType.EXACT_ROWWISE_ADAGRAD,
    OptimizerKind.ADAM: EmbOptimType.ADAM,
    OptimizerKind.PARTIAL_ROWWISE_ADAM: EmbOptimType.PARTIAL_ROWWISE_ADAM,
}
_DECAY = {
    Decay.NONE: WeightDecayMode.NONE,
    Decay.L2: WeightDecayMode.L2,
    Decay.DECOUPLED: WeightDecayMode.DECOUPLE,
}
_BOUNDS = {
    BoundsCheck.NONE: BoundsCheckMode.NONE,
    BoundsCheck.IGNORE: BoundsCheckMode.IGNORE,
    BoundsCheck.WARNING: BoundsCheckMode.WARNING,
    BoundsCheck.FATAL: BoundsCheckMode.FATAL,
}


class _Kind(NamedTuple):
    """What a module is built for and cannot change; the rest is written into it for each case."""

    shapes: tuple[tuple[int, int], ...]
    feature_tables: tuple[int, ...]
    weights: DType
    output: DType
    pooling: Pooling
    optimizer: OptimizerKind
    decay: Decay
    bounds_check: BoundsCheck
    rounding: Rounding
    device: torch.device
    experimental: bool

    @property
    def elements(self) -> int:
        return sum(rows * dim for rows, dim in self.shapes)


@dataclass(frozen=True)
class _Module:
    """FBGEMM's module, the views of its tables and states, and the poisoned memory that they lie in."""

    tbe: Any
    tables: list[torch.Tensor]
    states: list[list[torch.Tensor]]
    memory: list[Placed]


class _Kept:
    """Modules by kind, the least recently used one dropped first. A module that is in use is not in here."""

    def __init__(self) -> None:
        self._modules: OrderedDict[_Kind, _Module] = OrderedDict()

    def take(self, kind: _Kind) -> _Module:
        return self._modules.pop(kind, None) or _build(kind)

    def put(self, kind: _Kind, module: _Module) -> None:
        if kind.elements <= _KEPT_ELEMENTS:
            self._modules[kind] = module
            while len(self._modules) > _KEPT_MODULES:
                self._modules.popitem(last=False)


_kept = _Kept()


@dataclass(frozen=True)
class _Lookup:
    """FBGEMM's output, whose graph holds the backward that updates the tables."""

    output: torch.Tensor
    per_sample_weights: torch.Tensor | None

    def backward(self, gradient: torch.Tensor, retain: bool) -> torch.Tensor | None:
        """Run the fused backward, and take the gradient of this one alone."""
        if self.per_sample_weights is not None:
            self.per_sample_weights.grad = None
        torch.autograd.backward(self.output, gradient, retain_graph=retain)
        return None if self.per_sample_weights is None else self.per_sample_weights.grad


class Tables:
    """One problem's tables in a module of FBGEMM's: the `System` that is driven.

    A module goes back to the kept ones only after a run without an exception and with whole guards, so that no case
    starts from what a failed one left. Whatever a forward or backward can change is written before: every row and
    state, hyper-parameters, iteration counters, and the count of warnings.
    """

    def __init__(self, problem: Problem, kind: _Kind, module: _Module) -> None:
        self.problem = problem
        self.kind = kind
        self.module = module
        self.device = kind.device
        frozen = problem.frozen
        self._trained = (
            torch.tensor([not f for f in frozen], dtype=torch.int32, device=self.device) if any(frozen) else None
        )
        _set_hyper_parameters(module.tbe, problem.case.optimizer)

    @classmethod
    def of(cls, problem: Problem, device: torch.device, *, experimental: bool = False) -> Self:
        """Tables of `problem` in their initial state. `experimental` asks for the second forward on CUDA."""
        kind = _kind(problem.case, problem.feature_tables, device, experimental)
        tables = cls(problem, kind, _kept.take(kind))
        tables.load(problem.initial, 0)
        return tables

    def load(self, snapshot: Snapshot, step: int) -> None:
        """See `System`. The forward adds one to the iteration, and takes what it then is for Adam's t.

        Other optimizers read no iteration, so theirs starts at one: a count of zero makes the forward fetch it from
        the device ("Sync with loaded state" in FBGEMM's forward), which a CUDA graph cannot capture.
        """
        with torch.no_grad():
            for table, values in zip(self.module.tables, snapshot.tables, strict=True):
                table.copy_(to_torch(values))
            for states, values_of in zip(self.module.states, _moments(snapshot), strict=True):
                for state, values in zip(states, values_of, strict=True):
                    state.copy_(to_torch(values))
            optimizer = self.problem.case.optimizer
            before = optimizer.step + step - 1 if optimizer.is_adam else 1
            _set_iteration(self.module.tbe, before)

    def set_learning_rate(self, rate: float) -> None:
        """See `System`."""
        self.module.tbe.set_learning_rate(rate)

    def forward(self, inputs: Inputs) -> _Lookup:
        """See `System`. Every argument is given; frozen features are named as FBGEMM names them."""
        self.module.tbe.bounds_check_warning.zero_()
        sizes = inputs.batch.batch_sizes
        if self.device.type == "cuda":
            elements = int(np.prod(output_shape(self.problem, inputs.batch), dtype=np.int64))
            lookups = len(inputs.indices)  # numbers of 32 and of 64 bits are sorted
            size = elements * self.kind.output.numpy.itemsize
            poison_free_memory(self.device, size, 4 * lookups, 8 * lookups)
        output = self.module.tbe(
            inputs.indices,
            inputs.offsets,
            per_sample_weights=inputs.per_sample_weights,
            feature_requires_grad=self._trained,
            batch_size_per_feature_per_rank=None if sizes is None else [list(ranks) for ranks in sizes],
        )
        weights = inputs.per_sample_weights
        return _Lookup(output, weights if weights is not None and weights.requires_grad else None)

    def warnings(self) -> int | None:
        """FBGEMM's counter, in the modes that repair."""
        if self.kind.bounds_check in (BoundsCheck.WARNING, BoundsCheck.IGNORE):
            return int(self.module.tbe.bounds_check_warning.item())
        return None

    def snapshot(self) -> Snapshot:
        """See `System`."""
        moments = [tuple(to_numpy(state) for state in states) for states in self.module.states]
        return Snapshot(tuple(to_numpy(table) for table in self.module.tables), *moments)

    def restored(self) -> Self:
        """A new module from `state_dict`, as a training job would: hyper-parameters come from the constructor."""
        buffer = io.BytesIO()
        torch.save(self.module.tbe.state_dict(), buffer)
        buffer.seek(0)
        fresh = _build(self.kind)
        fresh.tbe.load_state_dict(torch.load(buffer, weights_only=True))
        return type(self)(self.problem, self.kind, fresh)

    def guards(self) -> tuple[Guard, ...]:
        """Poison around the tables and states."""
        return tuple(placed.guard() for placed in self.module.memory)

    def release(self, guards: tuple[Guard, ...]) -> None:
        """Keep the module for the next case of its kind, unless a guard of its last run was written to."""
        if all(np.array_equal(guard.before, guard.after) for guard in guards):
            _kept.put(self.kind, self.module)


class PlainTables:
    """Tables of full size in the memory that FBGEMM allocates itself: see `Prepared` and `large.Spread`."""

    def __init__(self, case: Case, device: torch.device, *, experimental: bool = False) -> None:
        self.device = device
        self._tbe = _construct(_kind(case, case.tables, device, experimental), {})
        _set_hyper_parameters(self._tbe, case.optimizer)
        _set_iteration(self._tbe, 1)
        self.tables: list[torch.Tensor] = self._tbe.split_embedding_weights()
        self.states = _states(self._tbe)

    def set_learning_rate(self, rate: float) -> None:
        """See `large.Accessible`."""
        self._tbe.set_learning_rate(rate)

    def forward(self, indices: torch.Tensor, offsets: torch.Tensor, per_sample_weights: torch.Tensor | None) -> _Lookup:
        """See `Prepared`."""
        weights = per_sample_weights
        output = self._tbe(indices, offsets, per_sample_weights=weights)
        return _Lookup(output, weights if weights is not None and weights.requires_grad else None)


def _kind(case: Case, feature_tables: tuple[int, ...], device: torch.device, experimental: bool) -> _Kind:
    return _Kind(
        case.table_shapes,
        feature_tables,
        case.weights,
        case.output,
        case.pooling,
        case.optimizer.kind,
        case.optimizer.decay,
        case.bounds_check,
        case.rounding,
        device,
        experimental,
    )


def _set_hyper_parameters(tbe: Any, optimizer: Optimizer) -> None:
    tbe.update_hyper_parameters(
        {
            "lr": optimizer.learning_rate,
            "eps": optimizer.eps,
            "beta1": optimizer.beta1,
            "beta2": optimizer.beta2,
            "weight_decay": optimizer.weight_decay,
        }
    )


def _set_iteration(tbe: Any, iteration: int) -> None:
    tbe.iter.fill_(iteration)
    tbe.iter_cpu.fill_(iteration)


def _moments(snapshot: Snapshot) -> list[tuple[Any, ...]]:
    return [states for states in (snapshot.momentum1, snapshot.momentum2) if states]


def _build(kind: _Kind) -> _Module:
    cpu = kind.device.type == "cpu"
    memory = _host_memory(kind) if cpu else []
    tbe = _construct(kind, {placed.name: placed.tensor for placed in memory})
    if not cpu:
        memory = _device_memory(tbe, kind)
    return _Module(tbe, tbe.split_embedding_weights(), _states(tbe), memory)


def _states(tbe: Any) -> list[list[torch.Tensor]]:
    """Per state its tensor of each table; FBGEMM has per table the states of its rows."""
    return [list(of_tables) for of_tables in zip(*tbe.split_optimizer_states(), strict=True)]


def check_options(device: torch.device) -> None:
    """See that the installed FBGEMM's constructor is one that this adapter knows.

    Raises
    ------
    BackendUnavailable
        If it has other options, whose defaults nobody has looked at, or lacks some.
    """
    _known(_options(_kind(Case(features=(Feature(dim=4),)), (0,), device, False), {}))


def _construct(kind: _Kind, buffers: dict[str, torch.Tensor]) -> Any:
    """FBGEMM's module. `buffers` are memory for its tables and states on the host, where they are given."""
    with root_logger_as_it_was():
        return SplitTableBatchedEmbeddingBagsCodegen(**_known(_options(kind, buffers)))


def _options(kind: _Kind, buffers: dict[str, torch.Tensor]) -> dict[str, Any]:
    """All options of all versions of the constructor: none is left to its default."""
    cpu = kind.device.type == "cpu"
    location = EmbeddingLocation.HOST if cpu else EmbeddingLocation.DEVICE
    compute = ComputeDevice.CPU if cpu else ComputeDevice.CUDA
    precision = _PRECISION[kind.weights]
    return {
        "embedding_specs": [(rows, dim, location, compute) for rows, dim in kind.shapes],
        "feature_table_map": list(kind.feature_tables),
        "cache_algorithm": CacheAlgorithm.LRU,
        "cache_load_factor": 0.0,
        "cache_sets": 0,
        "cache_reserved_memory": 0.0,
        "cache_precision": precision,
        "weights_precision": precision,
        "output_dtype": _PRECISION[kind.output],
        "enforce_hbm": False,
        "optimizer": _OPTIMIZER[kind.optimizer],
        "record_cache_metrics": RecordCacheMetrics(False, False),
        "gather_uvm_cache_stats": False,
        "stochastic_rounding": kind.rounding is Rounding.STOCHASTIC,
        "gradient_clipping": False,
        "max_gradient": 1.0,
        "max_norm": 0.0,
        "learning_rate": 0.0,
        "eps": 0.0,
        "momentum": 0.0,
        "weight_decay": 0.0,
        "weight_decay_mode": _DECAY[kind.decay],
        "eta": 0.0,
        "beta1": 0.0,
        "beta2": 0.0,
        "ar_alpha": 0.0,  # this one and the next two: only ROWWISE_RMSPROP_AR reads them
        "ema_beta": 0.0,
        "min_shrinkage": 0.0,
        "ensemble_mode": None,
        "emainplace_mode": None,
        "counter_based_regularization": None,
        "cowclip_regularization": None,
        "pooling_mode": _POOLING[kind.pooling],
        "device": kind.device,
        "bounds_check_mode": _BOUNDS[kind.bounds_check],
        "uvm_non_rowwise_momentum": False,
        "use_experimental_tbe": kind.experimental,
        "prefetch_pipeline": False,
        "stats_reporter_config": None,
        "table_names": None,
        "optimizer_state_dtypes": None,
        "multipass_prefetch_config": None,
        "global_weight_decay": None,
        "uvm_host_mapped": False,
        "extra_optimizer_config": UserEnabledConfigDefinition(
            use_rowwise_bias_correction=False, use_writeback_bwd_prehook=False
        ),
        "tbe_input_multiplexer_config": None,
        "embedding_table_index_type": torch.int64,  # int32 would cast int64 indices down; int64 leaves int32 alone
        "embedding_table_offset_type": torch.int64,
        "embedding_shard_info": None,
        "enable_raw_embedding_streaming": False,
        "res_params": None,
        "is_qr_tbe": False,
        "preallocated_host_buffers": buffers or None,
    }


def _device_memory(tbe: Any, kind: _Kind) -> list[Placed]:
    """Put the module's tables and states, which FBGEMM allocates itself on a device, into poisoned memory."""
    widest = max(dim for _, dim in kind.shapes)
    named = {name: getattr(tbe, name, None) for name in ("weights_dev", "momentum1_dev", "momentum2_dev")}
    return [into_poison(name, buffer, widest) for name, buffer in named.items() if buffer is not None and len(buffer)]


def _host_memory(kind: _Kind) -> list[Placed]:
    """Memory for all tables, and for momentum 1, inside poison."""
    sizes = {"weights": kind.elements}
    if kind.optimizer is OptimizerKind.ROWWISE_ADAGRAD:
        sizes["momentum1"] = sum(rows for rows, _ in kind.shapes)
    elif kind.optimizer is OptimizerKind.ADAGRAD:
        sizes["momentum1"] = kind.elements
    dtypes = {"weights": kind.weights.numpy, "momentum1": DType.FP32.numpy}
    return [
        place(name, np.zeros(size, dtypes[name]), Layout.CONTIGUOUS, kind.device, floats=FINITE_POISON)
        for name, size in sizes.items()
        if size
    ]


def _known(options: dict[str, Any]) -> dict[str, Any]:
    """The options that the installed FBGEMM has; see `check_options`."""
    parameters = _parameters()
    if unknown := parameters - set(options):
        raise BackendUnavailable(
            f"this FBGEMM has constructor options that the adapter does not set: {', '.join(sorted(unknown))}; the "
            f"adapter knows {_VERSIONS}: install one of these, or see what the options do and add them to {__name__}"
        )
    if missing := set(options) - parameters - _SINCE_1_6:
        raise BackendUnavailable(
            f"this FBGEMM has no constructor options {', '.join(sorted(missing))}; the adapter knows {_VERSIONS}: "
            "install one of these"
        )
    return {name: value for name, value in options.items() if name in parameters}


@cache
def _parameters() -> frozenset[str]:
    """Names of the constructor's options."""
    return frozenset(inspect.signature(SplitTableBatchedEmbeddingBagsCodegen.__init__).parameters) - {"self"}


@contextlib.contextmanager
def root_logger_as_it_was() -> Iterator[None]:
    """FBGEMM logs through `logging.info`, which gives a root logger without handlers one that prints."""
    root = logging.getLogger()
    if root.handlers:
        yield
        return
    silent = logging.NullHandler()
    root.addHandler(silent)
    try:
        yield
    finally:
        root.removeHandler(silent)
