"""What is written down is so: docstrings name what is there, documents name paths, names and commands that exist.

Everything is read as text or parsed with `ast`; only the command line itself is imported. Each failure lists all that
is wrong, by file and line.
"""

import ast
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from posixpath import normpath
from typing import Any, Final

import pytest
import typer.main

from egpu.cli.app import app
from support.repository import Word, commands, documents, file_names, files, folders, listed, of, packages, text, tree

#: What we may call a file although it is not one of ours: others' headers and definitions, a reader's own programs.
NOT_OURS: Final = {
    *("cuda.h", "cudaTypedefs.h", "nvml.h"),
    *("generated.proto", "openapiv2/OpenAPIv2.proto", "strategic-merge-patch.md"),
    "train.py",
}
#: A word with such an ending is a file of the sources. (`.json`, `.yaml`, `.txt` and the like may be made at run time.)
SOURCE_SUFFIXES: Final = {".py", ".c", ".h", ".md", ".proto", ".sh", ".inc", ".def", ".ptx", ".in"}


# ---- every package says what is in it ----


def members(package: str) -> set[str]:
    """Modules and subpackages; those whose name is Python's own (`__main__`) or generated go without saying."""
    modules = {Path(each).stem for each in of(".py", under=f"{package}/") if str(Path(each).parent) == package}
    inside = {Path(each).name for each in packages() if str(Path(each).parent) == package}
    return {each for each in modules | inside if not each.startswith("__")}


def listed_members(docstring: str) -> list[str]:
    """The first words of the list's lines: of the blocks in which each line is a name, two spaces or more, and what it
    means. Lines that are indented further go on with the one before. (The list as a whole is indented by four
    spaces, which `ruff format` takes away where nothing follows it.)"""
    found: list[str] = []
    for block in re.split(r"\n\s*?\n", docstring):
        lines = [line for line in block.splitlines() if line.strip()]
        indents = [len(line) - len(line.lstrip()) for line in lines]
        entries = [line.strip() for line, indent in zip(lines, indents, strict=True) if indent == min(indents)]
        names = [match[1] for entry in entries if (match := re.match(r"([a-z]\w*) {2,}\S", entry))]
        if entries and len(names) == len(entries):
            found += names
    return found


@pytest.mark.parametrize("package", packages())
def test_a_package_names_its_modules_and_nothing_else(package: str) -> None:
    listed = listed_members(ast.get_docstring(tree(f"{package}/__init__.py"), clean=False) or "")
    assert sorted(listed) == sorted(members(package)), (
        f"the docstring of {package} has a list with a line for each module and subpackage: its name, two spaces or "
        f"more, what it is; not listed: {sorted(members(package) - set(listed)) or 'none'}; "
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
    wrong = [str(word) for word in named if not exists(word)]
    assert not wrong, listed("no such file or folder", wrong)


def test_links_lead_to_headings() -> None:
    lost: list[str] = []
    for file in documents():
        for number, line in enumerate(text(file).splitlines(), 1):
            for path, anchor in re.findall(r"\]\((?!\w+:)([^)#]*)#([^)]+)\)", line):
                target = normpath(Path(file).parent / path) if path else file
                if target not in files() or anchor not in anchors(target):
                    lost.append(f"{file}:{number}: {path}#{anchor}")
    assert not lost, listed("no such heading", lost)


def anchors(file: str) -> set[str]:
    """The anchors that Markdown's renderers make of headings."""
    headings = re.findall(r"^#+ (.+)$", text(file), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_the_index_describes_each_page_once() -> None:
    """`make docs` makes the site's navigation of these rows."""
    rows = re.findall(r"^\| \[[^]]+\]\(([^)]+)\) \| \S.* \|$", text("docs/index.md"), re.MULTILINE)
    assert sorted(f"docs/{row}" for row in rows) == sorted(set(of(".md", under="docs/")) - {"docs/index.md"})


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
    assert not lost, listed("not in the tree", lost)


MOST_FILES = {
    "a pod landed on a card": 7,
    "cannot go over its memory": 9,
    "a container's compute is limited": 13,
    "a figure of the dashboard": 11,
    "a claim becomes Bound": 4,
    "a running slice gets another size": 4,
    "a call of a pooled program": 7,
    "a library call of a program": 12,
    "a kernel runs on a simulated card": 8,
    "whom a pod evicts": 5,
    "how a card is cut with MIG": 6,
    "how programs share a card by MPS": 6,
    "a ResourceClaim becomes a slice": 8,
    "the extender gives to a ResourceClaim": 5,
    "a new technology": 2,
    "a new vocabulary": 2,
}
"""The files that a reader needs for each question of ARCHITECTURE.md. A smaller number is better."""
PROGRAM: Final = re.compile(r"\bnvidia-[a-z-]+\b|\begpu-[a-z-]+\b")


def traces() -> dict[str, list[str]]:
    """Return the lists of ARCHITECTURE.md: each "To see …, open:" line, and the path that begins each item below it."""
    found: dict[str, list[str]] = {}
    for line in text("ARCHITECTURE.md").splitlines():
        if line.startswith("- To see "):
            assert line.endswith(", open:"), line
            found[line] = []
        elif found and (item := re.fullmatch(r"  (\d+)\. `([^`]+)`: .+", line)):
            steps = found[next(reversed(found))]
            steps.append(item[2])
            assert int(item[1]) == len(steps), line
    return found


def test_each_question_names_all_its_files() -> None:
    questions = traces()
    assert len(questions) == len(MOST_FILES)
    for question, most in MOST_FILES.items():
        ((line, paths),) = ((one, paths) for one, paths in questions.items() if question in one)
        assert len(paths) == len(set(paths)) == most, line
        assert all("/" in path and exists(Word("ARCHITECTURE.md", 0, path)) for path in paths), line


def test_the_files_of_a_question_are_connected() -> None:
    """A value passes through them, so each one names, imports or calls another: no file stands apart from the rest."""
    for question, paths in traces().items():
        left = [next(f"{base}{path}" for base in ("", "src/egpu/") if f"{base}{path}" in files()) for path in paths]
        near = [left.pop(0)]
        while found := [one for one in left if any(uses(one, known) or uses(known, one) for known in near)]:
            near += found
            left = [one for one in left if one not in found]
        assert not left, f"{question} {', '.join(left)}: no other file of the list names, imports or calls them"


def uses(user: str, used: str) -> bool:
    """Return whether the file `user` names `used`, imports it or its package, or calls what it defines."""
    source, path = text(user), Path(used)
    if path.suffix == ".py" and used.startswith("src/"):
        module = used.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        package, _, name = module.rpartition(".")
        whole = f"src/{package.replace('.', '/')}/__init__.py"
        exported = whole in files() and module in text(whole) and f"from {package} import" in source
        return exported or bool(re.search(rf"\b{re.escape(module)}\b|from {package} import .*\b{name}\b", source))
    if path.name in source or (path.suffix == ".html" and re.search(rf'parts/{path.stem}|"{path.stem}"', source)):
        return True
    if path.name == "main.c" and set(PROGRAM.findall(source)) & set(PROGRAM.findall(text(used).partition("*/")[0])):
        return True  # it starts this program
    if path.suffix != ".c" or not user.endswith((".c", ".py")):
        return False
    defined = re.findall(r"(?m)^(?!static|extern|typedef|#)\w[\w *]*?\b(\w{6,})(?=\(|\[| =)", text(used))
    return bool(set(defined) & set(re.findall(r"\w{6,}", source)))


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


@cache
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
    """In documents, docstrings, comments, strings and configuration. (What is imported is pyright's business.)"""
    lost: list[str] = []
    found = 0
    readable = (".py", ".c", ".h", ".md", ".proto", ".yaml", ".toml", ".def", ".in", "Makefile", ".importlinter")
    for file in of(*readable):
        for number, line in enumerate(text(file).splitlines(), 1):
            if "egpu." in line and not re.match(r"\s*(from|import|package) egpu", line):
                names = re.findall(r"(?<![\w./-])egpu(?!\.(?:duration_us|yaml)\b)(?:\.[A-Za-z_]\w*)+", line)
                found += len(names)
                lost += [f"{file}:{number}: {dotted}" for dotted in names if not is_defined(dotted)]
    assert found > 100, "there are more dotted names than that: this test no longer finds them"
    assert not lost, listed("no such module, or no such name in it", lost)


# ---- commands ----


def test_commands_of_egpu_exist_with_their_flags() -> None:
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
            below = (rest.split() or [""])[0]
            command = getattr(command, "commands", {}).get(below, command)
            known = {"-h", "--help"} | {flag for each in command.params for flag in (*each.opts, *each.secondary_opts)}
            flags = re.findall(r"(?<=\s)--?[a-zA-Z][\w-]*", re.split(r" -- |\|", rest)[0])
            lost += [f"{word}: {flag}" for flag in flags if flag not in known]
    assert found > 30, "the documents show more commands than that: this test no longer finds them"
    assert not lost, listed("egpu has no such command or flag", lost)


def test_targets_of_make_and_benchmarks_exist() -> None:
    targets = set(re.findall(r"^([a-z][\w%-]*):", text("Makefile"), re.MULTILINE))
    known = re.compile("|".join(each.replace("%", r"\w+") for each in targets))
    (listed,) = re.findall(r"^MODULES = \((.*?)\)", text("benchmarks/__main__.py"), re.MULTILINE | re.DOTALL)
    benchmarks = set(re.findall(r'"(\w+)"', listed))
    lost: list[str] = []
    for word in commands():
        for arguments in re.findall(r"(?:^|\s)make((?: [a-z][\w-]*)+)", word.text):
            lost += [f"{word}: {each}" for each in arguments.split() if not known.fullmatch(each)]
        for arguments in re.findall(r"python -m benchmarks((?: [a-z]\w*)+)|BENCH=\"?(\w+)", word.text):
            lost += [f"{word}: {each}" for each in " ".join(arguments).split() if each not in benchmarks]
    assert benchmarks, "benchmarks/__main__.py no longer lists MODULES"
    assert not lost, listed("no such target or benchmark", lost)


# ---- errors ----


def test_the_tree_of_errors_is_as_drawn() -> None:
    module = tree("base/src/egpu_base/errors.py")
    classes = [node for node in module.body if isinstance(node, ast.ClassDef)]
    bases_of = {node.name: ast.unparse(node.bases[0]) for node in classes}
    said = [node.name for node in classes if "retryable" in definitions(node.body)]
    assert said == ["ElasticGPUError", "RetryableError"], "a class is retryable or terminal by its branch alone"
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


def test_programs_that_are_looked_for_by_their_command_are_one_modules_own() -> None:
    """Modules run beside each other, and `with_command` sees the whole machine."""
    users: dict[str, set[str]] = {}
    for file in of(".py", under="tests/"):
        for command in re.findall(r"\bsleep \d{5,}", text(file)):
            users.setdefault(command, set()).add(file)
    assert {command: sorted(found) for command, found in users.items() if len(found) > 1} == {}
