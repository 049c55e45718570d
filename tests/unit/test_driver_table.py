"""The table of driver functions: the headers' facts, the classes' completeness, and a check that bites."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import generate_driver_table as tool
import pytest
from driver_table import classes, directions, headers, render, table

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "native" / "driver"
TABLE = FOLDER / "generated"
Row = dict[str, Any]


@pytest.fixture(scope="module")
def include() -> Path:
    return tool.installed_include()


@pytest.fixture(scope="module")
def installed(include: Path) -> headers.Headers:
    return headers.read(include)


@pytest.fixture(scope="module")
def rows() -> dict[str, Row]:
    data = json.loads((TABLE / "driver_table.json").read_text())
    return {row["symbol"]: row for row in data["functions"]}


# -- the parser, on headers small enough to read

HEADER = """
#define CUDA_VERSION 12030
#define CUDAAPI
#if defined(__CUDA_API_VERSION_INTERNAL)
#define PTSZ(f) f##_ptsz
#else
#define PTSZ(f) f
#endif
#define cuThingMake cuThingMake_v2
#define cuThingWait PTSZ(cuThingWait)
typedef struct thing *CUthing;
CUresult CUDAAPI cuThingMake(CUthing *made, const char *names[], unsigned long long flags); /* cuNot(int really); */
CUresult CUDAAPI cuThingWait(CUthing thing);
CUresult CUDAAPI cuNothing(void);
#if defined(__CUDA_API_VERSION_INTERNAL)
#undef cuThingMake
#undef cuThingWait
CUresult CUDAAPI cuThingMake(CUthing *made, unsigned int flags);
CUresult CUDAAPI cuThingWait(CUthing thing);
#endif
"""
TYPEDEFS = """
typedef CUresult (CUDAAPI *PFN_cuThingMake_v3020)(CUthing_v1 *made, const char **names, unsigned long long flags);
typedef CUresult (CUDAAPI *PFN_cuThingMake_v2000)(CUthing *made, unsigned int flags);
typedef CUresult (CUDAAPI *PFN_cuThingWait_v2000)(const CUthing thing);
typedef CUresult (CUDAAPI *PFN_cuThingWait_v7000_ptsz)(CUthing thing);
typedef CUresult (CUDAAPI *PFN_cuNothing_v12030)(void);
"""


def write_headers(folder: Path, header: str = HEADER, typedefs: str = TYPEDEFS) -> Path:
    (folder / "cuda.h").write_text(header)
    (folder / "cudaTypedefs.h").write_text('#include "cuda.h"\n' + typedefs)
    return folder


def test_every_abi_gets_its_version(tmp_path: Path) -> None:
    found = headers.read(write_headers(tmp_path))
    assert found.version == 12030
    assert {s: (f.name, f.version, f.threads) for s, f in found.functions.items()} == {
        "cuNothing": ("cuNothing", 12030, headers.LEGACY),
        "cuThingMake": ("cuThingMake", 2000, headers.LEGACY),
        "cuThingMake_v2": ("cuThingMake", 3020, headers.LEGACY),
        "cuThingWait": ("cuThingWait", 2000, headers.LEGACY),
        "cuThingWait_ptsz": ("cuThingWait", 7000, headers.PER_THREAD),
    }


def test_parameters_have_types_and_names(tmp_path: Path) -> None:
    functions = headers.read(write_headers(tmp_path)).functions
    assert functions["cuNothing"].parameters == ()
    assert functions["cuThingMake_v2"].parameters == (
        headers.Parameter("CUthing *", "made"),
        headers.Parameter("const char **", "names"),
        headers.Parameter("unsigned long long", "flags"),
    )


def test_a_function_without_version_is_named(tmp_path: Path) -> None:
    write_headers(tmp_path, typedefs=TYPEDEFS.replace("PFN_cuNothing_v12030", "PFN_cuNothing_other"))
    with pytest.raises(headers.HeaderError, match="cuNothing"):
        headers.read(tmp_path)


def test_a_version_without_function_is_named(tmp_path: Path) -> None:
    more = "typedef CUresult (CUDAAPI *PFN_cuGhost_v9000)(void);\n"
    with pytest.raises(headers.HeaderError, match="cuGhost"):
        headers.read(write_headers(tmp_path, typedefs=TYPEDEFS + more))


def test_versions_in_the_wrong_order_are_noticed(tmp_path: Path) -> None:
    swapped = TYPEDEFS.replace("v3020", "v1000")
    with pytest.raises(headers.HeaderError, match="cuThingMake: declared"):
        headers.read(write_headers(tmp_path, typedefs=swapped))


def test_headers_that_do_not_preprocess_say_so(tmp_path: Path) -> None:
    with pytest.raises(headers.HeaderError, match="no/such"):
        headers.read(write_headers(tmp_path, header=HEADER + '#include "no/such.h"\n'))


# -- completeness against NVIDIA's own headers


def test_every_declared_function_is_in_the_table(include: Path, rows: dict[str, Row]) -> None:
    names = {row["name"] for row in rows.values()}
    text = (include / "cuda.h").read_text()
    declared = set(re.findall(r"CUDAAPI\s+(cu[A-Z]\w*)\s*\(", text))
    assert len(declared) > 400
    missing = {d for d in declared if d not in rows and d not in names}
    assert not missing


def test_versions_are_those_of_the_typedefs(include: Path, rows: dict[str, Row]) -> None:
    text = (include / "cudaTypedefs.h").read_text()
    typedefs = set(re.findall(r"\*\s*PFN_(cu\w+?)_v(\d+)(_ptds|_ptsz)?\)\(", text))
    assert len(typedefs) > 600
    ours = {
        (r["name"], str(r["version"]), m[0] if (m := re.findall(r"_ptds$|_ptsz$", s)) else "") for s, r in rows.items()
    }
    assert not typedefs - ours


def test_programs_link_to_the_newest_or_an_older_abi_of_the_same_name(
    installed: headers.Headers, rows: dict[str, Row]
) -> None:
    answers = {(name, symbol) for name, _, symbol in json.loads((TABLE / "driver_table.json").read_text())["answers"]}
    assert len(installed.renamed) > 50
    for name, symbol in installed.renamed.items():
        assert (name, symbol) in answers


def test_the_table_knows_both_major_versions() -> None:
    releases = json.loads((TABLE / "driver_table.json").read_text())["headers"]
    assert {release // 1000 for release in releases} >= {12, 13}


def test_the_checked_in_files_are_what_the_generator_gives(capsys: pytest.CaptureFixture[str]) -> None:
    assert tool.main(["--check"]) == 0, capsys.readouterr().err
    assert "CUDA 13" in capsys.readouterr().out


def test_what_is_forwarded_has_no_unknown_pointer(rows: dict[str, Row]) -> None:
    for row in rows.values():
        if row["remote"] in ("sync", "async", "cached"):
            assert all(way != directions.OPAQUE for _, _, way in row["parameters"]), row["symbol"]


def test_lengths_refer_to_parameters_of_the_same_function(rows: dict[str, Row]) -> None:
    for row in rows.values():
        names = {name for _, name, _ in row["parameters"]}
        for _, name, way in row["parameters"]:
            for length in re.findall(r"(?:len|bytes)=\*?([A-Za-z]\w*)", way):
                assert length in names, (row["symbol"], name, way)


@pytest.mark.parametrize(
    ("symbol", "parameter", "direction"),
    [
        ("cuMemAlloc_v2", "dptr", "out devptr"),
        ("cuMemFree_v2", "dptr", "in devptr"),
        ("cuMemcpyHtoD_v2", "srcHost", "in bytes=ByteCount"),
        ("cuMemcpyDtoHAsync_v2_ptsz", "dstHost", "out bytes=ByteCount"),
        ("cuStreamCreate", "phStream", "out handle(stream,create)"),
        ("cuStreamDestroy_v2", "hStream", "in handle(stream,destroy)"),
        ("cuStreamSynchronize", "hStream", "in handle(stream,use)"),
        ("cuModuleGetFunction", "name", "in string"),
        ("cuModuleUnload", "hmod", "in handle(module,destroy)"),
        ("cuLaunchKernel", "kernelParams", "in kernel_arguments"),
    ],
)
def test_directions(rows: dict[str, Row], symbol: str, parameter: str, direction: str) -> None:
    assert [way for _, name, way in rows[symbol]["parameters"] if name == parameter] == [direction]


# -- the check must bite


def grown(include: Path, folder: Path, declaration: str, typedef: str) -> Path:
    """A copy of the installed headers that declares one function more."""
    folder.mkdir(exist_ok=True)
    for name in (*headers.DECLARING, *headers.VERSIONING):
        shutil.copy(include / name, folder / name)
    with (folder / "cuda.h").open("a") as file:
        file.write(f"\n{declaration}\n")
    with (folder / "cudaTypedefs.h").open("a") as file:
        file.write(f"\n{typedef}\n")
    return folder


@pytest.mark.parametrize(
    ("name", "parameters", "complaint"),
    [
        ("cuMemAllocSideways", "CUdeviceptr *dptr, size_t bytes", "no interposer class"),
        ("cuLaunchEverything", "CUfunction f", "no interposer class"),
        ("cuBrandNew", "int a", "no remote class"),
        # Patterns claim these two, but what they do is not what their name says.
        ("cuCtxGrab", "CUdeviceptr *here, size_t bytes", "may hand out a CUdeviceptr through here"),
        ("cuStreamGetInfoOfMemory", "size_t *free", "only a pattern of interposer class stream claims it"),
        # Well classified by a pattern, and yet the table on disk is old.
        ("cuStreamPaint", "CUstream s", "not in the table"),
    ],
)
def test_the_check_names_a_new_function(
    include: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, parameters: str, complaint: str
) -> None:
    grown(
        include,
        tmp_path,
        f"CUresult CUDAAPI {name}({parameters});",
        f"typedef CUresult (CUDAAPI *PFN_{name}_v13060)({parameters});",
    )
    assert tool.main(["--check", "--include", str(tmp_path)]) == 1
    errors = capsys.readouterr().err
    assert any(name in line and complaint in line for line in errors.splitlines()), errors
    # Generating does not paper over it either, and leaves the files alone.
    before = (TABLE / "driver_table.inc").read_bytes()
    if complaint != "not in the table":
        assert tool.main(["--include", str(tmp_path)]) == 1
        assert (TABLE / "driver_table.inc").read_bytes() == before


def test_a_new_function_is_added_once_it_is_classified(
    include: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grown(
        include,
        tmp_path / "include",
        "CUresult CUDAAPI cuMemAllocSideways(CUdeviceptr *dptr, size_t bytes);",
        "typedef CUresult (CUDAAPI *PFN_cuMemAllocSideways_v13060)(CUdeviceptr *dptr, size_t bytes);",
    )
    folder = tmp_path / "driver"
    shutil.copytree(FOLDER, folder)
    text = (folder / "classes.yaml").read_text()
    text = text.replace("names: [cuMemAlloc, ", "names: [cuMemAllocSideways, cuMemAlloc, ")
    text = text.replace("      - cuMemAlloc\n", "      - cuMemAlloc\n      - cuMemAllocSideways\n")
    (folder / "classes.yaml").write_text(text)
    arguments = ["--include", str(tmp_path / "include"), "--folder", str(folder)]
    assert tool.main(arguments) == 0, capsys.readouterr().err
    assert tool.main(["--check", *arguments]) == 0
    known, _ = render.known((folder / "generated/driver_table.json").read_text())
    assert known["cuMemAllocSideways"].function.version == 13060
    # Older headers, without it, still pass: what was learnt stays.
    assert tool.main(["--check", "--include", str(include), "--folder", str(folder)]) == 0


def test_an_edit_of_the_generated_file_is_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "driver"
    shutil.copytree(FOLDER, folder)
    text = (folder / "generated/driver_table.inc").read_text()
    (folder / "generated/driver_table.inc").write_text(text.replace("ALLOC, SYNC", "PASS, SYNC", 1))
    assert tool.main(["--check", "--folder", str(folder)]) == 1
    assert "driver_table.inc" in capsys.readouterr().err


def test_a_changed_version_is_noticed(installed: headers.Headers) -> None:
    known, _ = render.known((TABLE / "driver_table.json").read_text())
    before = known["cuMemAlloc_v2"]
    known["cuMemAlloc_v2"] = table.Known(replace(before.function, version=3030), before.last)
    assert table.disagreements(known, installed) == ["cuMemAlloc_v2 is of CUDA 3020, the table says 3030"]


# -- the rules of classes.yaml


def function(name: str, *parameters: tuple[str, str]) -> headers.Function:
    return headers.Function(
        name, name, 2000, headers.LEGACY, "CUresult", tuple(headers.Parameter(t, n) for t, n in parameters)
    )


def rules(tmp_path: Path, text: str) -> classes.Classes:
    path = tmp_path / "classes.yaml"
    path.write_text(text)
    return classes.read(path)


RULES = """
interposer: {a: {names: [cuOne], patterns: [cuT.*]}, b: {patterns: [cuTh.*]}}
remote: {sync: {patterns: [cu.*]}}
guarded: {names: [], outputs: []}
"""


def test_a_name_beats_a_pattern_and_two_patterns_are_a_quarrel(tmp_path: Path) -> None:
    with pytest.raises(classes.ClassError) as error:
        classes.classify([function("cuOne"), function("cuTwo"), function("cuThree")], rules(tmp_path, RULES))
    assert error.value.problems == ["cuThree: interposer classes a and b both claim it"]


def test_rules_that_match_nothing_are_reported(tmp_path: Path) -> None:
    with pytest.raises(classes.ClassError) as error:
        classes.classify([function("cuTwo")], rules(tmp_path, RULES + "parameters: {cuTwo: {size: in value}}\n"))
    assert error.value.problems == [
        "parameters of cuTwo: none is called size",
        "interposer class a lists cuOne, which no header declares",
        "interposer class b: pattern cuTh.* matches nothing",
    ]


def test_an_opaque_pointer_of_a_forwarded_function_is_reported(tmp_path: Path) -> None:
    known = {"cuTwo": table.Known(function("cuTwo", ("void *", "where")), 13000)}
    text = RULES.replace("names: [cuOne], ", "").replace(", b: {patterns: [cuTh.*]}", "")
    with pytest.raises(classes.ClassError, match=r"cuTwo: the direction of where \(void \*\) is unknown"):
        table.build(known, [13000], rules(tmp_path, text))


def test_what_comes_back_cannot_be_asynchronous(tmp_path: Path) -> None:
    text = RULES.replace("names: [cuOne], ", "").replace(", b: {patterns: [cuTh.*]}", "").replace("sync:", "async:")
    allowed = {"cuTwo": table.Known(function("cuTwo", ("CUstream *", "made")), 13000)}
    table.build(allowed, [13000], rules(tmp_path, text))
    known = {"cuTwo": table.Known(function("cuTwo", ("size_t *", "count")), 13000)}
    with pytest.raises(classes.ClassError, match=r"cuTwo: count \(out value\) comes back"):
        table.build(known, [13000], rules(tmp_path, text))
