"""Line charts for reports: SVG by our own code, which gives small diffs, and PNG by matplotlib."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Final

from egpu_base.errors import InvalidInput, MissingExtra

COLOURS: Final = ("#0b6bcb", "#c4320a", "#1a7f37", "#8250df", "#9a6700", "#57606a", "#bf3989", "#1b7c83")
_PANEL_WIDTH, _HEIGHT = 520, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 36, 48
_TICKS = 6


@dataclass(frozen=True)
class Line:
    """A named curve. Values that are not finite numbers are left out."""

    name: str
    x: Sequence[float]
    y: Sequence[float]

    def points(self) -> list[tuple[float, float]]:
        """Return the points with two finite numbers."""
        return [(x, y) for x, y in zip(self.x, self.y, strict=True) if math.isfinite(x) and math.isfinite(y)]


Panels = Sequence[tuple[str, Sequence[Line]]]


def write_plot(path: Path, panels: Panels, *, x_title: str) -> None:
    """Draw panels side by side, each with a title and lines. The suffix selects the format: .svg or .png.

    Raises InvalidInput for another suffix, MissingExtra for .png without matplotlib.
    """
    match path.suffix.lower():
        case ".svg":
            path.write_text(svg(panels, x_title=x_title), encoding="utf-8")
        case ".png":
            _write_png(path, panels, x_title)
        case other:
            raise InvalidInput("plot", f"{path}: {other or 'no suffix'} is not supported. Use .svg or .png")


def _write_png(path: Path, panels: Panels, x_title: str) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra("drawing .png", package="matplotlib", extra="plots") from error

    figure: Any = Figure(figsize=(_PANEL_WIDTH * len(panels) / 80, _HEIGHT / 80), dpi=160)
    for place, (title, lines) in enumerate(panels, start=1):
        axes = figure.add_subplot(1, len(panels), place)
        for line, colour in zip(lines, COLOURS * len(lines), strict=False):
            axes.plot([x for x, _ in line.points()], [y for _, y in line.points()], label=line.name, color=colour)
        axes.set_title(title)
        axes.set_xlabel(x_title)
        axes.grid(visible=True, alpha=0.3)
        axes.legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(path)


def svg(panels: Panels, *, x_title: str) -> str:
    """Return the chart as one SVG document without scripts or external references."""
    width = _PANEL_WIDTH * len(panels)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{_HEIGHT}" viewBox="0 0 {width} {_HEIGHT}" '
        'font-family="system-ui, sans-serif" font-size="12">',
        f'<rect width="{width}" height="{_HEIGHT}" fill="white"/>',
    ]
    for place, (title, lines) in enumerate(panels):
        parts += _panel(place * _PANEL_WIDTH, title, lines, x_title)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(offset: int, title: str, lines: Sequence[Line], x_title: str) -> list[str]:
    points = [point for line in lines for point in line.points()]
    left, right = offset + _LEFT, offset + _PANEL_WIDTH - _RIGHT
    middle = (left + right) // 2
    parts = [
        f'<text x="{middle}" y="22" text-anchor="middle" font-size="14">{escape(title)}</text>',
        f'<text x="{middle}" y="{_HEIGHT - 10}" text-anchor="middle">{escape(x_title)}</text>',
    ]
    if not points:
        return [*parts, f'<text x="{middle}" y="{_HEIGHT // 2}" text-anchor="middle">not measured</text>']
    xs, ys = _ticks([x for x, _ in points]), _ticks([y for _, y in points])

    def at(x: float, y: float) -> tuple[float, float]:
        across = (x - xs[0]) / (xs[-1] - xs[0])
        up = (y - ys[0]) / (ys[-1] - ys[0])
        return left + across * (right - left), _HEIGHT - _BOTTOM - up * (_HEIGHT - _TOP - _BOTTOM)

    for x in xs:
        across, _ = at(x, ys[0])
        parts.append(
            f'<line x1="{across:.1f}" y1="{_TOP}" x2="{across:.1f}" y2="{_HEIGHT - _BOTTOM}" stroke="#e5e7eb"/>'
        )
        parts.append(f'<text x="{across:.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">{x:g}</text>')
    for y in ys:
        _, height = at(xs[0], y)
        parts.append(f'<line x1="{left}" y1="{height:.1f}" x2="{right}" y2="{height:.1f}" stroke="#e5e7eb"/>')
        parts.append(f'<text x="{left - 6}" y="{height + 4:.1f}" text-anchor="end">{y:g}</text>')
    for place, line in enumerate(lines):
        colour = COLOURS[place % len(COLOURS)]
        path = " ".join(f"{across:.1f},{height:.1f}" for across, height in (at(x, y) for x, y in line.points()))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        height = _HEIGHT - _BOTTOM - 14 - 16 * (len(lines) - 1 - place)
        start, end = right - 130, right - 106
        parts.append(f'<line x1="{start}" y1="{height}" x2="{end}" y2="{height}" stroke="{colour}" stroke-width="3"/>')
        parts.append(f'<text x="{right - 100}" y="{height + 4}">{escape(line.name)}</text>')
    return parts


def _ticks(values: Sequence[float]) -> list[float]:
    """Return two or more round numbers that enclose the values."""
    low, high = min(values), max(values)
    rough = (high - low) / _TICKS or 1.0
    power = 10 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough - 1e-12)
    first = math.floor(low / step + 1e-9)
    last = max(math.ceil(high / step - 1e-9), first + 1)
    return [round(place * step, 10) for place in range(first, last + 1)]
