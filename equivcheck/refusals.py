"""What a subject refuses: the reasons that it gives, and the recorded list of them.

A build that refuses more than the one before it is not as good, though nothing that it still does is wrong. So each
subject has a list of the reasons for which it may refuse cases, `golden/unsupported/SUBJECT.txt`, a reason a line, with
its numbers left out; the gate cannot tell where it meets another.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from equivcheck import golden
from equivcheck.backends.registry import SubjectError, parse

if TYPE_CHECKING:
    from equivcheck.backends.protocol import Backend
    from equivcheck.case import Case

FOLDER = "unsupported"
_NUMBER = re.compile(r"(?<![A-Za-z_\d])\d[\d,.]*")
"""Numbers that stand by themselves: `fp16` and `int32` are kept."""


def reason_of(text: str) -> str:
    """A refusal's first line without the numbers of its case, so that two cases are refused for the same reason."""
    return _NUMBER.sub("#", text.partition("\n")[0]).strip()


def survey(backend: Backend, cases: Iterable[Case]) -> Counter[str]:
    """How many of the cases a backend refuses, by reason. None of them is run."""
    found: Counter[str] = Counter()
    for case in cases:
        support = backend.supports(case)
        if not support:
            found[reason_of(support.reason)] += 1
    return found


def drawn(number: int) -> Iterator[Case]:
    """Cases of every kind, the same everywhere: `number` of them drawn, then the curated ones and the real shards."""
    import strategies
    from strategies.choices import MENUS

    budget = strategies.Profile("thorough").budget
    yield from (strategies.random_case(seed, budget, MENUS[seed % len(MENUS)]) for seed in range(number))
    yield from golden.curated_cases()
    yield from golden.shard_cases()


def file_name(subject: str) -> str:
    """Name of the file with a subject's list."""
    return f"{re.sub(r'[^A-Za-z0-9.+-]+', '-', subject)}.txt"


def recorded_file(subject: str, on_gpu: bool) -> Path | None:
    """The recorded list of a subject, if equivcheck comes with one.

    Parameters
    ----------
    on_gpu
        Whether the machine has a GPU: `triton` by itself is `triton:cuda` there and `triton:cpu` elsewhere, which
        refuse different cases.
    """
    folder = golden.folder()
    if folder is None:
        return None
    names = [subject]
    try:
        asked = parse(subject)
    except SubjectError:
        return None
    if not asked.argument:
        names.append("+".join([f"{asked.name}:{'cuda' if on_gpu else 'cpu'}", *asked.variants]))
    paths = (folder / FOLDER / file_name(name) for name in names)
    return next((path for path in paths if path.is_file()), None)


def read(path: Path) -> frozenset[str]:
    """The reasons of a list: a line each, empty lines left out."""
    return frozenset(line.strip() for line in path.read_text().splitlines() if line.strip())


def as_text(reasons: Iterable[str]) -> str:
    """The list as it is written: sorted, so that a new reason is one line of a difference."""
    return "".join(f"{reason}\n" for reason in sorted(reasons))
