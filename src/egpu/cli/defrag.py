"""`egpu defrag`: proposes pod moves that make room for a pending pod, or make more GPU usable. It moves no pod."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from egpu.adapters.traces import read_nodes, read_pods
from egpu.cli.components import Kubeconfig
from egpu.cli.output import Format, Table, fail, note, show, show_value
from egpu.cli.snapshot import Snapshot, load_from
from egpu.core.moves.defrag import MAX_MOVES, Move, Placed, propose
from egpu.core.moves.movable import Movers
from egpu.core.moves.raising import raise_share
from egpu.core.policies.fleet import Fleet, Placement
from egpu.core.policies.placer import Placer
from egpu.core.policies.price import KnownPrice
from egpu.core.policies.shapes import Mix, Shape
from egpu.core.replay.export import shapes_of
from egpu.core.replay.workload import published_arrivals
from egpu_base.errors import InvalidInput


def defrag(
    pod: Annotated[str, typer.Argument(help="Pending pod: NAME or NAMESPACE/NAME.")] = "",
    kubeconfig: Kubeconfig = None,
    namespace: Annotated[str, typer.Option("-n", "--namespace", help="Namespace of the pod.")] = "default",
    more: Annotated[
        bool,
        typer.Option(
            "--raise-share", help="Propose the moves that make the most free GPU usable for pods like today's."
        ),
    ] = False,
    least_gain: Annotated[float, typer.Option(help="With --raise-share: smallest gain of a move, in cards.")] = 0.05,
    trace: Annotated[
        bool, typer.Option("--trace", help="With --raise-share: use a trace instead of a live cluster.")
    ] = False,
    trace_demand: Annotated[
        str | None,
        typer.Option(
            help="Fill a cluster with a trace's pods, and propose moves for one more pod: CARDS:CORE:CPU:RAM. CORE "
            "and CPU in thousandths, RAM in MiB."
        ),
    ] = None,
    nodes: Annotated[Path, typer.Option(help="Trace file with the nodes.")] = Path("data/openb/nodes.csv"),
    pods: Annotated[Path, typer.Option(help="Trace file with the pods.")] = Path("data/openb/pods.csv"),
    load: Annotated[float, typer.Option(help="With a trace: requested GPUs, divided by the nodes' GPUs.")] = 0.95,
    seed: Annotated[int, typer.Option(help="With a trace: seed of the pods' order.")] = 42,
    max_moves: Annotated[int, typer.Option(help="Largest number of moves.")] = MAX_MOVES,
    output: Annotated[
        Format, typer.Option("-o", "--output", metavar="FORMAT", help="table, json or yaml.")
    ] = Format.TABLE,
) -> None:
    """Propose the fewest pod moves that let a pending pod start, or moves that make more GPU usable. No pod moves."""
    asked = [bool(pod), trace_demand is not None, more]
    if sum(asked) != 1 or (trace and not more):
        fail("name a pending pod, or use one of --trace-demand and --raise-share. --trace needs --raise-share")
    if max_moves < 1 or least_gain <= 0:
        raise InvalidInput("max-moves", "--max-moves must be 1 or more, and --least-gain above 0")
    if more:
        _raise(_filled(nodes, pods, load, seed) if trace else load_from(kubeconfig), max_moves, least_gain, output)
    elif trace_demand is not None:
        fleet, placed, shapes = _filled(nodes, pods, load, seed)
        found = propose(fleet, KnownPrice.of(Mix.of(shapes), fleet), placed, _shape(trace_demand), max_moves=max_moves)
        _show_room(fleet, found.moves if found else None, found.place if found else None, max_moves, output)
    else:
        if "/" in pod:
            namespace, _, pod = pod.partition("/")
        _make_room(load_from(kubeconfig), namespace, pod, max_moves, output)


def _make_room(snapshot: Snapshot, namespace: str, name: str, max_moves: int, output: Format) -> None:
    cache = snapshot.cache
    pending = [pod for pod in snapshot.pods if (pod.namespace, pod.name) == (namespace, name)]
    if not pending:
        fail(f"namespace {namespace} has no pod {name}. `egpu get pods` lists GPU pods")
    if pending[0].spec.node_name:
        fail(f"pod {namespace}/{name} runs on node {pending[0].spec.node_name} already. Name a pending pod")
    wanted = shapes_of(cache, pending)
    if not wanted or not wanted[0].cards:
        fail(f"pod {namespace}/{name} asks for no cards that moves could free. See: egpu explain pod {name}")
    movers = Movers(cache, snapshot.pods)
    fleet = movers.fleet
    found = propose(
        fleet,
        KnownPrice.of(Mix.of([one.shape for one in movers.placed]), fleet),
        movers.placed,
        wanted[0],
        max_moves=max_moves,
        accept=lambda one: movers.accepts(one.moves, pending[0], fleet.machines[one.place.row].name),
    )
    _show_room(fleet, found.moves if found else None, found.place if found else None, max_moves, output)


def _show_room(
    fleet: Fleet, moves: Sequence[Move] | None, place: Placement | None, max_moves: int, output: Format
) -> None:
    if moves is None or place is None:
        fail(f"found no way to make room with at most {max_moves} moves. Try a larger --max-moves")
    node = fleet.machines[place.row].name
    if not output.for_people:
        show_value({"moves": [_record(fleet, move) for move in moves], "then": {"fitsOn": node}}, output)
        return
    table = Table(_COLUMNS, title="Moves", right=frozenset(["GPU"]))
    for move in moves:
        table.add(_row(fleet, move), {})
    show(table, output, empty="no move is necessary")
    note(f"after these moves the pod fits on {node}. No pod was moved")


def _raise(
    source: Snapshot | tuple[Fleet, list[Placed], list[Shape]], max_moves: int, least_gain: float, output: Format
) -> None:
    least = max(round(1000 * least_gain), 1)
    if isinstance(source, Snapshot):
        movers = Movers(source.cache, source.pods)
        fleet, mix = movers.fleet, Mix.of([shape for shape in shapes_of(source.cache, source.pods) if shape.cards])
        found = raise_share(
            fleet, mix, movers.placed, max_moves=max_moves, least_gain_milli=least, accept=movers.accepts
        )
    else:
        fleet, placed, shapes = source
        found = raise_share(fleet, Mix.of(shapes), placed, max_moves=max_moves, least_gain_milli=least)
    if not output.for_people:
        steps = [
            {
                "moves": [_record(fleet, move) for move in step.moves],
                "gainMilli": round(step.gain_milli, 1),
                "allocatablePercent": round(step.allocatable_percent, 4),
            }
            for step in found.steps
        ]
        now, then = round(found.now_percent, 4), round(found.then_percent, 4)
        show_value({"steps": steps, "allocatablePercent": {"now": now, "then": then}}, output)
        return
    numbers = frozenset(["STEP", "GPU", "GAIN", "ALLOCATABLE"])
    table = Table(["STEP", *_COLUMNS, "GAIN", "ALLOCATABLE"], title="Moves", right=numbers)
    for number, step in enumerate(found.steps, start=1):
        for move in step.moves:
            last = move is step.moves[-1]
            gain = [f"{step.gain_milli / 1000:.2f}", f"{step.allocatable_percent:.2f} %"] if last else ["", ""]
            table.add([str(number), *_row(fleet, move), *gain], {})
    show(table, output, empty="no move gains enough")
    note(
        f"pods like the existing ones can use {found.now_percent:.2f} % of all GPU,"
        f" and {found.then_percent:.2f} % after these moves. No pod was moved"
    )


_COLUMNS = ("POD", "FROM", "CARDS", "TO", "GPU")


def _row(fleet: Fleet, move: Move) -> list[str]:
    origin, target = fleet.machines[move.origin.row].name, fleet.machines[move.target.row].name
    return [move.name, origin, ",".join(map(str, move.origin.cards)), target, f"{move.gpu_milli / 1000:g}"]


def _record(fleet: Fleet, move: Move) -> dict[str, Any]:
    return {
        "pod": move.name,
        "from": fleet.machines[move.origin.row].name,
        "fromCards": list(move.origin.cards),
        "to": fleet.machines[move.target.row].name,
        "gpuMilli": move.gpu_milli,
    }


def _shape(text: str) -> Shape:
    try:
        cards, core, cpu, ram = (int(part) for part in text.split(":"))
    except ValueError:
        raise InvalidInput("trace-demand", f"{text!r} is not of the form CARDS:CORE_MILLI:CPU_MILLI:RAM_MIB") from None
    return Shape(cpu, ram, cards, core)


def _filled(nodes: Path, pods: Path, load: float, seed: int) -> tuple[Fleet, list[Placed], list[Shape]]:
    """Return the trace's cluster, filled by the default policy, its placed pods, and all pods of the trace."""
    machines, shapes = read_nodes(nodes), read_pods(pods)
    capacity = 1000 * sum(machine.cards for machine in machines)
    workload = published_arrivals(shapes, nodes=len(machines), capacity_milli=capacity, load=load, seed=seed)
    fleet = Fleet([machines[int(at)] for at in workload.node_order])
    placer = Placer(fleet, KnownPrice.of(Mix.of(shapes), fleet))
    placed = [
        Placed(f"pod-{at}", shape, place)
        for at, shape in enumerate(workload.shapes)
        if (place := placer.place(shape)) is not None
    ]
    return fleet, placed, shapes
