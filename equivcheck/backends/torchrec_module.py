"""TorchRec's Triton TBE, driven: built with every option explicit, its tables in poisoned memory."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch

from equivcheck.backends.cuda import into_poison, poison_free_memory
from equivcheck.backends.driver import Inputs
from equivcheck.backends.fbgemm_module import BoundsCheckMode, EmbOptimType, root_logger_as_it_was
from equivcheck.backends.layouts import TORCH_DTYPES, Placed, to_numpy, to_torch
from equivcheck.backends.torchrec_source import TritonTbe
from equivcheck.case import BoundsCheck, Case, OptimizerKind, Rounding
from equivcheck.outcome import Guard
from equivcheck.problem import Problem, Snapshot, output_shape

OPTIMIZERS = {
    OptimizerKind.SGD: EmbOptimType.EXACT_SGD,
    OptimizerKind.ROWWISE_ADAGRAD: EmbOptimType.EXACT_ROWWISE_ADAGRAD,
}
"""Those that its backward has: OPTIM_TYPE_TO_INT."""

_BOUNDS = {
    BoundsCheck.NONE: BoundsCheckMode.NONE,
    BoundsCheck.IGNORE: BoundsCheckMode.V2_IGNORE,
    BoundsCheck.WARNING: BoundsCheckMode.V2_WARNING,
    BoundsCheck.FATAL: BoundsCheckMode.V2_FATAL,
}
"""V2_WARNING is what the module has by default; it takes no mode in its constructor."""

HOISTED = "hoisted transpose"
"""Counted where a forward left the transposed indices for its backward."""


@dataclass(frozen=True)
class _Lookup:
    """The module's output, whose graph holds the backward that updates the tables."""

    output: torch.Tensor
    per_sample_weights: torch.Tensor | None

    def backward(self, gradient: torch.Tensor, retain: bool) -> torch.Tensor | None:
        """Run the fused backward, and take the gradient of this one alone."""
        if self.per_sample_weights is not None:
            self.per_sample_weights.grad = None
        torch.autograd.backward(self.output, gradient, retain_graph=retain)
        return None if self.per_sample_weights is None else self.per_sample_weights.grad


class Tables:
    """One problem's tables in a module of TorchRec's: the `System` that is driven.

    Parameters
    ----------
    options
        The module's options for optional paths.
    """

    def __init__(self, problem: Problem, system: TritonTbe, device: torch.device, options: Mapping[str, Any]) -> None:
        case = problem.case
        self.problem, self.system, self.device, self.options = problem, system, device, options
        self.seen: Counter[str] = Counter()
        self.module = _build(case, problem.feature_tables, system, device, options)
        widest = max(dim for _, dim in case.table_shapes)
        self.memory: list[Placed] = [into_poison("weight", self.module.weight, widest)]
        if case.optimizer.kind is not OptimizerKind.SGD:
            self.memory.append(into_poison("momentum", self.module.momentum, widest))
        self.tables: list[torch.Tensor] = self.module.split_embedding_weights()
        self.states = _states(self.module)

    def load(self, snapshot: Snapshot, step: int) -> None:
        """See `System`. Neither optimizer counts its steps."""
        with torch.no_grad():
            for tensors, arrays in ((self.tables, snapshot.tables), (self.states, snapshot.momentum1)):
                for tensor, values in zip(tensors, arrays, strict=True):
                    tensor.copy_(to_torch(values))

    def set_learning_rate(self, rate: float) -> None:
        """See `System`."""
        self.module.learning_rate = float(rate)

    def forward(self, inputs: Inputs) -> _Lookup:
        """See `System`."""
        self.module.bounds_check_warning.zero_()
        if self.device.type == "cuda":
            elements = int(np.prod(output_shape(self.problem, inputs.batch), dtype=np.int64))
            size = elements * self.problem.case.output.numpy.itemsize
            lookups = len(inputs.indices)  # numbers of 32 and of 64 bits are sorted
            poison_free_memory(self.device, size, 4 * lookups, 8 * lookups)
        sizes = inputs.batch.batch_sizes
        output = self.module(
            inputs.indices,
            inputs.offsets,
            per_sample_weights=inputs.per_sample_weights,
            batch_size_per_feature_per_rank=None if sizes is None else [list(ranks) for ranks in sizes],
        )
        self.seen[HOISTED] += getattr(output.grad_fn, "bwd_infos_sorted", None) is not None
        weights = inputs.per_sample_weights
        return _Lookup(output, weights if weights is not None and weights.requires_grad else None)

    def warnings(self) -> int | None:
        """The module's counter, in the modes that repair."""
        if self.problem.case.bounds_check in (BoundsCheck.WARNING, BoundsCheck.IGNORE):
            return int(self.module.bounds_check_warning.item())
        return None

    def snapshot(self) -> Snapshot:
        """See `System`."""
        return Snapshot(tuple(map(to_numpy, self.tables)), tuple(map(to_numpy, self.states)))

    def restored(self) -> Self:
        """A new module with saved tables and states: the module has no parameters, and its `state_dict` is empty."""
        saved = io.BytesIO()
        torch.save([[tensor.clone() for tensor in tensors] for tensors in (self.tables, self.states)], saved)
        saved.seek(0)
        fresh = type(self)(self.problem, self.system, self.device, self.options)
        fresh.seen = self.seen
        loaded = torch.load(saved, weights_only=True)
        with torch.no_grad():
            for tensors, values in zip((fresh.tables, fresh.states), loaded, strict=True):
                for tensor, value in zip(tensors, values, strict=True):
                    tensor.copy_(value)
        return fresh

    def guards(self) -> tuple[Guard, ...]:
        """Poison around the tables and states."""
        return tuple(placed.guard() for placed in self.memory)


class PlainTables:
    """Tables of full size in the module's own memory: see `Prepared` and `large.Spread`."""

    def __init__(self, case: Case, system: TritonTbe, device: torch.device, options: Mapping[str, Any]) -> None:
        self.device = device
        self._module = _build(case, case.tables, system, device, options)
        self.tables: list[torch.Tensor] = self._module.split_embedding_weights()
        self.states = [states] if (states := _states(self._module)) else []

    def set_learning_rate(self, rate: float) -> None:
        """See `large.Accessible`."""
        self._module.learning_rate = float(rate)

    def forward(self, indices: torch.Tensor, offsets: torch.Tensor, per_sample_weights: torch.Tensor | None) -> _Lookup:
        """See `Prepared`."""
        weights = per_sample_weights
        output = self._module(indices, offsets, per_sample_weights=weights)
        return _Lookup(output, weights if weights is not None and weights.requires_grad else None)


def _states(module: Any) -> list[torch.Tensor]:
    return [state for (state,) in filter(None, module.split_optimizer_states())]


def _build(
    case: Case, feature_tables: tuple[int, ...], system: TritonTbe, device: torch.device, options: Mapping[str, Any]
) -> Any:
    with root_logger_as_it_was():
        module = system.module.TritonTableBatchedEmbeddingBags(
            embedding_specs=list(case.table_shapes),
            feature_table_map=list(feature_tables),
            weights_precision=TORCH_DTYPES[case.weights],
            output_dtype=TORCH_DTYPES[case.output],
            stochastic_rounding=case.rounding is Rounding.STOCHASTIC,
            learning_rate=float(case.optimizer.learning_rate),
            eps=float(case.optimizer.eps),
            optimizer=OPTIMIZERS[case.optimizer.kind],
            device=device,
            **options,
        )
    module.bounds_check_mode = _BOUNDS[case.bounds_check]
    return module
