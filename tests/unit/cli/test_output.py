"""Untrusted text has no effect on the terminal that shows it."""

import io
import json

import pytest
import typer
import yaml
from rich.console import Console

from egpu.api.text import check_plain, escaped
from egpu.cli import output
from egpu.cli.output import Cell, Format, Table
from egpu_base.errors import Refused

EVIL = "ann\x1b[2J\x1b]0;owned\x07\r\n\x9b1m\u202etxt.exe\u2028[red]x[/]\\"
"""Sequences that clear the screen, name the window, start lines again and reverse text; then rich's own markup."""


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
def test_values_for_scripts_are_unchanged_and_harmless_on_a_terminal(
    form: Format, capsys: pytest.CaptureFixture[str]
) -> None:
    for value in ({"holder": EVIL}, {"holder": "\x7f"}, {"holder": "Käthe × 2"}):
        output.show_value(value, form)
        text = capsys.readouterr().out
        assert text.replace("\n", "").isprintable()
        assert (json.loads if form is Format.JSON else yaml.safe_load)(text) == value
    assert "Käthe × 2" in text, "letters stay letters"


def test_untrusted_text_is_accepted_or_refused() -> None:
    check_plain("holder", "Käthe × 2", at_most=9)
    check_plain("host", "", at_most=9, empty=True)
    for wrong in ("", "1234567890", "a\nb", "\x7f", "\u202e", "\u00ad"):
        with pytest.raises(Refused):
            check_plain("holder", wrong, at_most=9)
    assert escaped("a\tb\x00\n", keep="\n") == "a\\tb\\x00\n"


def shown_at(width: int, made: Table, monkeypatch: pytest.MonkeyPatch) -> str:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, color_system=None, width=width)
    monkeypatch.setattr(output, "console", console)
    output.show(made)
    return stream.getvalue()


POD = "pod team-with-a-long-name/training-of-the-large-model-7f9c4d5b6-x2x4z"


def cards(holder: str = POD) -> Table:
    made = Table(("node", "model", "compute", "memory", "held by", "state"))
    model = Cell("NVIDIA A100-SXM4-80GB", "A100-80GB")
    row = ("node-1", model, output.gauge(55, 100, " 55 %"), output.gauge(1, 4, "16384 of 81920 MiB"))
    made.add((*row, f"pod a/b, {holder}", "healthy"), {})
    return made


@pytest.mark.parametrize("width", [20, 80, 100, 119, 120, 200])
def test_no_name_is_broken_at_any_width(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown_at(width, cards(), monkeypatch)
    for word in (*POD.split(), "node-1", "healthy", "81920", "COMPUTE"):
        assert word in text.replace(",", " ").split(), f"{word} is whole"


def test_a_narrow_terminal_has_no_bars_and_short_models(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow, roomy = (shown_at(width, cards("pod c/d"), monkeypatch) for width in (119, 120))
    assert "█" not in narrow
    assert "NVIDIA" not in narrow
    assert "A100-80GB" in narrow
    assert "█████" in roomy
    assert "NVIDIA A100-SXM4-80GB" in roomy


def test_bars_go_before_rows_become_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown_at(120, cards(), monkeypatch)
    assert text.startswith("NODE    MODEL")
    assert max(map(len, text.splitlines())) <= 120
    assert "█" not in text


def test_fitting_rows_stay_within_the_width(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Table(("node", "held by"))
    made.add(("node-1", ", ".join(f"pod default/tenant-{n}" for n in range(9))), {})
    lines = shown_at(80, made, monkeypatch).splitlines()
    assert len(lines) > 2
    assert max(map(len, lines)) <= 80


def test_a_pipe_gets_everything_on_one_line() -> None:
    heading, row = output.plain(cards()).splitlines()
    assert heading.split()[:2] == ["NODE", "MODEL"]
    assert "NVIDIA A100-SXM4-80GB" in row
    assert POD in row
