"""PyTorch's view of the device: a tensor class, and what each operator does.

Every operator goes through one function: views are views of the device's memory; what writes in place, or makes tensors
whose shape PyTorch can tell beforehand, is queued; what depends on values waits. Kernels are the CPU's, on the queue's
thread and on the device's memory, so that a right device gives the CPU's bits.
"""

import atexit
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from . import NAME
from .faults import SETTINGS, Fault
from .memory import Block, Memory
from .work import Queue

aten = torch.ops.aten
MEMORY, STAGING, QUEUE = Memory(), Memory(), Queue()


class Simulated(torch.Tensor):
    """A tensor on the device. `raw` is its memory, as a CPU tensor that only the queue may touch."""

    raw: torch.Tensor
    block: Block | None

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, raw: torch.Tensor, block: Block | None) -> "Simulated":
        made: Simulated = torch.Tensor._make_wrapper_subclass(
            cls,
            raw.shape,
            strides=raw.stride(),
            storage_offset=raw.storage_offset() - (0 if block is None else _start(block, raw)),
            dtype=raw.dtype,
            device=torch.device(NAME, 0),
        )
        made.raw, made.block = raw, block
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func._can_decompose():  # `to` and its like, where autograd has not taken them apart
            return func.decompose(*args, **kwargs)
        _refuse_missing(func, args)
        if SETTINGS.fault is Fault.FALL_BACK and "embedding_bag" in str(func):
            return _on_the_host(func, args, kwargs)
        if func is aten._to_copy.default:
            return _to_copy(args[0], **kwargs)
        if func is aten.copy_.default:
            return _copy(*args)
        if func is aten._local_scalar_dense.default:
            QUEUE.wait()
            return args[0].raw.item()
        return _compute(func, args, kwargs)


def register() -> None:
    """Make the device known to PyTorch, under its name and with a module that can wait."""
    from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

    class Module(_DummyBackendModule):
        def synchronize(self, device: object = None) -> None:
            QUEUE.wait()

    _setup_privateuseone_for_python_backend(NAME, backend_module=Module())
    atexit.register(QUEUE.stop)
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    library.impl("empty.memory_format", _empty, "PrivateUse1")
    library.impl("empty_strided", _empty_strided, "PrivateUse1")
    library.impl("_copy_from", lambda source, target, non_blocking=False: _copy(target, source), "PrivateUse1")
    register.library = library  # type: ignore[attr-defined]  # its registrations end with it


def _empty(size: Any, *, dtype: Any = None, **_: Any) -> Any:
    return _new(torch.empty(size, dtype=dtype, device="meta"))


def _empty_strided(size: Any, stride: Any, *, dtype: Any = None, **_: Any) -> Any:
    return _new(torch.empty_strided(size, stride, dtype=dtype, device="meta"))


def _start(block: Block, raw: torch.Tensor) -> int:
    return int(block.bytes.storage_offset()) // raw.element_size()


def _new(like: torch.Tensor) -> Simulated:
    """Memory of the shape, strides and type of a meta tensor."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(like.shape, like.stride(), strict=True))
    size = span * like.element_size() if like.numel() else 0
    block = MEMORY.take(size, QUEUE.submit)  # freed behind all work that still reads it
    flat = block.bytes.view(like.dtype)
    return Simulated(flat.as_strided(like.shape, like.stride(), flat.storage_offset()), block)


def _compute(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    raw_args, raw_kwargs = tree_map(_raw, args), tree_map(_raw, kwargs)
    if func.is_view:
        if SETTINGS.fault is Fault.OTHER_STRIDES and func in (aten.t.default, aten.transpose.int):
            return _compute(aten.clone.default, (_compute_view(func, args, raw_args, raw_kwargs),), _CONTIGUOUS)
        return _compute_view(func, args, raw_args, raw_kwargs)
    if func._schema.is_mutable:
        QUEUE.submit(functools.partial(_quietly, func, raw_args, raw_kwargs))
        return kwargs.get("out", args[0])
    if "_embedding_bag" in str(func):  # PyTorch's shape function for it is that of CUDA, where the shapes are others
        return _waited(func, raw_args, raw_kwargs)
    try:
        shapes = func(*tree_map(_meta, args), **tree_map(_meta, kwargs))
    except Exception:  # the shape depends on values
        return _waited(func, raw_args, raw_kwargs)
    made = tree_map(lambda leaf: _new(_typed(func, leaf)) if isinstance(leaf, torch.Tensor) else leaf, shapes)
    targets = [leaf.raw for leaf in tree_leaves(made) if isinstance(leaf, Simulated)]
    QUEUE.submit(functools.partial(_fill, targets, func, raw_args, raw_kwargs))
    return made


_CONTIGUOUS = {"memory_format": torch.contiguous_format}


def _waited(func: Any, raw_args: Any, raw_kwargs: Any) -> Any:
    """Compute on the queue and wait, for a result of a shape that only the kernel knows."""
    results: list[Any] = []
    QUEUE.submit(lambda: results.append(_quietly(func, _narrowed(func, raw_args), raw_kwargs)))
    QUEUE.wait()
    return tree_map(lambda leaf: _received(leaf) if isinstance(leaf, torch.Tensor) else leaf, results[0])


def _compute_view(func: Any, args: tuple[Any, ...], raw_args: Any, raw_kwargs: Any) -> Any:
    if func is aten.as_strided.default:  # its offset counts from the start of the tensor's own memory
        size, stride, *offset = args[1:]
        start = _start(args[0].block, args[0].raw) if args[0].block is not None else 0
        first = args[0].raw.storage_offset() if not offset or offset[0] is None else offset[0] + start
        raw_args = (args[0].raw, size, stride, first)
    result = _quietly(func, raw_args, raw_kwargs)
    return tree_map(lambda leaf: Simulated(leaf, args[0].block) if isinstance(leaf, torch.Tensor) else leaf, result)


def _fill(targets: list[torch.Tensor], func: Any, args: Any, kwargs: Any) -> None:
    results = [leaf for leaf in tree_leaves(_quietly(func, args, kwargs)) if isinstance(leaf, torch.Tensor)]
    for target, result in zip(targets, results, strict=True):
        if target.shape != result.shape:
            raise RuntimeError(f"{func} gave {tuple(result.shape)}, and its shape function {tuple(target.shape)}")
        target.copy_(result)


def _narrowed(func: Any, args: Any) -> Any:
    return (
        tree_map(_through_bf16, args)
        if SETTINGS.fault is Fault.DOWN_CAST_LOOKUP and "embedding_bag" in str(func)
        else args
    )


def _typed(func: Any, shape: torch.Tensor) -> torch.Tensor:
    if SETTINGS.fault is Fault.OTHER_DTYPE and func is aten.mul.Tensor and shape.dtype is torch.float64:
        return torch.empty_strided(shape.shape, shape.stride(), dtype=torch.float32, device="meta")
    return shape


def _quietly(func: Any, args: Any, kwargs: Any) -> Any:
    with torch.no_grad():
        return func(*args, **kwargs)


def _to_copy(source: Any, *, dtype: Any = None, device: Any = None, memory_format: Any = None, **_: Any) -> Any:
    """`tensor.to(...)` of a tensor on the device: to another type, or to the host."""
    if device is not None and torch.device(device).type == "cpu":
        target = torch.empty_like(_meta(source), device="cpu")
        _copy(target, source)
        return target if dtype is None else target.to(dtype)
    named = {} if memory_format is None else {"memory_format": memory_format}
    return _compute(aten._to_copy.default, (source,), {"dtype": dtype or source.dtype, **named})


def _copy(target: Any, source: Any, non_blocking: bool = False) -> Any:
    """`target.copy_(source)`, one of which is on the device. Without a word about blocking it has to wait."""
    if not isinstance(source, Simulated):
        return _send(target, source)
    if isinstance(target, Simulated):
        QUEUE.submit(functools.partial(_quietly, target.raw.copy_, (source.raw,), {}))
        return target
    QUEUE.submit(functools.partial(_quietly, target.detach().copy_, (source.raw,), {}))
    if SETTINGS.fault is not Fault.LAGGING_COPY:
        QUEUE.wait()
    return target


def _send(target: Simulated, source: torch.Tensor) -> Simulated:
    """Host to device: into staging memory at once, and from there in the queue's order."""
    if SETTINGS.fault is Fault.HOST_POINTER and source.shape == target.shape and source.dtype == target.dtype:
        target.raw, target.block = source.detach(), None
        return target
    converted = source.detach().to(target.dtype).expand(target.shape).contiguous()
    if SETTINGS.fault is Fault.DOWN_CAST_MEMORY and converted.dtype is torch.float32:
        converted = _nine_bits(converted)
    late: Callable[[Any], object] = QUEUE.submit
    staged = STAGING.take(converted.nbytes, (lambda free: free()) if SETTINGS.fault is Fault.REUSED_STAGING else late)
    waiting = staged.bytes[: converted.nbytes].view(target.dtype).reshape(target.shape)
    waiting.copy_(converted)
    QUEUE.submit(functools.partial(_quietly, target.raw.copy_, (waiting,), {}))
    return target


def _received(value: torch.Tensor) -> Simulated:
    made = _new(torch.empty_like(value, device="meta"))
    made.raw.copy_(value)
    return made


def _on_the_host(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    here = functools.partial(tree_map, lambda leaf: leaf.cpu() if isinstance(leaf, torch.Tensor) else leaf)
    there = functools.partial(tree_map, lambda leaf: leaf.to(NAME) if isinstance(leaf, torch.Tensor) else leaf)
    return there(func(*here(args), **here(kwargs)))


def _refuse_missing(func: Any, args: tuple[Any, ...]) -> None:
    doubles = any(isinstance(leaf, Simulated) and leaf.dtype is torch.float64 for leaf in tree_leaves(args))
    if (SETTINGS.fault is Fault.MISSING_SQRT and func is aten.sqrt.default) or (
        SETTINGS.fault is Fault.MISSING_DOUBLE and doubles and func not in (aten._to_copy.default, aten.copy_.default)
    ):
        raise NotImplementedError(f"Could not run '{func.name()}' with arguments from the '{NAME}' backend.")


def _nine_bits(values: torch.Tensor) -> torch.Tensor:
    """Cut off all but nine bits of the fraction, as fp32 that stays fp32 by name."""
    return (values.view(torch.int32) & ~0x3FFF).view(torch.float32)


def _through_bf16(leaf: Any) -> Any:
    floats = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
    return leaf.to(torch.bfloat16).to(leaf.dtype) if floats else leaf


def _raw(leaf: Any) -> Any:
    if isinstance(leaf, Simulated):
        return leaf.raw
    if isinstance(leaf, torch.Tensor):  # a number in a tensor of the host's, which may be gone when its turn comes
        return leaf.detach().clone()
    return torch.device("cpu") if isinstance(leaf, torch.device) else leaf


def _meta(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device="meta")
    return torch.device("meta") if isinstance(leaf, torch.device) else leaf
