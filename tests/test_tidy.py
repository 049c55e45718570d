"""What is written down is so: docstrings name what is there, documents name paths and commands that exist, and figures
that once got better do not get worse.

Everything is read as text or parsed with `ast`; only the command line itself is imported. Each failure lists all that
is wrong, by file and line.
"""

import ast
import re
import subprocess
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from posixpath import normpath
from typing import Any, Final, NamedTuple

import pytest
import typer.main

ROOT: Final = Path(__file__).parents[1]
SOURCE: Final = ROOT / "src"
PACKAGES: Final = SOURCE / "egpu"
GENERATED: Final = ("_pb2.py", "_pb2_grpc.py", "_pb2.pyi")

RATCHETS: Final = {
    "lines of the longest function in src": 76,
    "lines of the longest module in src": 647,
    "lines of Python wider than 120 columns": 144,
    "lines of C wider than 100 columns": 4098,
    "columns of the widest line of Markdown": 379,
    "noqa in src": 56,
    "type: ignore in src": 8,
    "cast( in src": 66,
    "noqa in tests, benchmarks and scripts": 38,
    "type: ignore in tests, benchmarks and scripts": 31,
}
"""As good as it ever was. Who makes one better lowers its number here; nobody raises one."""

#: What we may call a file although it is not one of ours: others' headers and definitions, a reader's own programs.
NOT_OURS: Final = {
    *("cuda.h", "cudaTypedefs.h", "nvml.h"),
    *("generated.proto", "openapiv2/OpenAPIv2.proto", "strategic-merge-patch.md"),
    "train.py",
}
#: A word with such an ending is a file of the sources. (`.json`, `.yaml`, `.txt` and the like may be made at run time.)
SOURCE_SUFFIXES: Final = {".py", ".c", ".h", ".md", ".proto", ".sh", ".inc", ".def", ".ptx", ".in"}


class Word(NamedTuple):
    """Something that a document or a docstring names in back-ticks, in a link or in a block of code."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}"


# ---- what there is to read ----


@cache
def files() -> frozenset[str]:
    """What is in the repository, or would be if it were committed now."""
    asked = ("git", "ls-files", "--cached", "--others", "--exclude-standard")
    listed = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return frozenset(each for each in listed if (ROOT / each).is_file())


@cache
def file_names() -> frozenset[str]:
    return frozenset(Path(each).name for each in files())


@cache
def folders() -> frozenset[str]:
    return frozenset(str(parent) for each in files() for parent in Path(each).parents if str(parent) != ".")


@cache
def text(file: str) -> str:
    return (ROOT / file).read_text(errors="replace")


@cache
def tree(file: str) -> ast.Module:
    return ast.parse(text(file))


def of(*suffixes: str, under: str = "") -> list[str]:
    found = [each for each in sorted(files()) if each.endswith(suffixes) and each.startswith(under)]
    return [each for each in found if not each.endswith(GENERATED)]


def documents() -> list[str]:
    return of(".md")


def packages() -> list[str]:
    return [str(Path(each).parent) for each in of("/__init__.py", under="src/egpu")]


# ---- every package says what is in it ----


def members(package: str) -> set[str]:
    """Modules and subpackages; those whose name is Python's own (`__main__`) or generated go without saying."""
    modules = {Path(each).stem for each in of(".py", under=f"{package}/") if str(Path(each).parent) == package}
    inside = {Path(each).name for each in packages() if str(Path(each).parent) == package}
    return {each for each in modules | inside if not each.startswith("__")}


def listed_members(docstring: str) -> list[str]:
    """The first word of each line of the list: the first block in which each line is indented by four spaces, or by
    more where it goes on with the line before. Between the word and what it means are two spaces at least."""
    for block in re.split(r"\n\s*\n", docstring):
        lines = [line for line in block.splitlines() if line.strip()]
        names = [match[1] for line in lines if (match := re.match(r" {4}([a-z]\w*)  +\S", line))]
        if names and all(line.startswith("    ") for line in lines):
            return names
    return []


@pytest.mark.parametrize("package", packages())
def test_a_package_names_its_modules_and_nothing_else(package: str) -> None:
    listed = listed_members(ast.get_docstring(tree(f"{package}/__init__.py"), clean=False) or "")
    assert sorted(listed) == sorted(members(package)), (
        f"the docstring of {package} has a list with a line for each module and subpackage: four spaces, its name, two "
        f"spaces or more, what it is; not listed: {sorted(members(package) - set(listed)) or 'none'}; "
        f"not there: {sorted(set(listed) - members(package)) or 'none'}"
    )


# ---- paths ----


def words_of_documents() -> Iterator[Word]:
    """What is in back-ticks, the targets of links, and the leading words of lines in blocks of code."""
    for file in documents():
        fenced = False
        for number, line in enumerate(text(file).splitlines(), 1):
            if line.lstrip().startswith("```"):
                fenced = not fenced
            elif fenced or re.match(r" {4}\S", line):
                yield from (Word(file, number, each) for each in leading_paths(line))
            else:
                yield from (Word(file, number, each) for each in re.findall(r"`([^`]+)`", line))
                yield from (Word(file, number, each) for each in re.findall(r"\]\((?!\w+:)([^)#]+)", line))


def leading_paths(line: str) -> Iterator[str]:
    for word in line.split():
        if Path(word).suffix not in SOURCE_SUFFIXES:
            return
        yield word


def words_of_sources() -> Iterator[Word]:
    """What is in back-ticks, in docstrings and comments."""
    for file in of(".py", ".c", ".h"):
        for number, line in enumerate(text(file).splitlines(), 1):
            if "`" in line:
                yield from (Word(file, number, each) for each in re.findall(r"`([^`\s]+)`", line))


def is_path(word: Word) -> bool:
    """Whether it claims that a file or a folder of ours is there."""
    if not re.fullmatch(r"[\w./{},*-]+", word.text) or word.text.startswith(("/", "-", ".")) or word.text in NOT_OURS:
        return False
    if re.search(r"\b[A-Z]{3,}\b", word.text) and word.text not in files():
        return False  # DIRECTORY/NAME.json: what a reader is to fill in
    first, *rest = word.text.split("/")
    if Path(word.text).suffix in SOURCE_SUFFIXES:
        return True
    built = re.search(r"\.so(\.\d+)?$", word.text) or Path(word.text).name.startswith("egpu-")
    return bool(rest) and not built and any(f"{base}{first}" in folders() for base in bases(word.file))


def bases(file: str) -> tuple[str, ...]:
    """Where a path that a file names may begin: at the root, beside the file, and for short in our two halves."""
    beside = "" if "/" not in file else f"{Path(file).parent}/"
    return ("", beside, "src/egpu/", "native/")


def exists(word: Word) -> bool:
    """Braces are several paths, an asterisk at least one; a name without a folder may be in any."""
    braces = re.search(r"\{([^}]*)\}", word.text)
    paths = [word.text.replace(braces[0], each) for each in braces[1].split(",")] if braces else [word.text]
    return all(any(is_there(path.rstrip("/"), base) for base in bases(word.file)) for path in paths)


def is_there(path: str, base: str) -> bool:
    if path in file_names() or normpath(base + path) in files() or normpath(base + path) in folders():
        return True
    return "*" in path and any(fnmatch(each, base + path) for each in (*files(), *file_names()))


def test_paths_in_documents_docstrings_and_comments_exist() -> None:
    words = [*words_of_documents(), *words_of_sources()]
    named = [word for word in words if is_path(word)]
    assert len(named) > 100, "the documents name more paths than that: this test no longer finds them"
    report([str(word) for word in named if not exists(word)], "no such file or folder")


def test_links_lead_to_headings() -> None:
    lost: list[str] = []
    for file in documents():
        for number, line in enumerate(text(file).splitlines(), 1):
            for path, anchor in re.findall(r"\]\((?!\w+:)([^)#]*)#([^)]+)\)", line):
                target = normpath(Path(file).parent / path) if path else file
                if target not in files() or anchor not in anchors(target):
                    lost.append(f"{file}:{number}: {path}#{anchor}")
    report(lost, "no such heading")


def anchors(file: str) -> set[str]:
    """The anchors that Markdown's renderers make of headings."""
    headings = re.findall(r"^#+ (.+)$", text(file), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_trees_of_folders_are_as_drawn() -> None:
    """A block of code that begins with a folder of ours is a tree: what is indented by two more is in it."""
    lost: list[str] = []
    for file in documents():
        inside: list[str] = []
        for number, line in enumerate(text(file).splitlines(), 1):
            entry = re.match(r" {4}((?:  )*)([^\s/][^\s]*?)(/?)(?:\s|$)", line)
            depth = len(entry[1]) // 2 if entry else 0
            if entry is None or depth == 0:
                begins = entry is not None and entry[3] == "/" and entry[2] in folders()
                inside = [entry[2]] if entry is not None and begins else []
            elif inside and depth <= len(inside):  # deeper: a line goes on with what the one before means
                path = "/".join([*inside[:depth], entry[2]])
                inside = [*inside[:depth], entry[2]] if entry[3] else inside
                lost += [] if path in folders() or path in files() else [f"{file}:{number}: {path}"]
    report(lost, "not in the tree")


def test_to_see_why_open_these() -> None:
    """The lines that say which files to open for a question name files, and at most four of them."""
    lines = [line for line in text("ARCHITECTURE.md").splitlines() if line.lstrip("- ").startswith("To see why")]
    assert len(lines) >= 5
    for line in lines:
        named = [Word("ARCHITECTURE.md", 0, each) for each in re.findall(r"`([^`]+)`", line.partition("open")[2])]
        assert 1 <= len(named) <= 4, line
        assert all("/" in word.text and exists(word) for word in named), line


# ---- names in Python ----


def definitions(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    """What a module or a class defines or imports, by name."""
    found: dict[str, ast.stmt] = {}
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                found[node.name] = node
            case ast.Assign() | ast.AnnAssign():
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found |= {each.id: node for each in targets if isinstance(each, ast.Name)}
            case ast.Import() | ast.ImportFrom():
                found |= {alias.asname or alias.name: node for alias in node.names}
            case ast.If() | ast.Try():
                found |= definitions([*node.body, *node.orelse])
            case _:
                pass
    return found


def is_defined(dotted: str) -> bool:
    """Whether package, module, class and attribute are there, as far as the name goes."""
    place, names = "src/egpu", dotted.split(".")[1:]
    while names and f"{place}/{names[0]}" in folders():
        place = f"{place}/{names.pop(0)}"
    file = f"{place}/{names.pop(0)}.py" if names and f"{place}/{names[0]}.py" in files() else f"{place}/__init__.py"
    body = tree(file).body
    while names:
        name = names.pop(0)
        node = definitions(body).get(name)
        if node is None:
            return name.startswith("__")
        if not isinstance(node, ast.ClassDef):
            return True  # what it has is not written down here
        body = node.body
    return True


def test_dotted_names_exist() -> None:
    lost: list[str] = []
    found = 0
    readable = (".py", ".c", ".h", ".md", ".proto", ".yaml", ".toml", ".def", ".in", "Makefile", ".importlinter")
    for file in of(*readable):
        for number, line in enumerate(text(file).splitlines(), 1):
            for dotted in re.findall(r"(?<![\w./-])egpu(?!\.duration_us\b)(?:\.[A-Za-z_]\w*)+", line):
                found += 1
                lost += [] if is_defined(dotted) else [f"{file}:{number}: {dotted}"]
    assert found > 500, "there are more dotted names than that: this test no longer finds them"
    report(lost, "no such module, or no such name in it")


# ---- commands ----


def commands() -> Iterator[Word]:
    """What is code in documents: in back-ticks or in blocks, a line or a `;` at a time, without comments."""
    for file in documents():
        fenced = False
        for number, line in enumerate(text(file).splitlines(), 1):
            if line.lstrip().startswith("```"):
                fenced = not fenced
                continue
            is_block = fenced or re.match(r" {4}\S", line)
            for code in [line] if is_block else re.findall(r"`([^`]+)`", line):
                for command in re.split(r"; | \| ", re.sub(r"(^|\s)# .*", "", code)):
                    yield Word(file, number, command)


def test_commands_of_egpu_exist_with_their_flags() -> None:
    from egpu.cli.app import app  # noqa: PLC0415  the one thing that is imported, and not quick to load

    group: Any = typer.main.get_command(app)
    lost: list[str] = []
    found = 0
    for word in commands():
        for name, rest in re.findall(r"(?:^|\s|bin/)egpu ([a-z][\w-]*)(.*)", word.text):
            if re.search(r"kubectl \w+ egpu", word.text):
                continue  # there it is a kind of object
            found += 1
            command = group.commands.get(name)
            if command is None:
                lost.append(str(word))
                continue
            known = {"-h", "--help"} | {flag for each in command.params for flag in (*each.opts, *each.secondary_opts)}
            flags = re.findall(r"(?<=\s)--?[a-zA-Z][\w-]*", rest.partition(" -- ")[0])
            lost += [f"{word}: {flag}" for flag in flags if flag not in known]
    assert found > 30, "the documents show more commands than that: this test no longer finds them"
    report(lost, "egpu has no such command or flag")


def test_targets_of_make_and_benchmarks_exist() -> None:
    targets = set(re.findall(r"^([a-z][\w%-]*):", text("Makefile"), re.MULTILINE))
    known = re.compile("|".join(each.replace("%", r"\w+") for each in targets))
    benchmarks = set(
        re.findall(r'"(\w+)"', re.findall(r"^MODULES = (.*)$", text("benchmarks/__main__.py"), re.MULTILINE)[0])
    )
    lost: list[str] = []
    for word in commands():
        for arguments in re.findall(r"(?:^|\s)make((?: [a-z][\w-]*)+)", word.text):
            lost += [f"{word}: {each}" for each in arguments.split() if not known.fullmatch(each)]
        for arguments in re.findall(r"python -m benchmarks((?: [a-z]\w*)+)|BENCH=\"?(\w+)", word.text):
            lost += [f"{word}: {each}" for each in " ".join(arguments).split() if each not in benchmarks]
    assert benchmarks, "benchmarks/__main__.py no longer lists MODULES in one line"
    report(lost, "no such target or benchmark")


# ---- errors ----


def test_the_tree_of_errors_is_as_drawn() -> None:
    module = tree("src/egpu/errors.py")
    bases_of = {node.name: ast.unparse(node.bases[0]) for node in module.body if isinstance(node, ast.ClassDef)}
    drawn: dict[str, str] = {}
    above: list[str] = ["Exception"]
    for line in (ast.get_docstring(module, clean=False) or "").splitlines():
        branch = re.match(r" {4}((?:[│ ] {3})*(?:[├└]── )?)([A-Z]\w+)(.*)$", line)
        if branch is None:
            continue
        depth = len(branch[1]) // 4
        name, meaning = branch[2], branch[3].strip()
        above = [*above[: depth + 1], name]
        drawn[name] = above[depth]
        assert meaning or depth == 0, f"{name}: the tree does not say what it means"
        if depth == 1:
            assert re.match("(terminal|retryable): ", meaning), f"{name}: terminal or retryable?"
    assert drawn == bases_of
    assert list(drawn) == list(bases_of), "the classes come in another order than in the tree"


# ---- figures ----


def functions(file: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (node.end_lineno or node.lineno) - node.lineno + 1, f"{file}:{node.lineno} {node.name}"


def count(pattern: str, python: list[str]) -> tuple[int, str]:
    """How often it is found, and the file with most of it."""
    found = {file: len(re.findall(pattern, text(file))) for file in python}
    return sum(found.values()), f"most in {max(found, key=lambda file: found[file])}"


def figures() -> dict[str, tuple[int, str]]:
    """Each figure, and where it comes from."""
    ours = of(".py", under="src/")
    others = [*of(".py", under="tests/"), *of(".py", under="benchmarks/"), *of(".py", under="scripts/")]
    others.remove("tests/test_tidy.py")  # it has to write these words
    return {
        "lines of the longest function in src": max(each for file in ours for each in functions(file)),
        "lines of the longest module in src": max((text(file).count("\n"), file) for file in ours),
        "lines of Python wider than 120 columns": count(r"(?m)^.{121,}$", [*ours, *others]),
        "lines of C wider than 100 columns": count(r"(?m)^.{101,}$", of(".c", ".h")),
        "columns of the widest line of Markdown": max(
            (max(map(len, text(file).splitlines())), file) for file in of(".md")
        ),
        "noqa in src": count(r"# noqa", ours),
        "type: ignore in src": count(r"# (?:type|pyright): ignore", ours),
        "cast( in src": count(r"\bcast\(", ours),
        "noqa in tests, benchmarks and scripts": count(r"# noqa", others),
        "type: ignore in tests, benchmarks and scripts": count(r"# (?:type|pyright): ignore", others),
    }


def test_no_figure_gets_worse() -> None:
    found = figures()
    worse = [
        f"{name}: {found[name][0]}, was {best} ({found[name][1]})"
        for name, best in RATCHETS.items()
        if found[name][0] > best
    ]
    better = [f"{name}: {found[name][0]}, was {best}" for name, best in RATCHETS.items() if found[name][0] < best]
    report(worse, "worse than it was; make it as good again")
    report(better, "better than it was: write the new number into RATCHETS, so that it stays so")


# ---- what must not be there ----


def test_lock_files_name_packages_and_hashes_alone() -> None:
    """Where packages are fetched from is the business of whoever installs."""
    for file in of(".txt", under="requirements/"):
        lines = [line for line in text(file).splitlines() if line.strip()]
        pattern = r"[\w.\[\],-]+==[\w.!+-]+( ; .+)? \\|    --hash=sha256:[0-9a-f]{64}( \\)?"
        report([f"{file}: {line}" for line in lines if not re.fullmatch(pattern, line)], "neither a package nor a hash")


def test_no_file_names_a_registry_or_a_path_of_somebody_s_machine() -> None:
    forbidden = re.compile(r"pypi[.]org|pythonhoste[d]|artifactor[y]|trusted-hos[t]|/hom[e]/|/roo[t]/|/wor[k]/")
    report(
        [f"{file}: {found}" for file in sorted(files()) for found in forbidden.findall(text(file))], "must not be there"
    )


def report(wrong: list[str], what: str) -> None:
    """Fail with all that is wrong, not with the first."""
    assert not wrong, f"{what}:\n  " + "\n  ".join(wrong)
