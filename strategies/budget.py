"""How large a case may be, and how many cases a profile runs."""

from __future__ import annotations

import enum
from dataclasses import dataclass


@dataclass(frozen=True)
class Budget:
    """Largest sizes of one case, in elements; a backend may declare smaller ones.

    Attributes
    ----------
    work
        (Lookups + bags) x dim of all features, in one step.
    tables
        Rows x dim of all tables.
    output
        Bags x the sum of dims.
    """

    work: int = 2**16
    tables: int = 2**16
    output: int = 2**16

    def __post_init__(self) -> None:
        for name in ("work", "tables", "output"):
            if getattr(self, name) < 1:
                raise ValueError(f"budget's {name} is {getattr(self, name)}; a case has at least one element")

    def divided(self, parts: int) -> Budget:
        """The share of each of `parts`."""
        return Budget(*(max(1, size // parts) for size in (self.work, self.tables, self.output)))

    def within(self, other: Budget) -> Budget:
        """The smaller of both, size by size."""
        return Budget(min(self.work, other.work), min(self.tables, other.tables), min(self.output, other.output))


class Profile(enum.StrEnum):
    """How much is run: examples and sizes, never which properties are checked."""

    QUICK = "quick"
    DEFAULT = "default"
    THOROUGH = "thorough"
    DEEP = "deep"

    @property
    def budget(self) -> Budget:
        """Sizes of a case. The default's reaches every edge that needs no large case (docs/generation.md)."""
        return _BUDGETS[self]

    @property
    def examples(self) -> int:
        """Cases of one slice of a property."""
        return _EXAMPLES[self][0]

    @property
    def slices(self) -> int:
        """Slices of a property, each with a seed of its own; they depend on the profile alone."""
        return _EXAMPLES[self][1]


_BUDGETS = {
    Profile.QUICK: Budget(2**13, 2**13, 2**13),
    Profile.DEFAULT: Budget(),
    Profile.THOROUGH: Budget(2**20, 2**25, 2**20),
    Profile.DEEP: Budget(2**22, 2**25, 2**22),
}
_EXAMPLES = {
    Profile.QUICK: (20, 1),
    Profile.DEFAULT: (55, 2),
    Profile.THOROUGH: (100, 8),
    Profile.DEEP: (500, 64),
}
