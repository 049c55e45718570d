"""The console blocks of README and docs print what is written; the slow ones are for `make walk-docs`."""

import os
import sys
from pathlib import Path

import pytest
from generate_excerpt import filled
from walk_docs import MARK, ROOT, Block, Step, blocks, difference, pages, walk

BLOCKS = [block for path in pages() for block in blocks(path.relative_to(ROOT).as_posix(), path.read_text())]
QUICK = [block for block in BLOCKS if block.walked and not block.slow]


def at(block: Block) -> str:
    return f"{block.file}:{block.line}"


@pytest.mark.timeout(400)
@pytest.mark.parametrize("block", QUICK, ids=at)
def test_a_block_prints_what_is_written(block: Block, tmp_path: Path) -> None:
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    outside = {name: value for name, value in os.environ.items() if not name.startswith("EGPU_SIM_")}
    environment = {**outside, "PATH": programs, "HOME": str(tmp_path), "EGPU_RUN_DIR": str(tmp_path / "run")}
    assert walk(block, folder=ROOT, environment=environment) == ""


def test_every_block_is_walked_or_says_why_not() -> None:
    assert len(BLOCKS) == sum(path.read_text().count("```console\n") for path in pages())
    marks = [(block, f"{block.mark}\n{block.before}".strip()) for block in BLOCKS if block.mark]
    assert [at(block) for block, mark in marks if not MARK.fullmatch(mark)] == []
    assert [at(block) for block in BLOCKS if block.walked and not block.text.startswith("$ ")] == []


@pytest.mark.parametrize(
    ("written", "printed"),
    [
        ("ready after 5.2 s: 3 × 4 cards", "ready after 11 s: 3 × 4 cards"),
        ("██░░  30 %   2048 MiB", "█░░░ 7 % 512 MiB"),
        ("first\n…\nlast", "first\nmore\nand more\nlast"),
        ("first\n…\nlast\n…", "first\nlast\n"),
        ("GPU-6a99-… is free", "GPU-1b-77f is free"),
        ("", "whatever"),
    ],
)
def test_what_is_volatile_may_differ(written: str, printed: str) -> None:
    assert difference(Step("x", written), printed, excerpt=False) == ""


@pytest.mark.parametrize(
    ("written", "printed"),
    [("3 cards free", "3 cards used"), ("one\n…\ntwo", "two\none"), ("a.b", "a-b"), ("card 1", "card none")],
)
def test_anything_else_may_not(written: str, printed: str) -> None:
    assert difference(Step("x", written), printed, excerpt=False) == written


def test_an_excerpt_has_its_paragraphs_in_order() -> None:
    printed = "head\n\nfirst 1\nbelow\n\nsecond\n\nthird\n"
    assert difference(Step("x", "first 7\nbelow\n\nthird"), printed, excerpt=True) == ""
    assert difference(Step("x", "third\n\nsecond"), printed, excerpt=True) == "second"
    assert difference(Step("x", "first 1\n\nmissing"), printed, excerpt=True) == "missing"


def test_an_excerpt_is_generated_with_a_runs_own_figures() -> None:
    step = Step("x", "after 5.2 s: …\n\nnode 1  █░ 10 %   of …: ok\n")
    printed = "head\n\nafter 11 s: all\n\nnode 1 ██ 7 % of 3: ok\n\nend\n"
    assert filled(step, printed) == "after 11 s: …\n\nnode 1  ██ 7 %   of …: ok\n"
    with pytest.raises(ValueError, match="does not print\nnode"):
        filled(step, "after 11 s: all\n\nmode 1")


def test_a_block_is_commands_and_what_they_print() -> None:
    (block,) = blocks("x.md", "text\n\n<!-- walk: slow -->\n```console\n$ one \\\n    more\nsaid\n$ two\n```\n")
    assert (block.mark, block.slow, block.line) == ("slow", True, 4)
    assert block.steps() == [Step("one \\\n    more", "said\n"), Step("two", "")]
    (shown,) = blocks("x.md", "<!-- walk: excerpt -->\n```console\n$ one\nsaid\n$ two\n```\n")
    assert shown.steps() == [Step("one", "said\n$ two\n")]


def test_the_commands_of_a_block_have_one_shell_and_what_is_run_before_it(tmp_path: Path) -> None:
    commands = "$ pwd\n/\n$ kept=3; jobs -r\n…sleep 600…\n$ echo $kept\n3\n"
    text = f"<!-- walk: slow, after\ncd /\nsleep 600 & -->\n```console\n{commands}```\n"
    (block,) = blocks("x.md", text)
    assert (block.slow, block.mark, block.before) == (True, "slow, after", "cd /\nsleep 600 &")
    assert walk(block, folder=tmp_path, environment=os.environ) == ""


def test_a_command_that_fails_is_told(tmp_path: Path) -> None:
    (block,) = blocks("x.md", "```console\n$ echo right\nright\n$ false\n```\n")
    assert "`false` ends with status 1" in walk(block, folder=tmp_path, environment=os.environ)
