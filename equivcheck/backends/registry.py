"""Subjects by name: `fbgemm-cpu`, `torch:cuda`, `torchrec-triton+hoist`, `./my_kernel.py:MyTBE`.

A name is a built-in backend or an entry point of the group `equivcheck.backends`; behind it may stand `:argument` and
any number of `+variant`. A path to a Python file needs no package at all. This module imports no system: torch and the
rest are imported when a backend is built.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from equivcheck.backends.protocol import Backend, BackendUnavailable

ENTRY_POINT_GROUP = "equivcheck.backends"

BUILT_IN = {
    "triton": "equivcheck.backends.triton:TritonBackend",
    "torch": "equivcheck.backends.torch_embedding_bag:TorchEmbeddingBag",
    "fbgemm-cpu": "equivcheck.backends.fbgemm:FbgemmCpu",
    "fbgemm-cuda": "equivcheck.backends.fbgemm:FbgemmCuda",
    "torchrec-triton": "equivcheck.backends.torchrec_triton:TorchrecTriton",
}
"""Where each built-in backend's class is found."""

CONFIGURED = ("torch:cpu+inductor",)
"""Subjects with an argument or variants that are judged by default, beside the backends by their bare names."""

_MEMBERS = ("name", "supports", "arithmetic", "run", "versions")


class SubjectError(ValueError):
    """A subject's name does not lead to a backend. The message says what is wrong with it, and what to write."""


@dataclass(frozen=True)
class Subject:
    """A subject's name, taken apart.

    Attributes
    ----------
    name
        A backend's name, or the path of a Python file.
    in_file
        The class in that file; None where `name` is a backend's.
    argument
        The text behind the colon, or empty.
    variants
        The texts behind each plus sign.
    """

    name: str
    in_file: str | None = None
    argument: str = ""
    variants: tuple[str, ...] = ()

    @property
    def arguments(self) -> tuple[str, ...]:
        """What the backend's class is called with."""
        return (self.argument, *self.variants) if self.argument or self.variants else ()


@dataclass(frozen=True)
class Availability:
    """A backend by name, whether it can run here, and the sentence that says why not."""

    name: str
    runs: bool
    reason: str = ""


def parse(text: str) -> Subject:
    """Take a subject's name apart, without looking anything up.

    Raises
    ------
    SubjectError
        If a part is empty, or a file is given without a class.
    """
    head, *variants = _split_variants(text)
    if "" in variants:
        raise SubjectError(f"subject {text!r} has an empty variant; write a name behind each plus sign")
    if _is_path(head):
        file, colon, cls = head.rpartition(":")
        if not colon or not cls or "/" in cls or "\\" in cls:
            raise SubjectError(f"subject {text!r} names a file without a class; write {head.rstrip(':')}:YourClass")
        return Subject(file, cls, variants=tuple(variants))
    name, colon, argument = head.partition(":")
    if not name:
        raise SubjectError(f"subject {text!r} has no name; write one of {_names()}, or ./file.py:Class")
    if colon and not argument:
        raise SubjectError(f"subject {text!r} has nothing behind its colon; leave the colon out, or name an argument")
    return Subject(name, argument=argument, variants=tuple(variants))


def build(text: str) -> Backend:
    """The backend that a subject's name stands for, ready to run.

    Raises
    ------
    SubjectError
        If there is no such backend, file or class, it does not take these arguments, or lacks part of the protocol.
    BackendUnavailable
        If it cannot run on this machine.
    """
    subject = parse(text)
    cls = _class_in_file(text, subject) if subject.in_file is not None else _class_by_name(text, subject.name)
    if not callable(cls):
        raise SubjectError(f"subject {text!r} leads to {cls!r}, which is not a class")
    try:
        inspect.signature(cls).bind(*subject.arguments)
    except TypeError as error:
        takes = _describe_arguments(subject)
        raise SubjectError(f"subject {text!r} cannot be built with {takes}: {error}") from None
    try:
        backend = cls(*subject.arguments)
    except ValueError as error:
        raise SubjectError(f"subject {text!r} cannot be built: {error}") from error
    if isinstance(backend, Backend):
        return backend
    missing = ", ".join(member for member in _MEMBERS if not hasattr(backend, member))
    raise SubjectError(
        f"subject {text!r} is a {type(backend).__name__} without {missing}; a backend has them all: see "
        "equivcheck.backends.protocol.Backend"
    )


def available() -> tuple[Availability, ...]:
    """Every known backend, built-in ones first, and whether it can run here: each is built to find out."""
    return tuple(_try(name) for name in [*BUILT_IN, *CONFIGURED, *sorted(set(_entry_points()) - set(BUILT_IN))])


def _try(name: str) -> Availability:
    try:
        build(name)
    except Exception as error:  # a third party's class may raise anything: its text is the reason
        known = isinstance(error, SubjectError | BackendUnavailable)
        return Availability(name, False, str(error) if known else f"{type(error).__name__}: {error}")
    return Availability(name, True)


def _split_variants(text: str) -> list[str]:
    """The text before the first plus sign that starts a variant, and the variants. A path may hold plus signs."""
    if not _is_path(text):
        return text.split("+")
    end = text.rfind(".py") + len(".py") if ".py" in text else 0
    head, *variants = text[end:].split("+")
    return [text[:end] + head, *variants]


def _is_path(text: str) -> bool:
    return text.startswith((".", "/", "~")) or ".py:" in text or text.endswith(".py")


def _names() -> str:
    return ", ".join([*BUILT_IN, *sorted(set(_entry_points()) - set(BUILT_IN))])


def _entry_points() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}


def _class_by_name(text: str, name: str) -> Any:
    points = _entry_points()
    if name not in BUILT_IN and name not in points:
        raise SubjectError(
            f"subject {text!r} names the backend {name!r}, which does not exist; there are {_names()}, and "
            "./file.py:Class for a file of your own"
        )
    try:
        if name in BUILT_IN:
            module, _, cls = BUILT_IN[name].partition(":")
            return getattr(importlib.import_module(module), cls)
        return points[name].load()
    except ModuleNotFoundError as error:
        raise BackendUnavailable(
            f"{name} needs the Python package {error.name}, which is not installed; install equivcheck[cpu] or "
            "equivcheck[cuda], or the backend's own package"
        ) from error


def _class_in_file(text: str, subject: Subject) -> Any:
    path = Path(subject.name).expanduser()
    if not path.is_file():
        raise SubjectError(f"subject {text!r} names the file {subject.name!r}, which does not exist in {Path.cwd()}")
    module = _load(text, path.resolve())
    cls = getattr(module, subject.in_file or "", None)
    if cls is None:
        classes = [
            n for n, value in vars(module).items() if inspect.isclass(value) and value.__module__ == module.__name__
        ]
        has = f"it has {', '.join(classes)}" if classes else "it has no classes at all"
        raise SubjectError(
            f"subject {text!r} names the class {subject.in_file!r}, which {path.name} does not have; {has}"
        )
    return cls


def _load(text: str, path: Path) -> ModuleType:
    """Execute the file as a module of its own. Its folder joins the search path, as for a script."""
    name = f"equivcheck_subject_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise SubjectError(f"subject {text!r} names {path.name}, which is not a Python file; its name ends in .py")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look the module up while it is executed
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise SubjectError(f"subject {text!r}: {path.name} raised {type(error).__name__}: {error}") from error
    return module


def _describe_arguments(subject: Subject) -> str:
    parts = []
    if subject.argument:
        parts.append(f"the argument {subject.argument!r}")
    if subject.variants:
        parts.append(f"the variants {', '.join(subject.variants)}")
    return " and ".join(parts) or "no argument"
