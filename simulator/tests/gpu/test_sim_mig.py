"""MIG on simulated cards: cutting them up through nvidia-ml-py, running on the pieces through cuda-bindings, both unchanged."""
# ruff: noqa: E501  statements of the programs inside read better on one line

import contextlib
import json
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Generator, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from egpu_sim import native
from egpu_sim.machines.clock import Clock
from egpu_sim.machines.machine import Machine, make_driver_dir, profiles
from support.simulated_gpu import Program, environment, machine, run

MIB = 1 << 20

LIGHT = """
import ctypes, json
import pynvml as n
def say(value): print(json.dumps(value))
"""

NVML = """
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
def error(call, *arguments):
    try: call(*arguments)
    except n.NVMLError as e: return [type(e).__name__.removeprefix("NVMLError_"), str(e)]
def by_name(device=h):
    found = {}
    for number in range(n.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try: info = n.nvmlDeviceGetGpuInstanceProfileInfo(device, number)
        except n.NVMLError_NotSupported: continue
        found[info.name.removeprefix("MIG ")] = info
    return found
def placements(id, device=h):
    count = ctypes.c_uint()
    n.nvmlDeviceGetGpuInstancePossiblePlacements(device, id, None, ctypes.byref(count))
    room = (n.c_nvmlGpuInstancePlacement_t * count.value)()
    n.nvmlDeviceGetGpuInstancePossiblePlacements(device, id, room, ctypes.byref(count))
    return [[p.start, p.size] for p in room]
def make(name, start=None, device=h):
    profile = by_name(device)[name]
    if start is None: gi = n.nvmlDeviceCreateGpuInstance(device, profile.id)
    else: gi = n.nvmlDeviceCreateGpuInstanceWithPlacement(device, profile.id, ctypes.byref(n.c_nvmlGpuInstancePlacement_t(start, 1)))
    return gi, n.nvmlGpuInstanceCreateComputeInstance(gi, [1, 2, 3, 4, 7].index(profile.sliceCount))
def mig(device=h):
    found = []
    for i in range(n.nvmlDeviceGetMaxMigDeviceCount(device)):
        try: found.append(n.nvmlDeviceGetMigDeviceHandleByIndex(device, i))
        except n.NVMLError_NotFound: pass
    return found
def uuid(device): return n.nvmlDeviceGetUUID(device)
def place(gi):
    info = n.nvmlGpuInstanceGetInfo(gi)
    return [info.placement.start, info.placement.size]
"""

DEVICE = """
context()
say([ok(d.cuDeviceGetCount()), bytes(ok(d.cuDeviceGetUuid(0)).bytes).hex(), ok(d.cuDeviceGetName(64, 0)).split(b"\\0")[0].decode(),
     ok(d.cuDeviceTotalMem(0)), ok(d.cuDeviceGetAttribute(d.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0)),
     list(ok(d.cuMemGetInfo()))])
"""


def nvml(on: Machine, code: str) -> Any:
    """As `run`, without CUDA: that takes longer to import than all of this."""
    done = subprocess.run([sys.executable, "-c", LIGHT + NVML + textwrap.dedent(code)], env=environment(on.driver_dir), capture_output=True, text=True, timeout=120, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def cut(on: Machine, *names: str, card: int = 0) -> list[str]:
    """Cut a card into instances of these profiles; the UUIDs of the MIG devices, in the order of the names."""
    return nvml(
        on,
        f"""
h = n.nvmlDeviceGetHandleByIndex({card})
assert n.nvmlDeviceSetMigMode(h, n.NVML_DEVICE_MIG_ENABLE) == 0
made = [make(name, device=h) for name in {names!r}]
ids = [n.nvmlGpuInstanceGetInfo(gi).id for gi, ci in made]
found = {{n.nvmlDeviceGetGpuInstanceId(m): uuid(m) for m in mig(h)}}
say([found[i] for i in ids])
""",
    )


def visible(value: str) -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": value}


@pytest.fixture
def sim(tmp_path: Path) -> Iterator[Machine]:
    with machine(tmp_path, "A100-40G", 1) as made:
        yield made


def test_profiles_are_what_nvidia_publishes(tmp_path: Path) -> None:
    models = [name for name, model in profiles().items() if model.mig]
    with machine(tmp_path, models, None) as made:
        said = nvml(
            made,
            """
            cards = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]
            say([{name: [p.id, p.sliceCount, p.memorySizeMB, p.multiprocessorCount, p.instanceCount, p.copyEngineCount, p.decoderCount,
                         p.jpegCount, p.ofaCount, placements(p.id, card)] for name, p in by_name(card).items()} for card in cards])
            """,
        )
    for model, found in zip(models, said, strict=True):
        assert found == {
            p.name: [p.id, p.slices, p.memory_mib, p.sm_count, p.instances, p.copy_engines, p.decoders, p.jpegs, p.ofas,
                     [[start, p.size] for start in p.starts]]
            for p in profiles()[model].mig
        }  # fmt: skip
        sizes = ["1g", "2g", "4g", "1g", "2g"] if model == "A30" else ["1g", "2g", "3g", "4g", "7g", "1g", "1g"]
        assert [name.partition(".")[0] for name in found] == sizes, "in the order of NVML's numbers"


def test_the_mode(sim: Machine) -> None:
    said = nvml(
        sim,
        """
        before = [n.nvmlDeviceGetMigMode(h), n.nvmlDeviceGetMaxMigDeviceCount(h), error(n.nvmlDeviceCreateGpuInstance, h, 19),
                  error(n.nvmlDeviceGetMigDeviceHandleByIndex, h, 0)]
        on = [n.nvmlDeviceSetMigMode(h, 1), n.nvmlDeviceGetMigMode(h), n.nvmlDeviceGetMaxMigDeviceCount(h),
              error(n.nvmlDeviceGetUtilizationRates, h), error(n.nvmlDeviceGetMigDeviceHandleByIndex, h, 0),
              error(n.nvmlDeviceGetMigDeviceHandleByIndex, h, 7), n.nvmlDeviceIsMigDeviceHandle(h).value]
        made = make("3g.20gb")
        kept = [n.nvmlDeviceSetMigMode(h, 0), n.nvmlDeviceGetMigMode(h)]
        n.nvmlComputeInstanceDestroy(made[1]); n.nvmlGpuInstanceDestroy(made[0])
        say([before, on, kept, n.nvmlDeviceSetMigMode(h, 0), n.nvmlDeviceGetMigMode(h), error(n.nvmlDeviceSetMigMode, h, 2)])
        """,
    )
    not_supported, not_found = ["NotSupported", "Not Supported"], ["NotFound", "Not Found"]
    invalid, in_use = ["InvalidArgument", "Invalid Argument"], 19
    assert said == [
        [[0, 0], 0, not_supported, not_supported],
        [0, [1, 1], 7, not_supported, not_found, invalid, 0],
        [in_use, [1, 0]],
        0,
        [0, 0],
        invalid,
    ]
    assert run(sim, DEVICE)[0] == 1, "out of MIG mode it is a card again"


def test_a_card_in_use_keeps_its_mode_and_one_in_mig_mode_is_no_device(sim: Machine) -> None:
    with Program(sim, "context(); say(0); wait()") as holder:
        holder.hear()
        assert nvml(sim, "say([n.nvmlDeviceSetMigMode(h, 1), n.nvmlDeviceGetMigMode(h)])") == [19, [0, 1]]
    assert nvml(sim, "say([n.nvmlDeviceSetMigMode(h, 1), n.nvmlDeviceGetMigMode(h)])") == [0, [1, 1]]
    assert run(sim, "say(name(d.cuInit(0)))") == "NO_DEVICE"
    nvml(sim, "n.nvmlDeviceSetMigMode(h, 0); say(0)")
    early = "ok(d.cuInit(0)); say(0); wait(); say(name(d.cuDevicePrimaryCtxRetain(0)))"
    with Program(sim, early) as initialised:
        initialised.hear()
        assert nvml(sim, "say(n.nvmlDeviceSetMigMode(h, 1))") == 0
        initialised.go()
        assert initialised.hear() == "DEVICE_UNAVAILABLE"


def test_cards_without_mig(tmp_path: Path) -> None:
    with machine(tmp_path, "T4", 1) as made:
        assert nvml(
            made,
            "say([error(n.nvmlDeviceGetMigMode, h), error(n.nvmlDeviceSetMigMode, h, 1), by_name(), n.nvmlDeviceGetMaxMigDeviceCount(h)])",
        ) == [["NotSupported", "Not Supported"], ["NotSupported", "Not Supported"], {}, 0]


def test_placements_and_what_does_not_fit(sim: Machine) -> None:
    said = nvml(
        sim,
        """
        n.nvmlDeviceSetMigMode(h, 1)
        room = lambda: {name: n.nvmlDeviceGetGpuInstanceRemainingCapacity(h, p.id) for name, p in by_name().items()}
        empty = room()
        one, two, four = make("1g.5gb"), make("2g.10gb"), make("4g.20gb")
        at = [place(gi) for gi, ci in (one, two, four)]
        left = room()
        wrong = [error(make, name, start) for name, start in (("2g.10gb", None), ("7g.40gb", None), ("3g.20gb", 4), ("3g.20gb", 1), ("1g.5gb", 6), ("1g.5gb", 7))]
        wrong += [error(n.nvmlDeviceCreateGpuInstance, h, 77), error(n.nvmlGpuInstanceDestroy, four[0])]
        ids = sorted(n.nvmlGpuInstanceGetInfo(gi).id for gi, ci in (one, two, four))
        found = (n.c_nvmlGpuInstance_t * 7)(); count = ctypes.c_uint()
        n.nvmlDeviceGetGpuInstances(h, by_name()["2g.10gb"].id, found, ctypes.byref(count))
        same = n.nvmlDeviceGetGpuInstanceById(h, n.nvmlGpuInstanceGetInfo(two[0]).id)
        listed = [count.value, place(found[0]), place(same), error(n.nvmlDeviceGetGpuInstanceById, h, 2)]
        for gi, ci in (one, two, four): n.nvmlComputeInstanceDestroy(ci); n.nvmlGpuInstanceDestroy(gi)
        gone = error(n.nvmlGpuInstanceGetInfo, one[0])
        sevenths = [place(make("1g.5gb")[0]) for _ in range(7)]
        say([empty, at, left, wrong, ids, listed, gone, sevenths, error(make, "1g.5gb"), len(mig()), len({uuid(m) for m in mig()})])
        """,
    )
    full, invalid, in_use = ["InsufficientResources", "Insufficient Resources"], ["InvalidArgument", "Invalid Argument"], ["InUse", "In use by another client"]  # fmt: skip
    assert said == [
        {"1g.5gb": 7, "2g.10gb": 3, "3g.20gb": 2, "4g.20gb": 1, "7g.40gb": 1, "1g.5gb+me": 1, "1g.10gb": 4},
        [[6, 1], [4, 2], [0, 4]],
        {"1g.5gb": 0, "2g.10gb": 0, "3g.20gb": 0, "4g.20gb": 0, "7g.40gb": 0, "1g.5gb+me": 0, "1g.10gb": 0},
        [full, full, full, invalid, full, invalid, invalid, in_use],
        [1, 5, 13],
        [1, [4, 2], [4, 2], ["NotFound", "Not Found"]],
        invalid,
        [[start, 1] for start in range(6, -1, -1)],
        full,
        7,
        7,
    ]


def test_compute_instances_share_the_memory_of_their_gpu_instance(sim: Machine) -> None:
    made = nvml(
        sim,
        """
        n.nvmlDeviceSetMigMode(h, 1)
        gi = n.nvmlDeviceCreateGpuInstance(h, by_name()["3g.20gb"].id)
        shapes = []
        for profile in range(n.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
            try: info = n.nvmlGpuInstanceGetComputeInstanceProfileInfo(gi, profile, 0)
            except n.NVMLError_NotSupported: continue
            shapes.append([info.name, info.id, info.sliceCount, info.instanceCount, info.multiprocessorCount])
        two = n.nvmlGpuInstanceCreateComputeInstance(gi, 1)
        one = n.nvmlGpuInstanceCreateComputeInstance(gi, 0)
        full = error(n.nvmlGpuInstanceCreateComputeInstance, gi, 0)
        infos = [n.nvmlComputeInstanceGetInfo(ci) for ci in (two, one)]
        beside = make("3g.20gb")[0]
        found = {(n.nvmlDeviceGetGpuInstanceId(m), n.nvmlDeviceGetComputeInstanceId(m)): m for m in mig()}
        parts = [found[n.nvmlGpuInstanceGetInfo(g).id, c] for g, c in ((gi, 0), (gi, 1), (beside, 0))]
        say([shapes, full, [[i.id, i.profileId, i.placement.start, i.placement.size] for i in infos],
             [n.nvmlDeviceGetName(m) for m in parts[:2]], [uuid(m) for m in parts]])
        """,
    )
    shapes, full, infos, names, uuids = made
    assert shapes == [["MIG 1c.3g.20gb", 0, 1, 3, 14], ["MIG 2c.3g.20gb", 1, 2, 1, 28], ["MIG 3g.20gb", 2, 3, 1, 42]]
    assert full[0] == "InsufficientResources"
    assert infos == [[0, 1, 0, 2], [1, 0, 2, 1]]
    assert names == ["NVIDIA A100-SXM4-40GB MIG 2c.3g.20gb", "NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb"]
    total = 20096 * MIB
    export = """
    context()
    pointer = ok(d.cuMemAlloc(8 << 30)); ok(d.cuMemcpyHtoD(pointer, np.array([7], np.uint32).ctypes.data, 4))
    say(ctypes.string_at(ok(d.cuIpcGetMemHandle(pointer)).getPtr(), 64).hex()); wait()
    """
    with Program(sim, export, visible(uuids[0])) as holder:
        handle = holder.hear()
        assert run(sim, DEVICE, visible(uuids[1]))[3:] == [total, 14, [total - (8 << 30), total]]
        opened = f"""
        context()
        handle = d.CUipcMemHandle(); ctypes.memmove(handle.getPtr(), bytes.fromhex({handle!r}), 64)
        result = d.cuIpcOpenMemHandle(handle, 1)
        say([name(result), int(download(result[1], np.zeros(1, np.uint32))[0]) if name(result) == "SUCCESS" else None])
        """
        assert run(sim, opened, visible(uuids[1])) == ["SUCCESS", 7]
        assert run(sim, opened, visible(uuids[2])) == ["INVALID_DEVICE", None], "another GPU instance's"


def seen_with(on: Machine, values: Iterable[str]) -> dict[str, list[str]]:
    """The UUIDs that CUDA enumerates with each value of CUDA_VISIBLE_DEVICES, each in a process of its own."""
    look = """
import ctypes
c = ctypes.CDLL("libcuda.so.1")
count, uuid = ctypes.c_int(), (ctypes.c_uint8 * 16)()
if c.cuInit(0) == 0:
    c.cuDeviceGetCount(ctypes.byref(count))
for i in range(count.value):
    c.cuDeviceGetUuid_v2(uuid, i)
    print(bytes(uuid).hex())
"""
    found: dict[str, list[str]] = {}
    for value in values:
        done = subprocess.run([sys.executable, "-S", "-c", look], env=environment(on.driver_dir, visible(value)), capture_output=True, text=True, timeout=60, check=True)  # fmt: skip
        found[value] = done.stdout.split()
    return found


def test_a_process_has_one_instance_and_no_more(tmp_path: Path) -> None:
    """With its memory to the byte, and its multiprocessors, whatever the others hold."""
    with machine(tmp_path, ["A100-40G", "A100-40G", "T4"], None) as sim:
        big, small = cut(sim, "3g.20gb", "1g.5gb", card=1)
        total = 4864 * MIB
        with Program(sim, "context(); ok(d.cuMemAlloc(19 << 30)); u = (ctypes.c_uint8 * 16)(); ctypes.CDLL('libcuda.so.1').cuDeviceGetUuid(u, 0); say(bytes(u).hex()); wait()", visible(big)) as other:  # fmt: skip
            assert other.hear() == sim.cards[1].uuid[4:].replace("-", ""), (
                "the first version of the call knows no instances"
            )
            device = run(sim, DEVICE, visible(small))
            assert device == [
                1,
                small[4:].replace("-", ""),
                "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
                total,
                14,
                [total, total],
            ]
            assert run(
                sim,
                """
                context()
                total = ok(d.cuDeviceTotalMem(0))
                over = name(d.cuMemAlloc(total + 1))
                held = ok(d.cuMemAlloc(total))
                full = [name(d.cuMemAlloc(1)), list(ok(d.cuMemGetInfo()))]
                ok(d.cuMemsetD8(held, 7, 1 << 20)); ok(d.cuMemFree(held))
                a = upload(np.arange(1000, dtype=np.float32)); c = upload(np.zeros(1000, np.float32))
                ok(launch(function(VECTOR_ADD, "add"), 8, 128, a, a, c, (1000, ctypes.c_uint32)))
                say([over, full, bool((download(c, np.zeros(1000, np.float32)) == 2 * np.arange(1000)).all())])
                """,
                visible(small),
            ) == ["OUT_OF_MEMORY", ["OUT_OF_MEMORY", [0, total]], True]  # fmt: skip
        cards = sim.cards
        wanted = {
            f"{big},{small}": [big],
            f"{small},{cards[2].uuid}": [small],
            f"MIG-{cards[1].uuid}/1/0": [],
            f"MIG-{cards[1].uuid}/2/0": [big],
            cards[1].uuid: [big],
            cards[0].uuid: [cards[0].uuid],
            f"{cards[0].uuid},{cards[2].uuid}": [cards[0].uuid, cards[2].uuid],
            "0": [big],
            "1": [],
            "MIG-": [],
        }
        assert seen_with(sim, wanted) == {
            value: [uuid[4:].replace("-", "") for uuid in uuids] for value, uuids in wanted.items()
        }
        assert run(sim, DEVICE)[1] == big[4:].replace("-", ""), "an instance goes before cards"


def test_what_nvml_says_of_a_mig_device(sim: Machine) -> None:
    uuids = cut(sim, "2g.10gb", "3g.20gb")
    with Program(sim, "context(); ok(d.cuMemAlloc(3 << 30)); say(os.getpid()); wait()", visible(uuids[0])) as program:
        pid = program.hear()
        said = nvml(
            sim,
            f"""
            m, other = n.nvmlDeviceGetHandleByUUID({uuids[0]!r}), n.nvmlDeviceGetHandleByUUID({uuids[1]!r})
            attributes, memory, memory2 = n.nvmlDeviceGetAttributes(m), n.nvmlDeviceGetMemoryInfo(m), n.nvmlDeviceGetMemoryInfo(m, version=n.nvmlMemory_v2)
            processes = lambda device: [[p.pid, p.usedGpuMemory, p.gpuInstanceId, p.computeInstanceId] for p in n.nvmlDeviceGetComputeRunningProcesses(device)]
            binary = bytes.fromhex(uuid(m)[4:].replace("-", ""))
            assert uuid(n.nvmlDeviceGetHandleByUUIDV(binary, n.NVML_UUID_TYPE_BINARY)) == uuid(m)
            say([n.nvmlDeviceIsMigDeviceHandle(m).value, n.nvmlDeviceGetIndex(m), n.nvmlDeviceGetGpuInstanceId(m), n.nvmlDeviceGetComputeInstanceId(m),
                 uuid(n.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(m)) == uuid(h),
                 [attributes.multiprocessorCount, attributes.gpuInstanceSliceCount, attributes.computeInstanceSliceCount, attributes.memorySizeMB],
                 [memory.total, memory.used, memory2.used, n.nvmlDeviceGetMemoryInfo(h).used, n.nvmlDeviceGetMemoryInfo(other).used],
                 processes(m), processes(h), processes(other), error(n.nvmlDeviceGetPowerUsage, m), error(n.nvmlDeviceGetUtilizationRates, m),
                 error(n.nvmlDeviceGetGpuInstanceId, h), error(n.nvmlDeviceGetAttributes, h), n.nvmlDeviceGetPowerUsage(h) > 0])
            """,
        )
    not_supported = ["NotSupported", "Not Supported"]
    used = 3 << 30
    assert said == [
        1, 0, 5, 0, True, [28, 2, 2, 9984], [9984 * MIB, used, used, used, 0], [[pid, used, 5, 0]], [[pid, used, 5, 0]], [],
        not_supported, not_supported, not_supported, not_supported, True,
    ]  # fmt: skip


def test_an_instance_in_use_stays_until_its_process_is_gone(sim: Machine) -> None:
    (uuid,) = cut(sim, "2g.10gb")
    take_apart = """
    ci = ctypes.c_void_p()
    gi = n.nvmlDeviceGetGpuInstanceById(h, 5)
    ci = n.nvmlGpuInstanceGetComputeInstanceById(gi, 0)
    say([error(n.nvmlGpuInstanceDestroy, gi), error(n.nvmlComputeInstanceDestroy, ci), error(n.nvmlGpuInstanceDestroy, gi), len(mig())])
    """
    in_use = ["InUse", "In use by another client"]
    with Program(sim, "context(); ok(d.cuMemAlloc(3 << 30)); say(0); wait()", visible(uuid)) as program:
        program.hear()
        assert nvml(sim, take_apart) == [in_use, in_use, in_use, 1]
        program.process.send_signal(signal.SIGKILL)
        program.process.wait(30)
    assert nvml(sim, take_apart) == [in_use, None, None, 0]
    assert run(sim, "say(name(d.cuInit(0)))", visible(uuid)) == "NO_DEVICE"
    assert cut(sim, "2g.10gb") == [uuid], "the same instance has the same name again"
    assert run(sim, DEVICE, visible(uuid))[5] == [9984 * MIB, 9984 * MIB], "what the dead process held came back"


def test_killed_while_cutting_leaves_whole_instances_only(sim: Machine) -> None:
    """Somebody is killed at random moments while making and destroying; the next one finds nothing half made."""
    churn = """
    n.nvmlDeviceSetMigMode(h, 1)
    say(0)
    import random
    while True:
        names = list(by_name())
        try: make(random.choice(names))
        except n.NVMLError_InsufficientResources:
            m = random.choice(mig())
            gi = n.nvmlDeviceGetGpuInstanceById(h, n.nvmlDeviceGetGpuInstanceId(m))
            n.nvmlComputeInstanceDestroy(n.nvmlGpuInstanceGetComputeInstanceById(gi, n.nvmlDeviceGetComputeInstanceId(m)))
            n.nvmlGpuInstanceDestroy(gi)
    """
    clear = """
    found = (n.c_nvmlGpuInstance_t * 7)(); count = ctypes.c_uint()
    slices = []
    for p in by_name().values():
        n.nvmlDeviceGetGpuInstances(h, p.id, found, ctypes.byref(count))
        for gi in found[:count.value]:
            slices += range(place(gi)[0], sum(place(gi)))
            for number in range(5):
                cis = (n.c_nvmlComputeInstance_t * 7)(); many = ctypes.c_uint()
                try: n.nvmlGpuInstanceGetComputeInstances(gi, number, cis, ctypes.byref(many))
                except n.NVMLError_NotSupported: continue
                for ci in cis[:many.value]: n.nvmlComputeInstanceDestroy(ci)
            n.nvmlGpuInstanceDestroy(gi)
    gi, ci = make("7g.40gb")
    n.nvmlComputeInstanceDestroy(ci); n.nvmlGpuInstanceDestroy(gi)
    say([len(slices) == len(set(slices)), len(mig())])
    """
    for _ in range(3):
        with (
            Program(sim, NVML + textwrap.dedent(churn)) as first,
            Program(sim, NVML + textwrap.dedent(churn)) as second,
        ):
            first.hear()
            second.hear()
            first.kill()
        assert nvml(sim, clear) == [True, 0]


def test_instances_run_beside_each_other(tmp_path: Path) -> None:
    """Two instances at once each take as long as alone; two processes on one instance share its time. On a manual clock."""
    work = """
    context()
    f = function(STORE.replace("DURATION", "1000"), "store")
    a = upload(np.zeros(1, np.uint32))
    start, end = ok(d.cuEventCreate(0)), ok(d.cuEventCreate(0))
    say(os.getpid()); wait()
    ok(d.cuEventRecord(start, 0))
    for _ in range(20): ok(launch(f, 1, 1, a, (1, ctypes.c_uint32)))
    ok(d.cuEventRecord(end, 0)); say("queued"); ok(d.cuEventSynchronize(end))
    say(round(ok(d.cuEventElapsedTime(start, end)), 3))
    """
    with machine(tmp_path, "A100-40G", 1, clock="manual") as sim, Clock(sim) as clock:
        one, two = cut(sim, "1g.5gb", "1g.5gb")
        assert spans_of(sim, clock, work, one, two) == [20, 20]
        assert max(spans_of(sim, clock, work, one, one)) >= 40


def spans_of(sim: Machine, clock: Clock, work: str, *uuids: str) -> list[float]:
    with contextlib.ExitStack() as stack:
        programs = [stack.enter_context(Program(sim, work, visible(uuid))) for uuid in uuids]
        for program in programs:
            program.hear()
        for program in programs:
            program.go()
        for program in programs:
            assert program.hear() == "queued"
        with passing(clock):
            return [program.hear() for program in programs]


@contextlib.contextmanager
def passing(clock: Clock) -> Generator[None]:
    """Time goes on, as fast as it may: who wakes up late loses none of it."""
    over = threading.Event()

    def move() -> None:
        while not over.wait(0.001):
            clock.advance(1_000_000)

    thread = threading.Thread(target=move)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a_container_sees_the_instances_whose_device_files_it_has(sim: Machine, tmp_path: Path) -> None:
    big, small = cut(sim, "3g.20gb", "1g.5gb")
    minors = dict(line.split() for line in sim.mig_minors.read_text().splitlines())
    ids = nvml(
        sim, "say({uuid(m): [n.nvmlDeviceGetGpuInstanceId(m), n.nvmlDeviceGetComputeInstanceId(m)] for m in mig()})"
    )

    def container(name: str, *uuids: str) -> Machine:
        devices = tmp_path / name / "dev"
        (devices / "nvidia-caps").mkdir(parents=True)
        (devices / "nvidia0").symlink_to(sim.device_dir / "nvidia0")
        for gi, ci in (ids[uuid] for uuid in uuids):
            for file in (f"gpu0/gi{gi}/access", f"gpu0/gi{gi}/ci{ci}/access"):
                link = f"nvidia-caps/nvidia-cap{minors[file]}"
                (devices / link).symlink_to(sim.device_dir / link)
        return replace(sim, driver_dir=make_driver_dir(sim, tmp_path / name / "driver", devices))

    look = "say([[uuid(m) for m in mig()], error(make, '1g.5gb'), error(n.nvmlDeviceSetMigMode, h, 0)])"
    denied = ["NoPermission", "Insufficient Permissions"]
    for name, uuid in (("a", big), ("b", small)):
        inside = container(name, uuid)
        assert nvml(inside, look) == [[uuid], denied, denied]
        assert seen_with(inside, [uuid, ({big, small} - {uuid}).pop()]) == {
            uuid: [uuid[4:].replace("-", "")],
            ({big, small} - {uuid}).pop(): [],
        }
        listed = subprocess.run(
            [native.path("tools/nvidia-smi"), "-L"],
            env=environment(inside.driver_dir),
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        profile = {big: "3g.20gb", small: "1g.5gb"}[uuid]
        assert listed.stdout.splitlines()[1:] == [f"  MIG {profile:<10} Device  0: (UUID: {uuid})"]
    assert nvml(container("c"), look)[0] == []
