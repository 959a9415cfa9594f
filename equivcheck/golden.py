"""What comes with equivcheck beside the code: findings, curated cases, recorded results, real shards."""

from __future__ import annotations

from pathlib import Path

from equivcheck.case import Case, CaseError
from equivcheck.shards import load_shard, scaled_cases


def folder() -> Path | None:
    """The folder `golden`: in the wheel, or in the checkout."""
    package = Path(__file__).parent
    return next((found for found in (package / "golden", package.parent / "golden") if found.is_dir()), None)


def curated_cases() -> tuple[Case, ...]:
    """The curated cases: every axis and edge, each small enough for Triton's interpreter.

    Raises
    ------
    CaseError
        If they do not come with this installation, or one of them is malformed.
    """
    return read_cases(_folder() / "cases.jsonl")


def shard_cases() -> tuple[Case, ...]:
    """Real shards, scaled down: each in the types and with the optimizers that real jobs use.

    Raises
    ------
    CaseError
        If they do not come with this installation, or one of them is malformed.
    """
    paths = sorted((_folder() / "shards").glob("*.json"))
    return tuple(case for path in paths for case in scaled_cases(load_shard(path)))


def read_cases(path: Path) -> tuple[Case, ...]:
    """Cases from a file with one a line.

    Raises
    ------
    CaseError
        If the file cannot be read, or a line holds no case.
    """
    try:
        return tuple(Case.from_json(line) for line in path.read_bytes().splitlines() if line.strip())
    except OSError as error:
        raise CaseError(f"{path} cannot be read: {error.strerror}; make it with equivcheck golden curate") from None


def _folder() -> Path:
    found = folder()
    if found is None:
        raise CaseError("the folder golden is neither in the package nor beside it; install equivcheck anew")
    return found
