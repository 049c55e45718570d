"""The assembler of simulated cards hands on what it takes, and refuses what a card would refuse, saying where."""

import subprocess
from pathlib import Path

import pytest

from egpu_sim import native
from support.simulated_gpu import STORE_SEVEN, machine, run

EXTERN = STORE_SEVEN.replace(".visible", ".extern .func f();\n.visible", 1).replace("    ret;", "    call f;\n    ret;")


def ptxas(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [str(native.path("tools/ptxas")), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "k.ptx"
    path.write_text(STORE_SEVEN)
    return path


def test_compilers_can_read_its_version() -> None:
    """Triton looks for `release`, XLA for a V and three numbers."""
    done = ptxas("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert "release 13.0, V13.0.0" in done.stdout
    assert "Elastic GPU" in done.stdout  # what compilers keep of other assemblers' work is not ours


@pytest.mark.parametrize(
    "options",
    [
        ["-arch=sm_80", "--warn-on-spills", "-v"],
        ["-lineinfo", "-v", "--fmad=false", "--opt-level", "0", "--gpu-name=sm_90a"],
        ["--gpu-name", "sm_86", "-O3", "-maxrregcount", "32", "-m64"],
    ],
)
def test_what_it_takes_goes_on_as_it_is_and_runs(tmp_path: Path, source: Path, options: list[str]) -> None:
    out = tmp_path / "k.cubin"
    done = ptxas(*options, source, "-o", out)
    assert done.returncode == 0, done
    assert ("'k'" in done.stderr) == ("-v" in options)
    assert out.read_bytes() == STORE_SEVEN.encode() + b"\0"
    with machine(tmp_path / "sim", "A100-80G") as made:
        said = run(
            made,
            f"""
            context()
            module = ok(d.cuModuleLoadData(open({str(out)!r}, "rb").read()))
            at = ok(d.cuMemAlloc(4))
            argument = np.array([int(at)], dtype=np.uint64)
            pointers = np.array([argument.ctypes.data], dtype=np.uint64)
            ok(d.cuLaunchKernel(ok(d.cuModuleGetFunction(module, b"k")), 1, 1, 1, 1, 1, 1, 0, 0, pointers, 0))
            ok(d.cuCtxSynchronize())
            say(int(download(at, np.zeros(1, np.uint32))[0]))
            """,
        )
    assert said == 7


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        (STORE_SEVEN.replace("st.global", "st.globe"), [], "line 8"),
        (STORE_SEVEN.replace("ret;", "tcgen05.fence::before_thread_sync; ret;"), [], "tcgen05"),
        (STORE_SEVEN, ["-arch=sm_75"], ".target is higher"),
        (EXTERN, [], "f"),
        ("", [], ""),
    ],
    ids=["syntax", "not on simulated cards", "a later target", "a name that nobody defines", "nothing"],
)
def test_what_a_card_would_refuse_makes_no_file(tmp_path: Path, text: str, options: list[str], words: str) -> None:
    source, out = tmp_path / "k.ptx", tmp_path / "out"
    source.write_text(text)
    done = ptxas(*options, source, "-o", out)
    assert done.returncode == 255
    assert words in done.stderr
    assert not out.exists()


def test_of_several_inputs_one_may_use_the_names_of_another(tmp_path: Path) -> None:
    source, out = tmp_path / "k.ptx", tmp_path / "out"
    source.write_text(EXTERN)
    assert ptxas("-c", source, "-o", out).returncode == 0
    assert out.read_bytes() == EXTERN.encode() + b"\0"


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        ([], 1, "No input"),
        (["-o"], 1, "'-o' needs a value"),
        (["one.ptx", "two.ptx"], 1, "'two.ptx'"),
        (["-arch=80", "one.ptx"], 1, "'80'"),
        (["missing.ptx"], 255, "'missing.ptx'"),
    ],
)
def test_bad_usage_is_told(tmp_path: Path, arguments: list[str], status: int, words: str) -> None:
    done = subprocess.run(
        [native.path("tools/ptxas"), *arguments],
        cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == status
    assert words in done.stderr
    assert not list(tmp_path.iterdir())


def test_where_it_cannot_write_it_says_so(tmp_path: Path, source: Path) -> None:
    done = ptxas(source, "-o", tmp_path / "no" / "where")
    assert done.returncode == 255
    assert "Could not open output file" in done.stderr
