"""`+inductor`: the operations through `torch.compile`, and what became of them, read from the code that was generated.

Each operation is compiled whole (`fullgraph`), with symbolic sizes. Inductor generates kernels for most of a graph and
leaves the rest to PyTorch's eager operators; it compiles anew where a guard fails: another type, another formula, a
size of 0 or 1. Both are counted. What is compiled is kept by PyTorch in its cache folder (TORCHINDUCTOR_CACHE_DIR).
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from equivcheck.backends.protocol import BackendUnavailable
from equivcheck.backends.torch_lookup import bags, rows
from equivcheck.backends.torch_optimizers import Constants, Rule, States, narrow, store, update
from equivcheck.backends.torch_tables import Operations

_MOST_VARIANTS = 1024
"""Compiled variants of an operation that PyTorch may keep: a run has a few dozen types, formulas and small sizes, and
PyTorch's own limit (8) is for programs that should not have them."""

_KERNEL = re.compile(r"^\s*(\w+) = async_compile\.(?!wait)\w+\(", re.MULTILINE)
_EAGER = re.compile(r"\b(?:torch\.ops\.)?(aten\.\w+)(?:\.\w+)*\(|\b(extern_kernels\.\w+)\(")


@dataclass(frozen=True)
class Compiled:
    """A graph that Inductor compiled.

    Attributes
    ----------
    operation
        Which operation's, and whether it is the gradient's.
    kernels
        Names of the kernels that were generated.
    eager
        Operators that the generated code leaves to PyTorch's eager kernels.
    """

    operation: str
    kernels: tuple[str, ...]
    eager: tuple[str, ...]

    @property
    def paths(self) -> tuple[str, ...]:
        """As an Outcome tells them."""
        generated = (f"inductor: {self.operation}, generated",) if self.kernels else ()
        return (*generated, *(f"inductor: {self.operation}, eager {name}" for name in self.eager))


@dataclass
class Inductor:
    """The compiled operations, and what is known about them.

    Attributes
    ----------
    compiled
        Every graph that was compiled, or found in PyTorch's cache, in this process.
    captures
        Per operation, how often it was captured: the first time, and once for each guard that failed.
    ran
        Graphs that ran since `watched` was entered.
    """

    compiled: list[Compiled] = field(default_factory=list)
    captures: Counter[str] = field(default_factory=Counter)
    ran: set[Compiled] = field(default_factory=set)

    def __post_init__(self) -> None:
        step = self._compile("update", update)

        def compiled_update(
            by: Rule, c: Constants, weights: torch.Tensor, gradient: torch.Tensor, states: States
        ) -> tuple[torch.Tensor, States]:
            numbers = Constants(*(torch.tensor(number, dtype=torch.float64) for number in c))
            return step(by, numbers, weights, gradient, states)  # type: ignore[no-any-return]

        convert, keep = self._compile("narrow", narrow), self._compile("store", store)
        self.operations = Operations(
            rows=self._compile("rows", rows),
            bags=self._compile("bags", bags),
            # Where nothing is rounded there is nothing to compile.
            narrow=lambda values, dtype: values if values.dtype is dtype else convert(values, dtype),
            update=compiled_update,
            store=lambda values, dtype, random: values if values.dtype is dtype else keep(values, dtype, random),
        )

    @property
    def recompilations(self) -> int:
        """How often an operation that had been compiled was compiled anew, for other types, formulas or sizes."""
        return sum(self.captures.values()) - len(self.captures)

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Compile and run inside; `ran` then says what ran."""
        import torch._dynamo
        import torch._functorch.config as aot
        import torch._inductor.config as inductor

        self.ran.clear()
        with (
            torch._dynamo.config.patch(recompile_limit=_MOST_VARIANTS, accumulated_recompile_limit=8 * _MOST_VARIANTS),
            aot.patch(enable_autograd_cache=False),  # it keeps callables, and `_inspected` is none that it can keep
            inductor.patch(compile_threads=1),  # a run has a process a core already
        ):
            yield

    def paths(self) -> tuple[str, ...]:
        """The paths that ran, sorted."""
        return tuple(sorted({path for graph in self.ran for path in graph.paths}))

    def vacuous(self) -> str:
        """Why the case shows nothing about compiled code; empty where a generated kernel ran."""
        if any(graph.kernels for graph in self.ran):
            return ""
        eager = sorted({name for graph in self.ran for name in graph.eager})
        return (
            f"no generated kernel ran: all that was computed is left to eager operators ({', '.join(eager) or 'none'})"
        )

    def _compile(self, name: str, operation: Callable[..., Any]) -> Callable[..., Any]:
        from torch._inductor.compile_fx import compile_fx, compile_fx_inner

        def inspected(graph: Any, inputs: Sequence[Any], **options: Any) -> Any:
            code: Any = compile_fx_inner(graph, inputs, **options)
            what = f"{name}, gradient" if options.get("is_backward") else name
            found = read(what, getattr(code, "source_code", ""))
            self.compiled.append(found)

            def run(arguments: list[Any]) -> Any:
                self.ran.add(found)
                return code(arguments)

            run._boxed_call = True  # type: ignore[attr-defined]
            return run

        def captured(graph: Any, inputs: Sequence[Any]) -> Any:
            self.captures[name] += 1
            return compile_fx(graph, inputs, inner_compile=inspected)

        return torch.compile(operation, backend=captured, dynamic=True, fullgraph=True)


def read(operation: str, source: str) -> Compiled:
    """What a module that Inductor generated consists of: kernels of its own, and calls of eager operators.

    Reads `name = async_compile.KIND(...)`, which defines a kernel, and calls of `torch.ops.aten.NAME...`, `aten.NAME`
    or `extern_kernels.NAME`. Comments name the operators that a kernel replaces; they are left out.
    """
    code = "\n".join(line.partition("#")[0] for line in source.splitlines())
    kernels = tuple(dict.fromkeys(_KERNEL.findall(code)))
    eager = (one or other for one, other in _EAGER.findall(code))
    return Compiled(operation, kernels, tuple(sorted(set(eager))))


def check_available(device: torch.device) -> None:
    """Raise if Inductor lacks what it compiles with.

    Raises
    ------
    BackendUnavailable
        With a sentence: a C++ compiler for the CPU, Triton for CUDA.
    """
    # Inductor imports Triton, which settles once for all whether the built-in TBE's kernels are interpreted here.
    with contextlib.suppress(RuntimeError):
        from equivcheck.triton_tbe import MODE  # noqa: F401
    if device.type == "cpu":
        _check_compiler()
    elif device.type == "cuda":
        try:
            import triton  # noqa: F401
        except ImportError as error:
            raise BackendUnavailable("Inductor compiles for CUDA through Triton, which is not installed") from error


def _check_compiler() -> None:
    import torch._inductor.config as inductor

    names = [name for name in inductor.cpp.cxx if name] or ["g++"]
    if not any(shutil.which(name) for name in names):
        raise BackendUnavailable(
            f"Inductor compiles for the CPU with a C++ compiler, and there is no {' or '.join(names)} here; install "
            "g++ (Debian: apt install g++), or name a compiler in the environment variable CXX"
        )
