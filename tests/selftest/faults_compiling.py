"""Compiles the kernels that a fault edits without a GPU, as `triton_compiling.py` does those of the clean Triton TBE.

    python faults_compiling.py TARGET FAULT...

prints a JSON object a kernel: the fault, the kernel's name, what refuses it, if anything, and which
instructions that the clean kernels do not have are in its PTX.
"""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ["TRITON_INTERPRET"] = "0"

from equivcheck.faults.catalogue import by_name
from equivcheck.faults.source import module_class

SCRIPT = Path(__file__).with_name("triton_compiling.py")
NOTHING = SimpleNamespace(asm={})
"""Stands for a compiled kernel of which nothing is asked."""
INSTRUCTIONS = ("sub.ftz", "div.full", "sqrt.approx", "fma.rn.f32", "add.rn.f16", "red.global", "atom.global", "tf32")


def compile_all(target: str, name: str) -> None:
    """Compile a representative of every kernel of the copy with the fault's edits."""
    package = module_class(by_name(name).edits).__module__.rpartition(".")[0]
    text = SCRIPT.read_text().replace("equivcheck.triton_tbe", package)
    script: dict[str, Any] = {"__name__": "script"}
    exec(compile(text, str(SCRIPT), "exec"), script)
    triton = script["triton"]
    plain, clean = triton.compile, _keys("equivcheck.triton_tbe")

    def compiled(source: Any, **options: Any) -> Any:
        entry: dict[str, Any] = {"fault": name, "kernel": source.fn.__name__, "wrong": "", "inexact": []}
        if source.fn.cache_key in clean:
            return NOTHING
        try:
            found = plain(source, **options)
            entry["inexact"] = [text for text in INSTRUCTIONS if text in found.asm.get("ptx", "")]
        except Exception as error:  # whatever refuses the kernel is the result
            entry["wrong"] = f"{type(error).__name__}: {error}"
        print(json.dumps(entry), flush=True)
        return NOTHING

    triton.compile = compiled
    compiler = script["Compiler"](script["TARGETS"][target])
    script["print"] = lambda *args, **kwargs: None
    script["JITFunction"].run = lambda kernel, *args, **kwargs: compiler.run(kernel, *args, **kwargs)
    try:
        script["representative"]()
        half, single = script["FP16"], script["FP32"]
        script["forwards"]((8, 4), script["torch"].int64, half, single, None, single, False)  # fp16 without weights
    finally:
        triton.compile = plain


def _keys(package: str) -> set[str]:
    """Of every kernel of the clean package: a hash of its source and of all that it calls."""
    import importlib
    import pkgutil

    from triton.runtime.jit import JITFunction

    modules = [importlib.import_module(f"{package}.{part.name}") for part in pkgutil.iter_modules(_path(package))]
    found = (value for module in modules for value in vars(module).values())
    return {kernel.cache_key for kernel in found if isinstance(kernel, JITFunction)}


def _path(package: str) -> list[str]:
    import importlib

    return list(importlib.import_module(package).__path__)


if __name__ == "__main__":
    for fault in sys.argv[2:]:
        compile_all(sys.argv[1], fault)
