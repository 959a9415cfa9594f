"""Where the suite lies, and how its properties are found again: in the wheel, in a checkout, or in a user's folder."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from equivcheck.engine.properties import Property, property_of

PREFIX = "test_"
FINDINGS = "findings"
"""The file that replays recorded findings, in every run."""


def suite_folder() -> Path:
    """The folder with one file a property: `equivcheck/suite` of a wheel, `tests/equivalence` of a checkout.

    Raises
    ------
    FileNotFoundError
        If neither is there.
    """
    package = Path(__file__).parents[1]
    for folder in (package / "suite", package.parent / "tests" / "equivalence"):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(f"the suite is neither in {package} nor beside it; install equivcheck anew")


def files(names: list[str]) -> list[Path]:
    """The suite's files of these properties, and that of the findings; all of them if there are no names.

    Raises
    ------
    FileNotFoundError
        If a property does not exist, with those that do.
    """
    folder = suite_folder()
    for name in names:
        if not (folder / f"{PREFIX}{name}.py").is_file():
            there = sorted({path.stem.removeprefix(PREFIX) for path in folder.glob(f"{PREFIX}*.py")} - {FINDINGS})
            raise FileNotFoundError(f"there is no property {name!r}; there are {', '.join(there)}")
    return [folder / f"{PREFIX}{name}.py" for name in (*names, FINDINGS)] if names else [folder]


def find_property(name: str, file: str, here: Path) -> Property | None:
    """The property of that name, from the file that a saved case names, or the suite's file of the same name."""
    for path in (here / file, suite_folder() / Path(file).name):
        if path.is_file():
            for value in _members(path):
                declared = property_of(value)
                if declared is not None and declared.name == name:
                    return declared
    return None


def _members(path: Path) -> list[object]:
    spec = importlib.util.spec_from_file_location(f"equivcheck_property_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return list(vars(module).values())
