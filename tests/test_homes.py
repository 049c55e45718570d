"""Three products in one repository: what each may import, and what the wheel and image of each hold."""

import ast
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from support.repository import ROOT, listed, of, text, tree

PACKAGES: Final = {"base": "egpu_base", "simulator": "egpu_sim", ".": "egpu"}
"""Folder of the sources, and the one package of its wheel."""
SIMULATED: Final = re.compile(r"/_native/(sim/|tests/)|egpu_sim|ptxas$|nvidia-cuda-mps-control$")
OF_THE_PRODUCT: Final = re.compile(r"interposer|executor|libegpu-names|/remote/|/libraries/|egpu-(relay|link)$")


def imports(file: str) -> Iterator[str]:
    """The modules that a file imports, and the members of packages that may be modules."""
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)


def test_the_simulators_tests_need_nothing_of_the_product() -> None:
    """Nor do the modules of `support` that they use. `make test-simulator` runs them where it is not installed."""
    todo, seen, wrong = [*of(".py", under="simulator/tests/"), "conftest.py"], set[str](), list[str]()
    while todo:
        file = todo.pop()
        if file in seen or not (ROOT / file).is_file():
            continue
        seen.add(file)
        for name in imports(file):
            if name.split(".")[0] == "egpu":
                wrong.append(f"{file}: {name}")
            if name.startswith("support."):
                todo.append(f"tests/{name.replace('.', '/')}.py")
    assert "tests/support/simulated_gpu.py" in seen
    assert not wrong, listed("imports the product", wrong)


def members(folder: str, target: Path) -> list[str]:
    """The names in the wheel of a folder. It is built in the build folder of the source tree, if that is there."""
    tools = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-qq", "wheel", "--no-index"]
    build = ROOT / "build" / {".": "native"}.get(folder, folder)
    options = ["--no-build-isolation", "--no-deps", "--wheel-dir", str(target), "-C", f"build-dir={build}"]
    subprocess.run([*pip, *options, f"./{folder}"], cwd=ROOT, env=tools, check=True)
    (wheel,) = target.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


@pytest.mark.slow
@pytest.mark.parametrize("folder", PACKAGES)
def test_a_wheel_has_its_own_package_alone(folder: str, tmp_path: Path) -> None:
    everything = members(folder, tmp_path)
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in everything)
    found = [name for name in everything if ".dist-info/" not in name]
    assert len(found) > 50
    wrong = [name for name in found if not name.startswith(f"{PACKAGES[folder]}/")]
    foreign = OF_THE_PRODUCT if folder == "simulator" else SIMULATED
    wrong += [name for name in found if "/_native/" in name and foreign.search(name)]
    assert not wrong, listed(f"the wheel of {folder} has", wrong)


def test_the_image_has_the_wheels_of_base_and_product_alone() -> None:
    build = text("deploy/image/build.sh")
    assert '--wheel-dir "$work/wheels" "$source/base" "$source"\n' in build
    assert '\ntest -z "$(find "$packages" -name \'egpu_sim*\')"' in build, "it fails if something simulated is in it"
    copied = re.findall(r"(?m)^COPY (?!--from)(.+) \S+$", text("deploy/Containerfile"))
    assert "simulator" not in " ".join(copied).split()
    assert not re.search(r"(?m)^egpu-sim\b", text("requirements/image.txt"))
