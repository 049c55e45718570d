"""The pages docs/operate/with: each shows its example whole, and names the tests that run it."""

import re

import pytest

from support.repository import of, text

PAGES = of(".md", under="docs/operate/with/")
TESTS = [each for each in of(".py", under="tests/neighbours/") if "/test_" in each]


def name(page: str) -> str:
    return page.rpartition("/")[2].removesuffix(".md")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_page_shows_its_example_whole(page: str):
    lines = text(f"examples/with/{name(page)}.yaml").splitlines()
    while lines[0].startswith("#"):
        lines.pop(0)
    block = "\n".join(f"    {line}" if line else "" for line in lines)
    assert f"\n\n{block}\n\n" in text(page)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_page_names_the_test_that_runs_its_example(page: str):
    _, tried = text(page).split("\n## Tried\n")
    tests = re.findall(r"`(tests/\w+/\w+\.py)`", tried)
    assert any(f'of_page("{name(page)}")' in text(each) for each in tests), tests


def test_every_example_has_a_page_that_the_overview_lists():
    overview = text("docs/operate/serving.md")
    names = [each.rpartition("/")[2].removesuffix(".yaml") for each in of(".yaml", under="examples/with/")]
    assert sorted(map(name, PAGES)) == names
    assert [each for each in names if f"(with/{each}.md)" not in overview] == []


def test_the_table_names_every_test_of_a_neighbour():
    table = text("docs/operate/neighbours.md")
    assert [each for each in TESTS if f"`{each.rpartition('/')[2]}` |" not in table] == []
