"""The Case: one problem statement for a table-batched embedding, as pure data.

A Case holds no arrays and depends on no library's version: a few hundred bytes of JSON that materialise into the same
bits everywhere (`equivcheck.problem`). What is left at its default is not written, so that a case reads as what is
special about it. Every number that enters arithmetic is exact in fp32: no two systems can then disagree about it.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import struct
from typing import Any

import msgspec

from equivcheck.formats import DType

FORMAT_VERSION = 1
MAXIMUM_JSON_BYTES = 16 * 2**20
"""A Case is a problem statement; bulk data belong into a captured batch. 16 MiB is 30,000 times a usual Case."""


class CaseError(ValueError):
    """A Case, or a file that should hold one, is not valid. The message says what, the value, and what to do."""


# Checks of single fields. They stand above the parts because defaults are built, and so checked, at import.
def exact_in_fp32(value: float) -> bool:
    """Whether fp32 holds `value` exactly."""
    try:
        return bool(struct.unpack("f", struct.pack("f", value))[0] == value)
    except OverflowError:
        return False


def _exact_fp32(what: str, value: float) -> None:
    if not exact_in_fp32(value):
        raise CaseError(f"{what} is {value!r}, which fp32 does not hold exactly; use numpy.float32({value!r}).item()")


def _at_least(what: str, value: int, least: int) -> None:
    _between(what, value, least, 2**63 - 1)


def _between(what: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise CaseError(f"{what} is {value}; it lies between {least} and {most}")


def _seed(what: str, value: int) -> None:
    _between(what, value, 0, 2**63 - 1)


class IndexType(enum.StrEnum):
    """Integer type of indices and offsets."""

    INT64 = "int64"
    INT32 = "int32"


class Pooling(enum.StrEnum):
    """How the rows of a bag become output."""

    SUM = "sum"
    MEAN = "mean"
    NONE = "none"


class OptimizerKind(enum.StrEnum):
    """Optimizers that are fused into the backward; `none` of them is stochastic. Names are FBGEMM's."""

    SGD = "exact_sgd"
    ROWWISE_ADAGRAD = "exact_row_wise_adagrad"
    ADAGRAD = "exact_adagrad"
    ADAM = "adam"
    PARTIAL_ROWWISE_ADAM = "partial_row_wise_adam"


class Decay(enum.StrEnum):
    """Weight decay of row-wise Adagrad. Adam's is always decoupled (the contract's formula)."""

    NONE = "none"
    L2 = "l2"
    DECOUPLED = "decoupled"


class BoundsCheck(enum.StrEnum):
    """What happens to indices and offsets out of bounds."""

    NONE = "none"
    IGNORE = "ignore"
    WARNING = "warning"
    FATAL = "fatal"


class Rounding(enum.StrEnum):
    """How an updated row is rounded to its storage type."""

    NEAREST = "nearest"
    STOCHASTIC = "stochastic"


class Regime(enum.StrEnum):
    """How the values of one tensor are made. `magnitude` m and `exponent` e scale them.

    SIGNS +-m 2^e; INTEGERS from [-m, m] 2^e; REVEALING from [2^(p-1), 2^p) 2^e with p the storage's precision (fp32:
    12, so that 4,096 terms still add exactly); UNIFORM in [-1, 1) m 2^e; SAME_SIGN in [0.5, 1) m 2^e; NORMAL the
    centred sum of four uniforms; WIDE a significand in [1, 2) with exponents from -27 to 100, or as far as the type
    goes; CONSTANT m 2^e; OUTLIER uniform but 2^30 (fp16: 2^14) in one column of the first row; CANCELLING 2^p in the
    first row, -2^p in the last, small integers between; SUBNORMAL multiples of eta; ZEROS of both signs; NEAR_OVERFLOW
    from the last binade of the type; MIXED one of these by row.
    """

    SIGNS = "signs"
    INTEGERS = "integers"
    REVEALING = "revealing"
    UNIFORM = "uniform"
    SAME_SIGN = "same_sign"
    NORMAL = "normal"
    WIDE = "wide"
    CONSTANT = "constant"
    OUTLIER = "outlier"
    CANCELLING = "cancelling"
    SUBNORMAL = "subnormal"
    ZEROS = "zeros"
    NEAR_OVERFLOW = "near_overflow"
    MIXED = "mixed"


class Special(enum.StrEnum):
    """A value that is not finite."""

    NAN = "nan"
    INF = "inf"
    MINUS_INF = "-inf"


class Place(enum.StrEnum):
    """Where a value that is not finite is put: one element, or every row that no lookup names."""

    TOUCHED_ROW = "touched_row"
    UNTOUCHED_ROWS = "untouched_rows"
    GRADIENT = "gradient"
    PER_SAMPLE_WEIGHT = "per_sample_weight"


class Layout(enum.StrEnum):
    """How an input lies in memory. TRANSPOSED and EXPANDED are for gradients; EXPANDED makes all values equal."""

    CONTIGUOUS = "contiguous"
    STRIDED = "strided"
    SLICE = "slice"
    MISALIGNED = "misaligned"
    EXPANDED = "expanded"
    TRANSPOSED = "transposed"


class Call(enum.StrEnum):
    """How forwards and backwards are driven; `equivcheck.problem.program` spells each out."""

    STEPS = "steps"
    FORWARD_ONLY = "forward_only"
    OUTSTANDING = "outstanding"
    RETAINED = "retained"
    RATE_CHANGED = "rate_changed"
    RESTORED = "restored"
    SIDE_STREAM = "side_stream"
    GRAPH = "graph"


class IndexFault(enum.StrEnum):
    """An index out of bounds, written over a good one."""

    ROWS = "rows"
    ROWS_PLUS_ONE = "rows_plus_one"
    PRUNED = "minus_one"
    MINUS_TWO = "minus_two"
    LARGEST = "largest"
    SMALLEST = "smallest"


class OffsetFault(enum.StrEnum):
    """A malformed offset: its new value, in terms of the good one."""

    NEGATIVE = "negative"
    DECREASING = "decreasing"
    BEYOND_END = "beyond_end"
    PLUS_ONE = "plus_one"
    SMALLEST = "smallest"
    LARGEST = "largest"


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of all parts of a Case: immutable, strict when read, terse when written."""


class Lookup(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`times` consecutive lookups of a row. In JSON `[row, times]`. Rows beyond the table are clipped to its last."""

    row: int = 0
    times: int = 1

    def __post_init__(self) -> None:
        _at_least("lookup's row", self.row, 0)
        _at_least("lookup's times", self.times, 1)


class Bag(_Part, frozen=True):
    """`copies` equal bags. `rank` counts only in variable batches."""

    lookups: tuple[Lookup, ...] = ()
    copies: int = 1
    rank: int = 0

    def __post_init__(self) -> None:
        _at_least("bag's copies", self.copies, 1)
        _at_least("bag's rank", self.rank, 0)

    @property
    def length(self) -> int:
        """Lookups in one of the copies."""
        return sum(lookup.times for lookup in self.lookups)


class Distribution(enum.StrEnum):
    """How traffic names rows.

    UNIFORM, ZIPF (weight 1/(row + 1)), HOT (half of all lookups name row 0), or CYCLIC (0, 1, 2 and so on in turn, so
    that numbers of distinct rows and their run lengths are exact).
    """

    UNIFORM = "uniform"
    ZIPF = "zipf"
    HOT = "hot"
    CYCLIC = "cyclic"


class Traffic(_Part, frozen=True):
    """Bags by a named distribution, for cases too large to list.

    `bags` bags of `length` lookups; ragged ones have from 0 to 2 `length`.
    """

    bags: int
    length: int = 1
    ragged: bool = False
    distribution: Distribution = Distribution.UNIFORM
    seed: int = 0

    def __post_init__(self) -> None:
        _at_least("traffic's bags", self.bags, 0)
        _at_least("traffic's length", self.length, 0)
        _seed("traffic's seed", self.seed)


class Feature(_Part, frozen=True):
    """A table of its own or an earlier feature's, and the bags to look up.

    The own table is `rows` by `dim`; a shared one is named by its owner's position in the list, `table`. The
    per-sample weights of a `frozen` feature get a zero gradient, while its table is updated all the same: what FBGEMM
    documents for `feature_requires_grad`.
    """

    rows: int = 1
    dim: int = 1
    table: int | None = None
    bags: tuple[Bag, ...] = ()
    traffic: Traffic | None = None
    frozen: bool = False

    def __post_init__(self) -> None:
        _at_least("feature's rows", self.rows, 0)
        _at_least("feature's dim", self.dim, 1)
        if self.bags and self.traffic is not None:
            raise CaseError("a feature has both bags and traffic; give one of them")


class Values(_Part, frozen=True):
    """How a tensor is filled: a regime, scaled by `magnitude` * 2^`exponent`."""

    regime: Regime = Regime.INTEGERS
    magnitude: int = 1
    exponent: int = 0

    def __post_init__(self) -> None:
        _between("values' magnitude", self.magnitude, 1, 2**12)
        _between("values' exponent", self.exponent, -149, 127)


class PerSampleWeights(_Part, frozen=True):
    """Per-sample weights: their type, values, and whether they ask for a gradient of their own."""

    dtype: DType = DType.FP32
    values: Values = Values()
    gradient: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in (DType.FP32, DType.FP16):
            raise CaseError(f"per-sample weights are {self.dtype}; use fp32 or fp16")


class Optimizer(_Part, frozen=True):
    """An optimizer and its hyper-parameters, each exact in fp32. `step` is Adam's t at the first update."""

    kind: OptimizerKind = OptimizerKind.SGD
    learning_rate: float = 0.5
    eps: float = 0.0
    beta1: float = 0.875
    beta2: float = 0.984375
    decay: Decay = Decay.NONE
    weight_decay: float = 0.0
    step: int = 1

    def __post_init__(self) -> None:
        for name in ("learning_rate", "eps", "beta1", "beta2", "weight_decay"):
            _exact_fp32(f"optimizer's {name}", getattr(self, name))
        if self.learning_rate < 0:
            raise CaseError(f"optimizer's learning_rate is {self.learning_rate}; it may not be negative")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise CaseError(f"optimizer's {name} is {getattr(self, name)}; it lies in [0, 1)")
        if self.eps < 0 or self.weight_decay < 0:
            raise CaseError(f"optimizer's eps {self.eps} and weight_decay {self.weight_decay} may not be negative")
        if self.decay is not Decay.NONE and self.kind is not OptimizerKind.ROWWISE_ADAGRAD:
            raise CaseError(f"decay mode {self.decay} belongs to exact_row_wise_adagrad; {self.kind} has none")
        if self.weight_decay and self.decay is Decay.NONE and not self.is_adam:
            raise CaseError(f"weight_decay is {self.weight_decay}, but {self.kind} decays only with a decay mode")
        _between("optimizer's step", self.step, 1, 2**31 - 1)

    @property
    def is_adam(self) -> bool:
        """Adam or partial row-wise Adam: with two moments and a step count."""
        return self.kind in (OptimizerKind.ADAM, OptimizerKind.PARTIAL_ROWWISE_ADAM)


class Step(_Part, frozen=True):
    """One forward and backward: how its data differ from the case's bags.

    `shift` is added to every row (modulo the table), `bags` keeps only so many of each feature (and rank), `lookups`
    only so many of each bag. `turn` turns the bags that are left by so many places within their feature, and their
    ranks by as many: the batch is as large as before, but its bags begin elsewhere. `learning_rate` replaces the
    optimizer's. Values come from the case's seed, the step's number, and `seed`.
    """

    learning_rate: float | None = None
    shift: int = 0
    bags: int | None = None
    seed: int = 0
    lookups: int | None = None
    turn: int = 0

    def __post_init__(self) -> None:
        if self.learning_rate is not None:
            _exact_fp32("step's learning_rate", self.learning_rate)
            if self.learning_rate < 0:
                raise CaseError(f"step's learning_rate is {self.learning_rate}; it may not be negative")
        _at_least("step's shift", self.shift, 0)
        if self.bags is not None:
            _at_least("step's bags", self.bags, 0)
        if self.lookups is not None:
            _at_least("step's lookups", self.lookups, 0)
        _at_least("step's turn", self.turn, 0)
        _seed("step's seed", self.seed)


class BadIndex(_Part, frozen=True):
    """Writes `fault` over the lookup at `position` (modulo N) of every step."""

    fault: IndexFault
    position: int = 0

    def __post_init__(self) -> None:
        _at_least("bad index's position", self.position, 0)


class BadOffset(_Part, frozen=True):
    """Writes `fault` over the offset at `position` (modulo their number) of every step."""

    fault: OffsetFault
    position: int = 0

    def __post_init__(self) -> None:
        _at_least("bad offset's position", self.position, 0)


class Poison(_Part, frozen=True):
    """A value that is not finite, and where: `position` counts lookups, bags or weights, modulo their number."""

    place: Place
    value: Special = Special.NAN
    position: int = 0

    def __post_init__(self) -> None:
        _at_least("poison's position", self.position, 0)


class Layouts(_Part, frozen=True):
    """How each input of the call lies in memory."""

    indices: Layout = Layout.CONTIGUOUS
    offsets: Layout = Layout.CONTIGUOUS
    per_sample_weights: Layout = Layout.CONTIGUOUS
    gradient: Layout = Layout.CONTIGUOUS

    def __post_init__(self) -> None:
        for name in ("indices", "offsets", "per_sample_weights"):
            if getattr(self, name) in (Layout.EXPANDED, Layout.TRANSPOSED):
                raise CaseError(f"layout of {name} is {getattr(self, name)}, which only gradients can have")


class Captured(_Part, frozen=True):
    """Real indices and offsets: a safetensors file beside the JSON, and the SHA-256 of its bytes."""

    file: str
    sha256: str

    def __post_init__(self) -> None:
        if "/" in self.file or "\\" in self.file or self.file in ("", ".", "..") or "\0" in self.file:
            raise CaseError(f"captured file is {self.file!r}; give a plain file name that lies beside the case")
        if len(self.sha256) != 64 or set(self.sha256) - set("0123456789abcdef"):
            raise CaseError(f"captured sha256 is {self.sha256!r}; it is 64 lower-case hexadecimal digits")


class Case(_Part, frozen=True):
    """One problem statement. See the module's docstring, and `docs/contract.md` for what each part means.

    `feature_order` and `lookup_order` permute features and the lookups inside bags by a seed whose 0 is the identity.
    `ranks` 0 is a fixed batch: B is that of the longest feature, and shorter ones end in empty bags. `ranks` of one or
    more is a variable batch: feature f has as many bags of rank r as its list holds.

    Raises
    ------
    CaseError
        If a part contradicts another, or a number is outside its range.
    """

    features: tuple[Feature, ...] = (Feature(),)
    weights: DType = DType.FP32
    output: DType = DType.FP32
    accumulation: DType = DType.FP32
    indices: IndexType = IndexType.INT64
    pooling: Pooling = Pooling.SUM
    per_sample_weights: PerSampleWeights | None = None
    optimizer: Optimizer = Optimizer()
    rounding: Rounding = Rounding.NEAREST
    bounds_check: BoundsCheck = BoundsCheck.NONE
    bad_indices: tuple[BadIndex, ...] = ()
    bad_offsets: tuple[BadOffset, ...] = ()
    ranks: int = 0
    weight_values: Values = Values()
    gradient_values: Values = Values()
    state_values: Values = Values(Regime.ZEROS)
    poison: tuple[Poison, ...] = ()
    layouts: Layouts = Layouts()
    call: Call = Call.STEPS
    steps: tuple[Step, ...] = (Step(),)
    captured: Captured | None = None
    feature_order: int = 0
    lookup_order: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.features:
            raise CaseError("a case has no features; give at least one")
        if not self.steps:
            raise CaseError("a case has no steps; give at least one")
        for position, feature in enumerate(self.features):
            self._check_feature(position, feature)
        for name in ("weights", "output"):
            if getattr(self, name) is DType.FP64:
                raise CaseError(f"{name} are fp64; tables and outputs are fp32, fp16 or bf16")
        if self.accumulation is DType.BF16:
            raise CaseError("accumulation is bf16; it is fp32, fp16 or fp64")
        if self.pooling is Pooling.NONE:
            if len({dim for _, dim in self.table_shapes}) > 1:
                raise CaseError(f"tables have widths {[d for _, d in self.table_shapes]}; without pooling all are one")
            if self.ranks:
                raise CaseError("a variable batch without pooling has no defined output; use sum or mean")
        beyond = any(bad.fault is not IndexFault.PRUNED for bad in self.bad_indices) or bool(self.bad_offsets)
        if beyond and self.bounds_check is BoundsCheck.NONE:
            raise CaseError("inputs are out of bounds but bounds_check is none; choose a mode that repairs or raises")
        if self.layouts.gradient is Layout.TRANSPOSED and self.ranks:
            raise CaseError("gradient is transposed, but a variable batch's is flat; choose another layout")
        if self.captured is not None and any(f.bags or f.traffic is not None for f in self.features):
            raise CaseError("a case has a captured batch and features with bags; captured features list only tables")
        if self.captured is not None and self.ranks:
            raise CaseError("captured batches are of fixed size; set ranks to 0")
        _between("ranks", self.ranks, 0, 4096)
        for name in ("feature_order", "lookup_order", "seed"):
            _seed(name, getattr(self, name))

    def _check_feature(self, position: int, feature: Feature) -> None:
        if feature.table is not None:
            if not 0 <= feature.table < position or self.features[feature.table].table is not None:
                raise CaseError(
                    f"feature {position} shares the table of feature {feature.table}; name an earlier feature that has "
                    "a table of its own"
                )
            if feature.rows != 1 or feature.dim != 1:
                raise CaseError(f"feature {position} shares a table and gives rows or dim; leave them to that table")
        for bag in feature.bags:
            if bag.rank and bag.rank >= self.ranks:
                raise CaseError(f"feature {position} has a bag of rank {bag.rank}, but the case has ranks {self.ranks}")
        if feature.traffic is not None and self.ranks > 1:
            raise CaseError(f"feature {position} has traffic in a batch of {self.ranks} ranks; list its bags instead")

    @property
    def tables(self) -> tuple[int, ...]:
        """Per feature of the list, the number of its table. Tables are numbered in the order of their owners."""
        numbers: dict[int, int] = {}
        for position, feature in enumerate(self.features):
            if feature.table is None:
                numbers[position] = len(numbers)
        return tuple(numbers[p if f.table is None else f.table] for p, f in enumerate(self.features))

    @property
    def table_shapes(self) -> tuple[tuple[int, int], ...]:
        """(rows, dim) of each table."""
        return tuple((f.rows, f.dim) for f in self.features if f.table is None)

    @property
    def lookups(self) -> int:
        """Lookups of the first step; of ragged traffic, the most there can be. Computed without allocating."""
        total = 0
        for feature in self.features:
            total += sum(bag.length * bag.copies for bag in feature.bags)
            if feature.traffic is not None:
                total += feature.traffic.bags * feature.traffic.length * (2 if feature.traffic.ragged else 1)
        return total

    def to_json(self) -> bytes:
        """UTF-8 JSON with the format's version first."""
        body = msgspec.json.encode(_terse(self))
        separator = b"," if body != b"{}" else b""
        return b'{"equivcheck_case":%d%s%s' % (FORMAT_VERSION, separator, body[1:])

    @classmethod
    def from_json(cls, text: bytes | str) -> Case:
        """Read a Case strictly: no unknown fields, no NaN, no coercion.

        Raises
        ------
        CaseError
            Naming what is wrong and where.
        """
        data = text.encode() if isinstance(text, str) else text
        if len(data) > MAXIMUM_JSON_BYTES:
            raise CaseError(f"a case of {len(data):,} bytes is over the limit of {MAXIMUM_JSON_BYTES:,}; capture it")
        try:
            fields: Any = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise CaseError(f"not a case: {error}; the file is truncated or no JSON") from None
        if not isinstance(fields, dict) or "equivcheck_case" not in fields:
            raise CaseError('not a case: JSON without "equivcheck_case", the version of the format')
        return cls.from_builtins(fields)

    @classmethod
    def from_builtins(cls, fields: dict[str, Any]) -> Case:
        """As `from_json`, from the decoded object."""
        version = fields.get("equivcheck_case")
        if type(version) is not int or version != FORMAT_VERSION:
            raise CaseError(f"case format {version!r} is not {FORMAT_VERSION}, the one this version reads")
        try:
            return msgspec.convert({k: v for k, v in fields.items() if k != "equivcheck_case"}, cls)
        except (msgspec.ValidationError, RecursionError) as error:
            raise CaseError(f"not a case: {error}") from None

    @property
    def digest(self) -> str:
        """First 16 hexadecimal digits of the SHA-256 of the JSON: the name under which a case is saved."""
        return hashlib.sha256(self.to_json()).hexdigest()[:16]


def _terse(part: _Part) -> dict[str, Any]:
    """Fields that differ from their defaults: equal parts are written equally.

    msgspec's own omit_defaults compares identities, so that 0.5 is written or not, depending on where it came from.
    """
    written: dict[str, Any] = {}
    for name, default in _defaults(type(part)):
        value = getattr(part, name)
        if value != default:
            if isinstance(value, _Part):
                value = _terse(value)
            elif isinstance(value, tuple):
                value = tuple(_terse(entry) if isinstance(entry, _Part) else entry for entry in value)
            written[name] = value
    return written


@functools.cache
def _defaults(kind: type[_Part]) -> tuple[tuple[str, Any], ...]:
    return tuple((field.name, field.default) for field in msgspec.structs.fields(kind))
