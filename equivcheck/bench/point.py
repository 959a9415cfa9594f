"""What is measured: tables, a batch, and a distribution of indices; and in which types, with which optimizer."""

from __future__ import annotations

import enum

import msgspec

from equivcheck.case import Case, CaseError, Distribution, Feature, Optimizer, OptimizerKind, PerSampleWeights
from equivcheck.formats import DType


class Kind(enum.StrEnum):
    """Classes of points. A median is taken over each."""

    SMALL_DIMS = "small_dims"
    LARGE_DIMS = "large_dims"
    FEW_TABLES = "few_tables"
    MANY_TABLES = "many_tables"
    SHORT_BAGS = "short_bags"
    LONG_BAGS = "long_bags"
    UNIFORM = "uniform"
    SKEWED = "skewed"
    SHORT_RUNS = "short_runs"
    LONG_RUNS = "long_runs"
    MIXED_DIMS = "mixed_dims"
    SHARDS = "shards"


class Point(msgspec.Struct, frozen=True):
    """One shape of a lookup. One feature a table.

    Attributes
    ----------
    rows, dims, lengths
        Of each table: rows, columns, and lookups of a bag; the mean where bags are `ragged` (from 0 to twice that).
    batch
        B, bags of each table.
    distribution
        UNIFORM or ZIPF.
    notes
        What was cut, and from what, as sentences.
    """

    name: str
    kind: Kind
    rows: tuple[int, ...]
    dims: tuple[int, ...]
    lengths: tuple[int, ...]
    batch: int
    distribution: Distribution = Distribution.UNIFORM
    ragged: bool = False
    notes: tuple[str, ...] = ()

    @property
    def lookups(self) -> int:
        """Lookups of a batch; of ragged bags, about."""
        return self.batch * sum(self.lengths)

    @property
    def widest(self) -> int:
        """Largest dim."""
        return max(self.dims)

    @property
    def shape(self) -> str:
        """In a few words."""
        dims = str(self.dims[0]) if len(set(self.dims)) == 1 else f"{min(self.dims)}..{max(self.dims)}"
        long = str(self.lengths[0]) if len(set(self.lengths)) == 1 else f"{min(self.lengths)}..{max(self.lengths)}"
        return f"T {len(self.rows)} D {dims} B {self.batch} L {long}"


class Setting(msgspec.Struct, frozen=True):
    """Types and optimizer of all points of a run. SUM, int64 indices, fp32 sums, no bounds check, nearest rounding."""

    weights: DType = DType.FP16
    output: DType = DType.FP32
    optimizer: OptimizerKind = OptimizerKind.ROWWISE_ADAGRAD
    weighted: bool = False

    @classmethod
    def named(cls, weights: str, output: str, optimizer: str, *, weighted: bool) -> Setting:
        """From the names of types and optimizer.

        Raises
        ------
        CaseError
            If one of them does not exist.
        """
        storage = [dtype.value for dtype in DType if dtype is not DType.FP64]
        kinds = [kind.value for kind in OptimizerKind]
        for what, name, names in (("weights", weights, storage), ("output", output, storage)):
            if name not in names:
                raise CaseError(f"{what} {name!r} do not exist; there are {', '.join(names)}")
        if optimizer not in kinds:
            raise CaseError(f"optimizer {optimizer!r} does not exist; there are {', '.join(kinds)}")
        return cls(DType(weights), DType(output), OptimizerKind(optimizer), weighted)

    @property
    def row_state_bytes(self) -> int:
        """Bytes of optimizer state that a row has, whatever its width."""
        return 4 * (self.optimizer in (OptimizerKind.ROWWISE_ADAGRAD, OptimizerKind.PARTIAL_ROWWISE_ADAM))

    @property
    def element_state_bytes(self) -> int:
        """Bytes of optimizer state that each element of a row has."""
        whole = {OptimizerKind.ADAGRAD: 1, OptimizerKind.ADAM: 2, OptimizerKind.PARTIAL_ROWWISE_ADAM: 1}
        return 4 * whole.get(self.optimizer, 0)

    def row_bytes(self, dim: int) -> int:
        """Bytes of a row and its optimizer state."""
        return dim * (self.weights.numpy.itemsize + self.element_state_bytes) + self.row_state_bytes

    def case(self, features: tuple[Feature, ...]) -> Case:
        """A case in these types. The rate is small: a thousand updates leave an fp16 table finite."""
        return Case(
            features=features,
            weights=self.weights,
            output=self.output,
            optimizer=Optimizer(self.optimizer, learning_rate=2.0**-10, eps=2.0**-20),
            per_sample_weights=PerSampleWeights() if self.weighted else None,
        )


def tables_of(point: Point, setting: Setting) -> Case:
    """The case whose tables and options a system is built for; its features list no bags."""
    return setting.case(tuple(Feature(rows=r, dim=d) for r, d in zip(point.rows, point.dims, strict=True)))


def table_bytes(point: Point, setting: Setting) -> int:
    """Bytes of all tables and their optimizer states."""
    return sum(rows * setting.row_bytes(dim) for rows, dim in zip(point.rows, point.dims, strict=True))


def limited(point: Point, setting: Setting, rows: int | None, batch: int | None, memory: int) -> Point:
    """The point with at most so many rows a table, so many bags, and tables of so many bytes; cuts are noted.

    Where memory is short the largest tables are cut to one size, since their rows repeat least.
    """
    notes = list(point.notes)
    if batch is not None and point.batch > batch:
        notes.append(f"batch {batch:,} instead of {point.batch:,}: --batch-limit")
        point = msgspec.structs.replace(point, batch=batch)
    if rows is not None and max(point.rows) > rows:
        notes.append(f"tables of more than {rows:,} rows have {rows:,}: --rows-limit")
        point = _capped(point, rows)
    if table_bytes(point, setting) > memory:
        low, high = 1, max(point.rows)
        while high - low > 1:  # the largest cap that fits
            middle = (low + high) // 2
            low, high = (middle, high) if table_bytes(_capped(point, middle), setting) <= memory else (low, middle)
        gib = table_bytes(point, setting) / 2**30
        notes.append(f"tables of more than {low:,} rows have {low:,}: all are {gib:,.1f} GiB, over the memory's share")
        point = _capped(point, low)
    return msgspec.structs.replace(point, notes=tuple(notes))


def _capped(point: Point, rows: int) -> Point:
    return msgspec.structs.replace(point, rows=tuple(min(rows, found) for found in point.rows))
