"""Charts as inline SVG: lines, dots and stacked areas, without scripts, fonts or external styles."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 760, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 16, 14, 40
_TICKS = 5
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Series:
    """One line or area: its name in the legend, its points by ascending x, its index in the palette."""

    name: str
    points: Points
    colour: int
    dots: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis: its label, and texts for chosen values if they are not plain numbers."""

    label: str
    ticks: Sequence[tuple[float, str]] = ()


def line_chart(series: Sequence[Series], x: Axis, y: Axis, *, shade: tuple[float, float] | None = None) -> str:
    """Lines (or dots) over a common x. `shade` marks a range of x, such as the steady window. Empty without points."""
    drawn = [one for one in series if one.points]
    if not drawn:
        return ""
    frame = _Frame.around([point for one in drawn for point in one.points], x)
    body = [frame.shade(*shade)] if shade else []
    for one in drawn:
        if one.dots:
            dots = "".join(f'<circle cx="{frame.x(a):.1f}" cy="{frame.y(b):.1f}" r="1.5"/>' for a, b in one.points)
            body.append(f'<g class="fill{one.colour}" opacity="0.55">{dots}</g>')
        else:
            body.append(f'<polyline class="line{one.colour}" points="{frame.path(one.points)}"/>')
    return _svg([*frame.grid(x, y), *body]) + _legend(drawn)


def stacked_chart(series: Sequence[Series], x: Axis, y: Axis, *, shade: tuple[float, float] | None = None) -> str:
    """Stacked areas; every series has the same x values. Empty without points."""
    drawn = [one for one in series if one.points]
    if not drawn:
        return ""
    xs = [a for a, _ in drawn[0].points]
    floor = [0.0] * len(xs)
    areas = []
    for one in drawn:
        top = [low + value for low, (_, value) in zip(floor, one.points, strict=True)]
        areas.append((one, list(zip(xs, floor, strict=True)), list(zip(xs, top, strict=True))))
        floor = top
    frame = _Frame.around([*zip(xs, floor, strict=True), (xs[0], 0.0)], x)
    body = [frame.shade(*shade)] if shade else []
    for one, low, high in areas:
        outline = f"{frame.path(high)} {frame.path(low[::-1])}"
        body.append(f'<polygon class="fill{one.colour}" opacity="0.85" points="{outline}"/>')
    return _svg([*frame.grid(x, y), *body]) + _legend(drawn)


@dataclass(frozen=True, slots=True)
class _Frame:
    """The scale of a chart: the values at its edges and the step between grid lines. y begins at 0."""

    x0: float
    x1: float
    y1: float
    step: float

    @classmethod
    def around(cls, points: Points, x: Axis) -> "_Frame":
        marks = [value for value, _ in x.ticks]
        xs = [a for a, _ in points] + marks
        top = max(b for _, b in points)
        x0, x1 = min(xs), max(xs)
        step = _rounded_up(top / _TICKS)
        return cls(x0, x1 if x1 > x0 else x0 + 1, max(math.ceil(top / step - 1e-9), 1) * step, step)

    def x(self, value: float) -> float:
        return _LEFT + (value - self.x0) / (self.x1 - self.x0) * (WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - _BOTTOM - value / self.y1 * (HEIGHT - _TOP - _BOTTOM)

    def path(self, points: Points) -> str:
        return " ".join(f"{self.x(a):.1f},{self.y(b):.1f}" for a, b in points)

    def shade(self, begin: float, end: float) -> str:
        left, right = self.x(max(begin, self.x0)), self.x(min(end, self.x1))
        height = HEIGHT - _TOP - _BOTTOM
        return f'<rect class="shade" x="{left:.1f}" y="{_TOP}" width="{max(right - left, 0):.1f}" height="{height}"/>'

    def grid(self, x: Axis, y: Axis) -> list[str]:
        parts = []
        for number in range(round(self.y1 / self.step) + 1):
            value = self.step * number
            at = self.y(value)
            parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
            parts.append(f'<text class="end" x="{_LEFT - 6}" y="{at + 4:.1f}">{_number(value)}</text>')
        ticks = x.ticks or [(value, _number(value)) for value in _steps(self.x0, self.x1)]
        for value, text in ticks:
            at = self.x(value)
            parts.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{HEIGHT - _BOTTOM}"/>')
            parts.append(f'<text class="mid" x="{at:.1f}" y="{HEIGHT - _BOTTOM + 16}">{escape(text)}</text>')
        middle = (_LEFT + WIDTH - _RIGHT) / 2
        parts.append(f'<text class="mid" x="{middle:.0f}" y="{HEIGHT - 6}">{escape(x.label)}</text>')
        centre = (_TOP + HEIGHT - _BOTTOM) / 2
        parts.append(f'<text class="mid" transform="translate(13 {centre:.0f}) rotate(-90)">{escape(y.label)}</text>')
        return parts


def _svg(parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{"".join(parts)}</svg>'


def _legend(series: Sequence[Series]) -> str:
    items = "".join(f'<span><i class="back{one.colour}"></i>{escape(one.name)}</span>' for one in series)
    return f'<div class="legend">{items}</div>'


def _rounded_up(value: float) -> float:
    """The next 1, 2, 2.5 or 5 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= value * 0.999999)


def _steps(low: float, high: float) -> list[float]:
    step = _rounded_up((high - low) / 6)
    first = math.ceil(low / step) * step
    return [first + step * n for n in range(math.floor((high - first) / step + 1e-9) + 1)]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == round(value) else f"{value:.3g}"
