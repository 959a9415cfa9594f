"""The numbers at which real kernels split their work: what the strategies draw on purpose and coverage counts.

Edges come from the sources of FBGEMM's, TorchRec's and PyTorch's kernels (docs/generation.md): warp and block sizes
and their neighbours, the run lengths at which one block no longer takes a run, the sizes at which sorts and
partitions change their algorithm, packed words that reach their sign bit.
"""

RUN_LENGTHS = (
    *(1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 255, 256, 257, 511, 512, 513),
    *(1023, 1024, 1025, 2047, 2048, 2049, 4095, 4096, 4097),
)
"""Lookups of one row in a batch."""

LOOKUPS = (
    *(0, 1, 2, 7, 8, 9, 31, 32, 33, 63, 64, 65, 127, 128, 129, 767, 768, 769),
    *(1023, 1024, 1025, 2047, 2048, 2049, 4097),
)
"""Lookups of a batch, N."""

BAG_LENGTHS = (0, 1, 3, 4, 5, 7, 8, 9, 31, 32, 33, 63, 64, 65, 255, 256, 257, 511, 512, 513, 1025)

BATCHES = (0, 1, 2, 31, 32, 33, 63, 64, 65)
"""Bags a feature, B."""

LARGE_BATCHES = (65535, 65536, 65537)
"""Above what 16 bits, or a grid's second and third dimension, hold."""

FEATURES = (1, 2, 31, 32, 33, 34, 63, 64, 65, 101, 128)
"""Features of a batch, T."""

ROWS = (0, 1, 2, 10, 63, 64, 65, 1000, 4097)
"""Rows of a table."""

LARGE_ROWS = (2**24 + 2, 2**31 + 2)
"""Row ids beyond which fp32 does not count, and int32 does not."""

DISTINCT_ROWS = (1023, 1024, 1025)
"""Rows looked up in a batch."""

DIMS = (
    *(1, 2, 3, 4, 5, 8, 12, 20, 28, 31, 32, 33, 34, 35, 36, 60, 61, 62, 63, 64, 65, 66, 67, 68),
    *(124, 125, 126, 127, 128, 129, 130, 131, 132, 252, 253, 254, 255, 256, 257, 258, 259, 260, 320),
    *(508, 509, 510, 511, 512, 513, 514, 515, 516, 1020, 1021, 1022, 1023, 1024, 1025, 1026, 1027, 1028),
    *(1280, 1536, 2048),
)
"""Widths of tables, D."""

ADAM_STEPS = (1, 2, 10, 1000, 2**24 + 1)
"""Adam's t at the first update; fp32 does not hold the last."""

RUN_CLASSES = ((1, 1), (2, 32), (33, 256), (257, 1024), (1025, 2**31))
"""Run lengths that kernels treat differently: single lookup, within a warp, a block, several blocks, split runs."""
