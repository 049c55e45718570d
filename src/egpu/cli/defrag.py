"""`egpu defrag`: which pods to move so that a pending one fits. It proposes and never does."""

from pathlib import Path
from typing import Annotated

import typer

from egpu.adapters.traces import read_nodes, read_pods
from egpu.api import names
from egpu.api.allocation import decode_allocation
from egpu.cli.components import Kubeconfig
from egpu.cli.output import Format, Table, fail, note, show
from egpu.cli.snapshot import Snapshot, load_from
from egpu.core.export import shapes_of
from egpu.core.packing.fleet import Fleet, Placement
from egpu.core.packing.placer import Placer
from egpu.core.packing.price import Price
from egpu.core.packing.shapes import Mix, Shape
from egpu.core.simulation.defrag import MAX_MOVES, Placed, propose
from egpu.core.simulation.workload import published_arrivals
from egpu.errors import CorruptData, InvalidInput


def defrag(
    pod: Annotated[str, typer.Argument(help="The pending pod, NAME or NAMESPACE/NAME. Not with --trace-demand.")] = "",
    kubeconfig: Kubeconfig = None,
    namespace: Annotated[str, typer.Option("-n", "--namespace", help="Namespace of the pod.")] = "default",
    nodes: Annotated[Path, typer.Option(help="With --trace-demand: the nodes.")] = Path("data/openb/nodes.csv"),
    pods: Annotated[Path, typer.Option(help="With --trace-demand: the pods.")] = Path("data/openb/pods.csv"),
    trace_demand: Annotated[
        str | None,
        typer.Option(
            help="On a trace instead: CARDS:CORE_MILLI:CPU_MILLI:RAM_MIB, into a cluster filled with the pods."
        ),
    ] = None,
    load: Annotated[float, typer.Option(help="With --trace-demand: the GPU asked for, as a share of capacity.")] = 0.95,
    seed: Annotated[int, typer.Option(help="With --trace-demand: the order of the pods.")] = 42,
    max_moves: Annotated[int, typer.Option(help="Propose no more moves than this.")] = MAX_MOVES,
    output: Annotated[Format, typer.Option("-o", "--output", help="table, json or yaml.")] = Format.TABLE,
) -> None:
    """Propose the fewest moves of pods that would let a pending one in. Nothing is moved."""
    if trace_demand is not None:
        fleet, placed, demand = _trace(nodes, pods, trace_demand, load, seed)
    else:
        if "/" in pod:
            namespace, _, pod = pod.partition("/")
        if not pod:
            fail("name a pending pod, or give --trace-demand")
        fleet, placed, demand = _live(load_from(kubeconfig), namespace, pod)
    found = propose(fleet, Price.of(Mix.of([one.shape for one in placed]), fleet), placed, demand, max_moves=max_moves)
    if found is None:
        fail(f"no {max_moves} moves or fewer were found that would make room")
    table = Table(["POD", "FROM", "CARDS", "TO", "CARDS ", "GPU"], title="Moves", right=frozenset(["GPU"]))
    for move in found.moves:
        origin, target = fleet.machines[move.origin.row].name, fleet.machines[move.target.row].name
        cards = [",".join(map(str, place.cards)) for place in (move.origin, move.target)]
        table.add(
            [move.name, origin, cards[0], target, cards[1], f"{move.gpu_milli / 1000:g}"],
            {
                "pod": move.name,
                "from": origin,
                "fromCards": list(move.origin.cards),
                "to": target,
                "toCards": list(move.target.cards),
                "gpuMilli": move.gpu_milli,
            },
        )
    show(table, output, empty="nothing has to move")
    note(f"then it fits on {fleet.machines[found.place.row].name}; nothing was moved")


def _trace(nodes: Path, pods: Path, text: str, load: float, seed: int) -> tuple[Fleet, list[Placed], Shape]:
    """The trace's cluster, filled by the default policy, and the demand."""
    try:
        cards, core, cpu, ram = (int(part) for part in text.split(":"))
    except ValueError:
        raise InvalidInput("trace-demand", f"{text!r} is not CARDS:CORE_MILLI:CPU_MILLI:RAM_MIB") from None
    machines, shapes = read_nodes(nodes), read_pods(pods)
    capacity = 1000 * sum(machine.cards for machine in machines)
    workload = published_arrivals(shapes, nodes=len(machines), capacity_milli=capacity, load=load, seed=seed)
    fleet = Fleet([machines[int(at)] for at in workload.node_order])
    placer = Placer(fleet, Price.of(Mix.of(shapes), fleet))
    placed = [
        Placed(f"pod-{at}", shape, place)
        for at, shape in enumerate(workload.shapes)
        if (place := placer.place(shape)) is not None
    ]
    return fleet, placed, Shape(cpu, ram, cards, core)


def _live(snapshot: Snapshot, namespace: str, name: str) -> tuple[Fleet, list[Placed], Shape]:
    """The cluster as it is. Pods with several GPU containers are taken as fixed: they are not proposed to move."""
    feed = snapshot.feed
    pending = [pod for pod in snapshot.pods if (pod.namespace, pod.name) == (namespace, name)]
    if not pending:
        fail(f"there is no pod {name} in namespace {namespace}; see: egpu get pods")
    if pending[0].spec.node_name:
        fail(f"pod {namespace}/{name} is on node {pending[0].spec.node_name}: it does not wait for room")
    wanted = shapes_of(feed, pending)
    if not wanted:
        fail(f"pod {namespace}/{name} has a demand that cannot be read; see: egpu explain pod {name}")
    fleet = feed.packer.fleet()
    rows = {machine.name: row for row, machine in enumerate(fleet.machines)}
    placed: list[Placed] = []
    for pod in snapshot.pods:
        text = pod.annotations.get(names.ALLOCATION)
        shapes = shapes_of(feed, [pod])
        if text is None or pod.finished or pod.spec.node_name not in rows or len(shapes) != 1:
            continue
        try:
            (container,) = decode_allocation(text).containers.values()
        except (CorruptData, ValueError):
            continue
        columns = {card.uuid: column for column, card in enumerate(feed.ledger.cards(pod.spec.node_name))}
        cards = tuple(columns[share.uuid] for share in container.cards if share.uuid in columns)
        if len(cards) == shapes[0].cards:
            placed.append(Placed(pod.key, shapes[0], Placement(rows[pod.spec.node_name], cards)))
    return fleet, placed, wanted[0]
