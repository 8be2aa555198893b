"""Draws charts as SVG text, without a library, a script or anything that is fetched.

Rule: only numbers, and texts that went through `show_text` and `escape`, get into a chart. Looks come from
classes of the page's one style sheet, because the page's policy allows no inline style. A chart is drawn for
a given width; the page holds one for a desktop and one for a phone, so that letters keep their size on both.
A title says what a mark stands for; browsers show it when the pointer is on the mark.

>>> show_text("a\\x1b[31m<b>")
'a\\\\x1b[31m<b>'
>>> pick_ticks(230)
[0.0, 100.0, 200.0]
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape

#: A longer text from a log is cut.
_TEXT_LENGTH = 160
_TIME_STEPS_S = (1, 5, 15, 30, 60, 300, 900, 1800, 3600, 10800, 21600, 43200, 86400, 172800, 604800, 2592000)
#: On a logarithmic scale, values below this share of the top are drawn at the floor.
_WIDEST_SCALE = 1e-6
_MOST_STEPS = 4
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 10, 10, 22


def show_text(text: str, length: int = _TEXT_LENGTH) -> str:
    """Return an untrusted text made safe to show: cut, with control, format and bidi characters escaped."""
    shown = []
    for character in text[:length]:
        if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"):
            code = ord(character)
            shown.append(f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")
        else:
            shown.append(character)
    return "".join(shown) + ("…" if len(text) > length else "")


def show_count(number: float) -> str:
    """Return a number in a short, readable form: 950, 12.3 k, 4.0 M."""
    for limit, unit in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e4, " k")):
        if abs(number) >= limit:
            scaled = number / (limit if limit > 1e4 else 1e3)
            return f"{scaled:.0f}{unit}" if scaled >= 100 else f"{scaled:.1f}{unit}"
    if number == round(number) or abs(number) >= 100:
        return f"{number:,.0f}"
    return f"{number:.1f}" if abs(number) >= 1 else f"{number:.2f}"


def show_bytes(number: float) -> str:
    for limit, unit in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if abs(number) >= limit:
            return f"{number / limit:.1f} {unit}".replace(".0 ", " ")
    return f"{number:.0f} B" if number else "0"


def show_micros(number: float) -> str:
    if number == 0:
        return "0"
    if number >= 10e6 or number == 1e6:
        return f"{number / 1e6:.0f} s"
    if number < 1e3:
        return f"{number:.0f} µs" if number >= 1 else f"{number:g} µs"
    if number >= 1e6:
        return f"{number / 1e6:.1f} s"
    return f"{number / 1e3:.0f} ms" if number >= 10e3 else f"{number / 1e3:.1f} ms"


def show_time(seconds: float, step_s: float = 1) -> str:
    """Return a time in UTC, as precise as the step needs."""
    moment = datetime.fromtimestamp(seconds, UTC)
    if step_s >= 86_400:
        return moment.strftime("%d %b")
    return moment.strftime("%H:%M" if step_s >= 60 else "%H:%M:%S")


def pick_ticks(top: float) -> list[float]:
    """Return round numbers from 0 up to `top`."""
    if top < 1e-9 or not math.isfinite(top):
        return [0]
    raw = top / _MOST_STEPS
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next((unit * factor for factor in (1, 2, 2.5, 5) if unit * factor >= raw), 10 * unit)
    count = int(top / step + 1e-9)
    return [round(step * at, 12) if step < 1 else round(step * at, 6) for at in range(count + 1)]


@dataclass(frozen=True, slots=True)
class Layer:
    """One series of a chart: its name, its class in the style sheet, and a value for each point."""

    name: str
    look: str
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Band:
    """A marked stretch of time."""

    begin_s: float
    end_s: float
    look: str
    title: str


@dataclass(frozen=True, slots=True)
class Frame:
    """The drawing area of a chart: its size, its time from `begin_s` to `end_s`, its values from 0 to `top`.

    With `least` the scale is logarithmic and begins there, so that one slow minute does not flatten all
    others.
    """

    width: int
    height: int
    begin_s: float
    end_s: float
    top: float
    least: float = 0.0

    def x(self, seconds: float) -> float:
        span = max(self.end_s - self.begin_s, 1e-9)
        share = min(max((seconds - self.begin_s) / span, 0.0), 1.0)
        return _LEFT + share * (self.width - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        if self.least:
            share = math.log(max(value, self.least) / self.least) / math.log(self.top / self.least)
        else:
            share = value / self.top if self.top > 0 else 0.0
        share = min(max(share, 0.0), 1.0)
        return self.height - _BOTTOM - share * (self.height - _TOP - _BOTTOM)

    def middle(self, second: float, step_s: float) -> float:
        """Return the middle of a step, or of that part of it that the chart shows."""
        return self.x((max(second, self.begin_s) + min(second + step_s, self.end_s)) / 2)

    @property
    def floor(self) -> float:
        return self.height - _BOTTOM


def draw_stack(
    times: Sequence[float],
    layers: Sequence[Layer],
    *,
    width: int,
    height: int,
    step_s: float,
    bands: Sequence[Band] = (),
    peaks: Sequence[float] | None = None,
    show: Callable[[float], str] = show_count,
    unit: str = "",
    span: tuple[float, float] | None = None,
) -> str:
    """Draw layers on top of each other, each point as wide as its step; peaks as a thin line above.

    `span` is the time that is shown; what is beyond it is cut off.
    """
    sums = [sum(layer.values[at] or 0 for layer in layers) for at in range(len(times))]
    top = max([*sums, *(peaks or ()), 0.0]) * 1.08 or 1.0
    frame = Frame(width, height, *(span or (times[0], times[-1] + step_s)), top)
    parts = [_draw_grid(frame, show), _draw_bands(frame, bands)]
    below = [0.0] * len(times)
    for layer in layers:
        above = [base + (value or 0) for base, value in zip(below, layer.values, strict=True)]
        if above != below:
            parts.append(_draw_area(frame, times, step_s, below, above, layer.look))
        below = above
    if peaks is not None:
        parts.append(_draw_steps(frame, times, step_s, peaks))
    for at, second in enumerate(times):
        told = [f"{layer.name} {show(layer.values[at] or 0)}" for layer in layers if layer.values[at]]
        title = f"{show_time(second, min(step_s, 59))} UTC: {show(sums[at])}{unit}"
        parts.append(_draw_target(frame, second, step_s, "\n".join([title, *told])))
    return _wrap(frame, parts)


def draw_lines(
    times: Sequence[float],
    layers: Sequence[Layer],
    *,
    width: int,
    height: int,
    step_s: float,
    bands: Sequence[Band] = (),
    show: Callable[[float], str] = show_count,
    span: tuple[float, float] | None = None,
) -> str:
    """Draw one line for each layer on a logarithmic scale, broken where there is no value."""
    known = [value for layer in layers for value in layer.values if value]
    top = 10.0 ** math.ceil(math.log10(max(known, default=1.0)))
    lowest = math.floor(math.log10(max(min(known, default=1.0), top * _WIDEST_SCALE)))
    least = min(10.0**lowest, top / 10)
    frame = Frame(width, height, *(span or (times[0], times[-1] + step_s)), top, least)
    parts = [_draw_grid(frame, show), _draw_bands(frame, bands)]
    for layer in layers:
        runs: list[list[str]] = [[]]
        for second, value in zip(times, layer.values, strict=True):
            if value is None:
                runs.append([])
            else:
                runs[-1].append(f"{frame.middle(second, step_s):.1f},{frame.y(value):.1f}")
        for run in filter(None, runs):
            if len(run) == 1:
                across, down = run[0].split(",")
                parts.append(f'<circle class="dot {layer.look}" cx="{across}" cy="{down}" r="2"/>')
            else:
                parts.append(f'<polyline class="line {layer.look}" points="{" ".join(run)}"/>')
    for at, second in enumerate(times):
        told = [f"{layer.name} {show(value)}" for layer in layers if (value := layer.values[at]) is not None]
        title = "\n".join([f"{show_time(second, min(step_s, 59))} UTC", *told])
        parts.append(_draw_target(frame, second, step_s, title))
    return _wrap(frame, parts)


def draw_bar(share: float, look: str) -> str:
    """Draw a bar that fills a share of its table cell."""
    size = min(max(share, 0.0), 1.0) * 100
    filled = f'<rect class="{look}" width="{size:.1f}" height="6"/>'
    return (
        '<svg class="bar" viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="rail" width="100" height="6"/>{filled}</svg>'
    )


def _wrap(frame: Frame, parts: Sequence[str]) -> str:
    size = f'viewBox="0 0 {frame.width} {frame.height}"'
    return f'<svg class="chart" {size} role="img">{"".join(parts)}</svg>'


def _draw_grid(frame: Frame, show: Callable[[float], str]) -> str:
    parts = []
    # Bytes are shown in powers of 1,024, so their round numbers are different ones.
    unit = 1024.0 ** int(math.log(frame.top, 1024)) if show is show_bytes and frame.top >= 1024 else 1.0
    ticks = [unit * each for each in pick_ticks(frame.top / unit)]
    if frame.least:
        count = round(math.log10(frame.top / frame.least))
        ticks = [frame.least * 10.0**each for each in range(0, count + 1, 1 + count // 6)]
    for tick in ticks:
        y = frame.y(tick)
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{frame.width - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        parts.append(f'<text class="tick end" x="{_LEFT - 6}" y="{y + 4:.1f}">{escape(show(tick))}</text>')
    span = frame.end_s - frame.begin_s
    most = max(2, (frame.width - _LEFT) // 90)
    step = next((each for each in _TIME_STEPS_S if span / each <= most), _TIME_STEPS_S[-1])
    tick = math.ceil(frame.begin_s / step) * step
    while tick <= frame.end_s:
        x = frame.x(tick)
        if _LEFT + 14 <= x <= frame.width - 20:
            label = show_time(tick, step)
            parts.append(
                f'<line class="notch" x1="{x:.1f}" x2="{x:.1f}" y1="{frame.floor}" y2="{frame.floor + 4}"/>'
            )
            parts.append(f'<text class="tick middle" x="{x:.1f}" y="{frame.height - 6}">{label}</text>')
        tick += step
    return "".join(parts)


def _draw_bands(frame: Frame, bands: Sequence[Band]) -> str:
    parts = []
    for band in bands:
        if band.end_s < frame.begin_s or band.begin_s > frame.end_s:
            continue
        left, right = frame.x(band.begin_s), frame.x(band.end_s)
        title = f"<title>{escape(band.title)}</title>"
        size = f'width="{max(right - left, 2):.1f}" height="{frame.floor - _TOP}"'
        parts.append(f'<rect class="band {band.look}" x="{left:.1f}" y="{_TOP}" {size}>{title}</rect>')
        parts.append(
            f'<path class="flag {band.look}" d="M{left:.1f} {_TOP}v{frame.floor - _TOP}"/>'
            f'<path class="pin {band.look}" d="M{left - 4:.1f} {_TOP - 6}h8l-4 7z">{title}</path>'
        )
    return "".join(parts)


def _draw_area(
    frame: Frame,
    times: Sequence[float],
    step_s: float,
    below: Sequence[float],
    above: Sequence[float],
    look: str,
) -> str:
    points = [f"M{frame.x(times[0]):.1f} {frame.y(below[0]):.1f}"]
    for second, value in zip(times, above, strict=True):
        y = frame.y(value)
        points.append(f"L{frame.x(second):.1f} {y:.1f}H{frame.x(second + step_s):.1f}")
    for second, value in zip(reversed(times), reversed(below), strict=True):
        y = frame.y(value)
        points.append(f"L{frame.x(second + step_s):.1f} {y:.1f}H{frame.x(second):.1f}")
    return f'<path class="area {look}" d="{"".join(points)}z"/>'


def _draw_steps(frame: Frame, times: Sequence[float], step_s: float, values: Sequence[float]) -> str:
    points = "".join(
        f"{'L' if at else 'M'}{frame.x(second):.1f} {frame.y(value):.1f}H{frame.x(second + step_s):.1f}"
        for at, (second, value) in enumerate(zip(times, values, strict=True))
    )
    return f'<path class="line peak" d="{points}"/>'


def _draw_target(frame: Frame, second: float, step_s: float, title: str) -> str:
    left, right = frame.x(second), frame.x(second + step_s)
    size = f'width="{max(right - left, 0.5):.1f}" height="{frame.floor - _TOP}"'
    return f'<rect class="target" x="{left:.1f}" y="{_TOP}" {size}><title>{escape(title)}</title></rect>'
