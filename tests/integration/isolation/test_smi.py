"""The small nvidia-smi of slices: what scripts read has NVIDIA's form, what people read fits a terminal, and both show
the slice, not the card."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from egpu.adapters import native
from egpu.adapters.cards.compute_policy import set_time_slice
from egpu_base.errors import NotSupported
from egpu_sim import native as simulated
from egpu_sim.machines import machine as simulator
from egpu_sim.machines.machine import Machine
from support import forked_commands
from support.simulated_gpu import Program, environment, machine

MODEL = "NVIDIA A100-SXM4-80GB"
HOLD = """
context()
pointer = ok(d.cuMemAlloc(64 << 20))
say(os.getpid())
wait()
"""


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with machine(tmp_path_factory.mktemp("smi"), "A100-80G", 2) as made:
        yield made


def smi(on: Machine, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = [native.path("tools/nvidia-smi"), *arguments]
    return subprocess.run(
        program, env=environment(on.driver_dir), capture_output=True, text=True, timeout=30, check=False
    )


def printed(on: Machine, *arguments: str) -> list[str]:
    done = smi(on, *arguments)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout.splitlines()


def test_the_list_is_nvidias(two: Machine) -> None:
    assert printed(two, "-L") == [f"GPU {card.index}: {MODEL} (UUID: {card.uuid})" for card in two.cards]


def test_a_query_is_csv_with_or_without_heading_and_units(two: Machine) -> None:
    fields = "--query-gpu=index,gpu_name,memory.total,utilization.gpu,fan.speed"
    lines = printed(two, fields, "--format=csv")
    assert lines[0] == "index, name, memory.total [MiB], utilization.gpu [%], fan.speed [%]"
    assert lines[1] == f"0, {MODEL}, 81920 MiB, 0 %, [N/A]"
    assert printed(two, fields, "--format=csv,noheader,nounits")[1] == f"1, {MODEL}, 81920, 0, [N/A]"


@pytest.mark.parametrize("name", ["1", "uuid", "bus"])
def test_one_card_by_any_of_its_names(two: Machine, name: str) -> None:
    (bus,) = printed(two, "-i", "1", "--query-gpu=pci.bus_id", "--format=csv,noheader")
    which = {"1": "1", "uuid": two.cards[1].uuid, "bus": bus}[name]
    assert printed(two, f"--id={which}", "--query-gpu=uuid", "--format=csv,noheader") == [two.cards[1].uuid]


def test_every_field_can_be_asked_for(two: Machine) -> None:
    for kind in ("gpu", "compute-apps"):
        names = [name for line in printed(two, f"--help-query-{kind}") for name in line.split(" or ")]
        printed(two, f"--query-{kind}={','.join(names)}", "--format=csv")


def test_processes_are_shown_with_what_they_hold(two: Machine) -> None:
    with Program(two, HOLD) as program:
        pid = program.hear()
        query = ("--query-compute-apps=gpu_uuid,pid,used_memory", "--format=csv,noheader")
        (line,) = printed(two, *query)
        assert re.fullmatch(rf"{two.cards[0].uuid}, {pid}, (\d+) MiB", line)
        assert int(line.split()[-2]) >= 64
        page = printed(two)
        assert page[0].startswith("Elastic GPU's nvidia-smi")
        assert any(line.split()[:2] == ["0", str(pid)] for line in page)
    assert "No running processes found" in printed(two)


def test_what_people_read_fits_a_terminal(two: Machine) -> None:
    for arguments in ((), ("-q",), ("--help",)):
        lines = printed(two, *arguments)
        assert "Elastic GPU" in lines[0]
        assert max(map(len, lines)) < 80


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("--query-gpu=shoe", "--format=csv"), 2, 'Field "shoe" is not a valid field'),
        (("--query-gpu=name",), 2, "--format=csv"),
        (("--query-gpu=name", "--format=xml"), 2, "xml"),
        (("-i", "7"), 6, "no GPU 7"),
        (("topo", "-m"), 2, "topo is not supported"),
        (("--loop=x",), 2, "number of seconds"),
        (("-i",), 2, "-i needs a value"),
    ],
)
def test_what_it_cannot_do_it_says(two: Machine, arguments: tuple[str, ...], status: int, said: str) -> None:
    done = smi(two, *arguments)
    assert (done.returncode, done.stdout) == (status, "")
    assert said in done.stderr


def test_a_full_disk_is_no_success(two: Machine) -> None:
    with Path("/dev/full").open("w") as full:
        program = [native.path("tools/nvidia-smi"), "-L"]
        done = subprocess.run(program, env=environment(two.driver_dir), stdout=full, check=False)
    assert done.returncode == 255


def test_a_simulated_slice_has_it_on_its_path_with_the_samples(tmp_path: Path) -> None:
    egpu = ["run", "--state-dir", str(tmp_path / "state"), "--simulate", "A100-80G"]
    asked = "nvidia-smi --query-gpu=memory.total --format=csv,noheader && command -v egpu-sample-spin"
    slice_ = [*egpu, "--core", "30", "--memory", "2GiB", "--", "sh", "-c", asked]
    try:
        done = forked_commands.run(slice_, env=os.environ, timeout=60, check=True)
    finally:
        for description in (tmp_path / "state").glob("*/machine/machine.json"):
            simulator.destroy(simulator.open_machine(description.parent))
    total, spin = done.stdout.splitlines()
    assert total == "2048 MiB"
    assert Path(spin).samefile(simulated.path("samples/egpu-sample-spin"))


def test_time_slices_are_set_of_simulated_cards(two: Machine) -> None:
    uuid = two.cards[1].uuid
    assert printed(two, "compute-policy", "-i", uuid, "--set-timeslice=3") == [f"Timeslice set to LONG for GPU {uuid}"]
    listed = [f"GPU {two.cards[0].uuid}: Timeslice DEFAULT", f"GPU {uuid}: Timeslice LONG"]
    assert printed(two, "compute-policy", "--list") == listed
    set_time_slice(uuid, "default", two.driver_dir / "libnvidia-ml.so.1")
    assert printed(two, "compute-policy", "-l", "-i", "1") == [f"GPU {uuid}: Timeslice DEFAULT"]
    with pytest.raises(NotSupported, match="found no GPU GPU-none"):
        set_time_slice("GPU-none", "long", two.driver_dir / "libnvidia-ml.so.1")
    for wrong in ("--set-timeslice=4", "--set-timeslice=long", "", "--list --set-timeslice=1", "--list x"):
        assert smi(two, "compute-policy", *wrong.split()).returncode == 2
