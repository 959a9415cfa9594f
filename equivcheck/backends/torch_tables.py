"""Tables and optimizer states in torch tensors on any device, as a system that the driver drives.

Tables are widened to the accumulation's type before the lookup, since autograd sums the lookups of a row in the type
of the table. A backward looks the rows up again: dL/dp is taken from the weights as they are then.

Which rows a batch names is worked out on the device only where PyTorch keeps it. Elsewhere (`is_foreign`) the host does
that, and draws the random numbers: what a device is asked for is lookups, their gradient and the optimizer's step.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch

from equivcheck.backends import torch_lookup
from equivcheck.backends.driver import Inputs
from equivcheck.backends.layouts import TORCH_DTYPES, to_numpy, to_torch
from equivcheck.backends.torch_bounds import Repaired, repair
from equivcheck.backends.torch_devices import is_foreign
from equivcheck.backends.torch_lookup import rank_major
from equivcheck.backends.torch_optimizers import Constants, Rule, States, constants, narrow, rule, store, update
from equivcheck.backends.transfers import download, upload
from equivcheck.case import BoundsCheck, Case, OptimizerKind, Pooling, Rounding
from equivcheck.outcome import Guard
from equivcheck.problem import Batch, Problem, Snapshot

Optional = torch.Tensor | None


@dataclass(frozen=True)
class Operations:
    """What is computed, as functions of tensors: eager ones, or compiled ones."""

    rows: Callable[[torch.Tensor, torch.Tensor, Optional], torch.Tensor] = torch_lookup.rows
    bags: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Optional, Optional], torch.Tensor] = torch_lookup.bags
    narrow: Callable[[torch.Tensor, torch.dtype], torch.Tensor] = narrow
    update: Callable[[Rule, Constants, torch.Tensor, torch.Tensor, States], tuple[torch.Tensor, States]] = update
    store: Callable[[torch.Tensor, torch.dtype, Optional], torch.Tensor] = store


@dataclass(frozen=True)
class Lookup:
    """A forward: what it returned, and what its backward needs from the time of the forward."""

    tables: Tables
    inputs: Inputs
    repaired: Repaired
    rate: float
    step: int
    output: torch.Tensor

    def backward(self, gradient: torch.Tensor, retain: bool) -> torch.Tensor | None:
        """Update the touched rows; autograd gets a fresh graph each time, so that nothing has to be retained."""
        del retain
        return self.tables.backward(self, gradient)


class Tables:
    """Tables and states in torch tensors: the `System` that is driven."""

    def __init__(self, problem: Problem, device: torch.device, operations: Operations) -> None:
        self.problem = problem
        self.device = device
        self.operations = operations
        self.wide = TORCH_DTYPES[problem.case.accumulation]
        self.rate = problem.case.optimizer.learning_rate
        self.counted: int | None = None
        self.prepares = torch.device("cpu") if is_foreign(device) else device
        self.generator = torch.Generator(self.prepares).manual_seed(problem.case.seed)
        self.load(problem.initial, 0)

    def load(self, snapshot: Snapshot, step: int) -> None:
        """Write every row and state."""
        self.tables = [upload(to_torch(table), self.device) for table in snapshot.tables]
        self.states = [
            [upload(to_torch(state), self.device) for state in states]
            for states in (snapshot.momentum1, snapshot.momentum2)
            if states
        ]
        self.step = self.problem.case.optimizer.step + step

    def set_learning_rate(self, rate: float) -> None:
        """The rate of forwards from now on."""
        self.rate = rate

    def forward(self, inputs: Inputs) -> Lookup:
        """Look the batch up."""
        repaired = repair(self.problem, self._prepared(inputs))
        self.counted = repaired.warnings
        with torch.no_grad():
            weights = None if inputs.per_sample_weights is None else inputs.per_sample_weights.to(self.wide)
            output = self._pooled([table.to(self.wide) for table in self.tables], weights, inputs, repaired)
        step, self.step = self.step, self.step + 1
        output = self.operations.narrow(output, TORCH_DTYPES[self.problem.case.output])
        return Lookup(self, inputs, repaired, self.rate, step, output)

    def backward(self, lookup: Lookup, gradient: torch.Tensor) -> torch.Tensor | None:
        """Update the touched rows; returns dL/dp where asked for."""
        given = lookup.inputs.per_sample_weights
        weights = None if given is None else given.to(self.wide)
        leaves = [table.to(self.wide, copy=True).requires_grad_() for table in self.tables]
        output = self._pooled(leaves, weights, lookup.inputs, lookup.repaired)
        asked = [*leaves, given] if given is not None and given.requires_grad else leaves
        found: tuple[torch.Tensor | None, ...] = (None,) * len(asked)
        if output.requires_grad:
            found = torch.autograd.grad(output, asked, gradient.to(self.wide), allow_unused=True)
        with torch.no_grad():
            for number, rows in enumerate(self._touched(lookup)):
                slope = found[number]
                if rows.numel() and slope is not None:
                    there = self._there(rows)
                    self._update(number, there, slope.index_select(0, there), lookup)
        if given is None or not given.requires_grad:
            return None
        of_weights = found[len(leaves)]
        return torch.zeros_like(given) if of_weights is None else of_weights

    def warnings(self) -> int | None:
        """Repairs of the last forward."""
        return self.counted if self.problem.case.bounds_check is BoundsCheck.WARNING else None

    def snapshot(self) -> Snapshot:
        """Copies of every row and state."""
        moments = [tuple(to_numpy(state) for state in states) for states in self.states]
        return Snapshot(tuple(to_numpy(table) for table in self.tables), *moments)

    def restored(self) -> Self:
        """A new instance from what `torch.save` keeps of copies on the host."""
        kept = [download(table) for table in self.tables], [[download(s) for s in states] for states in self.states]
        buffer = io.BytesIO()
        torch.save((*kept, self.step, self.generator.get_state()), buffer)
        buffer.seek(0)
        fresh = type(self)(self.problem, self.device, self.operations)
        tables, moments, fresh.step, random = torch.load(buffer, weights_only=True)
        fresh.tables = [upload(table, self.device) for table in tables]
        fresh.states = [[upload(state, self.device) for state in states] for states in moments]
        fresh.generator.set_state(random)
        return fresh

    def guards(self) -> tuple[Guard, ...]:
        """PyTorch lets nobody place its tables."""
        return ()

    def _update(self, number: int, rows: torch.Tensor, gradient: torch.Tensor, lookup: Lookup) -> None:
        table, states = self.tables[number], [state[number] for state in self.states]
        case = self.problem.case
        new, moments = self.operations.update(
            rule(case.optimizer),
            constants(case.optimizer, lookup.rate, lookup.step),
            table.index_select(0, rows).to(self.wide),
            gradient,
            tuple(state.index_select(0, rows).to(self.wide) for state in states),
        )
        random: torch.Tensor | None = None
        if case.rounding is Rounding.STOCHASTIC:
            random = self._there(torch.rand(new.shape, generator=self.generator, device=self.prepares))
        table.index_copy_(0, rows, self.operations.store(new, table.dtype, random))
        for state, moment in zip(states, moments, strict=True):
            state.index_copy_(0, rows, moment.to(torch.float32))

    def _touched(self, lookup: Lookup) -> list[torch.Tensor]:
        """Rows of each table that a lookup names."""
        named: list[list[torch.Tensor]] = [[] for _ in self.tables]
        for feature, (lookups, _) in enumerate(self._spans(lookup.inputs, lookup.repaired)):
            indices = lookup.repaired.indices[lookups][lookup.repaired.counts[lookups]]
            named[self.problem.feature_tables[feature]].append(indices)
        empty = torch.empty(0, dtype=torch.int64, device=self.prepares)
        return [torch.unique(torch.cat([empty, *(part.long() for part in parts)])) for parts in named]

    def _prepared(self, inputs: Inputs) -> Inputs:
        """The inputs with indices and offsets where they are prepared."""
        if self.prepares == self.device:
            return inputs
        return replace(inputs, indices=download(inputs.indices), offsets=download(inputs.offsets))

    def _there(self, prepared: torch.Tensor) -> torch.Tensor:
        """What was prepared, on the device."""
        return prepared if self.prepares == self.device else upload(prepared, self.device)

    def _spans(self, inputs: Inputs, repaired: Repaired) -> list[tuple[slice, torch.Tensor]]:
        """Lookups of each feature, and its offsets."""
        spans, bag = [], 0
        for bags in inputs.batch.bags:
            offsets = repaired.offsets[bag : bag + bags + 1]
            spans.append((slice(int(offsets[0]), int(offsets[-1])), offsets))
            bag += bags
        return spans

    def _pooled(
        self, tables: list[torch.Tensor], weights: torch.Tensor | None, inputs: Inputs, repaired: Repaired
    ) -> torch.Tensor:
        """The output in the accumulation's type."""
        blocks, positions = [], []
        for feature, (lookups, offsets) in enumerate(self._spans(inputs, repaired)):
            table = tables[self.problem.feature_tables[feature]]
            counts = repaired.counts[lookups]
            indices = self._there(repaired.indices[lookups][counts])
            positions.append(torch.arange(lookups.start, lookups.stop, device=self.prepares)[counts])
            own = None if weights is None else weights.index_select(0, self._there(positions[-1]))
            if self.problem.frozen[feature] and own is not None:
                own = own.detach()
            if self.problem.case.pooling is Pooling.NONE:
                blocks.append(self.operations.rows(table, indices, own))
                continue
            before = torch.cat([counts.new_zeros(1, dtype=torch.int64), counts.cumsum(0)])
            kept = self._there(before[(offsets - offsets[0]).long()].to(offsets.dtype))
            lengths: torch.Tensor | None = None
            if self.problem.case.pooling is Pooling.MEAN:
                lengths = self._there(offsets.diff().clamp(min=1).to(self.wide))
            blocks.append(self.operations.bags(table, indices, kept, own, lengths))
        if self.problem.case.pooling is Pooling.NONE:
            found = torch.zeros((inputs.indices.numel(), self.problem.dims[0]), dtype=self.wide, device=self.device)
            return found.index_copy(0, self._there(torch.cat(positions)), torch.cat(blocks))
        if inputs.batch.batch_sizes is None:
            return torch.cat(blocks, 1)
        return rank_major(blocks, inputs.batch.batch_sizes)


class PlainTables:
    """The same tables and operations, filled on the device: see `equivcheck.backends.timed.Prepared`."""

    def __init__(self, case: Case, device: torch.device) -> None:
        self.device = device
        self._system = Tables(_zeros(case), device, Operations())
        self.tables: list[torch.Tensor] = self._system.tables

    def forward(self, indices: torch.Tensor, offsets: torch.Tensor, per_sample_weights: torch.Tensor | None) -> Lookup:
        """See `Prepared`."""
        features = len(self._system.problem.feature_tables)
        bags = (len(offsets) - 1) // features
        nothing = np.zeros(0, np.int64)  # the shapes of a batch are asked for, its arrays are in the tensors
        batch = Batch(nothing, nothing, (bags,) * features, None, None, nothing, self._system.rate)
        gradient = torch.empty(0, device=self.device)
        return self._system.forward(Inputs(batch, indices, offsets, per_sample_weights, gradient))


def _zeros(case: Case) -> Problem:
    """A problem without steps, whose tables and states are zero."""
    shapes, kind = case.table_shapes, case.optimizer.kind
    of_rows = [rows for rows, _ in shapes]
    rowwise1, rowwise2 = kind is OptimizerKind.ROWWISE_ADAGRAD, kind is OptimizerKind.PARTIAL_ROWWISE_ADAM
    first = () if kind is OptimizerKind.SGD else of_rows if rowwise1 else shapes
    second = () if not case.optimizer.is_adam else of_rows if rowwise2 else shapes
    initial = Snapshot(
        tuple(np.zeros(shape, case.weights.numpy) for shape in shapes),
        tuple(np.zeros(shape, np.float32) for shape in first),
        tuple(np.zeros(shape, np.float32) for shape in second),
    )
    tables = case.tables
    dims = tuple(shapes[table][1] for table in tables)
    return Problem(case, tables, dims, tuple(feature.frozen for feature in case.features), initial, ())
