"""The screen of `egpu top`: from what there is and which keys were pressed to lines of text. No terminal is needed."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from rich.text import Text

from egpu.api.text import escaped
from egpu.cli.top_rows import ORDERS, Gauge, Row
from egpu.core.view.records import Totals

_HELP: Final = """\
Up Down k j        the line before, the next       PgUp PgDn   a screen
Home End g G       the first, the last             t           slices and processes shown or not
, .                sort by something else          / Esc       filter, and no filter
e Enter            explain this line's pod         h ?         this
q Ctrl-C           leave

A bar is █ what is used, ▓ what was given and is not used, ░ what is free."""

HELP: Final = tuple(_HELP.split("\n"))
HEAD_LINES: Final = 3
FOOT_LINES: Final = 1
LEAST_NAME: Final = 24


@dataclass(frozen=True)
class State:
    """What the keys have chosen. `top` is the first line that is seen: of the list, or of `text`, which is shown in its
    place where it is not None."""

    cursor: int = 0
    top: int = 0
    order: str = "name"
    search: str = ""
    typing: bool = False
    tree: bool = True
    text: tuple[str, ...] | None = None
    done: bool = False
    explain: tuple[str, str] | None = None
    """The pod that is to be explained now."""


def pressed(state: State, key: str, listed: Sequence[Row], lines: int) -> State:
    """What a key does. `lines` is the height of the terminal."""
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
    """In a text; the list is found as it was left."""
    if state.text is None or key in ("q", "escape", "h", "?", "e", "enter"):
        return replace(state, text=None, top=state.cursor)
    return replace(state, top=max(0, min(state.top + _step(key, len(state.text), page), len(state.text) - page)))


def _step(key: str, count: int, page: int) -> int:
    """How many lines a key goes on."""
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
    """With the cursor on a line that there is, and that line on the screen."""
    cursor = max(0, min(state.cursor, count - 1))
    top = max(0, min(state.top, cursor, max(0, count - page)))
    return replace(state, cursor=cursor, top=max(top, cursor - page + 1))


def frame(listed: Sequence[Row], state: State, *, summary: str, columns: int, lines: int) -> list[Text]:
    """Exactly `lines` lines of at most `columns` columns. Only what is seen is made."""
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
    """For a pipe: more than `columns` where names need them, which are what others look for in it."""
    name, bar = _widths(columns)
    widths = max(name, *(_name(row).cell_len for row in listed)) if listed else name, bar
    return (_line(row, widths, chosen=False).plain.rstrip() for row in listed)


def _widths(columns: int) -> tuple[int, int]:
    """Of the name, and of a bar; the two gauges have 8 columns of figures each."""
    rest = max(0, columns - LEAST_NAME - 2 * 11)
    bar = min(40, rest // 3)
    return columns - 2 * (bar + 11), bar


def in_short(totals: Totals) -> str:
    """The first line's words for a whole cluster."""
    given = f"compute {_percent(totals.core_given, totals.core_percent)} %"
    memory = f"memory {_percent(totals.memory_given_mib, totals.memory_mib)} % given"
    return f"{totals.cards} cards, {totals.free_cards} free; {given}, {memory}"


def _head(summary: str, state: State, columns: int) -> list[Text]:
    name, bar = _widths(columns)
    chosen = f"by {state.order}" + (f", filter: {state.search}" if state.search or state.typing else "")
    columns_line = f"{'NODE, CARD, SLICE':<{name}} {'COMPUTE used/given %':<{bar + 11}}MEMORY used/given %"
    return [
        Text(f"egpu top  {escaped(summary)}", style="bold"),
        Text(chosen + ("▏" if state.typing else ""), style="dim"),
        Text(columns_line, style="reverse"),
    ]


def _foot(state: State, count: int) -> Text:
    if state.text is not None:
        return Text("q Esc back  Up Down read on", style="dim")
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
    """Whose line it is, and the note."""
    line = Text("  " * row.depth).append(escaped(row.name), style="bold" if row.depth == 0 else "")
    return line.append(f"  {escaped(row.note)}", style="yellow") if row.note else line


def _gauge(gauge: Gauge, width: int) -> Text:
    """`███▓▓░░░░░  12/ 55 `: a bar and the figures."""
    used = 0 if gauge.used is None else _cells(gauge.used, width)
    given = max(used, _cells(gauge.given, width))
    figures = f"{'  -' if gauge.used is None else f'{gauge.used:3.0f}'}/{gauge.given:3.0f}"
    return Text.assemble(
        ("█" * used, "green"), ("▓" * (given - used), "cyan"), ("░" * (width - given), "dim"), f" {figures:<9}"
    )


def _cells(percent: float, width: int) -> int:
    """Something must not look like nothing."""
    return min(width, max(1 if percent > 0 else 0, round(percent * width / 100)))


def _percent(part: float, total: float) -> int:
    return round(100 * part / total) if total else 0


KEYS: Final[Mapping[bytes, str]] = {
    b"\x1b[A": "up", b"\x1b[B": "down", b"\x1bOA": "up", b"\x1bOB": "down",
    b"\x1b[5~": "pageup", b"\x1b[6~": "pagedown",
    b"\x1b[H": "home", b"\x1b[F": "end", b"\x1b[1~": "home", b"\x1b[4~": "end", b"\x1bOH": "home", b"\x1bOF": "end",
    b"\r": "enter", b"\n": "enter", b"\x7f": "backspace", b"\x08": "backspace", b"\x1b": "escape",
}  # fmt: skip
"""What terminals send, and what that is called here; the longest that matches counts."""


def keys(data: bytes) -> list[str]:
    """The keys in what was read at once."""
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
