"""What a sample's CMake file says, what a run comes to, and when a run is worse than the documents say."""

import sys
from pathlib import Path

import pytest
from cuda_sample_builds import NotBuilt, Sample, recipe
from cuda_sample_runs import RIGHT, ROOT, Outcome, judged, processor_seconds, run
from cuda_sample_sizes import ARGUMENTS, CONSTANTS, shrink, sizes
from cuda_samples import MARKS, PLACES, Row, called_right, verdict, written

CMAKE = """
# add_executable(not this.cu)
find_package(CUDAToolkit REQUIRED)
include_directories(../../../Common)
target_include_directories(matrixMulDrv PRIVATE
    inc
)
add_executable(matrixMulDrv matrixMulDrv.cpp other.cu)
target_link_libraries(matrixMulDrv PUBLIC
    CUDA::cudart
    CUDA::cuda_driver
    CUDA::cublas
)
set(CUDA_FATBIN_FILE "${CMAKE_CURRENT_BINARY_DIR}/kernel64.fatbin")
set(CUDA_KERNEL_SOURCE "${CMAKE_CURRENT_SOURCE_DIR}/kernel.cu")
add_custom_command(
    COMMAND ${CMAKE_CUDA_COMPILER} ${GENCODE_FLAGS} -o ${CUDA_FATBIN_FILE} -fatbin ${CUDA_KERNEL_SOURCE}
)
add_custom_command(TARGET matrixMulDrv POST_BUILD
    COMMAND ${CMAKE_COMMAND} -E copy_directory ${CUDA_INCLUDE_DIR}/cccl/nv ${CMAKE_CURRENT_BINARY_DIR}/nv
)
"""


def test_a_recipe() -> None:
    found = recipe(CMAKE)
    assert found.sources == ("matrixMulDrv.cpp", "other.cu")
    assert found.libraries == ("cuda", "cublas")
    assert found.images == {"kernel64.fatbin": ("-fatbin", "kernel.cu")}
    assert {"../../../Common", "inc"} <= set(found.folders)
    assert (found.headers, found.openmp, found.elsewhere) == (("cccl/nv",), False, "")


@pytest.mark.parametrize(
    ("line", "elsewhere"),
    [
        ("find_package(OpenGL)", "OpenGL"),
        ("find_package(MPI)", "MPI"),
        ("find_package(FreeImage)", "FreeImage"),
        ("find_package(Vulkan)", "Vulkan"),
        ("", ""),
    ],
)
def test_systems_beside_cuda(line: str, elsewhere: str) -> None:
    assert recipe(CMAKE + line).elsewhere == elsewhere


def test_a_file_without_a_program() -> None:
    with pytest.raises(NotBuilt, match="makes no program"):
        recipe("find_package(CUDAToolkit REQUIRED)")


@pytest.mark.parametrize(
    ("status", "output", "errors", "said"),
    [
        (0, "Test PASSED", "", RIGHT),
        (0, "Test FAILED", "", "wrong: it reports a failure"),
        (0, "Error: no such file", "", "wrong: it reports a failure"),
        (0, "L1-Error: 0", "", RIGHT),
        (0, "Verifying\nmismatch i=3 result_hD=1.0 result_host=2.0", "", "wrong: it reports a failure"),
        (1, "", "", "wrong: exit code 1"),
        (2, "", "", "waived by the sample"),
        (1, "", "egpu-sim: cuX is not simulated: use cuY\n", "refused: `egpu-sim: cuX is not simulated: use cuY`"),
        (1, "", "egpu-sim: this program needs X: use Y\n", "refused: `egpu-sim: this program needs X: use Y`"),
        (1, "", f"egpu: X is not supported: {ROOT}/lib.so\n", "refused: `egpu: X is not supported: lib.so`"),
        (
            1,
            "",
            "egpu: the simulated library does not support X\n",
            "refused: `egpu: the simulated library does not support X`",
        ),
        (
            1,
            "",
            "a\negpu: cuX is not supported on a remote GPU\n",
            "refused: `egpu: cuX is not supported on a remote GPU`",
        ),
    ],
)
def test_a_verdict(status: int, output: str, errors: str, said: str) -> None:
    assert judged(status, output, errors) == said


SOURCE = """
#define TILES 512
#define RUNS (100) // of each
#define SHARED (TILES * 4)
const uint  N = 13 * 1048576 / 2;
int n = 1 << 22, m = 5;
N = (int)((float)N / scale_factor);
if (N == 4) context.batch = 24;
"""


def shrunk(folder: Path, **constants: int) -> tuple[list[str], str]:
    source = folder / "main.cu"
    source.write_text(SOURCE)
    return shrink([source], constants), source.read_text()


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("TILES", "#define TILES 512", "#define TILES 7"),
        ("RUNS", "#define RUNS (100) // of each", "#define RUNS 7 // of each"),
        ("N", "const uint  N = 13 * 1048576 / 2;", "const uint  N = 7;"),
        ("batch", "context.batch = 24;", "context.batch = 7;"),
    ],
)
def test_a_constant_becomes_smaller_where_it_is_defined_alone(
    tmp_path: Path, name: str, before: str, after: str
) -> None:
    assert shrunk(tmp_path, **{name: 7}) == ([], SOURCE.replace(before, after))


def test_a_constant_that_no_source_defines_is_named(tmp_path: Path) -> None:
    assert shrunk(tmp_path, TILES=7, scale_factor=1, SHARED=2) == (
        ["scale_factor", "SHARED"],
        SOURCE.replace("TILES 512", "TILES 7"),
    )


def test_the_table_names_each_size() -> None:
    assert sizes("reductionMultiBlockCG") == ["--n=65536", "testIterations=2"]
    named = {size for name in {*ARGUMENTS, *CONSTANTS} for size in sizes(name)}
    assert not [size for size in named if set(size) & set(" |`")], "the table is read by its blanks and bars"


def test_a_program_may_use_so_much_processor_time(tmp_path: Path) -> None:
    before = processor_seconds()
    spun = run([sys.executable, "-c", "while True: pass"], tmp_path, 0.5)
    assert spun.verdict == "not ended"
    assert 0.5 <= spun.seconds <= processor_seconds() - before
    assert run([sys.executable, "-c", "print('Error: 3')"], tmp_path, 60.0).verdict == "wrong: it reports a failure"


EMPTY = f"# Title\n\n{MARKS[0]}\n{MARKS[1]}\n\nThe end.\n"


def row(*verdicts: str) -> Row:
    outcomes = {place: Outcome(said, 3.0) for place, said in zip(PLACES, verdicts, strict=False)}
    return Row(Sample(Path("Samples/0_Introduction/clock")), outcomes)


def test_a_run_that_the_table_calls_right_may_not_fail(capsys: pytest.CaptureFixture[str]) -> None:
    page = written(EMPTY, [row(RIGHT, "wrong: exit code 1")])
    assert verdict([row(RIGHT, RIGHT)], page) == 0
    assert verdict([row(RIGHT, "refused: it")], page) == 0
    assert verdict([row("wrong: exit code 1")], page) == 1
    assert "clock, in a slice: was right, and is now: wrong" in capsys.readouterr().err


def test_a_row_with_sizes_is_known_again() -> None:
    sample = Sample(Path("Samples/2_Concepts_and_Techniques/reductionMultiBlockCG"))
    one = Row(sample, {place: Outcome(RIGHT, 3.0) for place in PLACES})
    page = written(written(EMPTY, [one]), [one])
    assert page.count("reductionMultiBlockCG `--n=65536` `testIterations=2` | right, 3 s |") == 1
    assert called_right(page) == {("2_Concepts_and_Techniques/reductionMultiBlockCG", place) for place in PLACES}


def test_rows_of_other_samples_stay() -> None:
    other = Row(Sample(Path("Samples/1_Utilities/topologyQuery")), {}, "needs curand.h")
    page = written(written(EMPTY, [row(RIGHT), other]), [row("waived by the sample")])
    assert "| 0_Introduction/clock | waived by the sample, 3 s |  |" in page
    assert "- 1_Utilities/topologyQuery: `needs curand.h`" in page
    assert RIGHT not in page
    assert page.endswith("\n\nThe end.\n")
