"""Columns of text for a terminal: their selection, their widths and the lines.

The result looks like rich's tables and takes a hundredth of their time, for clusters with thousands of cards.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, repeat, zip_longest
from textwrap import wrap
from typing import Final

from rich.cells import cell_len

GAP: Final = 2
"""Terminal cells between two columns."""

Style = Callable[[str, str], str]
"""Maps a text and its padded form to the output for the terminal."""


@dataclass(frozen=True)
class Grid:
    """Columns of texts with their names. `most` and `least`: the longest text and the longest word of each column, in
    terminal cells."""

    names: Sequence[str]
    columns: Sequence[Sequence[str]]
    most: Sequence[int]
    least: Sequence[int]

    @classmethod
    def of(cls, names: Sequence[str], rows: Sequence[Sequence[str]]) -> "Grid":
        columns = list(zip(*rows, strict=True)) if rows else [() for _ in names]
        headed = [(name.upper(), *texts) for name, texts in zip(names, columns, strict=True)]
        most = [max(map(_length, texts)) for texts in headed]
        least = [max(_length(word) for text in set(texts) for word in text.split() or [""]) for texts in headed]
        return cls(names, columns, most, least)

    def without(self, name: str) -> "Grid":
        kept = [at for at, each in enumerate(self.names) if each != name]
        return Grid(
            names=[self.names[at] for at in kept],
            columns=[self.columns[at] for at in kept],
            most=[self.most[at] for at in kept],
            least=[self.least[at] for at in kept],
        )

    def fits(self, width: int) -> bool:
        """Return whether every row fits on one line."""
        return _total(self.most) <= width

    def too_wide(self, width: int) -> bool:
        """Return whether the longest words need more than the width."""
        return _total(self.least) > width

    def fitted(self, spare: Sequence[str], width: int) -> "Grid":
        """Return the grid without the first spare columns, until its longest words fit."""
        grid = self
        for name in spare:
            if not grid.too_wide(width):
                break
            grid = grid.without(name)
        return grid

    def below(self, above: "Grid") -> "Grid":
        """Return the grid with the columns of the rows above, at least as wide."""
        grid = self
        for name in self.names:
            if name not in above.names:
                grid = grid.without(name)
        most, least = (
            [max(pair) for pair in zip(*pairs, strict=True)]
            for pairs in ((grid.most, above.most), (grid.least, above.least))
        )
        return replace(grid, most=most, least=least)

    def lines(self, width: int, *, right: Collection[str], style: Style, heading: Style | None) -> Iterator[str]:
        """Yield the column names (only with `heading`) and all rows. Texts wrap only between words. If the longest
        words do not fit, no text wraps, and lines exceed the width as kubectl's do."""
        widths = list(self.most)
        if not self.too_wide(width):
            while _total(widths) > width:
                slack = [each - least for each, least in zip(widths, self.least, strict=True)]
                widths[slack.index(max(slack))] -= 1
        pads = [_pad_left if name in right else _pad_right for name in self.names]
        broken = any(each < most for each, most in zip(widths, self.most, strict=True))

        def line(texts: Sequence[str], style: Style) -> str:
            padded = (style(text, pad(text, each)) for text, each, pad in zip(texts, widths, pads, strict=True))
            return (" " * GAP).join(padded).rstrip()

        rows = zip(zip(*self.columns, strict=True), repeat(style))
        head = [] if heading is None else [(tuple(name.upper() for name in self.names), heading)]
        for row, look in chain(head, rows):
            if not broken or all(_length(text) <= each for text, each in zip(row, widths, strict=True)):
                yield line(row, look)
            else:
                parts = [_broken(text, each) for text, each in zip(row, widths, strict=True)]
                yield from (line(texts, look) for texts in zip_longest(*parts, fillvalue=""))

    def stacked(self, width: int, *, style: Style, heading: Style) -> Iterator[str]:
        """Yield each row as a block with one or more lines for each text, for terminals without room for the columns. A
        text with a long word goes below the column's name."""
        names = [name.upper() for name in self.names]
        margin = max(map(_length, names)) + GAP
        for number, row in enumerate(zip(*self.columns, strict=True)):
            if number:
                yield ""
            for name, text in zip(names, row, strict=True):
                parts = _broken(text, width - margin)
                if width - margin < max(map(_length, parts)) <= width - GAP:
                    yield heading(name, name)
                    yield from (" " * GAP + part for part in _broken(text, width - GAP))
                else:
                    first, *more = parts
                    yield heading(name, _pad_right(name, margin)) + style(first, first)
                    yield from (" " * margin + part for part in more)


def wrapped(text: Iterable[str], width: int) -> Iterator[str]:
    """Yield the lines of a text, wrapped between words, with extra indentation for the rest of a line."""
    for line in text:
        indent = " " * (len(line) - len(line.lstrip()) + 2 * GAP)
        yield from wrap(line, width, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False) or [""]


def _total(widths: Sequence[int]) -> int:
    """Return the width of a table with these columns."""
    return sum(widths) + GAP * (len(widths) - 1)


def _length(text: str) -> int:
    return len(text) if text.isascii() else cell_len(text)


def _pad_left(text: str, width: int) -> str:
    return " " * (width - _length(text)) + text


def _pad_right(text: str, width: int) -> str:
    return text + " " * (width - _length(text))


def _broken(text: str, width: int) -> list[str]:
    """Wrap a text to lines of at most `width`; longer words stay whole."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if not lines[-1] or _length(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines
