"""What others wrote does nothing to the terminal that shows it."""

import io
import json

import pytest
import typer
import yaml
from rich.console import Console

from egpu.api.text import check_plain, escaped
from egpu.cli import output
from egpu.cli.output import Format, Table
from egpu.errors import Refused

EVIL = "ann\x1b[2J\x1b]0;owned\x07\r\n\x9b1m\u202etxt.exe\u2028[red]x[/]\\"
"""Clears the screen, names the window, begins lines anew, turns letters round, and ends with rich's own markup."""


def table() -> Table:
    made = Table(("holder", "state"))
    made.add((EVIL, "Ready"), {"holder": EVIL})
    return made


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    stream = io.StringIO()
    for name in ("console", "errors"):
        monkeypatch.setattr(output, name, Console(file=stream, force_terminal=True, color_system=None, width=400))
    return stream


def shows(text: str) -> None:
    assert text.replace("\n", "").isprintable()
    assert "[red]x[/]\\" in text, "it is shown as it was written"
    assert r"\x1b[2J" in text


def test_a_table_on_a_terminal(terminal: io.StringIO) -> None:
    output.show(table())
    shows(terminal.getvalue())
    assert len(terminal.getvalue().splitlines()) == 2


def test_a_table_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    text = output.plain(table())
    shows(text)
    assert len(text.splitlines()) == 2, "a row is one line"


def test_lines_for_people(terminal: io.StringIO) -> None:
    output.note(EVIL)
    output.note(EVIL, label="problem:")
    output.say(EVIL)
    with pytest.raises(typer.Exit):
        output.fail(EVIL)
    shows(terminal.getvalue())
    assert "error: ann" in terminal.getvalue()


@pytest.mark.parametrize("form", [Format.JSON, Format.YAML])
def test_values_for_scripts_are_the_same_and_cannot_be_seen_to_be_more(
    form: Format, capsys: pytest.CaptureFixture[str]
) -> None:
    for value in ({"holder": EVIL}, {"holder": "\x7f"}, {"holder": "Käthe × 2"}):
        output.show_value(value, form)
        text = capsys.readouterr().out
        assert text.replace("\n", "").isprintable()
        assert (json.loads if form is Format.JSON else yaml.safe_load)(text) == value
    assert "Käthe × 2" in text, "letters stay letters"


def test_text_of_others_is_taken_or_refused() -> None:
    check_plain("holder", "Käthe × 2", at_most=9)
    check_plain("host", "", at_most=9, empty=True)
    for wrong in ("", "1234567890", "a\nb", "\x7f", "\u202e", "\u00ad"):
        with pytest.raises(Refused):
            check_plain("holder", wrong, at_most=9)
    assert escaped("a\tb\x00\n", keep="\n") == "a\\tb\\x00\n"
