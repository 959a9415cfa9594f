"""The kill matrix: what each fault stands for and how it was first seen, as a table, as JSON, and as a verdict."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from equivcheck.faults.catalogue import FAULTS, fits
from equivcheck.faults.fault import Fault, Kind, Reach
from equivcheck.faults.hunt import Hunted


def chosen(names: Iterable[str], kinds: Iterable[str], subject: str, *, compiled: bool, all_: bool) -> list[Fault]:
    """The faults to hunt on a subject: those named, or of these classes, or all that this machine can show.

    Parameters
    ----------
    compiled
        Whether kernels are compiled: those that only a GPU shows are then hunted, too.
    all_
        Whether those are hunted that cannot be seen here, to show that they are not.
    """
    wanted = set(names)
    found = [fault for fault in FAULTS.values() if not wanted or fault.name in wanted]
    if kinds:
        found = [fault for fault in found if fault.kind.name.lower() in set(kinds)]
    reach = {Reach.HERE, *([Reach.GPU] if compiled else [])}
    if not wanted and not all_:
        found = [fault for fault in found if fault.reach in reach]
    return [fault for fault in found if fits(fault, subject)]


@dataclass
class Matrix:
    """Results so far.

    Attributes
    ----------
    compiled
        Whether kernels were compiled, so that what only a GPU shows had to be seen.
    """

    compiled: bool = False
    results: dict[str, Hunted] = field(default_factory=dict)

    def add(self, result: Hunted) -> None:
        """Take a result in."""
        self.results[result.fault] = result

    @property
    def survivors(self) -> list[str]:
        """Faults that can be seen here and were not."""
        return [name for name, result in self.results.items() if result.kill is None and self._visible(FAULTS[name])]

    @property
    def surprises(self) -> list[str]:
        """Faults that are said to be invisible and were seen: their proof is wrong, or the suite is."""
        seen = (name for name, result in self.results.items() if result.kill is not None)
        return [name for name in seen if FAULTS[name].reach is Reach.NOBODY]

    @property
    def exit_code(self) -> int:
        """0: everything visible was seen, and nothing else. 1: not so. 2: a fault could not be tried."""
        if any(result.error and result.kill is None for result in self.results.values()):
            return 2
        return 1 if self.survivors or self.surprises else 0

    def line(self) -> str:
        """One sentence."""
        visible = [name for name in self.results if self._visible(FAULTS[name])]
        killed = [name for name in visible if self.results[name].kill is not None]
        subtle = sum(FAULTS[name].subtle for name in killed)
        survived = f"; not seen: {', '.join(self.survivors)}" if self.survivors else ""
        surprised = f"; seen against their proof: {', '.join(self.surprises)}" if self.surprises else ""
        return f"{len(killed)} of {len(visible)} faults seen, {subtle} of them subtle{survived}{surprised}"

    def by_property(self) -> Mapping[str, int]:
        """How many faults each property saw first."""
        return Counter(result.kill.property for result in self.results.values() if result.kill is not None)

    def rows(self) -> list[tuple[str, ...]]:
        """One row a fault, by class: class, fault, how it is injected, subtlety, property, cases, seconds, symptom."""
        rows: list[tuple[str, ...]] = []
        for kind in Kind:
            for name, result in sorted(self.results.items()):
                fault = FAULTS[name]
                if fault.kind is kind:
                    rows.append((kind.value, name, fault.injection, fault.subtlety.value, *_seen(fault, result)))
        return rows

    def to_json(self) -> str:
        """Everything, for a machine."""
        entries: list[dict[str, Any]] = []
        for name, result in sorted(self.results.items()):
            fault = FAULTS[name]
            entries.append(
                {
                    "fault": name,
                    "class": fault.kind.value,
                    "what": fault.what,
                    "subtlety": fault.subtlety.value,
                    "injection": fault.injection,
                    "seen by": fault.reach.value,
                    "report": fault.report,
                    "proof": fault.proof,
                    "result": msgspec.to_builtins(result),
                }
            )
        return json.dumps({"summary": self.line(), "exit_code": self.exit_code, "faults": entries}, indent=1) + "\n"

    def _visible(self, fault: Fault) -> bool:
        return fault.reach is Reach.HERE or (fault.reach is Reach.GPU and self.compiled)


def told(result: Hunted) -> str:
    """A result in a line, as it comes."""
    fault = FAULTS[result.fault]
    return f"{result.fault} ({fault.kind.value}): {'; '.join(part for part in _seen(fault, result) if part)}"


def _seen(fault: Fault, result: Hunted) -> tuple[str, str, str, str]:
    """Property, cases, seconds and symptom of the first kill."""
    kill = result.kill
    if kill is None:
        why = result.error or (f"not seen: {fault.reach.value}" if fault.reach is not Reach.HERE else "NOT SEEN")
        return why, f"{result.cases}", f"{result.seconds:.1f}", ""
    cases = f"{kill.cases}" + (f" (after {kill.before} of others)" if kill.before else "")
    return kill.property, cases, f"{kill.seconds:.1f}", kill.symptom
