"""Recorded results: what a subject gave for curated cases, kept to be compared with for years, on any machine.

A folder holds `manifest.json` and safetensors files. Of each result the whole output and gradient of the per-sample
weights is kept, the rows that lookups name with their state, and of all other rows a digest: they should be as they
were. A result that another run may give otherwise (atomics) says so, and comes with the arithmetic that bounds it.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import msgspec
import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save

from equivcheck import golden
from equivcheck.arithmetic import (
    Arithmetic,
    Grouped,
    MeanDivision,
    Sequential,
    Store,
    StoreRounding,
    TensorCore,
)
from equivcheck.case import Case, CaseError
from equivcheck.formats import AnyArray, DType
from equivcheck.outcome import Forward, Outcome, Raised, Update
from equivcheck.problem import Problem, Snapshot
from equivcheck.store import write_atomically
from equivcheck.verdict import Status

FORMAT_VERSION = 1
_MANIFEST = "manifest.json"
_CASES_A_FILE = 64
_STATES = ("tables", "momentum1", "momentum2")
_CLASSES: dict[str, Any] = {cls.__name__: cls for cls in (Arithmetic, Sequential, Grouped, TensorCore, Store)}
_ENUMS: dict[str, enum.Enum] = {
    member.value: member for kind in (DType, MeanDivision, StoreRounding) for member in kind.__members__.values()
}
"""Their values are words that no two of them share."""
_BF16 = np.dtype(ml_dtypes.bfloat16)


class Provenance(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where recordings come from: versions of the subject and of equivcheck, device and driver, commit, date (UTC)."""

    subject: str
    versions: dict[str, str]
    device: str = ""
    driver: str = ""
    commit: str = ""
    date: str = ""


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What the manifest says about one case.

    Attributes
    ----------
    case, problem
        The case, and the digest of its arrays: a case that materialises otherwise today is not compared.
    file
        The safetensors file with its arrays.
    status
        Of the verdict when it was recorded. What was wrong then is kept, as what this version gives.
    deterministic, arithmetic
        What the subject declared: whether the bits are to be met, and its rounding.
    rest
        Per result, the digest of the rows that no lookup names, with their state; empty for a forward.
    raised
        Position, type and text of an exception.
    """

    case: dict[str, Any]
    problem: str
    file: str
    status: Status
    deterministic: bool
    arithmetic: dict[str, Any]
    rest: tuple[str, ...] = ()
    warnings: tuple[int | None, ...] = ()
    paths: tuple[str, ...] = ()
    raised: tuple[int, str, str] | None = None


class _Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    equivcheck_recording: int
    provenance: Provenance
    files: dict[str, str]
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class Record:
    """One case's result, ready to be written."""

    case: Case
    problem: Problem
    arithmetic: Arithmetic
    outcome: Outcome
    status: Status


def write(folder: Path, provenance: Provenance, records: list[Record]) -> None:
    """Write recordings into `folder`, in place of those that are there."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.safetensors"):
        old.unlink()
    files: dict[str, str] = {}
    entries: list[Entry] = []
    for start in range(0, len(records), _CASES_A_FILE):
        name = f"part-{start // _CASES_A_FILE:02}.safetensors"
        arrays: dict[str, AnyArray] = {}
        for record in records[start : start + _CASES_A_FILE]:
            arrays.update(_arrays(record))
            entries.append(_entry(record, name))
        data = save({key: _bits(array) for key, array in arrays.items()})
        write_atomically(folder / name, data)
        files[name] = hashlib.sha256(data).hexdigest()
    manifest = _Manifest(FORMAT_VERSION, provenance, files, tuple(entries))
    write_atomically(folder / _MANIFEST, msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n")


class Recordings:
    """The recordings in a folder. Files are read, and their hashes checked, when they are first needed.

    Raises
    ------
    CaseError
        If the manifest or a file is missing, malformed, or of another hash.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / _MANIFEST
        try:
            manifest = msgspec.json.decode(path.read_bytes(), type=_Manifest)
        except (OSError, msgspec.DecodeError) as error:
            raise CaseError(f"{path} holds no recordings: {error}") from None
        if manifest.equivcheck_recording != FORMAT_VERSION:
            raise CaseError(
                f"{path} has format {manifest.equivcheck_recording}; this version of equivcheck reads {FORMAT_VERSION}"
            )
        self.folder = folder
        self.provenance = manifest.provenance
        self._files = manifest.files
        self._loaded: dict[str, dict[str, AnyArray]] = {}
        self._entries = {Case.from_builtins(entry.case): entry for entry in manifest.entries}

    @property
    def cases(self) -> tuple[Case, ...]:
        """The cases that have a result, in order."""
        return tuple(self._entries)

    def entry(self, case: Case) -> Entry | None:
        """What the manifest says about a case, if it has a result."""
        return self._entries.get(case)

    def arithmetic(self, case: Case) -> Arithmetic:
        """What the subject declared for a recorded case."""
        found = _declared(self._entries[case].arithmetic)
        if not isinstance(found, Arithmetic):
            raise CaseError(f"the manifest in {self.folder} declares no arithmetic for case {case.digest}")
        return found

    def outcome(self, problem: Problem) -> Outcome:
        """The recorded result, as the subject gave it.

        Rows that no lookup names are as they were before, which the digest says. Where they were not, they are NaN, so
        that nobody takes them for what was recorded.

        Raises
        ------
        CaseError
            If the case has none, or does not materialise into the arrays that it had.
        """
        entry = self._entries.get(problem.case)
        if entry is None:
            raise CaseError(f"no result of {self.provenance.subject} is recorded for case {problem.case.digest}")
        if entry.problem != problem.digest:
            raise CaseError(
                f"case {problem.case.digest} materialises into other arrays than when it was recorded: "
                f"{problem.digest}, not {entry.problem}"
            )
        arrays = self._load(entry.file)
        prefix = f"{problem.case.digest}/"
        mine = {key.removeprefix(prefix): array for key, array in arrays.items() if key.startswith(prefix)}
        return _outcome(problem, entry, mine)

    def _load(self, name: str) -> dict[str, AnyArray]:
        if name not in self._loaded:
            path = self.folder / name
            try:
                data = path.read_bytes()
                found = load(data)
            except (OSError, SafetensorError) as error:
                raise CaseError(f"{path} holds no recorded arrays: {error}") from None
            digest = hashlib.sha256(data).hexdigest()
            if digest != self._files.get(name):
                raise CaseError(f"{path} has SHA-256 {digest}, the manifest says {self._files.get(name)}")
            self._loaded[name] = found
        return self._loaded[name]


def built_in_folder(subject: str) -> Path | None:
    """The recordings of a subject that come with equivcheck."""
    golden_folder = golden.folder()
    if golden_folder is None:
        return None
    found = golden_folder / "recordings" / subject
    return found if (found / _MANIFEST).is_file() else None


def named_rows(problem: Problem) -> tuple[npt.NDArray[np.int64], ...]:
    """Per table, the rows that lookups of any step name, or may name once they are repaired: ascending."""
    found: list[set[int]] = [set() for _ in problem.initial.tables]
    for batch in problem.batches:
        edges = np.clip(np.asarray(batch.offsets)[np.cumsum([0, *batch.bags])], 0, len(batch.indices))
        for feature, table in enumerate(problem.feature_tables):
            rows = len(problem.initial.tables[table])
            # Malformed offsets may give a lookup to another feature than the repaired ones do: then all are taken.
            part = batch.indices if problem.case.bad_offsets else batch.indices[edges[feature] : edges[feature + 1]]
            found[table].update(int(row) for row in np.unique(part) if 0 <= row < rows)
            if problem.case.bad_indices and rows:
                found[table].add(0)
    return tuple(np.asarray(sorted(rows), np.int64) for rows in found)


def _arrays(record: Record) -> Iterator[tuple[str, AnyArray]]:
    prefix, named = record.case.digest, named_rows(record.problem)
    for position, result in enumerate(record.outcome.results):
        here = f"{prefix}/{position}"
        if isinstance(result, Forward):
            yield f"{here}/output", result.output
            continue
        if result.weight_gradient is not None:
            yield f"{here}/weight_gradient", result.weight_gradient
        for name in _STATES:
            for table, array in enumerate(getattr(result.after, name)):
                yield f"{here}/{name}/{table}", array[named[table]]


def _entry(record: Record, file: str) -> Entry:
    results, raised = record.outcome.results, record.outcome.raised
    return Entry(
        case=msgspec.json.decode(record.case.to_json()),
        problem=record.problem.digest,
        file=file,
        status=record.status,
        deterministic=record.arithmetic.deterministic,
        arithmetic=_written(record.arithmetic),
        rest=tuple(_rest(record.problem, r.after) if isinstance(r, Update) else "" for r in results),
        warnings=tuple(r.warnings if isinstance(r, Forward) else None for r in results),
        paths=record.outcome.paths,
        raised=None if raised is None else (raised.position, raised.kind, raised.message),
    )


def _rest(problem: Problem, snapshot: Snapshot) -> str:
    """Digest of the rows that no lookup names, and of their state."""
    digest = hashlib.sha256()
    named = named_rows(problem)
    for name in _STATES:
        for table, array in enumerate(getattr(snapshot, name)):
            digest.update(np.ascontiguousarray(np.delete(array, named[table], axis=0)).tobytes())
    return digest.hexdigest()


def _outcome(problem: Problem, entry: Entry, arrays: Mapping[str, AnyArray]) -> Outcome:
    named, untouched = named_rows(problem), _rest(problem, problem.initial)
    results: list[Forward | Update] = []
    for position, rest in enumerate(entry.rest):
        if not rest:
            output = _typed(arrays[f"{position}/output"], problem.case.output.numpy)
            results.append(Forward(output, entry.warnings[position]))
            continue
        states: dict[str, tuple[AnyArray, ...]] = {}
        for name in _STATES:
            states[name] = tuple(
                _placed(initial, named[table], arrays[f"{position}/{name}/{table}"], whole=rest == untouched)
                for table, initial in enumerate(getattr(problem.initial, name))
            )
        gradient = arrays.get(f"{position}/weight_gradient")
        results.append(Update(Snapshot(**states), gradient))
    raised = None if entry.raised is None else Raised(*entry.raised, after=None)
    return Outcome(tuple(results), raised=raised, paths=entry.paths, device="recorded")


def _placed(initial: AnyArray, rows: npt.NDArray[np.int64], values: AnyArray, *, whole: bool) -> AnyArray:
    array = np.array(initial) if whole else np.full_like(initial, np.nan)
    array[rows] = _typed(values, initial.dtype)
    return array


def _written(part: Any) -> Any:
    """An Arithmetic and its parts as plain data; each part names its class, since a sum may be of several."""
    if dataclasses.is_dataclass(part):
        fields = {field.name: _written(getattr(part, field.name)) for field in dataclasses.fields(part)}
        return {"is": type(part).__name__, **fields}
    return part.value if isinstance(part, enum.Enum) else part


def _declared(written: Any) -> Any:
    """The inverse of `_written`."""
    if isinstance(written, dict):
        fields = {name: _declared(value) for name, value in written.items() if name != "is"}
        return _CLASSES[written["is"]](**fields)
    return _ENUMS.get(written, written) if isinstance(written, str) else written


def _bits(array: AnyArray) -> AnyArray:
    """An array as safetensors takes it: contiguous, and bf16 as its bits."""
    dense = np.ascontiguousarray(array)
    return dense.view(np.uint16) if dense.dtype == _BF16 else dense


def _typed(array: AnyArray, dtype: np.dtype[np.generic]) -> AnyArray:
    return array.view(dtype) if dtype == _BF16 else array
