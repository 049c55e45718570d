"""The documentation as a site: `make docs`.

The tables of `index.md` are the navigation: each row is a page and its line. A page that names a document of the
repository's root shows that document. A link to another file outside `docs` becomes that file's name.
"""

import re
from pathlib import Path
from posixpath import dirname, join, normpath, relpath
from typing import Final

from sphinx.application import Sphinx
from sphinx.util import logging

DOCS: Final = Path(__file__).resolve().parent
ROOT: Final = {
    "ARCHITECTURE.md": "internals/architecture.md",
    "CONTRIBUTING.md": "internals/contributing.md",
    "SECURITY.md": "operate/security-policy.md",
    "CHANGELOG.md": "internals/changelog.md",
    "README.md": "start/overview.md",
}
"""Documents of the repository's root, and the pages that show them."""
FENCE: Final = re.compile(r"(^```[\s\S]*?^```$)", re.MULTILINE)
LINK: Final = re.compile(r"\[([^]\[]*)\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]+)?\)")

project = "Elastic GPU"
author = "the authors of Elastic GPU"
copyright = "the authors of Elastic GPU"  # noqa: A001  the name that Sphinx reads
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
root_doc = "index"
nitpicky = True
myst_heading_anchors = 4
myst_links_external_new_tab = False
html_theme = "furo"
html_title = project
html_show_copyright = False
html_show_sourcelink = False
html_static_path = ["site.css"]
html_css_files = ["site.css"]
highlight_language = "none"
pygments_style = "default"
pygments_dark_style = "github-dark"


def shown(text: str, page: str) -> str:
    """Return a page's text with its links as the site has them. `page` is its path below `docs`."""
    file = f"docs/{page}.md"
    if match := re.fullmatch(r"# .+\n+<!-- shows: (\w+\.md) -->\n*", text):
        file = match[1]
        text = (DOCS.parent / file).read_text(encoding="utf-8")

    def link(match: re.Match[str]) -> str:
        target = normpath(join(dirname(file), match[2]))
        target = f"docs/{ROOT[target]}" if target in ROOT else target
        if not (DOCS.parent / target).exists():
            logging.getLogger(__name__).warning("no such file: %s", target, location=page)
        if not target.startswith("docs/"):
            return f"`{target}`" if match[1].strip("`") == target else f"{match[1]} (`{target}`)"
        return f"[{match[1]}]({relpath(target, dirname(f'docs/{page}'))}{match[3] or ''})"

    return "".join(part if FENCE.fullmatch(part) else LINK.sub(link, part) for part in FENCE.split(text))


def with_navigation(text: str) -> str:
    """Return the index with a hidden list of pages after each shelf's table."""
    shelves = re.split(r"(?m)^(?=## )", text)
    return "\n".join(shelf + navigation(shelf) for shelf in shelves)


def navigation(shelf: str) -> str:
    pages = [f"{title} <{page}>" for title, page in re.findall(r"(?m)^\| \[([^]]+)\]\(([^)]+)\.md\)", shelf)]
    caption = shelf.partition("\n")[0].removeprefix("## ")
    return "\n".join(["\n```{toctree}", ":hidden:", f":caption: {caption}", "", *pages, "```\n"]) if pages else ""


def read(app: Sphinx, page: str, source: list[str]) -> None:
    text = shown(source[0], page)
    source[0] = with_navigation(text) if page == root_doc else text


def setup(app: Sphinx) -> None:
    app.connect("source-read", read)
