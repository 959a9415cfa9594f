"""`torch:DEVICE`: plain PyTorch, `F.embedding_bag` and `index_select` with autograd, and an optimizer step in torch.

Tables are widened to the accumulation's type before the lookup, since autograd sums the lookups of a row in the type
of the table. A backward looks the rows up again: dL/dp is taken from the weights as they are then. The system has no
bounds checking of its own (`torch_bounds` repairs), and does not modify its inputs.
"""

from __future__ import annotations

import io
import platform
from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F

from equivcheck.arithmetic import Arithmetic, MeanDivision, Sequential, Store, StoreRounding
from equivcheck.backends.driver import Inputs, drive, supports_call
from equivcheck.backends.layouts import TORCH_DTYPES, to_numpy, to_torch
from equivcheck.backends.protocol import BackendUnavailable
from equivcheck.backends.torch_bounds import Repaired, repair
from equivcheck.backends.torch_optimizers import narrow, store, update
from equivcheck.case import BoundsCheck, Call, Case, Pooling, Rounding
from equivcheck.formats import DType
from equivcheck.outcome import Guard, Outcome, Support, unsupported
from equivcheck.problem import Problem, Snapshot


class TorchEmbeddingBag:
    """PyTorch on one device.

    Parameters
    ----------
    device
        Any device of PyTorch's: `cpu`, `cuda`, `cuda:1`, or one that a plugin adds.

    Raises
    ------
    BackendUnavailable
        If PyTorch cannot allocate there.
    """

    def __init__(self, device: str = "cpu") -> None:
        try:
            self.device = torch.empty(0, device=device or "cpu").device
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            first_line = str(error).splitlines()[0]
            raise BackendUnavailable(f"PyTorch {torch.__version__} cannot use {device!r}: {first_line}") from error
        self.name = f"torch:{device or 'cpu'}"

    def supports(self, case: Case) -> Support:
        """Everything but accumulation in fp16, and what needs CUDA elsewhere."""
        if case.accumulation is DType.FP16:
            return unsupported("it accumulates in fp32 or fp64; autograd would sum an fp16 table's gradient in fp16")
        if case.call is Call.GRAPH and self.device.type == "cuda":
            return unsupported("it reads offsets and the touched rows on the host, which a CUDA graph cannot capture")
        return supports_call(case.call, self.device)

    def arithmetic(self, case: Case) -> Arithmetic:
        """Sums in the accumulation's type in any order, MEAN by division, correctly rounded quotients and roots.

        Beta^t is Python's, in fp64: good to one ulp, 2^-52, which is 2^-28 of fp32's unit roundoff.
        """
        sums = Sequential(case.accumulation)
        stochastic = case.rounding is Rounding.STOCHASTIC and case.weights is not DType.FP32
        cpu = self.device.type == "cpu"
        return Arithmetic(
            pooling=sums,
            gradient=sums,
            weight_gradient=sums,
            mean_square=sums,
            accumulator=case.accumulation,
            mean_division=MeanDivision.DIVISION,
            power=2.0**-28,
            sum_flushes=not cpu,  # index_select's backward adds with fp32 atomics, which flush
            table_store=Store(StoreRounding.STOCHASTIC if stochastic else StoreRounding.NEAREST),
            deterministic=cpu,
        )

    def run(self, problem: Problem) -> Outcome:
        """See `Backend`."""
        lookup = "index_select" if problem.case.pooling is Pooling.NONE else "embedding_bag"
        return drive(problem, _Tables(problem, self.device), paths=(f"torch: {lookup}",))

    def versions(self) -> dict[str, str]:
        """See `Backend`."""
        found = {"torch": torch.__version__, "python": platform.python_version(), "device": str(self.device)}
        if self.device.type == "cuda":
            found["gpu"] = torch.cuda.get_device_name(self.device)
            found["cuda"] = str(torch.version.cuda)
        return found


@dataclass(frozen=True)
class _Lookup:
    """A forward: what it returned, and what its backward needs from the time of the forward."""

    tables: _Tables
    inputs: Inputs
    repaired: Repaired
    rate: float
    step: int
    output: torch.Tensor

    def backward(self, gradient: torch.Tensor, retain: bool) -> torch.Tensor | None:
        """Update the touched rows; autograd gets a fresh graph each time, so that nothing has to be retained."""
        del retain
        return self.tables.backward(self, gradient)


class _Tables:
    """Tables and states in torch tensors: the `System` that is driven."""

    def __init__(self, problem: Problem, device: torch.device) -> None:
        self.problem = problem
        self.device = device
        self.wide = TORCH_DTYPES[problem.case.accumulation]
        self.rate = problem.case.optimizer.learning_rate
        self.counted: int | None = None
        self.generator = torch.Generator(device).manual_seed(problem.case.seed)
        self.load(problem.initial, 0)

    def load(self, snapshot: Snapshot, step: int) -> None:
        self.tables = [to_torch(table).to(self.device) for table in snapshot.tables]
        self.states = [
            [to_torch(state).to(self.device) for state in states]
            for states in (snapshot.momentum1, snapshot.momentum2)
            if states
        ]
        self.step = self.problem.case.optimizer.step + step

    def set_learning_rate(self, rate: float) -> None:
        self.rate = rate

    def forward(self, inputs: Inputs) -> _Lookup:
        repaired = repair(self.problem, inputs)
        self.counted = repaired.warnings
        with torch.no_grad():
            weights = None if inputs.per_sample_weights is None else inputs.per_sample_weights.to(self.wide)
            output = self._pooled([table.to(self.wide) for table in self.tables], weights, inputs, repaired)
        step, self.step = self.step, self.step + 1
        return _Lookup(self, inputs, repaired, self.rate, step, narrow(output, TORCH_DTYPES[self.problem.case.output]))

    def backward(self, lookup: _Lookup, gradient: torch.Tensor) -> torch.Tensor | None:
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
                    self._update(number, rows, slope[rows], lookup)
        if given is None or not given.requires_grad:
            return None
        of_weights = found[len(leaves)]
        return torch.zeros_like(given) if of_weights is None else of_weights

    def warnings(self) -> int | None:
        return self.counted if self.problem.case.bounds_check is BoundsCheck.WARNING else None

    def snapshot(self) -> Snapshot:
        moments = [tuple(to_numpy(state) for state in states) for states in self.states]
        return Snapshot(tuple(to_numpy(table) for table in self.tables), *moments)

    def restored(self) -> Self:
        buffer = io.BytesIO()
        torch.save((self.tables, self.states, self.step, self.generator.get_state()), buffer)
        buffer.seek(0)
        fresh = type(self)(self.problem, self.device)
        fresh.tables, fresh.states, fresh.step, random = torch.load(buffer, weights_only=True)
        fresh.generator.set_state(random.cpu())
        return fresh

    def guards(self) -> tuple[Guard, ...]:
        return ()

    def _update(self, number: int, rows: torch.Tensor, gradient: torch.Tensor, lookup: _Lookup) -> None:
        table, states = self.tables[number], [state[number] for state in self.states]
        case = self.problem.case
        new, moments = update(
            case.optimizer,
            lookup.rate,
            lookup.step,
            table[rows].to(self.wide),
            gradient,
            tuple(state[rows].to(self.wide) for state in states),
        )
        table[rows] = store(new, table.dtype, case.rounding, self.generator)
        for state, moment in zip(states, moments, strict=True):
            state[rows] = moment.to(torch.float32)

    def _touched(self, lookup: _Lookup) -> list[torch.Tensor]:
        """Rows of each table that a lookup names."""
        named: list[list[torch.Tensor]] = [[] for _ in self.tables]
        for feature, (lookups, _) in enumerate(self._spans(lookup.inputs, lookup.repaired)):
            indices = lookup.repaired.indices[lookups][lookup.repaired.counts[lookups]]
            named[self.problem.feature_tables[feature]].append(indices)
        empty = torch.empty(0, dtype=torch.int64, device=self.device)
        return [torch.unique(torch.cat([empty, *(part.long() for part in parts)])) for parts in named]

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
            indices = repaired.indices[lookups][counts]
            own = None if weights is None else weights[lookups][counts]
            if self.problem.frozen[feature] and own is not None:
                own = own.detach()
            if self.problem.case.pooling is Pooling.NONE:
                block = table.index_select(0, indices)
                blocks.append(block if own is None else block * own[:, None])
                positions.append(torch.arange(lookups.start, lookups.stop, device=self.device)[counts])
                continue
            before = torch.cat([counts.new_zeros(1, dtype=torch.int64), counts.cumsum(0)])
            kept = before[(offsets - offsets[0]).long()].to(offsets.dtype)
            block = F.embedding_bag(indices, table, kept, mode="sum", per_sample_weights=own, include_last_offset=True)
            if self.problem.case.pooling is Pooling.MEAN:
                block = block / offsets.diff().clamp(min=1).to(self.wide)[:, None]
            blocks.append(block)
        if self.problem.case.pooling is Pooling.NONE:
            rows = torch.zeros((inputs.indices.numel(), self.problem.dims[0]), dtype=self.wide, device=self.device)
            return rows.index_copy(0, torch.cat(positions), torch.cat(blocks))
        if inputs.batch.batch_sizes is None:
            return torch.cat(blocks, 1)
        return _rank_major(blocks, inputs.batch.batch_sizes)


def _rank_major(blocks: list[torch.Tensor], sizes: tuple[tuple[int, ...], ...]) -> torch.Tensor:
    """For each rank, each feature's samples, flat."""
    by_feature = [torch.split_with_sizes(block, ranks) for block, ranks in zip(blocks, sizes, strict=True)]
    return torch.cat([by_feature[f][rank].reshape(-1) for rank in range(len(sizes[0])) for f in range(len(blocks))])
