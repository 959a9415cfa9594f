"""Saved cases: a Case, where it came from and what happened, in one JSON file that anyone replays years later.

A captured batch's safetensors file lies beside it. Nothing here depends on Hypothesis, pytest, or the subject.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import math
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any, Literal

import msgspec

from equivcheck.case import MAXIMUM_JSON_BYTES, Case, CaseError
from equivcheck.verdict import Discrepancy, Status, Symptom, Tensor, Verdict

FORMAT_VERSION = 1

Number = float | Literal["nan", "inf", "-inf"]
"""JSON has no NaN and no infinities."""


class Kind(enum.StrEnum):
    """Why a case was saved: as shrunk, the worst seen, as drawn, or the one during which the process ended."""

    SHRUNK = "shrunk"
    WORST = "worst"
    DRAWN = "drawn"
    ENDED = "ended"


class Provenance(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where a saved case comes from.

    Attributes
    ----------
    subject
        Name of the configured backend.
    property
        Name of the property, such as `run_length`; empty for a case that was only judged.
    file
        The property's file, relative to the folder that the run started from where it lies below that.
    witness
        What the subject was compared with, if it was.
    profile, seed, slice
        From which the case was drawn.
    versions
        Of the subject's packages, Python, NumPy and equivcheck.
    commit
        Of the checkout, if the run was started in one.
    date
        UTC, to the second.
    """

    subject: str
    property: str = ""
    file: str = ""
    witness: str = ""
    profile: str = ""
    seed: int | None = None
    slice: int | None = None
    versions: dict[str, str] = {}
    commit: str = ""
    date: str = ""


class Recorded(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One discrepancy as it was: the worst wrong element of a tensor. Fields as in `equivcheck.verdict.Discrepancy`."""

    tensor: Tensor
    symptom: Symptom
    action: int
    where: str
    actual: Number = "nan"
    truth: Number = "nan"
    low: Number = "nan"
    high: Number = "nan"
    error: Number = "nan"
    bound: Number = "nan"
    ratio: Number = "nan"
    ulps: Number = "nan"
    count: int = 1
    detail: str = ""

    @staticmethod
    def of(discrepancy: Discrepancy) -> Recorded:
        """What is written for a discrepancy."""
        values = dataclasses.asdict(discrepancy)
        return msgspec.convert({n: _written(v) if isinstance(v, float) else v for n, v in values.items()}, Recorded)

    @property
    def discrepancy(self) -> Discrepancy:
        """The discrepancy that was written."""
        values: dict[str, Any] = msgspec.structs.asdict(self)
        values.update({name: float(values[name]) for name in _NUMBERS})
        return Discrepancy(**values)


_NUMBERS = ("actual", "truth", "low", "high", "error", "bound", "ratio", "ulps")


class SavedCase(msgspec.Struct, frozen=True):
    """A Case with its provenance and what happened.

    Attributes
    ----------
    case
        What the property was called with.
    kind
        Why it was saved.
    provenance
        Where it comes from.
    status, reason
        Of the verdict.
    discrepancies
        What was wrong, worst first.
    failing_case
        The case that failed inside the property, where that is not `case` itself but one derived from it.
    """

    case: Case
    kind: Kind
    provenance: Provenance
    status: Status
    reason: str = ""
    discrepancies: tuple[Discrepancy, ...] = ()
    failing_case: Case | None = None

    @property
    def name(self) -> str:
        """Name of its file, without the suffix: property, subject, and a digest of what failed and how."""
        parts = [self.provenance.property or "case", self.provenance.subject.rpartition("/")[2], self.kind.value]
        key = [self.case.to_json().decode(), self.provenance.subject, self.provenance.property, self.status.value]
        key += [f"{d.tensor.value} {d.symptom.value}" for d in self.discrepancies[:1]]
        digest = hashlib.sha256("\n".join(key).encode()).hexdigest()[:8]
        return "-".join([*(re.sub(r"[^A-Za-z0-9_.]+", "_", part)[:48] for part in parts), digest])


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A saved case as it is written."""

    equivcheck_saved_case: int
    kind: Kind
    case: dict[str, Any]
    provenance: Provenance
    status: Status
    reason: str = ""
    discrepancies: tuple[Recorded, ...] = ()
    failing_case: dict[str, Any] | None = None


def save(saved: SavedCase, folder: Path, captured_from: Path | None = None) -> Path:
    """Write `saved` into `folder` at once, never half, and return its path.

    Parameters
    ----------
    captured_from
        The folder that holds the case's captured batch, which is copied beside it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if saved.case.captured is not None and captured_from is not None:
        target = folder / saved.case.captured.file
        if not target.exists():
            shutil.copyfile(captured_from / saved.case.captured.file, target)
    document = _Document(
        equivcheck_saved_case=FORMAT_VERSION,
        kind=saved.kind,
        case=_plain(saved.case),
        provenance=saved.provenance,
        status=saved.status,
        reason=saved.reason,
        discrepancies=tuple(Recorded.of(d) for d in saved.discrepancies),
        failing_case=None if saved.failing_case is None else _plain(saved.failing_case),
    )
    path = folder / f"{saved.name}.json"
    write_atomically(path, msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
    return path


def load(path: Path) -> SavedCase:
    """Read a saved case strictly.

    Raises
    ------
    CaseError
        Naming the file, what is wrong with it, and what to do.
    """
    fields = read_object(path)
    if "equivcheck_saved_case" not in fields:
        raise CaseError(f'{path} holds no saved case: it has no "equivcheck_saved_case", the version of the format')
    version = fields["equivcheck_saved_case"]
    if version != FORMAT_VERSION:
        raise CaseError(f"{path} has format {version!r}; this version of equivcheck reads {FORMAT_VERSION}")
    try:
        document = msgspec.convert(fields, _Document)
        case = Case.from_builtins(document.case)
        failing = None if document.failing_case is None else Case.from_builtins(document.failing_case)
    except (msgspec.ValidationError, CaseError, RecursionError) as error:
        raise CaseError(f"{path} holds no saved case: {error}") from None
    return SavedCase(
        case=case,
        kind=document.kind,
        provenance=document.provenance,
        status=document.status,
        reason=document.reason,
        discrepancies=tuple(recorded.discrepancy for recorded in document.discrepancies),
        failing_case=failing,
    )


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises
    ------
    CaseError
        If the file cannot be read, is too large, or holds no JSON object.
    """
    try:
        if path.stat().st_size > MAXIMUM_JSON_BYTES:
            raise CaseError(f"{path} has {path.stat().st_size:,} bytes, over the limit of {MAXIMUM_JSON_BYTES:,}")
        fields = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise CaseError(f"{path} cannot be read: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CaseError(f"{path} holds no JSON: {error}; the file is truncated or of another kind") from None
    if not isinstance(fields, dict):
        raise CaseError(f"{path} holds JSON, but no object; a saved case starts with a brace")
    return fields


def write_atomically(path: Path, data: bytes) -> None:
    """Replace `path` by a file with `data`: readers see the old or the new one, never a part."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        Path(temporary).chmod(0o644)  # mkstemp's files are private
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def as_verdict(saved: SavedCase) -> Verdict:
    """The recorded result as a verdict."""
    return Verdict(saved.status, saved.discrepancies, reason=saved.reason)


def _plain(case: Case) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.json.decode(case.to_json())
    return fields


def _written(value: float) -> Number:
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return value
