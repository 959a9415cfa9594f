"""`triton:DEVICE`: the built-in Triton TBE, compiled on a GPU or interpreted on the CPU.

Variants: `+small-tables` (histogram and matrix product for tables of few rows) and `+hoist` (index transpose in the
forward). Every buffer that kernels are handed lies in NaN, and outputs are NaN before they are written; around tables
and between them stands a number, since a NaN would not show that it was updated, too. Triton's interpreter does not
check bounds, and reads of what nobody wrote would not show.
"""

from __future__ import annotations

import io
import os
import sys
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch

from equivcheck.arithmetic import Arithmetic, Sequential, Store, StoreRounding, Summation, TensorCore
from equivcheck.backends.driver import Inputs, drive, supports_call
from equivcheck.backends.layouts import (
    FINITE_POISON,
    FLOAT_POISON,
    GUARD_BYTES,
    INTEGER_POISON,
    TORCH_DTYPES,
    to_numpy,
    to_torch,
)
from equivcheck.backends.protocol import BackendUnavailable
from equivcheck.case import BoundsCheck, Call, Case, Pooling, Rounding
from equivcheck.formats import DType
from equivcheck.outcome import SUPPORTED, Guard, Outcome, Support, unsupported
from equivcheck.problem import Problem, Snapshot

SPACING = 1
"""Rows of nobody before and after each table."""

VARIANTS = {"small-tables": "small_tables", "hoist": "hoist_transpose"}
"""Each variant's option of the module."""


class TritonBackend:
    """The built-in Triton TBE on one device.

    Parameters
    ----------
    device
        `cuda`, or `cpu` for the interpreter; empty for CUDA where there is a GPU.
    variants
        `small-tables`, `hoist`.

    Raises
    ------
    ValueError
        If a variant or device is unknown.
    BackendUnavailable
        If there is no such device, no Triton, or Triton was imported for the other.
    """

    def __init__(self, device: str = "", *variants: str) -> None:
        unknown = [variant for variant in variants if variant not in VARIANTS]
        if unknown:
            raise ValueError(f"variant {unknown[0]!r} is unknown; triton has {', '.join(VARIANTS)}")
        if device not in ("", "cpu", "cuda"):
            raise ValueError(f"device {device!r} is unknown; triton runs on cpu (interpreted) or cuda")
        if device == "cuda" and not torch.cuda.is_available():
            raise BackendUnavailable("there is no GPU here; triton:cpu interprets the same kernels")
        self.options = {VARIANTS[variant]: True for variant in variants}
        self.variants = variants
        self.make = _module_class(device)
        self.device = torch.device(device) if device else _device()
        self.name = "+".join((f"triton:{self.device.type}", *variants))

    def supports(self, case: Case) -> Support:
        """Everything but fp16 accumulation of wider tables, and streams and graphs where there are none."""
        if case.accumulation is DType.FP16 and case.weights is not DType.FP16:
            return unsupported(f"fp16 accumulation is for fp16 tables, not {case.weights}")
        if case.call is Call.GRAPH and case.bounds_check is BoundsCheck.FATAL:
            return unsupported("a fatal bounds check reads its count on the host, which a CUDA graph cannot capture")
        return supports_call(case.call, self.device)

    def arithmetic(self, case: Case) -> Arithmetic:
        """Every operation rounded once, to nearest, in the accumulation's type; nothing fused, nothing flushed.

        Compiled and interpreted alike: quotients and roots are the correctly rounded ones, FP fusion is off. 1 - beta^t
        comes from the host in fp64 (beta^t is good to 2^-52) and is rounded to fp32 once. Means and gradients are
        scaled by the reciprocal of the length. Row gradients and the optimizer's formulas are fp32 where fp16 is asked
        for. Small tables are summed by tensor cores (`small_tables.additions`), or in the interpreter by NumPy.
        """
        sums = Sequential(case.accumulation)
        rows = Sequential(DType.FP64 if case.accumulation is DType.FP64 else DType.FP32)
        stochastic = case.rounding is Rounding.STOCHASTIC and case.weights is not DType.FP32
        return Arithmetic(
            pooling=self._pooling(case, sums),
            gradient=rows,
            weight_gradient=sums,
            mean_square=rows,
            accumulator=case.accumulation,
            power=2.0**-28,
            table_store=Store(StoreRounding.STOCHASTIC, saturates=True) if stochastic else Store(),
        )

    def run(self, problem: Problem) -> Outcome:
        """See `Backend`."""
        with np.errstate(all="ignore"):  # NumPy's warnings in the interpreter are IEEE's results on a GPU
            system = _Tables(problem, self)
            outcome = drive(problem, system)
        return replace(outcome, paths=tuple(sorted(system.paths)))

    def versions(self) -> dict[str, str]:
        """See `Backend`."""
        import triton

        found = {"torch": torch.__version__, "triton": triton.__version__, "device": self.device.type}
        if self.device.type == "cuda":
            found["gpu"] = torch.cuda.get_device_name()
            found["cuda"] = str(torch.version.cuda)
        return found

    def timing(self) -> Support:
        """See `equivcheck.backends.timed.Timed`."""
        if self.device.type == "cpu":
            return unsupported("Triton's interpreter runs its kernels in NumPy, and its time says nothing about them")
        return SUPPORTED

    def prepare(self, case: Case) -> PlainTables:
        """See `equivcheck.backends.timed.Timed`."""
        return PlainTables(self.make(case.table_shapes, case.tables, **options(case), **self.options), self.device)

    def _pooling(self, case: Case, otherwise: Summation) -> Summation:
        from equivcheck.triton_tbe.small_tables import additions, is_small

        if "small-tables" not in self.variants or not any(is_small(shape) for shape in case.table_shapes):
            return otherwise
        if case.accumulation is not DType.FP32 or case.pooling is Pooling.NONE:
            return otherwise
        return TensorCore(additions(TORCH_DTYPES[case.weights], case.per_sample_weights is not None))


def _device() -> torch.device:
    from equivcheck.triton_tbe import MODE

    return MODE.device


def _module_class(device: str) -> type[Any]:
    """`TritonTBE` for a device, which Triton has to know before it is imported."""
    if device and "triton" not in sys.modules:
        os.environ["TRITON_INTERPRET"] = str(int(device == "cpu"))
    try:
        from equivcheck.triton_tbe import MODE
        from equivcheck.triton_tbe.module import TritonTBE
    except (ImportError, RuntimeError) as error:
        raise BackendUnavailable(f"the Triton TBE cannot be used: {error}") from error
    if device and MODE.device.type != device:
        raise BackendUnavailable(f"this process has {MODE.value} kernels, which do not run on {device}; start another")
    return TritonTBE


def options(case: Case) -> dict[str, Any]:
    """The module's options for a case."""
    optimizer = case.optimizer
    return {
        "weights_precision": TORCH_DTYPES[case.weights],
        "output_dtype": TORCH_DTYPES[case.output],
        "accumulation": TORCH_DTYPES[case.accumulation],
        "pooling_mode": case.pooling,
        "optimizer": optimizer.kind,
        "learning_rate": optimizer.learning_rate,
        "eps": optimizer.eps,
        "beta1": optimizer.beta1,
        "beta2": optimizer.beta2,
        "weight_decay": optimizer.weight_decay,
        "weight_decay_mode": optimizer.decay,
        "stochastic_rounding": case.rounding is Rounding.STOCHASTIC,
        "seed": case.seed,
        "bounds_check_mode": case.bounds_check,
    }


_IN_PLACE = ("weights", "momentum1", "momentum2")
"""Buffers that are updated where they are: NaN less a step is the same NaN, so a number stands around their tables."""


def _poison(name: str, buffer: torch.Tensor) -> int:
    if name in _IN_PLACE:
        return FINITE_POISON
    return FLOAT_POISON if buffer.is_floating_point() else INTEGER_POISON


class _Poisoned:
    """An allocator whose tensors lie in guards: NaN, large integers, a number around tables and states."""

    def __init__(self) -> None:
        self.buffers: list[tuple[str, torch.Tensor, int]] = []

    def __call__(self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        size = int(np.prod(shape, dtype=np.int64))
        margin = GUARD_BYTES // dtype.itemsize
        buffer = torch.empty(size + 2 * margin, dtype=dtype, device=device)
        buffer.view(torch.uint8).fill_(_poison(name, buffer))
        self.buffers.append((name, buffer, margin))
        return buffer[margin : margin + size].view(shape)

    def guards(self) -> tuple[Guard, ...]:
        """What is found around every tensor."""
        found = []
        for name, buffer, margin in self.buffers:
            around = to_numpy(torch.cat([buffer[:margin], buffer[len(buffer) - margin :]]).view(torch.uint8))
            found.append(Guard(name, np.full_like(around, _poison(name, buffer)), around))
        return tuple(found)


@dataclass(frozen=True)
class _Lookup:
    """A forward whose backward may run."""

    output: torch.Tensor
    per_sample_weights: torch.Tensor | None

    def backward(self, gradient: torch.Tensor, retain: bool) -> torch.Tensor | None:
        weights = self.per_sample_weights
        if weights is None or not weights.requires_grad:
            torch.autograd.backward(self.output, gradient, retain_graph=retain)
            return None
        (found,) = torch.autograd.grad(self.output, weights, gradient, retain_graph=retain)
        return found


class PlainTables:
    """The module with tables of full size and nothing around them: see `Prepared` and `large.Spread`."""

    def __init__(self, module: Any, device: torch.device) -> None:
        self._module = module
        self.device = device
        self.tables: list[torch.Tensor] = module.split_embedding_weights()
        self.states: list[list[torch.Tensor]] = module.split_optimizer_states()

    def set_learning_rate(self, rate: float) -> None:
        """See `large.Accessible`."""
        self._module.set_learning_rate(rate)

    def forward(self, indices: torch.Tensor, offsets: torch.Tensor, per_sample_weights: torch.Tensor | None) -> _Lookup:
        """See `Prepared`."""
        return _Lookup(self._module(indices, offsets, per_sample_weights), per_sample_weights)


class _Tables:
    """The module as the `System` that is driven."""

    def __init__(self, problem: Problem, backend: TritonBackend, restoring: _Tables | None = None) -> None:
        case = problem.case
        self.problem, self.backend, self.device = problem, backend, backend.device
        self.allocate = _Poisoned()
        self.module = backend.make(
            case.table_shapes,
            problem.feature_tables,
            **options(case),
            **backend.options,
            spacing=SPACING,
            allocate=self.allocate,
            device=self.device,
        )
        self.asks = None
        if any(problem.frozen):
            self.asks = torch.tensor([not frozen for frozen in problem.frozen], device=self.device)
        self.between = {
            name: self._between(name)
            for name in ("weights", "momentum1", "momentum2")
            if self._buffer(name) is not None
        }
        self.paths: set[str] = set() if restoring is None else restoring.paths
        self.module.paths = self.paths
        if restoring is None:
            self.load(problem.initial, 0)

    def load(self, snapshot: Snapshot, step: int) -> None:
        states = self.module.split_optimizer_states()
        arrays = (snapshot.tables, snapshot.momentum1, snapshot.momentum2)
        for views, values in zip((self.module.split_embedding_weights(), *states), arrays, strict=False):
            for view, value in zip(views, values, strict=True):
                view.copy_(to_torch(value))
        self.module.set_extra_state({"step": self.problem.case.optimizer.step - 1 + step, "updates": step})

    def set_learning_rate(self, rate: float) -> None:
        self.module.set_learning_rate(rate)

    def forward(self, inputs: Inputs) -> _Lookup:
        output = self.module(
            inputs.indices, inputs.offsets, inputs.per_sample_weights, self.asks, inputs.batch.batch_sizes
        )
        return _Lookup(output, inputs.per_sample_weights)

    def warnings(self) -> int | None:
        if self.problem.case.bounds_check is not BoundsCheck.WARNING:
            return None
        return int(self.module.bounds_check_warning)

    def snapshot(self) -> Snapshot:
        states = [tuple(to_numpy(view) for view in views) for views in self.module.split_optimizer_states()]
        return Snapshot(tuple(to_numpy(view) for view in self.module.split_embedding_weights()), *states)

    def restored(self) -> Self:
        saved = io.BytesIO()
        torch.save(self.module.state_dict(), saved)
        saved.seek(0)
        fresh = type(self)(self.problem, self.backend, self)
        fresh.module.load_state_dict(torch.load(saved, weights_only=True))
        return fresh

    def guards(self) -> tuple[Guard, ...]:
        between = []
        for name, outside in self.between.items():
            found = to_numpy(self._buffer(name)[outside]).view(np.uint8)
            between.append(Guard(f"between tables of {name}", np.full_like(found, FINITE_POISON), found))
        return (*self.allocate.guards(), *between)

    def _buffer(self, name: str) -> Any:
        return getattr(self.module, name)

    def _between(self, name: str) -> torch.Tensor:
        """Mask of the elements of a buffer that belong to no table."""
        layout, buffer = self.module.layout, self._buffer(name)
        outside = torch.ones(len(buffer), dtype=torch.bool, device=self.device)
        view = layout.rows_of if len(buffer) == layout.rows else layout.elements_of
        for table in range(len(layout.shapes)):
            view(outside, table).fill_(False)
        return outside
