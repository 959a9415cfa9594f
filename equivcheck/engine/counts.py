"""Counts of a slice, mergeable: what was judged, with what result, and how much it could have shown."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from equivcheck.compare import TRUSTED_TENSORS
from equivcheck.outcome import Transfers
from equivcheck.verdict import Status, TensorReport, Verdict


class TensorCounts(msgspec.Struct):
    """Elements of one tensor over many cases, and the worst error as a share of its bound."""

    judged: int = 0
    exact: int = 0
    trusted: int = 0
    undetermined: int = 0
    worst_ratio: float = 0.0

    def add(self, other: TensorCounts | TensorReport) -> None:
        """Count `other` in."""
        self.judged += other.judged
        self.exact += other.exact
        self.trusted += other.trusted
        self.undetermined += other.undetermined
        self.worst_ratio = max(self.worst_ratio, other.worst_ratio)


class Share(msgspec.Struct):
    """How often something was so, out of how many times it could have been."""

    hits: int = 0
    of: int = 0


class TransferCounts(msgspec.Struct):
    """What crossed between host and device over many cases."""

    cases: int = 0
    copies: int = 0
    to_device_bytes: int = 0
    to_host_bytes: int = 0
    to_device_seconds: float = 0.0
    to_host_seconds: float = 0.0

    def add(self, other: TransferCounts | Transfers) -> None:
        """Count `other` in: those of one case, or of many."""
        self.cases += other.cases if isinstance(other, TransferCounts) else 1
        self.copies += other.copies
        self.to_device_bytes += other.to_device_bytes
        self.to_host_bytes += other.to_host_bytes
        self.to_device_seconds += other.to_device_seconds
        self.to_host_seconds += other.to_host_seconds


RATIO_EDGES = (0.0, 0.001, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Upper edges of the classes into which a case's worst error, as a share of its bound, is counted; more is the last."""


class TypeCounts(msgspec.Struct):
    """Cases with tables of one type: by status, and by their worst error as a share of its bound."""

    statuses: dict[str, int] = msgspec.field(default_factory=dict)
    ratios: list[int] = msgspec.field(default_factory=lambda: [0] * (len(RATIO_EDGES) + 1))

    def count(self, verdict: Verdict) -> None:
        """Count one case. One that findings explain says nothing about errors within their bounds."""
        add(self.statuses, verdict.status.value)
        if verdict.status is Status.KNOWN:
            return
        ratios = [report.worst_ratio for report in verdict.reports if report.judged]
        ratios += [found.ratio for found in verdict.discrepancies if not math.isnan(found.ratio)]
        if ratios:
            self.ratios[bisect.bisect_left(RATIO_EDGES, max(ratios))] += 1

    def merge(self, other: TypeCounts) -> None:
        """Count all of `other` in."""
        for status, number in other.statuses.items():
            add(self.statuses, status, number)
        self.ratios = [mine + theirs for mine, theirs in zip(self.ratios, other.ratios, strict=True)]


class Counts(msgspec.Struct):
    """Everything counted while cases of one property run on one subject.

    Attributes
    ----------
    statuses
        Cases by status. FAILED and ERROR count symptoms, not cases: after the first failure Hypothesis shrinks, and
        what it runs then is no sample.
    unsupported
        Reasons of the subject's refusals.
    findings
        How often each recorded finding was met.
    tensors
        Counts over elements, by tensor.
    shares
        What the properties counted by name.
    subject_seconds, judge_seconds
        Time in the subject, and in the truth and the comparison.
    transfers
        What crossed between host and device, for subjects that measure it.
    types
        Cases by the type of their tables, each slice's first failure among them.
    ulps
        Elements by their distance from a witness, by tensor.
    devices
        Cases by the device that they ran on, a GPU by its UUID; those in processes of their own are not among them.
    """

    statuses: dict[str, int] = msgspec.field(default_factory=dict)
    unsupported: dict[str, int] = msgspec.field(default_factory=dict)
    findings: dict[str, int] = msgspec.field(default_factory=dict)
    tensors: dict[str, TensorCounts] = msgspec.field(default_factory=dict)
    shares: dict[str, Share] = msgspec.field(default_factory=dict)
    subject_seconds: float = 0.0
    judge_seconds: float = 0.0
    transfers: TransferCounts = msgspec.field(default_factory=TransferCounts)
    types: dict[str, TypeCounts] = msgspec.field(default_factory=dict)
    ulps: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    devices: dict[str, int] = msgspec.field(default_factory=dict)

    @property
    def judged(self) -> int:
        """Cases with a result that says something about the subject, or that could hardly have said anything."""
        return sum(self.statuses.values()) - self.statuses.get(Status.UNSUPPORTED, 0)

    @property
    def sums(self) -> TensorCounts:
        """Counts over the tensors that are made of sums, for which trust and bounds mean something."""
        total = TensorCounts()
        for tensor in TRUSTED_TENSORS:
            total.add(self.tensors.get(tensor, TensorCounts()))
        return total

    def count(self, verdict: Verdict) -> None:
        """Count one run."""
        add(self.statuses, verdict.status.value)
        if verdict.status is Status.UNSUPPORTED:
            add(self.unsupported, verdict.reason)
        for report in verdict.reports:
            self.tensors.setdefault(report.tensor.value, TensorCounts()).add(report)

    def count_type(self, dtype: str, verdict: Verdict) -> None:
        """Count one run under the type of its tables."""
        self.types.setdefault(dtype, TypeCounts()).count(verdict)

    def share(self, name: str, hits: int, of: int) -> None:
        """Add `hits` out of `of` to the share `name`."""
        share = self.shares.setdefault(name, Share())
        share.hits += hits
        share.of += of

    def distances(self, name: str, found: Mapping[str, int]) -> None:
        """Add elements by their distance, under a name."""
        mine = self.ulps.setdefault(name, {})
        for distance, elements in found.items():
            add(mine, distance, elements)

    def merge(self, other: Counts) -> None:
        """Count all of `other` in."""
        for name in ("statuses", "unsupported", "findings", "devices"):
            mine: dict[str, int] = getattr(self, name)
            for key, number in getattr(other, name).items():
                add(mine, key, number)
        for tensor, counts in other.tensors.items():
            self.tensors.setdefault(tensor, TensorCounts()).add(counts)
        for name, share in other.shares.items():
            self.share(name, share.hits, share.of)
        self.subject_seconds += other.subject_seconds
        self.judge_seconds += other.judge_seconds
        self.transfers.add(other.transfers)
        for name, types in other.types.items():
            self.types.setdefault(name, TypeCounts()).merge(types)
        for name, distances in other.ulps.items():
            self.distances(name, distances)

    def to_builtins(self) -> dict[str, Any]:
        """Plain dictionaries, lists and numbers, as they travel from a worker to the controller."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain

    @staticmethod
    def from_builtins(plain: Mapping[str, Any]) -> Counts:
        """The inverse of `to_builtins`."""
        return msgspec.convert(plain, Counts)


def add(counts: dict[str, int], key: str, number: int = 1) -> None:
    """Add `number` to the count of `key`."""
    counts[key] = counts.get(key, 0) + number


def merged(several: Iterable[Counts]) -> Counts:
    """Counts of all together."""
    total = Counts()
    for counts in several:
        total.merge(counts)
    return total
