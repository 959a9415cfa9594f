"""All faults by name."""

from __future__ import annotations

from functools import cache

from equivcheck.backends import registry
from equivcheck.backends.protocol import Backend
from equivcheck.faults import around, edits_counts, edits_kept, edits_random, edits_sums, edits_updates, simulated
from equivcheck.faults.fault import Fault, FaultError

FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        *edits_sums.FORWARD,
        *edits_sums.RUNS,
        *edits_sums.WEIGHT_GRADIENT,
        *edits_sums.SMALL_TABLES,
        *edits_updates.OPTIMIZERS,
        *edits_updates.ROUNDING,
        *edits_random.RANDOM,
        *edits_updates.BOUNDS,
        *edits_updates.LAYOUT,
        *edits_updates.CALLS,
        *edits_counts.COUNTS,
        *edits_kept.KEPT,
        *around.FAULTS,
        *simulated.FAULTS,
    )
}
"""The catalogue."""


def by_name(name: str) -> Fault:
    """The fault of that name.

    Raises
    ------
    FaultError
        If there is none.
    """
    if name not in FAULTS:
        raise FaultError(f"there is no fault {name!r}; equivcheck faults --list names all {len(FAULTS)}")
    return FAULTS[name]


def fits(fault: Fault, subject: str) -> bool:
    """Whether a fault can be put into a subject: source edits are the built-in Triton TBE's alone."""
    return not fault.edits or registry.parse(subject).name == "triton"


def faulty(fault: Fault, subject: str) -> Backend:
    """The subject with the fault in it, ready to run.

    Raises
    ------
    FaultError
        If the fault does not fit the subject, or an edit does not apply.
    """
    if not fits(fault, subject):
        raise FaultError(f"fault {fault.name!r} is an edit of the built-in Triton TBE; it cannot be put into {subject}")
    if fault.wrap is not None:
        return fault.wrap(simulated.Kernel() if fault.simulated else _clean("+".join((subject, *fault.variants))))
    return _with_module(subject, fault)


def control(subject: str) -> Backend:
    """The Triton TBE from an unedited copy: what remains of a source edit without its edit."""
    from equivcheck.faults.source import module_class

    backend = registry.build(subject)
    backend.__dict__["make"] = module_class(())
    return backend


def _with_module(subject: str, fault: Fault) -> Backend:
    backend = registry.build("+".join((subject, *fault.variants)))  # imports Triton in the mode of the subject
    from equivcheck.faults.source import module_class

    backend.__dict__["make"] = module_class(fault.edits)
    return backend


@cache
def _clean(subject: str) -> Backend:
    return registry.build(subject)
