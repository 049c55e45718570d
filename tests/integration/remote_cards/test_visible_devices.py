"""CUDA_VISIBLE_DEVICES over the wire means what it means on the machine with the cards."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from egpu_sim.machines.machine import Machine
from support.remote_gpu import Executor, client_dir, remote
from support.simulated_gpu import machine, run

LOOK = """
def uuid(ordinal):
    return bytes(ok(d.cuDeviceGetUuid(ok(d.cuDeviceGet(ordinal)))).bytes).hex()
def look():
    n.nvmlInit()
    said = [n.nvmlDeviceGetCount(), name(d.cuInit(0))]
    if said[1] != "SUCCESS":
        return said
    said += [uuid(i) for i in range(ok(d.cuDeviceGetCount()))]
    last = len(said) - 3
    ok(d.cuCtxSetCurrent(ok(d.cuDevicePrimaryCtxRetain(last))))
    f, at = function(VECTOR_ADD, "add"), ok(d.cuMemAlloc(4096))
    ok(launch(f, 1, 32, at, at, at, (8, ctypes.c_uint32)))
    ok(d.cuCtxSynchronize())
    kind = d.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    bus = ok(d.cuDeviceGetPCIBusId(20, last))
    ordinals = ok(d.cuCtxGetDevice()), ok(d.cuPointerGetAttribute(kind, at)), ok(d.cuDeviceGetByPCIBusId(bus))
    return [*said, name(d.cuDeviceGet(last + 1)), [int(one) - last for one in ordinals]]

def answer(value):
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    if value is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = value
    receive, send = os.pipe()
    if os.fork() == 0:
        os.write(send, json.dumps(look()).encode())
        os._exit(0)
    os.close(send)
    with open(receive) as file:
        return json.loads(file.read())

say([answer(value) for value in VALUES])
"""

INDEXES = (
    None,
    "",
    "0",
    "1",
    "2",
    "1,0",
    "2,0,1",
    "0,1,2,3",
    "-1",
    "1,-1,0",
    "0,0",
    "1,2,1",
    "3",
    " 1 , 0 ",
    ",0",
    "0,,1",
)
OTHERS = (
    "none",
    "NoDevFiles",
    "x",
    "0,x,1",
    "1x",
    "9" * 20,
    "0x1",
    "+1",
    "01",
    "GPU-",
    "gpu-nope",
    "MIG-",
    "GPU-0,GPU-1",
)


@pytest.fixture(scope="module")
def sim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with machine(tmp_path_factory.mktemp("machine"), "T4", 3) as made:
        yield made


def named(made: Machine) -> tuple[str, ...]:
    one, two, _ = (card.uuid for card in made.cards)
    return (one, f"{two},{one}", two[:-4], two.upper(), f"{one},0", f"{two}x", f"{two.lower()},{one[:20]},1", two[4:])


def answers(on: Machine | Path, values: Sequence[str | None]) -> list[Any]:
    """What programs with these values see, one for each."""
    return run(on, f"VALUES = {values!r}\n{LOOK}")


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_every_list_selects_the_same_cards(sim: Machine, tmp_path: Path, transport: Any) -> None:
    values = (*INDEXES, *OTHERS, *named(sim)) if transport == "shm" else ("1,0",)
    with remote(sim, tmp_path, transport) as (client, _, _):
        got, wanted = answers(client, values), answers(sim, values)
        assert dict(zip(values, got, strict=True)) == dict(zip(values, wanted, strict=True))


def test_cards_of_two_servers_are_one_list(tmp_path: Path) -> None:
    with machine(tmp_path / "a", "T4", 1, node="a") as one, machine(tmp_path / "b", "A100-80G", 2, node="b") as two:
        client = client_dir(tmp_path / "client")
        executors = [
            Executor(made, tmp_path / f"executor{i}", "--listen", str(client / f"lease{i}.sock"))
            for i, made in enumerate((one, two))
        ]
        try:
            uuids = [card.uuid.removeprefix("GPU-").replace("-", "") for card in (*one.cards, *two.cards)]
            said = answers(client, ("0,2", two.cards[0].uuid[:20], "2,0,7,1"))
            chosen = [[uuids[0], uuids[2]], [uuids[1]], [uuids[2], uuids[0]]]
            assert [each[2:-2] for each in said] == chosen
            assert [each[-1][:2] for each in said] == [[0, 0]] * 3
        finally:
            for executor in executors:
                executor.stop()
