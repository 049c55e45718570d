"""`--help` of all commands on a small terminal: valid examples, and no word is cut."""

import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from egpu.cli.app import app
from egpu.cli.examples import EXAMPLES

ROOT: Any = typer.main.get_command(app)


def commands(group: Any = ROOT, *above: str) -> Iterator[str]:
    """Yield all commands, groups and their sub-commands, as users type them."""
    for name in group.commands:
        yield " ".join((*above, name))
        command = group.commands[name]
        if hasattr(command, "commands"):
            yield from commands(command, *above, name)


EVERY = tuple(commands())


def test_every_command_has_examples() -> None:
    assert set(EXAMPLES) == set(EVERY)


@pytest.mark.parametrize("command", EVERY)
def test_help_ends_with_examples_and_cuts_no_word(command: str) -> None:
    done = CliRunner().invoke(app, [*command.split(), "--help"], terminal_width=80, env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    for example in EXAMPLES[command]:
        assert f" {example}" in [line.rstrip() for line in lines]
    assert max(map(len, lines)) <= 80
    cut = [line for line in lines for word in line.split() if word.endswith("…") and len(word) > 1]
    assert cut == [], "a name or a form was cut"


@pytest.mark.parametrize("example", sorted(line for some in EXAMPLES.values() for line in some))
def test_an_example_is_a_valid_command_line(example: str) -> None:
    """Parse an example without running it."""
    typed = shlex.split(example.partition(" | ")[0])
    assert typed[0] == "egpu"
    group, name, rest = ROOT, typed[1], typed[2:]
    while hasattr(group.commands[name], "commands"):
        group, name, rest = group.commands[name], rest[0], rest[1:]
    group.commands[name].make_context(name, rest)
