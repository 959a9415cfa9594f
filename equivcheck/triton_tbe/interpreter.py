"""Launches in Triton's interpreter, without the time that it spends on preparing itself.

The interpreter replaces the functions of `triton.language` by its own for the time of a launch. It looks through the
whole module for that at every launch, and again at every call of a function inside a kernel, such as `tl.sum`: 1 ms
each (Triton 3.7.1, measured 2026-11-30), where an operation takes 0.06 ms. What is to be replaced is always the same,
so here it is found once, and put in place once a launch.

This changes when functions are replaced, never what a kernel computes. It uses names that Triton does not document; a
Triton without them runs as it is, and slower.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import triton.language as tl
from triton.runtime import interpreter

_REPLACED: list[tuple[Any, str, Any]] = []
"""(object, name, the interpreter's function) of every replacement."""

_MISSING = object()


@contextmanager
def prepared() -> Iterator[None]:
    """Replace the functions of `triton.language` for the duration of one launch."""
    if not hasattr(interpreter, "_patch_lang") or not hasattr(interpreter, "_LangPatchScope"):
        yield
        return
    if not _REPLACED:
        _find()
    originals = [(owner, name, getattr(owner, name, _MISSING)) for owner, name, _ in _REPLACED]
    prepare: Callable[..., Any] = interpreter._patch_lang
    for owner, name, function in _REPLACED:
        setattr(owner, name, function)
    interpreter._patch_lang = lambda function: interpreter._LangPatchScope()
    try:
        yield
    finally:
        interpreter._patch_lang = prepare
        for owner, name, original in originals:
            if original is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, original)


def _find() -> None:
    """Let the interpreter prepare itself, and note what it replaced."""
    scope = interpreter._patch_lang(_Kernel)
    changed = {(id(owner), name): owner for owner, name, _ in scope._changes}  # each once: `tl.tensor` has two names
    for (_, name), owner in changed.items():
        _REPLACED.append((owner, name, _index if name == "__index__" else getattr(owner, name)))
    scope.restore()


def _index(scalar: Any) -> int:
    """A scalar of a kernel as a number of Python's, as bounds of loops need it.

    Triton 3.6's own converts an array of shape (1,) by `int`, which NumPy refuses since 2.4; 3.7 mended it.
    """
    return int(scalar.handle.data.item())


class _Kernel:
    """Looks like a function that uses both names under which kernels and Triton's own library know the language."""

    __globals__ = {"tl": tl, "core": tl.core}  # noqa: RUF012  # read by the interpreter, as of a function
