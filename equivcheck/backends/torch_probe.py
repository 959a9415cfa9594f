"""The child process of `torch_operators`: run every part on the device, and watch every operator.

    python -m equivcheck.backends.torch_probe DEVICE

prints its evidence as a line of JSON. An operator that fails is written down, computed on the CPU instead, and the part
goes on, so that one missing operator hides no other.
"""

from __future__ import annotations

import math
import os
import sys
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import msgspec
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from equivcheck.backends.handshake import handshake
from equivcheck.backends.layouts import TORCH_DTYPES
from equivcheck.backends.protocol import BackendUnavailable
from equivcheck.backends.torch_devices import is_foreign, open_device
from equivcheck.backends.torch_lookup import bags, rows
from equivcheck.backends.torch_operators import (
    Evidence,
    Lookup,
    Observed,
    Output,
    Part,
    State,
    Step,
    Storage,
    all_parts,
)
from equivcheck.backends.torch_optimizers import constants, narrow, rule, store, update
from equivcheck.case import Optimizer, OptimizerKind, Pooling
from equivcheck.formats import DType

_ROWS, _DIM = 6, 4
_INDICES, _OFFSETS = (0, 2, 2, 5), (0, 1, 1, 4)

_COPIES = ("aten::_to_cpu", "aten::_to_copy", "aten::_copy_from", "aten::_copy_from_and_resize", "aten::copy_")
"""Operators by which a tensor reaches the host."""


def probe(device: torch.device, needed: Iterable[Part]) -> dict[str, tuple[Observed, ...]]:
    """What the operators of each part did; nothing, where tensors do not reach the device as they are.

    An operator that is handed other numbers than were sent may refuse them, which says nothing about it.
    """
    if is_foreign(device) and any(handshake(device, dtype) for dtype in (torch.int64, torch.float32)):
        return {}
    watch = _Watch(device)
    found = {}
    for part in needed:
        watch.seen = {}
        whole: tuple[Observed, ...] = ()
        try:
            asked = _prepared(part, device)
            with watch:
                asked()
        except Exception as error:  # its arguments cannot be made there, or what it returned cannot be used
            whole = (Observed("what it needs", (), State.MISSING, f"{type(error).__name__}: {error}"),)
        found[str(part)] = (*whole, *sorted(watch.seen.values()))
    return found


def _prepared(part: Part, device: torch.device) -> Callable[[], object]:
    """The part's computation, with its arguments on the device."""
    match part:
        case Lookup():
            return _lookup(part, device)
        case Output():
            return partial(narrow, _numbers((3, _DIM), part.accumulation, device), TORCH_DTYPES[part.dtype])
        case Storage():
            return _storage(part, device)
        case Step():
            return _step(part, device)


def _lookup(part: Lookup, device: torch.device) -> Callable[[], object]:
    integers = torch.int32 if part.indices == "int32" else torch.int64
    wide = TORCH_DTYPES[part.accumulation]
    table = _numbers((_ROWS, _DIM), part.accumulation, device).requires_grad_()
    indices, offsets = (torch.tensor(values, dtype=integers).to(device) for values in (_INDICES, _OFFSETS))
    lengths = torch.tensor([1.0, 1.0, 3.0], dtype=wide).to(device) if part.pooling is Pooling.MEAN else None
    gradient = torch.ones(len(_INDICES) if part.pooling is Pooling.NONE else 3, _DIM, dtype=wide).to(device)
    given: torch.Tensor | None = None
    if part.weights:
        kind = torch.float16 if part.weights == "fp16" else torch.float32
        given = torch.tensor([0.5, -1.0, 2.0, 1.0], dtype=kind).to(device).requires_grad_()

    def look_up() -> object:
        weights = None if given is None else given.to(wide)
        if part.pooling is Pooling.NONE:
            output = rows(table, indices, weights)
        else:
            output = bags(table, indices, offsets, weights, lengths)
        return torch.autograd.grad(output, [table] if given is None else [table, given], gradient)

    return look_up


def _storage(part: Storage, device: torch.device) -> Callable[[], object]:
    table = _numbers((_ROWS, _DIM), part.dtype, device)
    named = torch.tensor([0, 3]).to(device)
    random = torch.full((2, _DIM), 0.25).to(device) if part.stochastic else None

    def keep() -> object:
        found = table.index_select(0, named).to(TORCH_DTYPES[part.accumulation])
        return table.index_copy_(0, named, store(found, TORCH_DTYPES[part.dtype], random))

    return keep


def _step(part: Step, device: torch.device) -> Callable[[], object]:
    optimizer = Optimizer(part.kind, eps=0.125, decay=part.decay, weight_decay=0.5 if part.decays else 0.0)
    weights, gradient, whole = (_numbers((2, _DIM), part.accumulation, device) for _ in range(3))
    by_row = _numbers((2,), part.accumulation, device)
    states = {
        OptimizerKind.SGD: (),
        OptimizerKind.ADAGRAD: (whole,),
        OptimizerKind.ROWWISE_ADAGRAD: (by_row,),
        OptimizerKind.ADAM: (whole, whole),
        OptimizerKind.PARTIAL_ROWWISE_ADAM: (whole, by_row),
    }[part.kind]
    return partial(update, rule(optimizer), constants(optimizer, 0.5, 2), weights, gradient, states)


def _numbers(shape: tuple[int, ...], dtype: DType, device: torch.device) -> torch.Tensor:
    """Multiples of a quarter above zero."""
    count = math.prod(shape)
    return (torch.arange(1, count + 1) / 4).reshape(shape).to(TORCH_DTYPES[dtype]).to(device)


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch does not type it
    """Sees every operator below autograd; those with a tensor on the device are looked at the first time."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device = device
        self.known: dict[tuple[str, tuple[str, ...]], Observed] = {}
        self.seen: dict[tuple[str, tuple[str, ...]], Observed] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        leaves = tree_leaves((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        there = any(tensor.device.type == self.device.type for tensor in tensors)
        made_there = any(isinstance(leaf, torch.device) and leaf.type == self.device.type for leaf in leaves)
        if not there and (tensors or not made_there):
            return func(*args, **kwargs)
        key = (str(func).removesuffix(".default"), _types(tensors))
        if key in self.known:
            self.seen[key] = observed = self.known[key]
            if observed.state is State.MISSING:
                return _on_cpu(func, args, kwargs, self.device)
            return func(*args, **kwargs)
        result, observed = self._observe(key, func, args, kwargs)
        self.known[key] = self.seen[key] = observed
        return result

    def _observe(
        self, key: tuple[str, tuple[str, ...]], func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, Observed]:
        expected = _expected_dtypes(func, args, kwargs)
        try:
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                result, fell_back = _profiled(func, args, kwargs)
        except Exception as error:  # whatever a vendor's operator raises says that it is not there
            first_line = (str(error).splitlines() or [""])[0]
            detail = f"{type(error).__name__}: {first_line}"
            return _on_cpu(func, args, kwargs, self.device), Observed(*key, State.MISSING, detail)
        said = [str(warning.message).splitlines()[0] for warning in warned if "fall back" in str(warning.message)]
        returned = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        dtypes = [tensor.dtype for tensor in returned]
        if said:
            return result, Observed(*key, State.FELL_BACK, said[0])
        if fell_back:
            detail = "it copied its arguments to the host and called the same operator there"
            return result, Observed(*key, State.FELL_BACK, detail)
        if expected is not None and dtypes != expected:
            detail = f"it returned {_names(dtypes)}; on the CPU these are {_names(expected)}"
            return result, Observed(*key, State.OTHER_DTYPE, detail)
        return result, Observed(*key, State.RUNS)


def _profiled(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, bool]:
    """The result, and whether the operator called itself again, with copies to the host around that call.

    That is what a fall-back looks like to PyTorch's profiler (`at::native::cpu_fallback` among them). A device's kernel
    calls other operators, or none; one that asks PyTorch for the result's shape calls itself, without copies around.
    """
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        result = func(*args, **kwargs)
    name = func.name().partition(".")[0]
    if name in _COPIES:
        return result, False
    for event in profile.events() or ():
        if event.name == name:
            around = _around(name, event)
            return result, name in around and any(copy in around for copy in _COPIES)
    return result, False


def _around(name: str, event: Any) -> set[str]:
    """Names of the operators below an event, without those below an operator of this name."""
    names: set[str] = set()
    for child in event.cpu_children:
        names.add(child.name)
        if child.name != name:
            names |= _around(name, child)
    return names


def _expected_dtypes(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.dtype] | None:
    """Types of the result by PyTorch's own shape functions, where the operator has one."""

    def to_meta(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device="meta")
        return torch.device("meta") if isinstance(leaf, torch.device) else leaf

    try:
        result = func(*tree_map(to_meta, args), **tree_map(to_meta, kwargs))
    except Exception:  # no shape function for these arguments
        return None
    return [leaf.dtype for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]


def _on_cpu(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device) -> Any:
    """What the operator would have returned, computed on the CPU and sent to the device; in place where it is so."""

    def here(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf.cpu()
        return torch.device("cpu") if isinstance(leaf, torch.device) else leaf

    given, named = tree_map(here, args), tree_map(here, kwargs)
    result = func(*given, **named)
    if func._schema.is_mutable and given and isinstance(given[0], torch.Tensor):
        args[0].copy_(given[0])
        return args[0]
    send: Callable[[Any], Any] = lambda leaf: leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf  # noqa: E731
    return tree_map(send, result)


def _types(tensors: list[torch.Tensor]) -> tuple[str, ...]:
    """Types of the arguments, each once, in order."""
    return tuple(dict.fromkeys(str(tensor.dtype).removeprefix("torch.") for tensor in tensors))


def _names(dtypes: list[torch.dtype]) -> str:
    return ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes) or "nothing"


def main(name: str) -> None:
    """Print the evidence about a device as a line of JSON."""
    torch.set_num_threads(1)
    try:
        found = Evidence(name, probe(open_device(name), all_parts()))
    except BackendUnavailable as error:
        found = Evidence(name, unavailable=str(error))
    print("\n" + msgspec.json.encode(found).decode(), end="", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
    os._exit(0)  # all is said; a vendor's runtime may not survive the interpreter's end
