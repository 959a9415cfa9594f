"""What can be said of a case: the names of numbers, choices and flags that traits ask for and coverage counts."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Number(enum.StrEnum):
    """Axes with numbers. A case may have several at once: one run length for each row."""

    RUN = "run"
    LOOKUPS = "lookups"
    STEP_LOOKUPS = "step lookups"
    BAG = "bag"
    BATCH = "batch"
    FEATURES = "features"
    TABLES = "tables"
    ROWS = "rows"
    DIM = "dim"
    DIM_RATIO = "dim ratio"
    DISTINCT_ROWS = "distinct rows"
    HOT_ROWS = "hot rows"
    ROW_ID = "row id"
    TABLE_ELEMENTS = "table elements"
    RANKS = "ranks"
    STEPS = "steps"
    ADAM_STEP = "adam step"
    LEARNING_RATE = "learning rate"
    EPS = "eps"
    WEIGHT_DECAY = "weight decay"


class Choice(enum.StrEnum):
    """Axes with named options."""

    WEIGHTS = "weights"
    OUTPUT = "output"
    ACCUMULATION = "accumulation"
    INDICES = "indices"
    POOLING = "pooling"
    PSW = "psw"
    OPTIMIZER = "optimizer"
    DECAY = "decay"
    ROUNDING = "rounding"
    BOUNDS = "bounds"
    INDEX_FAULT = "index fault"
    OFFSET_FAULT = "offset fault"
    CALL = "call"
    POISON = "poison"
    POISON_VALUE = "poison value"
    REGIME_WEIGHTS = "regime weights"
    REGIME_GRADIENT = "regime gradient"
    REGIME_STATE = "regime state"
    REGIME_PSW = "regime psw"
    LAYOUT_INDICES = "layout indices"
    LAYOUT_OFFSETS = "layout offsets"
    LAYOUT_PSW = "layout psw"
    LAYOUT_GRADIENT = "layout gradient"
    DISTRIBUTION = "distribution"
    MAP = "map"


class Flag(enum.StrEnum):
    """What a case has or has not. The map is each feature's table, in the order of the call."""

    SHARING = "sharing"
    UNSORTED_MAP = "unsorted map"
    UNSORTED_SHARING = "unsorted sharing"
    INTERLEAVED_SHARING = "interleaved sharing"
    LONE_FEATURE = "feature with no neighbour of its table"
    TABLE_WITHOUT_ROWS = "table without rows"
    FIRST_TABLE_WITHOUT_ROWS = "first table without rows"
    MIDDLE_TABLE_WITHOUT_ROWS = "middle table without rows"
    LAST_TABLE_WITHOUT_ROWS = "last table without rows"
    ALL_TABLES_WITHOUT_ROWS = "all tables without rows"
    LOOKUP_WITHOUT_ROWS = "lookup into a table without rows"
    BAG_EMPTY = "bag empty"
    FIRST_BAG_EMPTY = "first bag empty"
    MIDDLE_BAG_EMPTY = "middle bag empty"
    LAST_BAG_EMPTY = "last bag empty"
    ALL_BAGS_EMPTY = "all bags empty"
    RAGGED = "ragged feature"
    UNEVEN_BAG = "bag length not a power of two"
    FEATURE_WITHOUT_LOOKUPS = "feature without lookups"
    REPEATED = "row repeated"
    REPEATED_IN_BAG = "row repeated in a bag"
    IN_SEVERAL_BAGS = "row in several bags"
    IN_SEVERAL_FEATURES = "row in several features"
    LONG_AND_SHORT_RUNS = "long and short runs"
    EVERY_ROW_TOUCHED = "every row touched"
    ONE_OF_MANY_TOUCHED = "one of many rows touched"
    LAST_ROW_TOUCHED = "last row touched"
    MIXED_DIMS = "mixed dims"
    DIMS_ASCENDING = "wider table after a narrower"
    DIMS_DESCENDING = "narrower table after a wider"
    DIM_NOT_MULTIPLE_OF_4 = "dim not multiple of 4"
    PADDED_DIM = "dim below the widest's power of two"
    PSW = "psw"
    PSW_GRADIENT = "psw gradient"
    VBE = "vbe"
    EMPTY_RANK = "empty rank"
    FEATURE_EMPTY_IN_RANK = "feature empty in a rank"
    LAST_FEATURE_LONG = "last feature longer than half of the longest"
    FEW_SAMPLES = "fewer samples than features"
    WIDE_SHORT = "wide feature with short bags"
    LONE_LOOKUPS = "32 bags in a row of one lookup"
    FROZEN = "frozen feature"
    TRAFFIC = "traffic"
    CAPTURED = "captured"
    BACKWARD = "backward"
    STATE = "optimizer state"
    INDEX_OUT_OF_BOUNDS = "index out of bounds"
    PRUNED = "pruned index"
    MALFORMED_OFFSETS = "malformed offsets"
    FIRST_OFFSET_MALFORMED = "first offset malformed"
    FIRST_OFFSET_POSITIVE = "first offset positive"
    LAST_OFFSET_MALFORMED = "last offset malformed"
    RACING_OFFSETS = "offsets that one pass repairs wrongly"
    LATER_STEP_SHIFTED = "later step shifted"
    LATER_STEP_SMALLER = "later step smaller"
    LATER_STEP_SHORTENED = "later step with shorter bags"
    LATER_STEP_TURNED = "later step with bags turned"
    RATE_CHANGES = "learning rate changes between steps"


@dataclass(frozen=True)
class Facts:
    """Numbers, choices and flags of one case.

    Run lengths and sizes are those of the case's bags as they are listed, before a step shifts or shortens them; only
    `step lookups` are those of each step.
    Where indices out of bounds are repaired, the lookups are those of row 0; where offsets are, bag lengths are also
    those that the repair leaves.
    """

    numbers: dict[Number, tuple[float, ...]]
    choices: dict[Choice, tuple[str, ...]]
    flags: frozenset[Flag]
