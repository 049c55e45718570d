"""What the driver and each context keep of a simulated card's memory: by the model, or as whoever makes it says."""

from pathlib import Path

import pytest

from egpu_base.errors import InvalidInput
from egpu_sim.machines.machine import create_machine, open_machine, profiles
from support.simulated_gpu import machine, run

SHOWN = """
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
old, new = n.nvmlDeviceGetMemoryInfo(h), n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2)
said = [one >> 20 for one in (old.total, old.used, old.free, new.total, new.reserved, new.used, new.free)]
context()
free, total = ok(d.cuMemGetInfo())
listed = [process.usedGpuMemory >> 20 for process in n.nvmlDeviceGetComputeRunningProcesses(h)]
ok(d.cuMemAlloc(free))
say([*said, free >> 20, total >> 20, ok(d.cuDeviceTotalMem(0)) >> 20, listed, name(d.cuMemAlloc(1))])
"""


@pytest.fixture
def as_models_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EGPU_SIM_DRIVER_MIB")
    monkeypatch.delenv("EGPU_SIM_CONTEXT_MIB")


@pytest.mark.usefixtures("as_models_have_it")
def test_a_card_keeps_what_its_model_does(tmp_path: Path) -> None:
    """What the driver keeps is part of NVML's total and, in version 1, of what is used; CUDA does not show it. What a
    context keeps is its process's. Programs can have every byte of the rest."""
    model = profiles()["T4"]
    with machine(tmp_path, "T4") as made:
        assert open_machine(made.directory) == made
        said = run(made, SHOWN)
    driver, context = model.driver_mib, (model.context_mib + 1) // 2 * 2
    usable = model.memory_mib - driver
    old, new = [model.memory_mib, driver, usable], [model.memory_mib, driver, 0, usable]
    assert (driver > 0, context > 0) == (True, True)
    assert said == [*old, *new, usable - context, usable, usable, [context], "OUT_OF_MEMORY"]


def test_whoever_makes_a_machine_can_say_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with machine(tmp_path, "T4", driver_mib=450, context_mib=300) as made:
        assert open_machine(made.directory).cards[0] == made.cards[0]
        kept = (made.cards[0].memory_mib, made.cards[0].driver_mib, made.cards[0].context_mib)
        assert kept == (14910, 450, 300)
        assert run(made, SHOWN)[:9] == [15360, 450, 14910, 15360, 450, 0, 14910, 14610, 14910]
    monkeypatch.setenv("EGPU_SIM_DRIVER_MIB", "60")
    with machine(tmp_path, "T4") as made:
        assert (made.cards[0].memory_mib, made.cards[0].context_mib) == (15300, 0)


@pytest.mark.parametrize("value", ["-1", "4097", "much", "9" * 5000])
def test_what_no_card_keeps_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("EGPU_SIM_CONTEXT_MIB", value)
    with pytest.raises(InvalidInput, match=r"EGPU_SIM_CONTEXT_MIB.*number of MiB from 0 to 4096"):
        create_machine(tmp_path / "m", "T4")
    with pytest.raises(InvalidInput, match="driver_mib"):
        create_machine(tmp_path / "m", "T4", driver_mib=4097, context_mib=0)
    assert not (tmp_path / "m").exists()


@pytest.mark.usefixtures("as_models_have_it")
def test_an_instance_of_mig_is_as_large_as_nvidia_s(tmp_path: Path) -> None:
    """What the driver keeps of the whole card is not taken off, and a context keeps less than on all of it."""
    cut = """
        n.nvmlInit()
        h = n.nvmlDeviceGetHandleByIndex(0)
        assert n.nvmlDeviceSetMigMode(h, 1) == 0
        for _ in range(2):  # to the card's last byte
            n.nvmlGpuInstanceCreateComputeInstance(n.nvmlDeviceCreateGpuInstance(h, THREE_SLICES), 2)
        os.environ["CUDA_VISIBLE_DEVICES"] = n.nvmlDeviceGetUUID(n.nvmlDeviceGetMigDeviceHandleByIndex(h, 1))
        context()
        free, total = ok(d.cuMemGetInfo())
        ok(d.cuMemAlloc(free))
        say([total >> 20, free >> 20])
    """
    model = profiles()["A100-40G"]
    shape = next(mig for mig in model.mig if mig.name == "3g.20gb")
    with machine(tmp_path, "A100-40G") as made:
        total, free = run(made, cut.replace("THREE_SLICES", str(shape.id)))
    context = 2 * ((model.context_mib + 1) // 2 * shape.sm_count // model.sm_count)
    assert (total, free) == (shape.memory_mib, shape.memory_mib - context)
