"""What the project says it needs is what its lock files have, for everybody, from wherever they install."""

import re
import tomllib
from collections.abc import Iterable
from typing import Any, Final

import pytest

from support.repository import files, listed, of, text

LOCKED = re.compile(r"[\w.\[\],-]+==[\w.!+-]+( ; .+)? \\|    --hash=sha256:[0-9a-f]{64}( \\)?")


def test_lock_files_name_packages_and_hashes_alone() -> None:
    """Where packages are fetched from is the business of whoever installs."""
    lines = [(file, line) for file in of(".txt", under="requirements/") for line in text(file).splitlines()]
    wrong = [f"{file}: {line}" for file, line in lines if line.strip() and not LOCKED.fullmatch(line)]
    assert not wrong, listed("neither a package nor a hash", wrong)


def project() -> dict[str, Any]:
    return tomllib.loads(text("pyproject.toml"))


OURS: Final = frozenset({"egpu-base", "egpu-sim"})
"""Built from this repository."""


def packages_of(requirements: Iterable[str]) -> set[str]:
    return {re.split(r"[^\w.-]", each.strip())[0] for each in requirements if each.strip()}


@pytest.mark.parametrize(
    ("lock", "extras", "groups"),
    [
        ("requirements/image.txt", ["prices"], []),
        ("requirements/run.txt", ["plots", "prices"], ["build"]),
        ("requirements/dev.txt", ["plots", "prices"], ["build", "dev"]),
    ],
)
def test_lock_files_have_what_the_project_says_it_needs(lock: str, extras: list[str], groups: list[str]) -> None:
    said = project()
    optional = said["project"]["optional-dependencies"]
    wanted = packages_of(said["project"]["dependencies"])
    wanted |= {name for extra in extras for name in packages_of(optional[extra])}
    wanted |= {name for group in groups for name in packages_of(said["dependency-groups"][group])}
    wanted -= OURS
    locked = packages_of(line for line in text(lock).splitlines() if "==" in line)
    wrong = sorted(wanted - locked)
    assert not wrong, listed(f"{lock} does not have it: make it again (CONTRIBUTING.md)", wrong)
    unwanted = {name for extra in optional.keys() - set(extras) for name in packages_of(optional[extra])}
    unwanted |= {name for group in {"build"} - set(groups) for name in packages_of(said["dependency-groups"][group])}
    wrong = sorted(unwanted & locked)
    assert not wrong, listed(f"{lock} is not to have it", wrong)


def test_the_simulators_lock_has_its_packages_and_those_of_its_tests() -> None:
    said = [
        tomllib.loads(text(f"{folder}/pyproject.toml"))["project"]["dependencies"] for folder in ("base", "simulator")
    ]
    wanted = packages_of([*said[0], *said[1], *text("requirements/simulator.in").splitlines()]) - OURS
    locked = {line for line in text("requirements/simulator.txt").splitlines() if "==" in line}
    wrong = sorted(wanted - packages_of(locked))
    assert not wrong, listed("requirements/simulator.txt does not have it: make it again (CONTRIBUTING.md)", wrong)
    others = sorted(locked - set(text("requirements/dev.txt").splitlines()))
    assert not others, listed("requirements/dev.txt has another version", others)


@pytest.mark.parametrize("group", ["build", "dev"])
def test_groups_are_the_same_for_pip_and_for_others(group: str) -> None:
    """`requirements/*.in` are the groups of pyproject.toml again, for tools that do not read those."""
    said = project()
    for_pip = packages_of(text(f"requirements/{group}.in").splitlines())
    extras = {name for each in said["project"]["optional-dependencies"].values() for name in packages_of(each)}
    assert for_pip == packages_of(said["dependency-groups"][group]) - extras


def test_no_file_names_a_registry_or_a_path_of_somebody_s_machine() -> None:
    forbidden = re.compile(r"pypi[.]org|pythonhoste[d]|artifactor[y]|trusted-hos[t]|/hom[e]/|/roo[t]/|/wor[k]/")
    wrong = [f"{file}: {found}" for file in sorted(files()) for found in forbidden.findall(text(file))]
    assert not wrong, listed("must not be there", wrong)
