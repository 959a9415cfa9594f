"""Compiles the kernels of the built-in Triton TBE without a GPU. Run by `test_triton_compiles.py` in a child process.

The wrappers are called with tensors that have no memory (PyTorch's meta device), and instead of launching, every
distinct kernel is compiled for a target. What is compiled is then what a launch on that GPU would compile.

    python triton_compiling.py TARGET representative|all

prints a JSON object a kernel: its name, its compile-time constants, and what was wrong with it, if anything.
"""

import itertools
import json
import os
import sys
from typing import Any

os.environ["TRITON_INTERPRET"] = "0"

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

from equivcheck.case import BoundsCheck, Decay, OptimizerKind
from equivcheck.triton_tbe.backward import Gradients, update
from equivcheck.triton_tbe.bounds import checked_indices
from equivcheck.triton_tbe.forward import gather
from equivcheck.triton_tbe.layout import Bags, FeatureLayout, TableLayout, fixed_batch
from equivcheck.triton_tbe.optimizers import DECAYS, OPTIMIZERS, Hyper, Rule, State
from equivcheck.triton_tbe.small_tables import multiply
from equivcheck.triton_tbe.tiles import allocate_plainly, lane_tile, product_tile, row_tile
from equivcheck.triton_tbe.transpose import transpose
from equivcheck.triton_tbe.weight_gradient import weight_gradient

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
DEVICE = torch.device("meta")
LOOKUPS = 4_096
FP16, BF16, FP32, FP64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
INEXACT = (".ftz", "div.full", "div.approx", "sqrt.approx", "fma.rn.f32", "fma.rn.f64")
"""PTX that the declared arithmetic excludes."""


class Compiler:
    """Stands in for `JITFunction.run`: compiles for a target what a launch there would compile, each kernel once."""

    def __init__(self, target: GPUTarget) -> None:
        self.target, self.backend = target, make_backend(target)
        self.seen: set[str] = set()

    def run(self, kernel: JITFunction[Any], *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        binder = create_function_from_signature(kernel.signature, kernel.params, self.backend)
        bound, specialization, options = binder(*args, **kwargs)
        options, signature, constants, attributes = kernel._pack_args(
            self.backend, kwargs, bound, specialization, options
        )
        key = f"{kernel.__name__}{signature}{constants}{attributes}{options}"
        if key in self.seen:
            return
        self.seen.add(key)
        wrong = ""
        try:
            source = ASTSource(kernel, signature, constants, attributes)
            compiled = triton.compile(source, target=self.target, options=options.__dict__)
            if "ptx" in compiled.asm:
                found = [text for text in INEXACT if text in compiled.asm["ptx"]]
                wrong = f"PTX holds {', '.join(found)}" if found else ""
        except Exception as error:  # whatever refuses the kernel is the result
            wrong = f"{type(error).__name__}: {error}"
        settings = {name: str(value) for name, value in bound.items() if name.isupper()}
        print(json.dumps({"kernel": kernel.__name__, "constants": settings, "wrong": wrong}), flush=True)


def empty(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=DEVICE)


def _unknown(columns: int) -> torch.Tensor:
    raise AssertionError("a GPU's tile depends on lengths, which lie on the device")


def batch(dims: tuple[int, ...], index_type: torch.dtype) -> tuple[FeatureLayout, Bags, torch.Tensor]:
    """A fixed batch over tables of 50 rows, the first of which two features share."""
    features = FeatureLayout(TableLayout.build([(50, dim) for dim in dims]), [*range(len(dims)), 0], DEVICE)
    places = fixed_batch(features, 64)
    offsets = empty(len(places.feature) + 1, dtype=index_type)
    return features, Bags.pooled(places, offsets, LOOKUPS), empty(LOOKUPS, dtype=index_type)


def forwards(
    dims: tuple[int, ...],
    index_type: torch.dtype,
    storage: torch.dtype,
    output: torch.dtype,
    weighted: torch.dtype | None,
    accumulation: torch.dtype,
    mean: bool,
) -> None:
    """Gather, small tables, weight gradient."""
    features, bags, indices = batch(dims, index_type)
    weights = empty(features.tables.elements, dtype=storage)
    weight = None if weighted is None else empty(LOOKUPS, dtype=weighted)
    result = empty(*bags.places.output_shape, dtype=output)
    widest = features.tables.widest
    skipped = empty(len(features), dtype=torch.int8)
    arguments = (result, weights, indices, weight, bags, features)
    gather(
        *arguments,
        frozenset({0} if mean else ()),
        mean=mean,
        accumulation=accumulation,
        tile=lane_tile(DEVICE, features.widths, len(bags), len(bags) if mean else LOOKUPS, _unknown),
    )
    if accumulation is FP32:
        numbers = empty(1, dtype=torch.int64)
        multiply(*arguments, numbers, mean=mean, tile=product_tile(DEVICE, widest))
    if weight is not None:
        weight_gradient(
            torch.empty_like(weight),
            weights,
            indices,
            result,
            skipped if mean else None,
            bags,
            features,
            mean=mean,
            accumulation=accumulation,
            tile=row_tile(DEVICE, widest),
        )


def backwards(
    dims: tuple[int, ...],
    index_type: torch.dtype,
    storage: torch.dtype,
    output: torch.dtype,
    weighted: torch.dtype | None,
    accumulation: torch.dtype,
    mean: bool,
    optimizer: OptimizerKind,
    decay: Decay,
    stochastic: bool,
) -> None:
    """Bounds check, transpose, and the kernels of short and long runs."""
    features, bags, indices = batch(dims, index_type)
    checked_indices(indices, bags, features, BoundsCheck.IGNORE)
    weights = empty(features.tables.elements, dtype=storage)
    state = empty(features.tables.elements, dtype=FP32)
    weight = None if weighted is None else empty(LOOKUPS, dtype=weighted)
    update(
        State(weights, state, state),
        Gradients(empty(*bags.places.output_shape, dtype=output), weight),
        features,
        transpose(indices, bags, features, accumulation if mean else None, allocate_plainly),
        Hyper.at(0.5, 0.0, 0.875, 0.96875, 0.25, 3),
        Rule(OPTIMIZERS[optimizer], DECAYS[decay], stochastic, 7, 1),
        accumulation=accumulation,
        allocate=allocate_plainly,
    )


def representative() -> None:
    """Every value of every axis at least once."""
    narrow, odd, wide = (8, 4), (5,), (2048, 12)
    for dims, index_type, storage, output, weighted, accumulation, mean in (
        (narrow, torch.int64, FP32, FP32, None, FP32, False),
        (odd, torch.int32, BF16, BF16, FP32, FP32, True),
        (wide, torch.int64, FP16, FP16, FP16, FP32, False),
        (narrow, torch.int32, FP32, BF16, FP16, FP64, True),
        (odd, torch.int64, FP16, FP16, FP32, FP16, True),
    ):
        forwards(dims, index_type, storage, output, weighted, accumulation, mean)
    for dims, index_type, storage, output, weighted, accumulation, mean, optimizer, decay, stochastic in (
        (narrow, torch.int64, FP32, FP32, None, FP32, False, OptimizerKind.SGD, Decay.NONE, False),
        (odd, torch.int32, BF16, BF16, FP32, FP32, True, OptimizerKind.ROWWISE_ADAGRAD, Decay.L2, True),
        (wide, torch.int64, FP16, FP16, FP16, FP32, False, OptimizerKind.PARTIAL_ROWWISE_ADAM, Decay.NONE, True),
        (narrow, torch.int32, BF16, FP32, None, FP64, True, OptimizerKind.ADAM, Decay.NONE, False),
        (odd, torch.int64, FP16, FP32, None, FP32, False, OptimizerKind.ADAGRAD, Decay.NONE, False),
        (wide, torch.int32, FP32, BF16, FP32, FP64, True, OptimizerKind.ROWWISE_ADAGRAD, Decay.DECOUPLED, False),
    ):
        backwards(dims, index_type, storage, output, weighted, accumulation, mean, optimizer, decay, stochastic)


def everything() -> None:
    """The whole product of the axes that kernels branch on."""
    types = (FP32, FP16, BF16)
    dims = ((8, 4), (5,), (2048, 12))
    indices = (torch.int64, torch.int32)
    weighted = (None, FP32, FP16)
    for values in itertools.product(dims, indices, types, types, weighted, (FP32, FP64), (False, True)):
        forwards(*values)
    for shape, index_type, output, weight, mean in itertools.product(dims, indices, types, weighted, (False, True)):
        forwards(shape, index_type, FP16, output, weight, FP16, mean)
    rules = [(kind, Decay.NONE) for kind in OptimizerKind]
    rules += [(OptimizerKind.ROWWISE_ADAGRAD, decay) for decay in (Decay.L2, Decay.DECOUPLED)]
    for shape, storage, weight, wide, mean, (kind, decay), stochastic in itertools.product(
        dims, types, (None, FP32), (FP32, FP64), (False, True), rules, (False, True)
    ):
        output = {FP32: BF16, FP16: FP32, BF16: FP16}[storage]
        backwards(shape, torch.int64, storage, output, weight, wide, mean, kind, decay, stochastic)


if __name__ == "__main__":
    compiler = Compiler(TARGETS[sys.argv[1]])
    JITFunction.run = lambda kernel, *args, **kwargs: compiler.run(kernel, *args, **kwargs)
    {"representative": representative, "all": everything}[sys.argv[2]]()
