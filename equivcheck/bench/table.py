"""A run as text, for a terminal and as Markdown: points, medians of classes, and what they were measured on."""

from __future__ import annotations

from collections.abc import Sequence

from equivcheck.bench.medians import Quantity, classes, ratio, spread
from equivcheck.bench.result import Document, Measured, Method, Phase, Row, System
from equivcheck.verdict import Status

Cells = tuple[str, ...]
_TEXTS = ("point", "shape", "class", "system")
_PHASES = (Quantity.FORWARD, Quantity.BACKWARD, Quantity.BOTH)
_MARK = {Method.GRAPH: "", Method.EVENTS: "*", Method.WALL: "°"}
"""Behind times that are not a graph's."""


def headings(document: Document) -> list[str]:
    """What was measured, on what."""
    found, setting = document.provenance, document.setting
    versions = ", ".join(f"{name} {value}" for name, value in found.versions.items())
    weighted = "weighted" if setting.weighted else "unweighted"
    against = f" against {document.witness}" if document.witness else ""
    lines = [
        f"{document.subject}{against} on {found.device}, {found.date}, commit {found.commit}",
        f"tables {setting.weights}, output {setting.output}, {setting.optimizer}, sum, {weighted}, int64 indices",
        f"{versions}" + (f", CUDA {found.cuda}, driver {found.driver}" if found.cuda else ""),
        f"copy bandwidth {document.machine.copy_bandwidth / 1e9:,.0f} GB/s in this run; an empty graph takes "
        f"{document.machine.floor:.1f} us; {document.machine.flushed_bytes / 1e6:.0f} MB overwritten before each "
        "measurement",
        f"{len(document.rows)} points in {document.seconds:.0f} s"
        + (f"; left out: {', '.join(document.left_out)}" if document.left_out else ""),
    ]
    methods = {phase.method for row in document.rows for phase in _phases(row)}
    if Method.EVENTS in methods:
        lines.append("* measured between events around a launch from the host, not in a CUDA graph")
    if Method.WALL in methods:
        lines.append("° measured by the wall clock of the host")
    return lines


def point_columns(document: Document) -> Cells:
    """Names of the columns of `point_row`."""
    columns = ["point", "shape", "run"]
    for phase in ("fwd", "bwd", "both"):
        columns += [f"{phase} us", "p99", "share"]
        columns += ["ratio"] if document.witness else []
    return (*columns, "step us", *(["ratio"] if document.witness else []), "judged")


def point_row(row: Row, witnessed: bool) -> Cells:
    """One point: times of the subject, share of the copy bandwidth, ratio of the witness's time to the subject's."""
    cells = [row.point.name, row.point.shape, f"{row.run_length:,.1f}" if row.lookups else ""]
    measured = row.subject.measured
    for quantity in _PHASES:
        phase = None if measured is None else quantity.phase(measured)
        cells += ["", "", ""] if phase is None else [_time(phase), _number(phase.device.p99), f"{phase.share:.0%}"]
        cells += [_ratio(ratio(row, quantity))] if witnessed else []
    cells.append("" if measured is None else _number(measured.step.median))
    cells += [_ratio(ratio(row, Quantity.STEP))] if witnessed else []
    return (*cells, _judged(row))


def class_columns(document: Document) -> Cells:
    """Names of the columns of `class_rows`."""
    columns = ["class", "points", "measured"]
    for phase in ("forward", "backward", "both", "step"):
        columns.append(f"{phase} us")
        columns += [f"{phase} ratio", "least..largest"] if document.witness else []
    return (*columns, "share fwd", "share bwd")


def class_rows(document: Document) -> list[Cells]:
    """One row a class, and one for all: medians over points."""
    groups: list[tuple[str, Sequence[Row]]] = [(kind.value, rows) for kind, rows in classes(document).items()]
    return [_class_row(name, rows, bool(document.witness)) for name, rows in [*groups, ("all", document.rows)]]


def _class_row(name: str, rows: Sequence[Row], witnessed: bool) -> Cells:
    measured = [row.subject.measured for row in rows if row.subject.measured is not None]
    cells = [name, str(len(rows)), str(len(measured))]
    for quantity in Quantity:
        time = spread(quantity.time(found) for found in measured)
        cells.append("" if time is None else _number(time.median))
        if witnessed:
            ratios = spread(ratio(row, quantity) for row in rows)
            cells += (
                ["", ""] if ratios is None else [_ratio(ratios.median), f"{ratios.least:.2f}..{ratios.largest:.2f}"]
            )
    for shares in ([found.forward.share for found in measured], [found.backward.share for found in measured]):
        share = spread(shares)
        cells.append("" if share is None else f"{share.median:.0%}")
    return tuple(cells)


HOST_COLUMNS = ("class", "system", "device us", "launched us", "host us", "step us", "workspace MiB")
"""Names of the columns of `host_rows`."""


def host_rows(document: Document) -> list[Cells]:
    """For each class and system, medians of a forward and a backward.

    On the device alone, between events around the launch, until the call returns to the host, and from an idle device
    to an idle device; and the most memory that a step holds beside tables and inputs.
    """
    lines: list[Cells] = []
    groups: list[tuple[str, Sequence[Row]]] = [(kind.value, rows) for kind, rows in classes(document).items()]
    for name, rows in [*groups, ("all", document.rows)]:
        for system, found in (
            (document.subject, [row.subject.measured for row in rows]),
            (document.witness, [row.witness.measured for row in rows if row.witness is not None]),
        ):
            there = [measured for measured in found if measured is not None]
            if there:
                lines.append((name, system, *_host_cells(there)))
    return lines


def _host_cells(found: Sequence[Measured]) -> Cells:
    times: tuple[list[float | None], ...] = (
        [measured.both.device.median for measured in found],
        [None if measured.both.launched is None else measured.both.launched.median for measured in found],
        [None if measured.both.host is None else measured.both.host.median for measured in found],
        [measured.step.median for measured in found],
        [measured.peak_bytes / 2**20 or None for measured in found],
    )
    spreads = [spread(values) for values in times]
    return tuple("" if of is None else _number(of.median) for of in spreads)


def notes(document: Document) -> list[str]:
    """What is not as asked for: wrong kernels, errors, cuts, no graph. Points with the same note stand together."""
    points: dict[str, list[str]] = {}
    for row in document.rows:
        systems = [(document.subject, row.subject)] + ([(document.witness, row.witness)] if row.witness else [])
        lines = list(row.point.notes)
        for name, system in systems:
            if system.judged.status is not Status.PASSED:
                lines.append(f"{name} {_word(system)}: {system.judged.detail} (cases/{system.judged.case}.json)")
            if system.error:
                lines.append(f"{name} not measured: {system.error}")
            reasons = {phase.reason for phase in _of(system) if phase.method is Method.EVENTS}
            lines += [f"{name}: {reason}" for reason in sorted(reasons)]
        for line in lines:
            points.setdefault(line, []).append(row.point.name)
    return [f"{line}: {', '.join(names)}" for line, names in points.items()]


def as_markdown(document: Document) -> str:
    """The page `bench.md`."""
    against = f" next to {document.witness}" if document.witness else ""
    parts = [f"# How fast {document.subject} is{against}", "", *(f"- {line}" for line in headings(document))]
    ratio_means = " A ratio is the witness's time over the subject's: above 1 the subject is faster."
    parts += ["", f"Medians by class.{ratio_means if document.witness else ''}", ""]
    parts += _markdown(class_columns(document), class_rows(document))
    parts += ["", "By point, medians and 99th percentiles of the subject:", ""]
    parts += _markdown(point_columns(document), [point_row(row, bool(document.witness)) for row in document.rows])
    parts += ["", "A forward and a backward together, medians by class:", ""]
    parts += _markdown(HOST_COLUMNS, host_rows(document))
    if lines := notes(document):
        parts += ["", "Notes:", "", *(f"- {line}" for line in lines)]
    return "\n".join(parts) + "\n"


def print_document(document: Document) -> None:
    """Print it all, as wide as it is where there is no terminal."""
    import sys

    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 400, highlight=False, markup=False, emoji=False)
    for columns, rows in (
        (point_columns(document), [point_row(row, bool(document.witness)) for row in document.rows]),
        (HOST_COLUMNS, host_rows(document)),
        (class_columns(document), class_rows(document)),
    ):
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for name in columns:
            table.add_column(name, no_wrap=True, justify="left" if name in _TEXTS else "right")
        for row in rows:
            table.add_row(*row)
        console.print(table)
        console.print()
    for line in [*notes(document), *headings(document)]:
        console.print(line)


def _markdown(columns: Cells, rows: Sequence[Cells]) -> list[str]:
    line = [f"| {' | '.join(cells)} |" for cells in (columns, *rows)]
    return [line[0], "|" + "|".join("---" for _ in columns) + "|", *line[1:]]


def _of(system: System) -> tuple[Phase, ...]:
    found = system.measured
    return () if found is None else (found.forward, found.backward, found.both)


def _phases(row: Row) -> tuple[Phase, ...]:
    return (*_of(row.subject), *(_of(row.witness) if row.witness is not None else ()))


def _time(phase: Phase) -> str:
    return f"{_number(phase.device.median)}{_MARK[phase.method]}"


def _number(value: float) -> str:
    return f"{value:,.{1 if value < 1000 else 0}f}"


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _word(system: System) -> str:
    wrong = (Status.FAILED, Status.CRASHED, Status.TIMEOUT)
    return "WRONG" if system.judged.status in wrong else system.judged.status.upper()


def _judged(row: Row) -> str:
    words = [_word(row.subject)] + ([_word(row.witness)] if row.witness is not None else [])
    if row.agreement is not None and not row.agreement.within:
        return "DISAGREE"
    return words[0] if len(set(words)) == 1 else " / ".join(words)
