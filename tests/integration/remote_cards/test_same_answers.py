"""The same answers, byte for byte: every program of this project, on the card itself and on one elsewhere.

Each program runs on a simulated machine directly, and then with the remote client over shared memory, over a loopback
port and over TLS through two relays. What it prints and how it ends is compared. A program that is not here because
its answers cannot be the same is named below, with the reason.
"""

import dataclasses
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final, get_args

import pytest
import test_sim_driver
import test_sim_graphs
import test_sim_memory

from egpu.adapters import native
from egpu.adapters.slices.pages import DevicePolicy, Mode, create_usage, write_policy
from egpu_base.errors import NativeMissing
from egpu_sim.machines.machine import Machine
from support.long import or_long
from support.remote_gpu import Transport, remote
from support.simulated_gpu import environment, run, source
from support.waiting import DEADLINE_SECONDS

CARDS = ("A100-80G", 2)

TRANSPORTS: Final = tuple(one for one in get_args(Transport) if one != "bridge")
#: TLS goes over a port too: the port alone is in `make test-long`, but for the programs that tell every call.
MOST: Final = or_long(tuple(one for one in TRANSPORTS if one != "tcp"), TRANSPORTS)
PROGRAMS: Final = Path(__file__).parents[1] / "programs" / "answers"

#: What is different by design, and says so by name: docs/internals/wire.md tells.
DIFFERENT: Final = {
    "test_host_memory",  # managed memory, and registered memory seen by kernels: not without one address space
    "test_managed_memory_is_charged_and_gives_way",
    "test_ptx_for_a_newer_card_says_how_to_build",  # the remote client does not know the target
    "test_events_measure_declared_durations",  # prints how long it took
    "test_graphs_by_hand_are_changed_cloned_and_updated",  # explicit nodes
    "test_events_fork_and_join_captures",  # lists its edges
    "test_memory_that_graphs_allocate",
    "test_a_captured_stream_does_nothing_until_its_graph_is_launched",  # captures copies of the program's own memory
    "test_what_may_not_be_done_while_capturing",
    "test_memory_at_reserved_addresses",  # takes a retained handle to be the number of the first one
    "test_arrays_are_charged_and_hold_what_is_copied",
    "test_memory_and_events_between_processes",  # IPC
    "test_an_event_of_a_killed_process_is_over",
    "test_memory_by_file_descriptor",
    "test_what_a_killed_process_shared_is_given_back",
    "test_what_no_call_allocates_is_on_the_card_too",  # its figures are those of a card with fewer processors
}

Answer = tuple[int, str, str]
Ways = dict[str, Path]
"""How to get to the card, and the driver directory that goes that way. `local` is the card itself."""


@pytest.fixture(scope="module", params=TRANSPORTS)
def far(request: pytest.FixtureRequest, sim: Machine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    transport: Transport = request.param
    with remote(sim, tmp_path_factory.mktemp(transport), transport, "--grace", "2") as (client, _, _):
        yield client


@pytest.fixture(scope="module")
def known() -> dict[str, Any]:
    """What was answered locally: asked once for all ways."""
    return {}


def answer(command: list[str], driver_dir: Path, more: Mapping[str, str] | None = None) -> Answer:
    done = subprocess.run(
        command,
        env=environment(driver_dir, more),
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE_SECONDS,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


# ---- the samples ---------------------------------------------------------------------------------------------------

SAMPLES: Final = (
    ("vectoradd", "--n=70001"),
    ("saxpy", "--n=50001", "--rounds=4"),
    ("reduce", "--n=30003"),
    ("matmul", "--n=48"),
    ("memory", "--chunk=8GiB"),
    ("info",),
    ("spin", "--us=500", "--seconds=0.05"),
    ("vectoradd", "--device=7"),
    ("memory", "--device=1", "--chunk=30GiB"),
    ("matmul", "--n=17"),
    ("reduce", "--help"),
)
MEASURED: Final = re.compile(r"\d+(\.\d+)?(?= kernels of| us in| s on| % of its time)")


@pytest.mark.parametrize("far", MOST, indirect=True, scope="module")
@pytest.mark.parametrize("sample", SAMPLES, ids=" ".join)
def test_samples(sim: Machine, far: Path, known: dict[str, Any], sample: tuple[str, ...]) -> None:
    name, *flags = sample
    program = str(native.path(f"samples/egpu-sample-{name}"))
    for form in ([], ["--json"]):
        command = [program, *flags, *form]

        def told(driver_dir: Path, command: list[str] = command, form: list[str] = form) -> Answer:
            code, said, errors = answer(command, driver_dir)
            if name == "spin" and form:  # how much it measured is what it is about, and never the same
                fields = json.loads(said)
                said = json.dumps({k: v for k, v in fields.items() if not isinstance(v, float) and k != "kernels"})
            return code, MEASURED.sub("#", said) if name == "spin" else said, errors

        known[" ".join(command)] = local = known.get(" ".join(command)) or told(sim.driver_dir)
        assert told(far) == local


def test_every_sample_is_here() -> None:
    built = native.path("samples/egpu-sample-info").parent.glob("egpu-sample-*")
    there = {path.name.removeprefix("egpu-sample-") for path in built}
    assert {name for name, *_ in SAMPLES} == {name for name in there if "." not in name}


# ---- programs on cuda-bindings -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(path.stem for path in PROGRAMS.glob("*_program.py")))
def test_programs_that_tell_every_call(sim: Machine, far: Path, known: dict[str, Any], name: str) -> None:
    command = [sys.executable, str(PROGRAMS / f"{name}.py")]
    known[name] = local = known.get(name) or answer(command, sim.driver_dir)
    assert "Traceback" not in local[2]
    assert answer(command, far)[:2] == local[:2]  # stderr names what is not supported


def programs() -> Iterator[tuple[ModuleType, str]]:
    for module in (test_sim_driver, test_sim_graphs, test_sim_memory):
        for name, test in inspect.getmembers(module, inspect.isfunction):
            if (
                name.startswith("test_")
                and name not in DIFFERENT
                and list(inspect.signature(test).parameters) == ["sim"]
            ):
                yield module, name


@pytest.mark.parametrize("far", MOST, indirect=True, scope="module")
@pytest.mark.parametrize(("module", "name"), list(programs()), ids=lambda one: getattr(one, "__name__", one))
def test_programs_of_the_simulators_tests(
    sim: Machine,
    far: Path,
    known: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    module: ModuleType,
    name: str,
) -> None:
    """They hold what they assert, and print the same."""

    def told(driver_dir: Path) -> list[Answer]:
        answers: list[Answer] = []

        def run(on: Machine, code: str, env: Mapping[str, str] | None = None, *, fails: bool = False) -> Any:
            answers.append(answer([sys.executable, "-c", source(code)], on.driver_dir, env))
            code_, said, errors = answers[-1]
            if fails:
                return subprocess.CompletedProcess([], code_, said, errors)
            assert code_ == 0, f"exit {code_}\n{said}\n{errors}"
            return json.loads(said.splitlines()[-1])

        monkeypatch.setattr(module, "run", run)
        test: Callable[[Machine], None] = getattr(module, name)
        test(dataclasses.replace(sim, driver_dir=driver_dir))
        return [(code, said, "") for code, said, _ in answers]

    known[name] = local = known.get(name) or told(sim.driver_dir)
    assert told(far) == local


def test_what_is_left_out_exists() -> None:
    there = {name for module in (test_sim_driver, test_sim_graphs, test_sim_memory) for name in vars(module)}
    assert there >= DIFFERENT


# ---- programs in C -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["egpu_sim_driver_test", "egpu_sim_driver_test_per_thread"])
def test_programs_on_the_driver_api(sim: Machine, far: Path, known: dict[str, Any], name: str) -> None:
    """Threads, events, captured graphs; also on each thread's own default stream."""
    try:
        program = native.path(f"tests/{name}")
    except NativeMissing:
        pytest.skip("the native tests are not built (they are not part of an installed package)")
    known[name] = local = known.get(name) or answer([str(program)], sim.driver_dir)
    assert local[0] == 0, local
    assert answer([str(program)], far) == local


# ---- in a slice ----------------------------------------------------------------------------------------------------


def limited(sim: Machine, directory: Path) -> Path:
    """A slice of 700 MiB of the first card."""
    card = sim.cards[0]
    limit = DevicePolicy(
        uuid=card.uuid, minor=card.minor, mode=Mode.UNLIMITED, core_ppm=1_000_000, memory_limit_bytes=700 << 20
    )
    directory.mkdir()
    write_policy(directory / "policy", [limit])
    create_usage(directory / "usage")
    (directory / "libegpu-interposer.so").symlink_to(native.path("libegpu-interposer.so"))
    return directory


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_in_a_slice(sim: Machine, tmp_path: Path, transport: Transport) -> None:
    """Limited by the same policy page: here by the interposer in the program, there by the one in its executor."""
    slices = [limited(sim, tmp_path / name) for name in ("here", "there")]
    visible = {"CUDA_VISIBLE_DEVICES": sim.cards[0].uuid}
    here = {"LD_PRELOAD": str(slices[0] / "libegpu-interposer.so"), **visible}
    with remote(sim, tmp_path, transport, "--slice", str(slices[1]), env=visible) as (client, _, _):
        for sample in (("memory",), ("memory", "--chunk=300MiB", "--json"), ("vectoradd",), ("memory", "--device=1")):
            name, *flags = sample
            command = [str(native.path(f"samples/egpu-sample-{name}")), *flags]
            assert answer(command, client) == answer(command, sim.driver_dir, here)


DEEP: Final = """
.version 8.0
.target sm_70
.address_size 64
.visible .entry NAME(.param .u64 at, .param .u32 more) {
    .local .align 8 .b8 depot[2048];
    .reg .b64 %d<3>;
    ld.param.u64 %d1, [at];
    mov.u64 %d2, depot;
    st.local.u64 [%d2], %d1;
    ret;
}
"""
LAZY: Final = f"""
context()
text = {DEEP!r}
names = ["first", *(f"more{{i}}" for i in range(9))]
entries = [text[text.index(".visible"):].replace("NAME", each) for each in names]
image = (text[:text.index(".visible")] + "".join(entries)).encode() + bytes(1)
free = lambda: ok(d.cuMemGetInfo())[0]
before = free()
library = ok(d.cuLibraryLoadData(image, [], [], 0, [], [], 0))
kernels = [ok(d.cuLibraryGetKernel(library, each.encode())) for each in names]
told = [ok(d.cuKernelGetName(each)).decode() for each in kernels] == names
parameters = {{int(ok(d.cuKernelGetParamInfo(each, 1))[1]) for each in kernels}}
loaded = before - free()
launch_ = lambda threads: name(launch(d.CUfunction(int(kernels[0])), 1, threads, 0, (1, ctypes.c_uint32)))
say([told, list(parameters), loaded, launch_(1), launch_(1025), before - free() > 0])
"""


def test_a_library_is_loaded_by_its_first_launch(sim: Machine, tmp_path: Path) -> None:
    """Not by a client's questions about its kernels: a driver loads these lazily, too."""
    env, there = {"CUDA_VISIBLE_DEVICES": sim.cards[0].uuid}, limited(sim, tmp_path / "there")
    with remote(sim, tmp_path, "shm", "--slice", str(there), env=env) as (client, _, _):
        found = run(client, LAZY)
    assert found == [True, [4], 0, "SUCCESS", "INVALID_VALUE", True]
