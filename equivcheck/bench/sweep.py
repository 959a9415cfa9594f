"""The built-in sweep: four points or more of each class, each class along one axis from one common shape.

The common shape is that of a shard of a recommendation model on one GPU: some tens of tables of a million rows, 128
columns, a batch of thousands, some ten lookups a bag. All tables of a point together stay below 20 GB in fp16, so that
building them costs less time than measuring them.
"""

from __future__ import annotations

from equivcheck.bench.point import Kind, Point
from equivcheck.case import Distribution

_ZIPF = Distribution.ZIPF


def sweep() -> tuple[Point, ...]:
    """All points, the first of every class before the second of any: a run that ends early has seen all classes."""
    classes: dict[Kind, list[Point]] = {}
    for point in _points():
        classes.setdefault(point.kind, []).append(point)
    longest = max(map(len, classes.values()))
    return tuple(points[turn] for turn in range(longest) for points in classes.values() if turn < len(points))


def _points() -> list[Point]:
    k = 1_000
    return [
        *(_even(Kind.SMALL_DIMS, f"D{dim}", 100, 200 * k, dim, 20, 2048) for dim in (32, 8, 16, 64, 4)),
        *(_even(Kind.LARGE_DIMS, f"D{dim}", 16, 200 * k, dim, 10, 2048) for dim in (256, 128, 512, 1024)),
        *(_even(Kind.FEW_TABLES, f"T{tables}", tables, 2000 * k, 128, 20, 16_384) for tables in (4, 1, 2, 8)),
        *(_even(Kind.MANY_TABLES, f"T{tables}", tables, 50 * k, 64, 10, 1024) for tables in (256, 128, 512)),
        _even(Kind.MANY_TABLES, "T1024", 1024, 20 * k, 32, 10, 512),
        _even(Kind.SHORT_BAGS, "L1", 32, 1000 * k, 128, 1, 8192),
        _even(Kind.SHORT_BAGS, "L1-D32", 100, 200 * k, 32, 1, 4096),
        _even(Kind.SHORT_BAGS, "L2", 32, 1000 * k, 64, 2, 8192),
        _even(Kind.SHORT_BAGS, "L4", 32, 1000 * k, 128, 4, 4096),
        _even(Kind.LONG_BAGS, "L128", 8, 1000 * k, 128, 128, 1024),
        _even(Kind.LONG_BAGS, "L64-ragged", 16, 1000 * k, 128, 64, 1024, ragged=True),
        _even(Kind.LONG_BAGS, "L256-D64", 8, 1000 * k, 64, 256, 512),
        _even(Kind.LONG_BAGS, "L512-ragged", 4, 1000 * k, 128, 512, 512, ragged=True),
        *(
            _even(kind, name, tables, rows, dim, 20, batch, distribution)
            for kind, distribution in ((Kind.UNIFORM, Distribution.UNIFORM), (Kind.SKEWED, _ZIPF))
            for name, tables, rows, dim, batch in (
                ("T32-D128", 32, 1000 * k, 128, 4096),
                ("T100-D32", 100, 1000 * k, 32, 2048),
                ("T32-D64", 32, 1000 * k, 64, 8192),
                ("T16-D256", 16, 500 * k, 256, 4096),
            )
        ),
        *(_even(Kind.SHORT_RUNS, f"D{dim}", 8, 4000 * k, dim, 10, 2048) for dim in (128, 64, 32, 256)),
        # 131,072 lookups of each table, so that runs are 131,072 / rows long on average.
        *(_even(Kind.LONG_RUNS, f"run{2**17 // rows}", 8, rows, 128, 16, 8192) for rows in (64, 4096, 512, 8)),
        _even(Kind.LONG_RUNS, "run2048-D32", 8, 64, 32, 16, 8192),
        _even(Kind.LONG_RUNS, "run2048-D256", 8, 64, 256, 16, 8192),
        _mixed("D16..128", 32, (16, 32, 64, 128), (20,), (1000 * k,), 4096),
        _mixed("D8..256", 30, (8, 64, 256), (1, 10, 40), (100 * k, 1000 * k), 2048),
        _mixed("D64,128", 64, (64, 128), (10,), (500 * k,), 2048, _ZIPF),
        _mixed("rows4..1M", 40, (128, 32, 64, 8), (1, 5, 20), (1000 * k, 4, 1 * k, 40, 100 * k), 4096, _ZIPF),
    ]


def _even(
    kind: Kind,
    name: str,
    tables: int,
    rows: int,
    dim: int,
    length: int,
    batch: int,
    distribution: Distribution = Distribution.UNIFORM,
    *,
    ragged: bool = False,
) -> Point:
    """All tables alike."""
    shape = ((rows,) * tables, (dim,) * tables, (length,) * tables)
    return Point(f"{kind}/{name}", kind, *shape, batch, distribution, ragged)


def _mixed(
    name: str,
    tables: int,
    dims: tuple[int, ...],
    lengths: tuple[int, ...],
    rows: tuple[int, ...],
    batch: int,
    distribution: Distribution = Distribution.UNIFORM,
) -> Point:
    """Widths, lengths and rows in turn. The lists' sizes have no common factor where all combinations should occur."""

    def turns(values: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(values[number % len(values)] for number in range(tables))

    kind = Kind.MIXED_DIMS
    return Point(f"{kind}/{name}", kind, turns(rows), turns(dims), turns(lengths), batch, distribution)
