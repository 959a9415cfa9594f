"""The engine: pytest runs properties in slices, and every failure becomes a saved case.

A property's file needs one or two names:

- `property_` makes a test of a function `test_NAME(case, check)`;
- `Check` is what the function gets: `check(case)` runs the case on the subject and judges every tensor; `Run` is what
  that returns; `different` compares arrays for relations of a property's own.

Importing this package imports nothing: the names are looked up when they are asked for, so that the pytest plugin
loads in a blink.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from equivcheck.engine.check import Check, different
    from equivcheck.engine.properties import property_
    from equivcheck.runner import Run

__all__ = ["Check", "Run", "different", "property_"]

_HOMES = {
    "Check": "equivcheck.engine.check",
    "different": "equivcheck.engine.check",
    "property_": "equivcheck.engine.properties",
    "Run": "equivcheck.runner",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
