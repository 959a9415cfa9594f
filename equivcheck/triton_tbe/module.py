"""The module: tables, optimizer state and options, put together into a forward and a backward that updates.

Shaped like FBGEMM's `SplitTableBatchedEmbeddingBagsCodegen` where that helps. Modes and optimizers are the enums of
`equivcheck.case`, so that one thing has one name.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from equivcheck.case import BoundsCheck, Decay, OptimizerKind, Pooling

from . import MODE
from .backward import Gradients, update
from .bounds import checked_indices, checked_offsets
from .forward import gather
from .layout import BagPlaces, Bags, FeatureLayout, TableLayout, fixed_batch, variable_batch
from .optimizers import DECAYS, OPTIMIZERS, Hyper, Rule, State
from .small_tables import is_small, multiply
from .tiles import Allocate, allocate_plainly, is_captured, lane_tile, product_tile, row_tile
from .transpose import Runs, transpose
from .weight_gradient import weight_gradient

ROWWISE_FIRST = (OptimizerKind.ROWWISE_ADAGRAD,)
ROWWISE_SECOND = (OptimizerKind.PARTIAL_ROWWISE_ADAM,)
WITH_SECOND = (OptimizerKind.ADAM, OptimizerKind.PARTIAL_ROWWISE_ADAM)


class TritonTBE(torch.nn.Module):
    """Embedding tables that are looked up together, and updated in the backward.

    Parameters
    ----------
    embedding_specs
        (rows, dim) of each table.
    feature_table_map
        Table of each feature; by default one feature a table.
    weights_precision, output_dtype
        fp32, fp16 or bf16.
    accumulation
        In which pooled outputs and weight gradients are summed: fp32, fp64, or fp16 for fp16 tables. Row gradients are
        summed in fp32, or fp64 where that is asked for. Optimizers compute in the type of the row gradients.
    weight_decay_mode
        Of row-wise Adagrad. Adam's decay is always decoupled.
    stochastic_rounding, seed
        Whether updated rows of 16 bits are rounded stochastically, and with what random numbers.
    small_tables
        Whether tables of few rows take the path of `small_tables`.
    hoist_transpose
        Whether the index transpose is computed in the forward. The results are the same bits.
    spacing
        Rows that belong to nobody, before and after each table and its row-wise state.
    allocate
        Where buffers come from: tables, states, outputs, and what is passed between kernels.

    Raises
    ------
    ValueError
        If options do not fit together.
    """

    weights: Tensor
    momentum1: Tensor | None
    momentum2: Tensor | None
    anchor: Tensor

    def __init__(
        self,
        embedding_specs: Sequence[tuple[int, int]],
        feature_table_map: Sequence[int] | None = None,
        *,
        weights_precision: torch.dtype = torch.float32,
        output_dtype: torch.dtype = torch.float32,
        accumulation: torch.dtype = torch.float32,
        pooling_mode: Pooling = Pooling.SUM,
        optimizer: OptimizerKind = OptimizerKind.SGD,
        learning_rate: float = 0.01,
        eps: float = 1e-8,
        beta1: float = 0.9,
        beta2: float = 0.999,
        weight_decay: float = 0.0,
        weight_decay_mode: Decay = Decay.NONE,
        stochastic_rounding: bool = False,
        seed: int = 0,
        bounds_check_mode: BoundsCheck = BoundsCheck.WARNING,
        small_tables: bool = False,
        hoist_transpose: bool = False,
        spacing: int = 0,
        allocate: Allocate = allocate_plainly,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        device = MODE.device if device is None else device
        if device.type != MODE.device.type:
            raise ValueError(f"tensors on {device} do not go with {MODE.value} kernels; they want {MODE.device}")
        if accumulation is torch.float16 and weights_precision is not torch.float16:
            raise ValueError(f"accumulation in fp16 is for fp16 tables, not {weights_precision}; use fp32 or fp64")
        if pooling_mode is Pooling.NONE and len({dim for _, dim in embedding_specs}) > 1:
            raise ValueError(f"without pooling all tables have one dim, not {[dim for _, dim in embedding_specs]}")
        self.layout = TableLayout.build(embedding_specs, spacing)
        tables = range(len(embedding_specs)) if feature_table_map is None else feature_table_map
        self.features = FeatureLayout(self.layout, tables, device)
        self.weights_precision, self.output_dtype, self.accumulation = weights_precision, output_dtype, accumulation
        self.pooling_mode, self.optimizer, self.bounds_check_mode = pooling_mode, optimizer, bounds_check_mode
        self.learning_rate, self.eps, self.beta1, self.beta2 = learning_rate, eps, beta1, beta2
        self.weight_decay, self.weight_decay_mode = weight_decay, weight_decay_mode
        self.stochastic_rounding = stochastic_rounding and weights_precision is not torch.float32
        self.seed, self.allocate, self.hoist_transpose = seed, allocate, hoist_transpose
        self.step = 0
        """Forwards so far that may be followed by a backward: Adam's t of the next one is one more."""
        self.updates = 0
        """Backwards so far: each gets random numbers of its own."""
        self.bounds_check_warning = torch.zeros(1, dtype=torch.int64, device=device)
        """Wrong indices and offsets of the last forward, where the mode counts them."""
        self.paths: set[str] = set()
        """Kernels that have run, with their tiles."""
        self._places: dict[Hashable, BagPlaces] = {}
        self._captured: set[Hashable] = set()
        self._small = self._small_features(device) if small_tables else None

        rows, elements = (self.layout.rows,), (self.layout.elements,)
        state: dict[str, Tensor | None] = {
            "weights": allocate("weights", elements, weights_precision, device),
            "momentum1": None,
            "momentum2": None,
        }
        if optimizer is not OptimizerKind.SGD:
            shape = rows if optimizer in ROWWISE_FIRST else elements
            state["momentum1"] = allocate("momentum1", shape, torch.float32, device)
        if optimizer in WITH_SECOND:
            shape = rows if optimizer in ROWWISE_SECOND else elements
            state["momentum2"] = allocate("momentum2", shape, torch.float32, device)
        for name, buffer in state.items():
            self.register_buffer(name, buffer)
        for view in (*self.split_embedding_weights(), *(s for states in self.split_optimizer_states() for s in states)):
            view.zero_()
        self.register_buffer("anchor", torch.empty(0, device=device), persistent=False)
        self.anchor.requires_grad_()

    def split_embedding_weights(self) -> list[Tensor]:
        """Views (rows, dim) of the tables."""
        return [self.layout.elements_of(self.weights, table) for table in range(len(self.layout.shapes))]

    def split_optimizer_states(self) -> list[list[Tensor]]:
        """Views of the first, and of the second moment of each table: (rows,) where row-wise, else (rows, dim)."""
        views = []
        for buffer, rowwise in ((self.momentum1, ROWWISE_FIRST), (self.momentum2, ROWWISE_SECOND)):
            if buffer is not None:
                view = self.layout.rows_of if self.optimizer in rowwise else self.layout.elements_of
                views.append([view(buffer, table) for table in range(len(self.layout.shapes))])
        return views

    def set_learning_rate(self, learning_rate: float) -> None:
        """Learning rate of the forwards from now on."""
        self.learning_rate = learning_rate

    def get_extra_state(self) -> dict[str, int]:
        """What tables and moments do not tell: steps and updates so far."""
        return {"step": self.step, "updates": self.updates}

    def set_extra_state(self, state: Any) -> None:
        """Continue where a saved module was."""
        self.step, self.updates = state["step"], state["updates"]

    def forward(
        self,
        indices: Tensor,
        offsets: Tensor,
        per_sample_weights: Tensor | None = None,
        feature_requires_grad: Tensor | None = None,
        batch_size_per_feature_per_rank: Sequence[Sequence[int]] | None = None,
    ) -> Tensor:
        """Look up and pool.

        Parameters
        ----------
        indices, offsets
            (lookups,) and (bags + 1,), int32 or int64, of any strides.
        per_sample_weights
            (lookups,) fp32 or fp16, or None.
        feature_requires_grad
            (features,), zero for features whose per-sample weights get a zero gradient. As in FBGEMM, their tables are
            updated all the same.
        batch_size_per_feature_per_rank
            In a variable batch, the bags of each feature and rank.

        Returns
        -------
        Tensor
            (batch, sum of dims); flat and rank-major in a variable batch; (lookups, dim) without pooling.

        Raises
        ------
        ValueError
            If shapes do not fit together.
        OutOfBounds
            In bounds check mode FATAL.
        """
        if per_sample_weights is not None and per_sample_weights.shape != indices.shape:
            raise ValueError(f"{tuple(per_sample_weights.shape)} per-sample weights for {tuple(indices.shape)} indices")
        call = self._prepare(
            indices, offsets, per_sample_weights, feature_requires_grad, batch_size_per_feature_per_rank
        )
        output: Tensor = _Lookup.apply(self.anchor, per_sample_weights, call)
        return output

    def _prepare(
        self,
        indices: Tensor,
        offsets: Tensor,
        per_sample_weights: Tensor | None,
        feature_requires_grad: Tensor | None,
        sizes: Sequence[Sequence[int]] | None,
    ) -> Call:
        """Everything that a forward fixes: checked inputs, bags, hyper-parameters."""
        places = self._fixed(len(offsets) - 1) if sizes is None else self._variable(sizes)
        if len(offsets) != len(places.feature) + 1:
            raise ValueError(f"{len(offsets)} offsets for {len(places.feature)} bags; give one more than bags")
        indices, offsets = indices.contiguous(), offsets.contiguous()
        mode = self.bounds_check_mode
        wrong = None
        if mode is not BoundsCheck.NONE:
            offsets, wrong = checked_offsets(offsets, len(indices), mode)
        bags = Bags.pooled(places, offsets, len(indices))
        if self.pooling_mode is Pooling.NONE:
            bags = Bags.unpooled(bags, self.features)
        if wrong is not None:
            indices, wrong_indices = checked_indices(indices, bags, self.features, mode)
            if mode is BoundsCheck.WARNING:
                self.bounds_check_warning = (wrong + wrong_indices).reshape(1)
        if torch.is_grad_enabled():
            self.step += 1
        hyper = Hyper.at(self.learning_rate, self.eps, self.beta1, self.beta2, self.weight_decay, max(self.step, 1))
        asks = None if feature_requires_grad is None else feature_requires_grad.to(torch.int8).contiguous()
        call = Call(self, indices, bags, asks, hyper)
        if self.hoist_transpose and torch.is_grad_enabled():
            call.runs = call.transposed()
            self.paths.add("transpose: in the forward")
        return call

    def _fixed(self, bags: int) -> BagPlaces:
        if bags % len(self.features):
            raise ValueError(f"{bags} bags cannot be shared equally by {len(self.features)} features")
        size = bags // len(self.features)
        return self._kept(size, lambda: fixed_batch(self.features, size))

    def _variable(self, sizes: Sequence[Sequence[int]]) -> BagPlaces:
        return self._kept(tuple(map(tuple, sizes)), lambda: variable_batch(self.features, sizes))

    def _kept(self, key: Hashable, make: Callable[[], BagPlaces]) -> BagPlaces:
        """Places of a shape of batch. The last are kept, and those that a CUDA graph has captured; see `lanes_of`."""
        if key not in self._places:
            for old in self._places.keys() - self._captured:
                del self._places[old]
            self._places[key] = make()
        if is_captured(self.weights.device):
            self._captured.add(key)
        return self._places[key]

    def _small_features(self, device: torch.device) -> SmallFeatures | None:
        chosen = [f for f, table in enumerate(self.features.feature_tables) if is_small(self.layout.shapes[table])]
        if not chosen or self.pooling_mode is Pooling.NONE or self.accumulation is not torch.float32:
            return None
        return SmallFeatures(frozenset(chosen), torch.tensor(chosen, device=device))


@dataclass(frozen=True)
class SmallFeatures:
    """Features whose tables are small: their numbers, on the host and as int64 on the device."""

    chosen: frozenset[int]
    numbers: Tensor


@dataclass
class Call:
    """One forward, with what its backwards need. `runs` is filled by the first who needs them."""

    module: TritonTBE
    indices: Tensor
    bags: Bags
    asks: Tensor | None
    hyper: Hyper
    runs: Runs | None = None

    def output(self, per_sample_weights: Tensor | None) -> Tensor:
        """Pool all bags."""
        module, bags = self.module, self.bags
        shape, device = bags.places.output_shape, self.indices.device
        output = module.allocate("output", shape, module.output_dtype, device)
        tables = (output, module.weights, self.indices, per_sample_weights, bags, module.features)
        mean = module.pooling_mode is Pooling.MEAN
        small = module._small
        path = gather(
            *tables,
            frozenset() if small is None else small.chosen,
            mean=mean,
            accumulation=module.accumulation,
            tile=lane_tile(
                device,
                module.features.widths,
                len(bags),
                bags.lookups,
                lambda columns: bags.lane_lengths(module.features, columns),
            ),
        )
        module.paths.add(path)
        if small is not None:
            path = multiply(*tables, small.numbers, mean=mean, tile=product_tile(device, module.layout.widest))
            module.paths.add(path)
        return output

    def transposed(self) -> Runs:
        """Lookups sorted into runs."""
        module = self.module
        scaling = self._summing() if module.pooling_mode is Pooling.MEAN else None
        return transpose(self.indices, self.bags, module.features, scaling, module.allocate)

    def weight_gradient(self, grad_output: Tensor, per_sample_weights: Tensor) -> Tensor:
        """Gradient of the per-sample weights."""
        module = self.module
        result = module.allocate(
            "weight gradient", tuple(per_sample_weights.shape), per_sample_weights.dtype, self.indices.device
        )
        path = weight_gradient(
            result,
            module.weights,
            self.indices,
            grad_output,
            self.asks,
            self.bags,
            module.features,
            mean=module.pooling_mode is Pooling.MEAN,
            accumulation=module.accumulation,
            tile=row_tile(self.indices.device, module.layout.widest),
        )
        module.paths.add(path)
        return result

    def update(self, grad_output: Tensor, per_sample_weights: Tensor | None) -> None:
        """One update of every row that is named."""
        module = self.module
        if self.runs is None:
            self.runs = self.transposed()
        rule = Rule(
            OPTIMIZERS[module.optimizer],
            self._decay(),
            module.stochastic_rounding,
            module.seed,
            module.updates,
        )
        paths = update(
            State(module.weights, module.momentum1, module.momentum2),
            Gradients(grad_output, per_sample_weights),
            module.features,
            self.runs,
            self.hyper,
            rule,
            accumulation=self._summing(),
            allocate=module.allocate,
        )
        module.paths.update(paths)
        module.updates += 1

    def _summing(self) -> torch.dtype:
        """In which type gradients of rows are summed."""
        return torch.float64 if self.module.accumulation is torch.float64 else torch.float32

    def _decay(self) -> Any:
        """The mode of decay that there is, given that Adam's is always decoupled."""
        module = self.module
        adam = module.optimizer in WITH_SECOND
        return DECAYS[(Decay.DECOUPLED if adam else module.weight_decay_mode) if module.weight_decay else Decay.NONE]


class _Lookup(torch.autograd.Function):
    """The autograd node. Its gradient with respect to the tables is the update; it returns that of the weights."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, per_sample_weights: Tensor | None, call: Call) -> Tensor:
        ctx.call = call
        contiguous = None if per_sample_weights is None else per_sample_weights.detach().contiguous()
        ctx.save_for_backward(contiguous)
        return call.output(contiguous)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[None, Tensor | None, None]:
        (per_sample_weights,) = ctx.saved_tensors
        grad_output = grad_output.contiguous()
        gradient = None
        if ctx.needs_input_grad[1]:
            gradient = ctx.call.weight_gradient(grad_output, per_sample_weights)
        ctx.call.update(grad_output, per_sample_weights)
        return None, gradient, None
