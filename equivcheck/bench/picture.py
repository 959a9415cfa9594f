"""One picture of a run: an SVG by itself, with what was measured in its caption.

It shows the ratio of witness to subject, or without a witness the share of the bandwidth, over run length and over D.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

from equivcheck.bench.medians import Quantity, classes, ratio
from equivcheck.bench.point import Kind
from equivcheck.bench.result import Document, Row
from equivcheck.bench.table import headings

_WIDTH, _HEIGHT = 460, 260
"""Of one panel, its axes included."""
_LEFT, _TOP, _RIGHT, _BOTTOM = 54, 30, 12, 40
_LINE, _LEGEND = 16, 150
_COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#e377c2", "#7f7f7f")
_SHAPES = ("circle", "square")
"""A class has a colour, and the classes behind the last colour another shape."""


@dataclass(frozen=True)
class _Axis:
    """A logarithmic axis, from a power of `base` to another."""

    low: float
    high: float
    base: float

    @classmethod
    def around(cls, values: Sequence[float], base: float) -> _Axis:
        low = math.floor(math.log(min(values), base) + 1e-9)
        high = math.ceil(math.log(max(values), base) - 1e-9)
        return cls(base**low, base ** max(high, low + 1), base)

    def place(self, value: float) -> float:
        """From 0 to 1."""
        return math.log(value / self.low) / math.log(self.high / self.low)

    @property
    def ticks(self) -> list[float]:
        count = round(math.log(self.high / self.low, self.base))
        step = max(1, -(-count // 8))
        return [self.low * self.base**number for number in range(0, count + 1, step)]


def as_svg(document: Document) -> str:
    """The picture; points without a measurement are not in it, and the caption counts them."""
    of: Callable[[Row, Quantity], float | None] = ratio if document.witness else _share
    what = "ratio" if document.witness else "share of copy bandwidth"
    rows = [row for row in document.rows if of(row, Quantity.FORWARD) is not None]
    caption = [*headings(document), f"{len(rows)} of {len(document.rows)} points are shown."]
    if document.witness:
        caption.insert(1, f"A ratio is the time of {document.witness} over that of {document.subject}.")
    width, height = 2 * _WIDTH + _LEGEND, 2 * _HEIGHT + _LINE * (len(caption) + 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    marks = {kind: number for number, kind in enumerate(classes(document))}
    for line, quantity in enumerate((Quantity.FORWARD, Quantity.BACKWARD)):
        for column, (name, base, along) in enumerate((("mean run length", 10.0, _run), ("largest D", 2.0, _width))):
            places = [(along(row), of(row, quantity), row) for row in rows]
            found = [(x, y, row) for x, y, row in places if y is not None]
            title = f"{quantity}: {what} over {name}"
            parts.append(f'<g transform="translate({column * _WIDTH} {line * _HEIGHT})">')
            parts += _panel(title, name, found, base, marks, line_at_one=bool(document.witness))
            parts.append("</g>")
    parts += _legend(marks)
    for number, text in enumerate(caption):
        y = 2 * _HEIGHT + _LINE * (number + 1)
        parts.append(f'<text x="{_RIGHT}" y="{y}" fill="#444">{escape(text)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(
    title: str,
    name: str,
    points: Sequence[tuple[float, float, Row]],
    base: float,
    marks: dict[Kind, int],
    *,
    line_at_one: bool,
) -> list[str]:
    parts = [f'<text x="{_LEFT}" y="{_TOP - 12}" font-weight="bold">{escape(title)}</text>']
    if not points:
        return [*parts, f'<text x="{_LEFT}" y="{_HEIGHT / 2}">nothing was measured</text>']
    across = _Axis.around([x for x, _, _ in points], base)
    up = _Axis.around([*(y for _, y, _ in points), *([1.0] if line_at_one else [])], 2.0**0.5)
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM

    def at(x: float, y: float) -> tuple[float, float]:
        return _LEFT + across.place(x) * (right - _LEFT), bottom - up.place(y) * (bottom - _TOP)

    for tick in across.ticks:
        x, _ = at(tick, up.low)
        parts.append(f'<path d="M{x:.1f} {_TOP}V{bottom}" stroke="#eee"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 14}" text-anchor="middle">{tick:,.0f}</text>')
    for tick in up.ticks:
        _, y = at(across.low, tick)
        parts.append(f'<path d="M{_LEFT} {y:.1f}H{right}" stroke="#eee"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:.3g}</text>')
    if line_at_one:
        parts.append(f'<path d="M{_LEFT} {at(across.low, 1.0)[1]:.1f}H{right}" stroke="#555"/>')
    parts.append(f'<text x="{(_LEFT + right) / 2}" y="{bottom + 30}" text-anchor="middle">{escape(name)}</text>')
    for x, y, row in points:
        label = f"{row.point.name}, {row.point.shape}: {y:.2f}"
        parts.append(_mark(*at(x, y), marks[row.point.kind], label))
    return parts


def _legend(marks: dict[Kind, int]) -> list[str]:
    parts = []
    for kind, number in marks.items():
        x, y = 2 * _WIDTH + 16, _TOP + 18 * number
        parts.append(_mark(x, y, number, kind))
        parts.append(f'<text x="{x + 12}" y="{y + 4}">{escape(kind)}</text>')
    return parts


def _mark(x: float, y: float, number: int, label: str) -> str:
    colour = _COLOURS[number % len(_COLOURS)]
    title = f"<title>{escape(label)}</title>"
    style = f'fill={quoteattr(colour)} fill-opacity="0.75"'
    if _SHAPES[number // len(_COLOURS) % len(_SHAPES)] == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" {style}>{title}</circle>'
    return f'<rect x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8" {style}>{title}</rect>'


def _share(row: Row, quantity: Quantity) -> float | None:
    found = row.subject.measured
    if found is None:
        return None
    return (found.forward if quantity is Quantity.FORWARD else found.backward).share


def _run(row: Row) -> float:
    return max(1.0, row.run_length)


def _width(row: Row) -> float:
    return float(row.point.widest)
