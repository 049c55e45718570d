"""Programs whose images have variables move: their contents go along by name."""

import os
import random
import struct
import subprocess
import time
from pathlib import Path
from typing import Final

import pytest

from egpu_sim.machines.machine import Machine
from support.moving import Control, Refused, movable
from support.nvcc import compile_program
from support.simulated_gpu import Program, environment
from support.waiting import DEADLINE_SECONDS

CARDS = ("T4", 2)
MOVES: Final = int(os.environ.get("EGPU_TEST_MOVES", "12"))
SOURCE: Final = Path(__file__).parents[1] / "programs" / "moving.cu"


@pytest.fixture(scope="module", params=["default", "none"])
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program of the runtime API; its fat binary is packed, or plain."""
    flags = ["-gencode=arch=compute_75,code=compute_75", "-gencode=arch=compute_90,code=sm_90"]
    program = tmp_path_factory.mktemp("moving") / "moving"
    return compile_program(SOURCE, program, *flags, f"--compress-mode={request.param}")


def test_a_program_of_the_runtime_counts_on_in_its_variables(sim: Machine, tmp_path: Path, compiled: Path) -> None:
    chance = random.Random(int(os.environ.get("EGPU_TEST_SEED", "35")))
    with (
        movable(sim, tmp_path) as moved,
        subprocess.Popen(
            [str(compiled)], env=environment(moved.client), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as program,
    ):
        assert program.stdout
        assert program.stdout.readline() == "begun\n"
        for _ in range(MOVES):
            time.sleep(chance.random() / 4)
            moved.move(sim)
        said, _ = program.communicate("\n", timeout=DEADLINE_SECONDS)
        assert said == "told 7\nright\n"


HEAD: Final = ".version 8.0\n.target sm_70\n.address_size 64\n"
COUNTER: Final = HEAD + ".visible .global .u32 counter = 40;\n.global .u32 twice[2];\n"
COUNT: Final = (
    COUNTER
    + """.visible .entry k(.param .u64 at)
{
    .reg .b64 %d<4>;
    .reg .b32 %r<4>;
    mov.u64 %d1, counter;
    cvta.global.u64 %d2, %d1;
    atom.add.u32 %r1, [%d2], 1;
    ld.global.u32 %r2, [twice+4];
    add.u32 %r3, %r2, 2;
    st.global.u32 [twice+4], %r3;
    ld.param.u64 %d3, [at];
    st.global.u32 [%d3], %r1;
    st.global.u32 [%d3+4], %r2;
    ret;
}
"""
)


@pytest.mark.parametrize("form", ["module", "library"])
def test_what_kernels_have_written_into_variables_is_there_after_a_move(
    sim: Machine, tmp_path: Path, form: str
) -> None:
    """A library has its variables once in each context."""
    code = f"""
        first = context()
        second = ok(d.cuCtxCreate(None, 0, ok(d.cuDeviceGet(1))))
        ok(d.cuCtxSetCurrent(first))
        image = {COUNT!r}.encode() + b"\\0"
        kernels = []
        for c in (first, second):
            ok(d.cuCtxSetCurrent(c))
            if {form!r} == "module":
                kernels.append(ok(d.cuModuleGetFunction(ok(d.cuModuleLoadData(image)), b"k")))
            elif c is first:
                library = ok(d.cuLibraryLoadData(image, [], [], 0, [], [], 0))
                kernels = [ok(d.cuLibraryGetKernel(library, b"k"))] * 2
        outs = []
        for c in (first, second):
            ok(d.cuCtxSetCurrent(c))
            outs.append(upload(np.zeros(2, np.uint32)))
        def count(which):
            ok(d.cuCtxSetCurrent((first, second)[which]))
            ok(launch(kernels[which], 1, 1, outs[which]))
            return [int(x) for x in download(outs[which], np.zeros(2, np.uint32))]
        say([count(0), count(0), count(1)])
        for _ in range(2):
            wait()
            say([count(0), count(1)])
    """
    with movable(sim, tmp_path) as moved, Program(moved.client, code) as program:
        assert program.hear() == [[40, 0], [41, 2], [40, 0]]
        for more in range(2):
            moved.move(sim)
            program.go()
            assert program.hear() == [[42 + more, 4 + 2 * more], [41 + more, 2 + 2 * more]]


def entry(*lines: str) -> str:
    registers = ".reg .b64 %d<9>; .reg .b32 %r<9>; .reg .pred %p<2>;"
    return f".visible .entry k(.param .u64 at)\n{{\n{registers}\n" + "\n".join(lines) + "\nret;\n}\n"


FUNCTION: Final = ".func f(.param .b64 p)\n{\nret;\n}\n"
CALLED: Final = "{ .param .b64 param0; st.param.b64 [param0+0], %d1; call.uni f, (param0); }"
NO_END: Final = ".loc 1 2 3\n"
ESCAPES: Final = "its code stores or passes the address of a variable"

KEPT: Final = {
    "an address that stays in registers": COUNT,
    "an address that is compared": COUNTER
    + entry("mov.u64 %d1, counter;", "setp.eq.u64 %p1, %d1, 0;", "@%p1 bra END;", "st.global.u32 [%d1], 1;", "END:"),
    "a parameter in global memory": HEAD
    + entry("ld.param.u64 %d1, [at];").replace(".u64 at", ".u64 .ptr .global .align 4 at"),
    "a word in a comment": HEAD + "// .global .u64 p = counter;\n" + entry("/* .alias */"),
    "a parameter that is given on": COUNTER
    + FUNCTION
    + entry("ld.param.u64 %d1, [at];", CALLED, "mov.u64 %d2, counter;", "st.global.u32 [%d2], 1;"),
    "a fat binary": "",
}
STAYS: Final = {
    "an address that is stored": (
        COUNTER + entry("mov.u64 %d1, counter;", "ld.param.u64 %d2, [at];", "st.global.u64 [%d2], %d1;"),
        ESCAPES,
    ),
    "an address that is stored in a loop": (
        COUNTER
        + entry(
            "mov.u64 %d3, 0;",
            "ld.param.u64 %d2, [at];",
            "AGAIN:",
            "st.global.u64 [%d2], %d3;",
            "mov.u64 %d3, counter;",
            "setp.eq.u64 %p1, %d2, 1;",
            "@%p1 bra AGAIN;",
        ),
        ESCAPES,
    ),
    "an address that is stored behind a line number": (
        COUNTER + entry("mov.u64 %d1, counter;", "ld.param.u64 %d2, [at];", f"{NO_END}st.global.u64 [%d2], %d1;"),
        ESCAPES,
    ),
    "an address that is exchanged": (
        COUNTER + entry("mov.u64 %d1, counter;", "ld.param.u64 %d2, [at];", "atom.exch.b64 %d3, [%d2], %d1;"),
        ESCAPES,
    ),
    "an address that is passed": (COUNTER + FUNCTION + entry("mov.u64 %d1, counter;", CALLED), ESCAPES),
    "an address in a variable": (
        COUNTER + ".global .u64 place = counter;\n" + entry(),
        "its variables hold addresses",
    ),
    "memory of kernels": (
        HEAD
        + ".extern .func (.param .b64 r) malloc(.param .b64 n);\n"
        + entry(
            "{ .param .b64 n; st.param.b64 [n+0], 8; .param .b64 r;",
            "call.uni (r), malloc, (n); ld.param.b64 %d1, [r+0]; }",
        ),
        "it allocates memory on the card",
    ),
}


def fat(text: str, *, kind: int = 1, architecture: int = 75, flags: int = 0x11, plain_bytes: int = 0) -> bytes:
    """A fat binary with one part."""
    data = text.encode()
    part = struct.pack("<HHIQIIIIIIQQQ", kind, 0x101, 64, len(data), 0, 0, 0, architecture, 0, 0, flags, 0, plain_bytes)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(part + data)) + part + data


def test_code_that_keeps_addresses_to_itself_moves_and_other_code_stays_by_name(sim: Machine, tmp_path: Path) -> None:
    images: list[bytes] = [text.encode() + b"\0" for text in KEPT.values() if text]
    images += [fat(COUNT), fat(COUNT.replace("sm_70", "sm_75") + "\n" * 8)]
    expected: list[str | None] = [None] * len(images)
    for text, why in STAYS.values():
        images += [text.encode() + b"\0", fat(text)]
        expected += [why] * 2
    code = f"""
        context()
        for image in {images!r}:
            module = ok(d.cuModuleLoadData(image))
            say("loaded"); wait()
            ok(d.cuModuleUnload(module))
        say("over"); wait()
    """
    found: list[str | None] = []
    with movable(sim, tmp_path) as moved, Program(moved.client, code) as program:
        control = Control(moved.executor)
        while program.hear() == "loaded":
            (session,) = control.ask("look")["sessions"]
            found.append(session["prevents"][0] if session["prevents"] else None)
            program.go()
        control.close()
        program.go()
    assert found == [why and f"module: its image stays: {why}" for why in expected]


@pytest.mark.parametrize("asks", ["cuModuleGetGlobal", "cuLibraryGetGlobal"])
def test_an_address_that_the_program_knows_prevents_a_move_as_long_as_its_image_lives(
    sim: Machine, tmp_path: Path, asks: str
) -> None:
    code = f"""
        context()
        image = {COUNT!r}.encode() + b"\\0"
        if {asks!r} == "cuModuleGetGlobal":
            loaded, unload = ok(d.cuModuleLoadData(image)), d.cuModuleUnload
        else:
            loaded, unload = ok(d.cuLibraryLoadData(image, [], [], 0, [], [], 0)), d.cuLibraryUnload
        say("loaded"); wait()
        address, size = ok(d.{asks}(loaded, b"counter"))
        say(int(download(address, np.zeros(1, np.uint32))[0])); wait()
        ok(unload(loaded))
        say("unloaded"); wait()
    """
    with movable(sim, tmp_path) as moved, Program(moved.client, code) as program:
        assert program.hear() == "loaded"
        moved.move(sim)
        program.go()
        assert program.hear() == 40
        with pytest.raises(Refused, match=f"{asks}.*: the program has the address of counter"):
            moved.move(sim)
        program.go()
        assert program.hear() == "unloaded"
        moved.move(sim)
        program.go()
