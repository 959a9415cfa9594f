"""Events as JSON lines, each written at once, so that a run that is killed leaves all that it knew."""

from __future__ import annotations

from pathlib import Path

from equivcheck.engine.events import AnyEvent, to_line


class JsonLines:
    """Appends every event to a file, which is started anew."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("wb", buffering=0)

    def __call__(self, event: AnyEvent) -> None:
        """Write one event."""
        self._file.write(to_line(event))
