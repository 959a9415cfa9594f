"""What a fault is: a named change of a right kernel, with the class of real bug that it stands for."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from equivcheck.backends.protocol import Backend


class Kind(enum.StrEnum):
    """Class of real bug."""

    LOOKUPS = "lookups lost, doubled or foreign"
    WIDTH = "column tails and writes next door"
    ACCUMULATOR = "narrow accumulators"
    ROUNDING = "rounding into storage"
    STOCHASTIC = "stochastic rounding"
    PAIRING = "per-sample weights"
    WEIGHT_GRADIENT = "gradient of the weights"
    MEAN = "mean pooling"
    UNWRITTEN = "missing initialisation, stale buffers"
    RUNS = "run lengths, one update a row"
    OPTIMIZER = "optimizer formulas"
    STATE = "state, steps and hyper-parameters"
    SHARING = "shared tables, feature maps"
    VARIABLE_BATCH = "variable batches"
    BOUNDS = "bounds checks"
    NON_FINITE = "values that are not finite"
    SMALL_TABLES = "small-table paths"
    LAYOUT = "strides, dtypes and the caller's inputs"
    OFFSETS = "offsets and keys that are too narrow"
    CALLS = "around the call"
    RACES = "races and order of execution"
    HARDWARE = "flushing, approximations, tensor cores"


ORDER: dict[Kind, tuple[str, ...]] = {
    Kind.LOOKUPS: ("updated_rows", "forward", "run_length"),
    Kind.WIDTH: ("updated_rows", "untouched", "forward"),
    Kind.ACCUMULATOR: ("updated_rows", "forward", "run_length", "per_sample_weights"),
    Kind.ROUNDING: ("updated_rows", "forward", "optimizer_state"),
    Kind.STOCHASTIC: ("stochastic_statistics", "stochastic_rounding"),
    Kind.PAIRING: ("per_sample_weights", "weights_of_one", "forward"),
    Kind.WEIGHT_GRADIENT: ("per_sample_weights", "bounds", "around_the_call"),
    Kind.MEAN: ("pooling", "run_length", "per_sample_weights"),
    Kind.UNWRITTEN: ("pooling", "steps", "bounds", "untouched"),
    Kind.RUNS: ("run_length", "many_runs", "one_update_a_row"),
    Kind.OPTIMIZER: ("optimizer_state", "steps", "updated_rows"),
    Kind.STATE: ("steps", "around_the_call", "optimizer_state"),
    Kind.SHARING: ("sharing", "updated_rows"),
    Kind.VARIABLE_BATCH: ("variable_batch",),
    Kind.BOUNDS: ("bounds", "forward"),
    Kind.NON_FINITE: ("non_finite", "untouched", "small_tables"),
    Kind.SMALL_TABLES: ("small_tables", "forward", "non_finite"),
    Kind.LAYOUT: ("layout", "index_types", "forward"),
    Kind.OFFSETS: ("index_types", "many_runs", "forward", "updated_rows"),
    Kind.CALLS: ("around_the_call", "steps"),
    Kind.RACES: ("determinism", "run_length", "one_update_a_row"),
    Kind.HARDWARE: ("updated_rows", "optimizer_state", "small_tables", "forward"),
}
"""Properties that look for a class, the likeliest first. The others follow, in the order of their files."""


class Subtlety(enum.StrEnum):
    """How much a fault changes. All but the first are subtle."""

    GROSS = "much of most results"
    EDGE = "only at one edge"
    FEW = "few elements"
    BITS = "only the last bits"


class Reach(enum.StrEnum):
    """What it takes to see a fault."""

    HERE = "the interpreter"
    GPU = "compiled kernels on a GPU"
    LARGE = "tables beyond the default profile"
    NOBODY = "nothing: it cannot be seen"


class FaultError(ValueError):
    """A fault cannot be injected as it is written. The message says which, and what to change."""


@dataclass(frozen=True)
class Edit:
    """A change of a source file of `equivcheck.triton_tbe`: `old`, which occurs there once, becomes `new`."""

    file: str
    old: str
    new: str


Wrap: TypeAlias = Callable[[Backend], Backend]
"""A wrapper around a right backend, or a class of backends that needs none."""


@dataclass(frozen=True)
class Fault:
    """One entry of the catalogue.

    Attributes
    ----------
    name
        Such as `run-of-256-twice`.
    kind, subtlety, reach
        Class of real bug; how much it changes; what it takes to see it.
    what
        What the kernel does wrong, in a sentence.
    edits
        Source edits of the Triton TBE; or
    wrap
        a wrapper around a backend, or a simulated kernel.
    variants
        Variants of the subject that the fault needs, such as `small-tables`.
    report
        Public report that it is modelled on, if there is one.
    proof
        Why nobody can see it (`Reach.NOBODY`), or why not here.
    first
        Properties that look for it before those of its class, where the class is no good guide.
    """

    name: str
    kind: Kind
    what: str
    subtlety: Subtlety
    edits: tuple[Edit, ...] = ()
    wrap: Wrap | None = None
    variants: tuple[str, ...] = ()
    reach: Reach = Reach.HERE
    report: str = ""
    proof: str = ""
    simulated: bool = False
    first: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if bool(self.edits) == (self.wrap is not None):
            raise FaultError(f"fault {self.name!r} has {len(self.edits)} edits and wrap {self.wrap}; give one of both")
        if self.reach is not Reach.HERE and not self.proof:
            raise FaultError(f"fault {self.name!r} is not seen here and says no reason; give it a proof")

    @property
    def order(self) -> tuple[str, ...]:
        """Properties in the order in which they are tried; the others follow."""
        return tuple(dict.fromkeys((*self.first, *ORDER[self.kind])))

    @property
    def subtle(self) -> bool:
        """Whether it changes few elements, one edge, or the last bits."""
        return self.subtlety is not Subtlety.GROSS

    @property
    def injection(self) -> str:
        """How it is injected, in words."""
        if self.edits:
            return "source edit"
        return "simulated kernel" if self.simulated else "wrapper"
