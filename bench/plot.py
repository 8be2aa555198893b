"""Draws line charts as SVG, written by hand, because a benchmark's picture needs no plotting library.

    page = draw_page("Title", [Column("left", [chart, chart]), Column("right", [chart, chart])])

Rule: charts of one row share both scales, so that runs beside each other can be compared by eye. Why not the
report's charts (`svg_charts`): these take their looks from the report's style sheet and scale each chart
separately over a time of day. This is a file of its own, over the seconds of a run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

_WIDTH, _HEIGHT = 470, 190  # of one chart's frame
_LEFT, _TOP, _GAP_X, _GAP_Y = 80, 112, 90, 66
_INK, _FAINT, _BAND = "#222222", "#d0d0d0", "#e9f3e6"

Point = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """One line of a chart; `dots` marks its points."""

    label: str
    colour: str
    points: Sequence[Point]
    dots: bool = False


@dataclass(frozen=True)
class Chart:
    """One frame. `band` is a range of y that is shaded: where the line should be."""

    y_label: str
    lines: Sequence[Line]
    band: tuple[float, float] | None = None


@dataclass(frozen=True)
class Column:
    """The charts of one run, under its name, over one time axis; `marks` are times with a word each."""

    title: str
    charts: Sequence[Chart]
    marks: Sequence[tuple[float, str]] = field(default=())


def choose_ticks(highest: float) -> list[float]:
    """Return ticks from 0 to at least `highest` in 4 to 10 round steps: 1, 2 or 5 times a power of ten."""
    if highest <= 0 or not math.isfinite(highest):
        return [0.0, 1.0]
    power = 10 ** math.floor(math.log10(highest / 4))
    step = max(each * power for each in (1, 2, 5, 10) if each * power <= highest / 4 * (1 + 1e-9))
    return [number * step for number in range(math.ceil(highest / step - 1e-9) + 1)]


def draw_page(title: str, columns: Sequence[Column], x_label: str = "seconds since the start") -> str:
    """Return the whole picture. All columns have the same number of charts."""
    rows = len(columns[0].charts)
    width = _LEFT + len(columns) * (_WIDTH + _GAP_X)
    height = _TOP + rows * (_HEIGHT + _GAP_Y)
    x_ticks = choose_ticks(max(x for column in columns for x in _all(column.charts, 0)))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="sans-serif" font-size="12" fill="{_INK}">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        _text(_LEFT, 30, title, size=18),
    ]
    for row in range(rows):
        y_ticks = choose_ticks(max(y for column in columns for y in _all([column.charts[row]], 1)))
        for number, column in enumerate(columns):
            left, top = _LEFT + number * (_WIDTH + _GAP_X), _TOP + row * (_HEIGHT + _GAP_Y)
            if row == 0:
                parts.append(_text(left, _TOP - 50, column.title, size=15))
            marks = column.marks if row == 0 else [(at, "") for at, _ in column.marks]
            parts += _Frame(left, top, x_ticks, y_ticks).draw(column.charts[row], marks, x_label)
    return "\n".join([*parts, "</svg>", ""])


def _all(charts: Sequence[Chart], axis: int) -> Iterator[float]:
    yield 0.0
    for chart in charts:
        yield from (point[axis] for line in chart.lines for point in line.points)
        if axis == 1 and chart.band:
            yield chart.band[1]


@dataclass(frozen=True)
class _Frame:
    left: float
    top: float
    x_ticks: Sequence[float]
    y_ticks: Sequence[float]

    def x(self, value: float) -> float:
        return round(self.left + value / self.x_ticks[-1] * _WIDTH, 1)

    def y(self, value: float) -> float:
        return round(self.top + _HEIGHT - value / self.y_ticks[-1] * _HEIGHT, 1)

    def draw(self, chart: Chart, marks: Sequence[tuple[float, str]], x_label: str) -> Iterator[str]:
        right, bottom = self.left + _WIDTH, self.top + _HEIGHT
        if chart.band:
            low, high = (self.y(each) for each in chart.band)
            yield (
                f'<rect x="{self.left}" y="{high}" width="{_WIDTH}" height="{round(low - high, 1)}" '
                f'fill="{_BAND}"/>'
            )
        for tick in self.y_ticks:
            yield _rule(self.left, self.y(tick), right, self.y(tick), _FAINT)
            yield _text(self.left - 6, self.y(tick) + 4, _short(tick), anchor="end")
        for tick in self.x_ticks:
            yield _rule(self.x(tick), bottom, self.x(tick), bottom + 4, _INK)
            yield _text(self.x(tick), bottom + 17, _short(tick), anchor="middle")
        for number, (at, word) in enumerate(marks):
            yield _rule(self.x(at), self.top, self.x(at), bottom, "#888888", dashed=True)
            # The words alternate between two levels, so that words of close marks do not overlap.
            yield _text(self.x(at) + 2, self.top - 19 - 12 * (number % 2), word, size=10)
        yield f'<path d="M{self.left} {self.top}V{bottom}H{right}" fill="none" stroke="{_INK}"/>'
        for number, line in enumerate(chart.lines):
            yield from self._line(line)
            yield _text(self.left + 8 + 150 * number, self.top - 5, line.label, colour=line.colour)
        yield _text(self.left + _WIDTH / 2, bottom + 34, x_label, anchor="middle")
        middle = self.top + _HEIGHT / 2
        yield (
            f'<text x="{self.left - 56}" y="{middle}" text-anchor="middle" '
            f'transform="rotate(-90 {self.left - 56} {middle})">{escape(chart.y_label)}</text>'
        )

    def _line(self, line: Line) -> Iterator[str]:
        if not line.points:
            return
        places = [(self.x(x), self.y(y)) for x, y in line.points]
        path = " ".join(f"{x},{y}" for x, y in places)
        yield f'<polyline points="{path}" fill="none" stroke="{line.colour}" stroke-width="1.6"/>'
        if line.dots:
            yield from (f'<circle cx="{x}" cy="{y}" r="2.2" fill="{line.colour}"/>' for x, y in places)


def _short(value: float) -> str:
    return f"{value / 1000:g}k" if value >= 10_000 else f"{value:g}"


def _rule(x1: float, y1: float, x2: float, y2: float, colour: str, *, dashed: bool = False) -> str:
    dash = ' stroke-dasharray="4 3"' if dashed else ""
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{colour}"{dash}/>'


def _text(
    x: float, y: float, words: str, *, size: int = 12, anchor: str = "start", colour: str = _INK
) -> str:
    return (
        f'<text x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}" fill="{colour}">'
        f"{escape(words)}</text>"
    )
