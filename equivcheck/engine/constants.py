"""Cases that depend on their seed alone: without the constants that Hypothesis finds in the sources around it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def seed_alone() -> Iterator[None]:
    """Keep Hypothesis from drawing constants of modules that happen to be loaded.

    One draw in twenty it takes from the literals of all modules outside of site-packages
    (`hypothesis.internal.conjecture.providers`, of 6.170). In a checkout the cases of a seed would depend on which
    subject is loaded, and on what the process ran before: not the same cases on any number of workers.
    """
    from hypothesis.internal.conjecture import providers

    module: Any = providers
    found, none = module._get_local_constants, module.Constants()
    module._get_local_constants = lambda: none
    module.CONSTANTS_CACHE.cache.clear()
    try:
        yield
    finally:
        module._get_local_constants = found
        module.CONSTANTS_CACHE.cache.clear()
