"""Which malformed offsets one parallel pass over the bags repairs rightly, whatever the order in which bags are served.

FBGEMM's bounds checks on CUDA serve each bag by a warp of its own: it reads the bag's two offsets, which a neighbour
may have written by then, clamps them to 0 <= start <= end <= N, and writes both back where they were wrong (in the mode
IGNORE always); the last offset is set to N besides. The contract's repair is the running maximum. Both agree for every
order, or a race decides.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def repairs(offsets: npt.NDArray[np.integer], lookups: int, *, always: bool) -> bool:
    """Whether a pass leaves what the contract asks for, and looks at the lookups of each repaired bag.

    Parameters
    ----------
    offsets
        (bags + 1,), as the caller gives them.
    lookups
        N.
    always
        Whether offsets are written back where they were right, too.
    """
    original = [int(offset) for offset in offsets]
    right = np.maximum.accumulate(np.clip(offsets.astype(np.int64), 0, lookups)).tolist()
    right[-1] = lookups
    found: list[set[int]] = [{offset} for offset in original]
    found[-1].add(lookups)
    written: list[set[int]] = [set() for _ in original]
    written[-1] |= {lookups} - {original[-1]}
    waiting = list(range(len(original) - 1))
    while waiting:
        bag = waiting.pop()
        for start in tuple(found[bag]):
            for end in tuple(found[bag + 1]):
                wrong = start < 0 or start > end or end > lookups
                first = max(0, min(start, lookups)) if wrong else start
                last = max(first, min(end, lookups)) if wrong else end
                # What is short at the very end is lengthened besides, though too late for the check of its lookups.
                short = bag == len(original) - 2 and last == original[-1] and not (wrong or always)
                if first != right[bag] or (last != right[bag + 1] and not short):
                    return False
                if wrong or always:
                    for position, offset in ((bag, first), (bag + 1, last)):
                        written[position].add(offset)
                        if offset not in found[position]:
                            found[position].add(offset)
                            waiting += [near for near in (position - 1, position) if 0 <= near < len(original) - 1]
    return all(kept == wanted or there for kept, wanted, there in zip(original, right, written, strict=True))
