"""The screen of `egpu top`: from rows and pressed keys to lines of text, without a terminal."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from rich.text import Text

from egpu.api.text import escaped
from egpu.cli.top_rows import ORDERS, Gauge, Row
from egpu.core.view.records import Totals

_HELP: Final = """\
Up Down k j        previous or next line           PgUp PgDn   previous or next page
Home End g G       first or last line              t           show or hide slices and processes
, .                previous or next sort order     / Esc       set or clear the filter
e Enter            explain this line's pod         h ?         this help
q Ctrl-C           quit

In a bar, █ is used, ▓ is allocated but not used, ░ is free."""

HELP: Final = tuple(_HELP.split("\n"))
HEAD_LINES: Final = 3
FOOT_LINES: Final = 1
LEAST_NAME: Final = 24


@dataclass(frozen=True)
class State:
    """The choices made with keys. `top` is the first visible line of the list, or of `text`, which replaces the list if
    it is not None."""

    cursor: int = 0
    top: int = 0
    order: str = "name"
    search: str = ""
    typing: bool = False
    tree: bool = True
    text: tuple[str, ...] | None = None
    done: bool = False
    explain: tuple[str, str] | None = None
    """The pod to explain now."""


def pressed(state: State, key: str, listed: Sequence[Row], lines: int) -> State:
    """Return the state after a key. `lines` is the height of the terminal."""
    if state.typing:
        return _typed(state, key)
    if state.text is not None:
        return _read_on(state, key, lines - HEAD_LINES - FOOT_LINES)
    page = max(1, lines - HEAD_LINES - FOOT_LINES)
    match key:
        case "q":
            return replace(state, done=True)
        case "h" | "?":
            return replace(state, text=HELP, top=0)
        case "t":
            return replace(state, tree=not state.tree, cursor=0, top=0)
        case "/":
            return replace(state, typing=True, search="", cursor=0, top=0)
        case "escape":
            return replace(state, search="", cursor=0, top=0)
        case "," | ".":
            known = list(ORDERS)
            return replace(state, order=known[(known.index(state.order) + (1 if key == "." else -1)) % len(known)])
        case "e" | "enter":
            pod = listed[state.cursor].pod if state.cursor < len(listed) else None
            return replace(state, explain=pod)
        case _:
            moved = replace(state, cursor=state.cursor + _step(key, len(listed), page))
            return scrolled(moved, len(listed), page)


def _read_on(state: State, key: str, page: int) -> State:
    """Scroll or leave a text. Leaving returns to the same place of the list."""
    if state.text is None or key in ("q", "escape", "h", "?", "e", "enter"):
        return replace(state, text=None, top=state.cursor)
    return replace(state, top=max(0, min(state.top + _step(key, len(state.text), page), len(state.text) - page)))


def _step(key: str, count: int, page: int) -> int:
    """Return the number of lines by which a key moves."""
    steps = {"up": -1, "k": -1, "down": 1, "j": 1, "pageup": -page, "pagedown": page, "home": -count, "g": -count,
             "end": count, "G": count}  # fmt: skip
    return steps.get(key, 0)


def _typed(state: State, key: str) -> State:
    match key:
        case "enter":
            return replace(state, typing=False)
        case "escape":
            return replace(state, typing=False, search="")
        case "backspace":
            return replace(state, search=state.search[:-1])
        case _ if len(key) == 1 and key.isprintable():
            return replace(state, search=state.search + key)
        case _:
            return state


def scrolled(state: State, count: int, page: int) -> State:
    """Move the cursor to an existing line, and scroll to it."""
    cursor = max(0, min(state.cursor, count - 1))
    top = max(0, min(state.top, cursor, max(0, count - page)))
    return replace(state, cursor=cursor, top=max(top, cursor - page + 1))


def frame(listed: Sequence[Row], state: State, *, summary: str, columns: int, lines: int) -> list[Text]:
    """Return exactly `lines` lines of at most `columns` columns. Builds only the visible ones."""
    room = max(0, lines - HEAD_LINES - FOOT_LINES)
    if state.text is not None:
        body = [Text(escaped(line)) for line in state.text[state.top : state.top + room]]
    else:
        widths = _widths(columns)
        seen = listed[state.top : state.top + room]
        body = [_line(row, widths, chosen=state.top + at == state.cursor) for at, row in enumerate(seen)]
    body += [Text("")] * (room - len(body))
    made = [*_head(summary, state, columns), *body, _foot(state, len(listed))]
    for line in made:
        line.truncate(columns, overflow="ellipsis")
    return made[:lines]


def plain_lines(listed: Sequence[Row], columns: int) -> Iterator[str]:
    """Yield lines for a pipe. They exceed `columns` to show whole names, for which programs search."""
    name, bar = _widths(columns)
    widths = max(name, *(_name(row).cell_len for row in listed)) if listed else name, bar
    return (_line(row, widths, chosen=False).plain.rstrip() for row in listed)


def _widths(columns: int) -> tuple[int, int]:
    """Return the widths of the name and of a bar. The figures of each gauge take 8 columns."""
    rest = max(0, columns - LEAST_NAME - 2 * 11)
    bar = min(40, rest // 3)
    return columns - 2 * (bar + 11), bar


def in_short(totals: Totals, *, waiting: int) -> str:
    """Return the summary of a whole cluster for the first line. `waiting`: pods, whose rows may be below the screen."""
    given = f"compute {_percent(totals.core_given, totals.core_percent)} %"
    memory = f"memory {_percent(totals.memory_given_mib, totals.memory_mib)} % allocated"
    wait = f"{waiting} waiting; " if waiting else ""
    return f"{totals.cards} cards, {totals.free_cards} free; {wait}{given}, {memory}"


def _head(summary: str, state: State, columns: int) -> list[Text]:
    name, bar = _widths(columns)
    chosen = f"by {state.order}" + (f", filter: {state.search}" if state.search or state.typing else "")
    columns_line = f"{'NODE, CARD, SLICE':<{name}} {'COMPUTE used/alloc %':<{bar + 11}}MEMORY used/alloc %"
    return [
        Text(f"egpu top  {escaped(summary)}", style="bold"),
        Text(chosen + ("▏" if state.typing else ""), style="dim"),
        Text(columns_line, style="reverse"),
    ]


def _foot(state: State, count: int) -> Text:
    if state.text is not None:
        return Text("q Esc back  Up Down scroll", style="dim")
    at = f"{min(state.cursor + 1, count)}/{count}"
    return Text(f"q quit  h help  / filter  ,. sort  t tree  e explain   {at}", style="dim")


def _line(row: Row, widths: tuple[int, int], *, chosen: bool) -> Text:
    name_width, bar = widths
    line = _name(row)
    if row.core is not None and row.memory is not None:
        line.truncate(name_width, overflow="ellipsis", pad=True)
        line.append(" ").append_text(_gauge(row.core, bar)).append(" ").append_text(_gauge(row.memory, bar))
    if chosen:
        line.stylize("reverse")
    return line


def _name(row: Row) -> Text:
    """Return the name of a row and its note."""
    line = Text("  " * row.depth).append(escaped(row.name), style="bold" if row.depth == 0 else "")
    return line.append(f"  {escaped(row.note)}", style="yellow") if row.note else line


def _gauge(gauge: Gauge, width: int) -> Text:
    """Return a bar and its figures: `███▓▓░░░░░  12/ 55 `."""
    used = 0 if gauge.used is None else _cells(gauge.used, width)
    given = max(used, _cells(gauge.given, width))
    figures = f"{'  -' if gauge.used is None else f'{gauge.used:3.0f}'}/{gauge.given:3.0f}"
    return Text.assemble(
        ("█" * used, "green"), ("▓" * (given - used), "cyan"), ("░" * (width - given), "dim"), f" {figures:<9}"
    )


def _cells(percent: float, width: int) -> int:
    """Return the width of a bar. A small share must not look empty."""
    return min(width, max(1 if percent > 0 else 0, round(percent * width / 100)))


def _percent(part: float, total: float) -> int:
    return round(100 * part / total) if total else 0


KEYS: Final[Mapping[bytes, str]] = {
    b"\x1b[A": "up", b"\x1b[B": "down", b"\x1bOA": "up", b"\x1bOB": "down",
    b"\x1b[5~": "pageup", b"\x1b[6~": "pagedown",
    b"\x1b[H": "home", b"\x1b[F": "end", b"\x1b[1~": "home", b"\x1b[4~": "end", b"\x1bOH": "home", b"\x1bOF": "end",
    b"\r": "enter", b"\n": "enter", b"\x7f": "backspace", b"\x08": "backspace", b"\x1b": "escape",
}  # fmt: skip
"""The bytes that terminals send for keys, and our names. The longest match counts."""


def keys(data: bytes) -> list[str]:
    """Return the keys in the bytes of one read."""
    found = list[str]()
    while data:
        code = next((data[:length] for length in range(4, 0, -1) if data[:length] in KEYS), None)
        if code is None:
            text = data.decode(errors="ignore")[:1]
            found += [text] if text else []
            data = data[max(1, len(text.encode())) :]
        else:
            found.append(KEYS[code])
            data = data[len(code) :]
    return found
