"""Compiled kernels: refused, or taken and skipped by a machine that was told so."""

import shutil
import subprocess
from pathlib import Path
from typing import Final, Literal

import pytest

from egpu_base.errors import InvalidInput
from egpu_sim.machines.machine import create_machine
from support.simulated_gpu import machine, run

SOURCE: Final = """
struct three { double x[3]; char c; };
__constant__ float factors[16];
__device__ int counter[4];
extern "C" __global__ void __launch_bounds__(128) mixed(float *out, short n, three by, const float *in) {
    __shared__ float kept[512];
    kept[threadIdx.x] = in[threadIdx.x] * factors[n & 15];
    __syncthreads();
    out[threadIdx.x] = kept[n & 127] + by.x[1];
    counter[0]++;
}
extern "C" __global__ void idle() {}
"""

USE: Final = """
context()
module = ok(d.cuModuleLoadData(image))
mixed, idle = (ok(d.cuModuleGetFunction(module, each)) for each in (b"mixed", b"idle"))
A = d.CUfunction_attribute
places = [tuple(int(each) for each in ok(d.cuFuncGetParamInfo(mixed, i))) for i in range(4)]
facts = [ok(d.cuFuncGetAttribute(each, mixed)) for each in (
    A.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, A.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)]
sizes = [ok(d.cuModuleGetGlobal(module, each))[1] for each in (b"factors", b"counter")]
out, given = upload(np.ones(64, np.float32)), upload(np.ones(64, np.float32))
untouched = upload(np.ones(64, np.float32))
class Three(ctypes.Structure): _fields_ = [("x", ctypes.c_double * 3), ("c", ctypes.c_char)]
too_many = name(launch(mixed, 1, 129, out, (1, ctypes.c_short), (Three(), None), given))
ok(launch(mixed, 1, 64, out, (1, ctypes.c_short), (Three(), None), given))
ok(launch(idle, 1, 64))
results = [download(each, np.ones(64, np.float32)) for each in (out, untouched)]
say([ok(d.cuModuleGetFunctionCount(module)), places, facts, sizes, too_many,
     [[bool(np.isnan(each).all()), bool((each == 1).all())] for each in results]])
"""
"""Everything that a program can ask about a module, and a launch."""

FOUND: Final = [2, [[0, 8], [8, 2], [16, 32], [48, 8]], [2048, 128], [64, 16], "LAUNCH_OUT_OF_RESOURCES",
                [[True, False], [False, True]]]  # fmt: skip

NVRTC: Final = f"""
from cuda.bindings import nvrtc
def cubin(architecture):
    program = ok(nvrtc.nvrtcCreateProgram({SOURCE!r}.encode(), b"k.cu", 0, [], []))
    ok(nvrtc.nvrtcCompileProgram(program, 1, [b"-arch=" + architecture]))
    image = b" " * ok(nvrtc.nvrtcGetCUBINSize(program))
    ok(nvrtc.nvrtcGetCUBIN(program, image))
    return image
"""


@pytest.mark.parametrize(
    ("profile", "architecture"), [("A100-80G", "sm_80"), ("H100-80G", "sm_90"), ("B200", "sm_100")]
)
def test_a_cubin_keeps_names_parameters_and_sizes_when_it_is_skipped(
    tmp_path: Path, profile: str, architecture: str
) -> None:
    with machine(tmp_path, profile, compiled="skip") as made:
        assert run(made, f"{NVRTC}image = cubin(b'{architecture}')\n{USE}") == FOUND


@pytest.mark.parametrize(("compiled", "filler"), [("skip", "0xff bytes"), ("zero", "zeros")])
def test_programs_are_told_once_that_their_results_are_wrong(
    tmp_path: Path, compiled: Literal["skip", "zero"], filler: str
) -> None:
    with machine(tmp_path, "A100-80G", compiled=compiled) as made:
        done = run(made, f"{NVRTC}context()\nfor _ in range(2): ok(d.cuModuleLoadData(cubin(b'sm_80')))", fails=True)
    told = done.stderr.count(f"this machine skips compiled kernels: they fill their results with {filler}")
    assert (done.returncode, told) == (0, 1), done.stderr


def test_results_of_skipped_kernels_can_be_zeros(tmp_path: Path) -> None:
    with machine(tmp_path, "A100-80G", compiled="zero") as made:
        found = run(made, f"{NVRTC}image = cubin(b'sm_80')\n{USE.replace('np.isnan(each)', '(each == 0)')}")
    assert found == FOUND


def test_compiled_kernels_are_refused_unless_they_fit_and_are_to_be_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a card does: cubins of an older minor version of its generation fit, others do not."""
    load = f"{NVRTC}context()\nsay([name(d.cuModuleLoadData(cubin(each))) for each in (b'sm_80', b'sm_86', b'sm_90')])"
    with machine(tmp_path / "refuse", "A100-80G") as made:
        assert run(made, load) == ["NO_BINARY_FOR_GPU"] * 3
    monkeypatch.setenv("EGPU_SIM_COMPILED", "skip")
    with machine(tmp_path / "skip", "A100-80G") as made:
        assert run(made, load) == ["SUCCESS", "NO_BINARY_FOR_GPU", "NO_BINARY_FOR_GPU"]
    monkeypatch.setenv("EGPU_SIM_COMPILED", "run")
    with pytest.raises(InvalidInput, match=r"EGPU_SIM_COMPILED.*none of 'refuse', 'skip' and 'zero'"):
        create_machine(tmp_path / "m", "T4")


def compiled(tmp_path: Path, *flags: str) -> Path:
    if not (nvcc := shutil.which("nvcc")):
        pytest.skip("nvcc is not installed")
    (source := tmp_path / "kernels.cu").write_text(SOURCE)
    subprocess.run([nvcc, "-fatbin", *flags, "-o", tmp_path / "kernels.fatbin", source], check=True)
    return tmp_path / "kernels.fatbin"


CUBINS: Final = ("-gencode=arch=compute_80,code=sm_80", "-gencode=arch=compute_90,code=sm_90")


@pytest.mark.parametrize("compression", ["none", "size"])
def test_a_fat_binary_is_skipped_by_the_cubin_that_fits_best(tmp_path: Path, compression: str) -> None:
    image = compiled(tmp_path, *CUBINS, f"--compress-mode={compression}")
    with machine(tmp_path, "H100-80G", compiled="skip") as made:
        assert run(made, f"image = open({str(image)!r}, 'rb').read()\n{USE}") == FOUND


def test_kernels_that_have_ptx_run_also_where_compiled_ones_are_skipped(tmp_path: Path) -> None:
    image = compiled(tmp_path, *CUBINS, "-gencode=arch=compute_75,code=compute_75")
    with machine(tmp_path, "H100-80G", compiled="skip") as made:
        results = run(made, f"image = open({str(image)!r}, 'rb').read()\n{USE}")[-1]
    assert results == [[False, False], [False, True]]
