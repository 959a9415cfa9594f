"""Copies of the built-in Triton TBE with source edits, each a package of its own name; the clean sources stay."""

from __future__ import annotations

import atexit
import importlib
import itertools
import shutil
import sys
import tempfile
from functools import cache, lru_cache
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from equivcheck.faults.fault import Edit, FaultError

_NUMBERS = itertools.count()


def sources() -> dict[str, str]:
    """The clean package's files by name."""
    import equivcheck.triton_tbe as clean

    folder = Path(str(clean.__file__)).parent
    return {path.name: path.read_text() for path in sorted(folder.glob("*.py"))}


def edited(edits: tuple[Edit, ...]) -> dict[str, str]:
    """The package's files with the edits applied.

    Raises
    ------
    FaultError
        If a file does not exist, or the old text does not occur in it exactly once.
    """
    files = sources()
    for edit in edits:
        if edit.file not in files:
            raise FaultError(
                f"an edit is for {edit.file}, which the Triton TBE does not have; it has {', '.join(files)}"
            )
        found = files[edit.file].count(edit.old)
        if found != 1:
            raise FaultError(
                f"the old text of an edit occurs {found} times in {edit.file}, not once; write it anew: {edit.old!r}"
            )
        files[edit.file] = files[edit.file].replace(edit.old, edit.new)
    return files


@lru_cache(maxsize=2)
def module_class(edits: tuple[Edit, ...]) -> type[Any]:
    """`TritonTBE` of a copy with these edits. Triton reads kernels' sources, so the copy lies in files.

    No edits give the control: a copy that is as right as the original.
    """
    name = f"equivcheck_faulty_tbe_{next(_NUMBERS)}"
    folder = _folder() / name
    folder.mkdir()
    for file, text in edited(edits).items():
        (folder / file).write_text(text)
    spec = spec_from_file_location(name, folder / "__init__.py", submodule_search_locations=[str(folder)])
    assert isinstance(spec, ModuleSpec)
    assert spec.loader is not None
    package = module_from_spec(spec)
    sys.modules[name] = package
    spec.loader.exec_module(package)
    found: type[Any] = importlib.import_module(f"{name}.module").TritonTBE
    return found


@cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="equivcheck-faults-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
