"""User objects of the simulated driver: who refers to them, and when their destructors are called."""

from egpu_sim.machines.machine import Machine
from support.simulated_gpu import run

CARDS = ("T4", 1)

HELPERS = """
from threading import Event
gone = []
kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
destroy = kind(lambda number: gone.append(number))
where = d.CUhostFn(ctypes.cast(destroy, ctypes.c_void_p).value)
ALONE, MOVE = 1, 1  # CU_USER_OBJECT_NO_DESTRUCTOR_SYNC, CU_GRAPH_USER_OBJECT_MOVE
def made(number, count=1): return ok(d.cuUserObjectCreate(number, where, count, ALONE))
def moved(graph, number): ok(d.cuGraphRetainUserObject(graph, made(number), 1, MOVE))
context()
s = ok(d.cuStreamCreate(1))
"""


def test_the_last_reference_calls_the_destructor(sim: Machine) -> None:
    """The program's own references and those of graphs are counted apart; what is gone is no handle any more."""
    assert run(
        sim,
        HELPERS
        + """
graph = ok(d.cuGraphCreate(0))
one, two = made(1, 2), made(2)
ok(d.cuUserObjectRetain(one, 3)); ok(d.cuUserObjectRelease(one, 4))
said = [list(gone), name(d.cuUserObjectRelease(one, 2))]
ok(d.cuGraphRetainUserObject(graph, two, 2, 0)); ok(d.cuUserObjectRelease(two, 1))
said += [list(gone), name(d.cuUserObjectRelease(two, 1))]
said.append(name(d.cuGraphRetainUserObject(graph, two, 1, MOVE)))
ok(d.cuUserObjectRelease(one, 1))
said += [list(gone), name(d.cuUserObjectRelease(one, 1))]
ok(d.cuGraphReleaseUserObject(graph, two, 1))
said += [list(gone), name(d.cuGraphReleaseUserObject(graph, two, 2))]
ok(d.cuGraphReleaseUserObject(graph, two, 1))
said += [list(gone), name(d.cuGraphReleaseUserObject(graph, two, 1))]
say(said + [name(d.cuGraphDestroy(graph)), gone])
""",
    ) == [
        [], "INVALID_VALUE",
        [], "INVALID_VALUE", "INVALID_VALUE",
        [1], "INVALID_VALUE",
        [1], "INVALID_VALUE",
        [1, 2], "INVALID_VALUE", "SUCCESS", [1, 2],
    ]  # fmt: skip


def test_a_graph_s_clones_children_and_plans_refer_to_its_objects(sim: Machine) -> None:
    """What several graphs keep goes with the last of them, in the order in which that one came by it."""
    assert run(
        sim,
        HELPERS
        + """
graph, parent = ok(d.cuGraphCreate(0)), ok(d.cuGraphCreate(0))
for number in (3, 1, 2): moved(graph, number)
clone, e = ok(d.cuGraphClone(graph)), ok(d.cuGraphInstantiate(graph, 0))
ok(d.cuGraphAddChildGraphNode(parent, None, 0, graph))
said = []
ok(d.cuGraphDestroy(graph)); said.append(list(gone))
ok(d.cuGraphExecDestroy(e)); said.append(list(gone))
ok(d.cuGraphDestroy(clone)); said.append(list(gone))
ok(d.cuGraphDestroy(parent)); say([*said, gone])
""",
    ) == [[], [], [], [3, 1, 2]]


def test_a_launch_keeps_the_objects_of_its_graph_until_it_is_over(sim: Machine) -> None:
    """Updating an executable graph replaces what it refers to, destroying it lets go; launches that go on keep both."""
    assert run(
        sim,
        HELPERS
        + """
begun, go = Event(), Event()
blocks = kind(lambda _: (begun.set(), go.wait()))
def built(number):
    graph = ok(d.cuGraphCreate(0))
    p = d.CUDA_HOST_NODE_PARAMS()
    p.fn, p.userData = d.CUhostFn(ctypes.cast(blocks, ctypes.c_void_p).value), 0
    ok(d.cuGraphAddHostNode(graph, None, 0, p))
    moved(graph, number)
    return graph
first, second = built(1), built(2)
e = ok(d.cuGraphInstantiate(first, 0)); ok(d.cuGraphDestroy(first))
ok(d.cuGraphLaunch(e, s)); begun.wait()
ok(d.cuGraphExecUpdate(e, second)); ok(d.cuGraphDestroy(second))
said = [list(gone)]
ok(d.cuGraphLaunch(e, s)); ok(d.cuGraphExecDestroy(e))
said.append(list(gone))
go.set(); ok(d.cuStreamSynchronize(s))
deadline = time.monotonic() + 30
while len(gone) < 2 and time.monotonic() < deadline: time.sleep(0.01)
say(said + [gone])
""",
    ) == [[], [], [1, 2]]


def test_what_makes_no_sense_is_refused(sim: Machine) -> None:
    assert (
        run(
            sim,
            HELPERS
            + """
graph, one = ok(d.cuGraphCreate(0)), made(1)
nobody = d.CUhostFn(0)
say([name(r) for r in (
    d.cuUserObjectCreate(0, where, 1, 0), d.cuUserObjectCreate(0, where, 0, ALONE),
    d.cuUserObjectCreate(0, where, 1 << 31, ALONE), d.cuUserObjectCreate(0, nobody, 1, ALONE),
    d.cuUserObjectRetain(one, 0), d.cuUserObjectRelease(one, 0), d.cuUserObjectRetain(graph, 1),
    d.cuGraphRetainUserObject(graph, one, 0, 0), d.cuGraphRetainUserObject(graph, one, 1, 2),
    d.cuGraphRetainUserObject(one, one, 1, 0), d.cuGraphReleaseUserObject(graph, one, 1),
)] + gone)
""",
        )
        == ["INVALID_VALUE"] * 11
    )
