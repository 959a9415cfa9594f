"""Recorded findings: the faults of real systems that the suite sees past.

Sees a fault that was mended or that has changed, and a finding that explains what it should not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from equivcheck.engine.replays import RecordedFinding


def test_findings(recorded_finding: RecordedFinding) -> None:
    """A finding's minimal case fails as it is recorded, until the finding is removed."""
    recorded_finding.must_fail_as_recorded()
