"""What training does with the libraries: losses as numpy's, the same to the bit where the card is, in a slice and afar.

A two-layer network, a small convolution net, a transformer block with causal attention, forward and back, and two
ranks that share their gradients. Gradients are checked by what the loss does along a direction, in double precision.
"""

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Final

import pytest

from egpu_sim.machines.machine import Machine
from support import forked_commands
from support.cudnn_programs import BACKEND, GRAPH, START
from support.remote_gpu import remote
from support.simulated_gpu import Program, run, source
from support.waiting import DEADLINE_SECONDS

CARDS = ("A100-80G", 2)

# Losses are kept as their bits. `slopes`: gradients, against how a loss in double precision changes along a direction.
COMMON: Final = """
    ADD, MUL, SUB, RELU, GELU, BACK = 0, 1, 9, 100, 104, 100
    SUM, MEAN = 0, 5
    def loss_of(value):
        answers.append(np.float32(value).tobytes().hex())
        return float(value)
    def slopes(loss, weights, gradients):
        wide = {name: value.astype(np.float64) for name, value in weights.items()}
        for name, gradient in gradients.items():
            along, step = np.random.default_rng(len(name)).standard_normal(wide[name].shape), 1e-5
            up, down = (loss({**wide, name: wide[name] + way * step * along}) for way in (1, -1))
            assert np.isclose((gradient * along).sum(), (up - down) / (2 * step), rtol=1e-3, atol=1e-4), name
            answers.append(gradient.tobytes().hex())
    def less(graph, weight, gradient, rate):  # a step down
        scaled = graph.pointwise(MUL, graph.virtual(weight.shape), gradient, graph.value(-rate, rank=len(weight.shape)))
        return graph.pointwise(ADD, graph.output(weight.shape), weight, scaled)
"""

PERCEPTRON: Final = """
    x, target = floats(1, 16, 5), floats(1, 16, 2)
    w = {"w1": floats(1, 5, 8), "b1": floats(1, 1, 8), "w2": floats(1, 8, 2)}
    def network(w):
        y = np.maximum(x @ w["w1"] + w["b1"], 0) @ w["w2"]
        return ((y - target) ** 2).mean()
    losses = []
    for step in range(6):
        g = Graph()
        given, on = g.input(x), {name: g.input(value) for name, value in w.items()}
        before = g.pointwise(ADD, g.virtual((1, 16, 8)), g.product(g.virtual((1, 16, 8)), given, on["w1"]), on["b1"])
        hidden = g.pointwise(RELU, g.virtual((1, 16, 8)), before)
        error = g.pointwise(SUB, g.virtual((1, 16, 2)), g.product(g.virtual((1, 16, 2)), hidden, on["w2"]),
                            g.input(target))
        squares = g.pointwise(MUL, g.virtual((1, 16, 2)), error, error)
        loss = g.reduction(MEAN, g.output((1, 1, 1)), squares)
        slope = g.pointwise(MUL, g.virtual((1, 16, 2)), error, g.value(2 / 32, rank=3))
        back_ = g.product(g.virtual((1, 16, 8)), slope, g.turned(g.pointwise(21, g.virtual((1, 8, 2)), on["w2"])))
        back_ = g.pointwise(RELU + BACK, g.virtual((1, 16, 8)), before, back_)
        copy = g.pointwise(21, g.virtual((1, 16, 5)), given)
        gradients = {"w1": g.product(g.output((1, 5, 8)), g.turned(copy), back_),
                     "b1": g.reduction(SUM, g.output((1, 1, 8)), back_),
                     "w2": g.product(g.output((1, 8, 2)), g.turned(hidden), slope)}
        after = {name: less(g, on[name], gradients[name], 0.25) for name in w}
        g.run()
        losses.append(loss_of(g.got(loss).item()))
        assert np.isclose(losses[-1], network(w), rtol=1e-5)
        if step == 0:
            slopes(network, w, {name: g.got(each) for name, each in gradients.items()})
        w = {name: g.got(each) for name, each in after.items()}
    assert losses[-1] < losses[0] / 2, losses
"""

CONVOLUTION: Final = """
    images, labels = floats(4, 2, 6, 6), floats(4, 3, 1, 1)
    w = {"c": floats(3, 2, 3, 3) / 3, "b": floats(1, 3, 1, 1)}
    def convolved(w):
        windows = np.lib.stride_tricks.sliding_window_view(np.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1))), (3, 3),
                                                           (2, 3))
        return np.einsum("nchwij,kcij->nkhw", windows, w["c"]) + w["b"]
    def network(w):
        pooled = np.maximum(convolved(w), 0).mean((2, 3), keepdims=True)
        return ((pooled - labels) ** 2).mean()
    how = descriptor(1, (100, DATA, 0), (101, MODE, 1), (106, INT64, 2), (105, INT64, 1, 1), (104, INT64, 1, 1),
                     (103, INT64, 1, 1), (102, INT64, 1, 1))
    losses, shape_ = [], (4, 3, 6, 6)
    for step in range(5):
        g = Graph()
        given, on = g.input(images), {name: g.input(value) for name, value in w.items()}
        y = g.virtual(shape_)
        g.operation(10, (700, FLOAT, 1.0), (701, FLOAT, 0.0), (702, DESCRIPTOR, how), (703, DESCRIPTOR, on["c"]),
                    (704, DESCRIPTOR, given), (705, DESCRIPTOR, y))
        before = g.pointwise(ADD, g.virtual(shape_), y, on["b"])
        active = g.pointwise(RELU, g.virtual(shape_), before)
        error = g.pointwise(SUB, g.virtual((4, 3, 1, 1)), g.reduction(MEAN, g.virtual((4, 3, 1, 1)), active),
                            g.input(labels))
        squares = g.pointwise(MUL, g.virtual((4, 3, 1, 1)), error, error)
        loss = g.reduction(MEAN, g.output((1, 1, 1, 1)), squares)
        slope = g.pointwise(MUL, g.virtual((4, 3, 1, 1)), error, g.value(2 / 12 / 36))
        dy = g.pointwise(RELU + BACK, g.virtual(shape_), before, slope)
        dw = g.output(w["c"].shape)
        g.operation(11, (712, FLOAT, 1.0), (713, FLOAT, 0.0), (714, DESCRIPTOR, how), (715, DESCRIPTOR, dw),
                    (716, DESCRIPTOR, given), (717, DESCRIPTOR, dy))
        gradients = {"c": dw, "b": g.reduction(SUM, g.output((1, 3, 1, 1)), dy)}
        after = {name: less(g, on[name], gradients[name], 2.0) for name in w}
        g.run()
        losses.append(loss_of(g.got(loss).item()))
        assert np.isclose(losses[-1], network(w), rtol=1e-5)
        if step == 0:
            slopes(network, w, {name: g.got(each) for name, each in gradients.items()})
        w = {name: g.got(each) for name, each in after.items()}
    assert losses[-1] < losses[0], losses
"""

# Attention of two heads over normalised inputs, added to them, and two layers with GELU, added again. What goes forward
# is one graph, and what comes back another, as frameworks have them.
TRANSFORMER: Final = """
    import math
    N, H, T, D, F = 2, 2, 4, 3, 12  # sequences, heads, their length, of a head, of the inner layer
    E, erf = H * D, np.vectorize(math.erf)
    x, along = floats(N, 1, T, E), floats(N, 1, T, E)
    w = {"scale": floats(1, 1, 1, E), "bias": floats(1, 1, 1, E), "q": floats(1, H, E, D), "k": floats(1, H, E, D),
         "v": floats(1, H, E, D), "o": floats(1, H, D, E), "up": floats(1, 1, E, F), "down": floats(1, 1, F, E)}
    later = np.arange(T)[:, None] < np.arange(T)
    def network(w):
        deviation = np.sqrt(x.var(-1, keepdims=True) + 0.125)
        normal = (x - x.mean(-1, keepdims=True)) / deviation * w["scale"] + w["bias"]
        q, k, v = (normal @ w[name] for name in "qkv")
        shares = np.exp(np.where(later, -np.inf, q @ k.swapaxes(2, 3) / np.sqrt(D)))
        shares /= shares.sum(-1, keepdims=True)
        middle = x + (shares @ v @ w["o"]).sum(1, keepdims=True)
        up = middle @ w["up"]
        return ((middle + up / 2 * (1 + erf(up / np.sqrt(2))) @ w["down"]) * along).sum()
    f = Graph()
    on = {name: f.input(value) for name, value in w.items()}
    given, flat = f.input(x), (N, 1, T, E)
    kept_ = {name: f.output(shape_) for name, shape_ in {
        "normal": flat, "mean": (N, 1, T, 1), "inverse": (N, 1, T, 1), "q": (N, H, T, D), "k": (N, H, T, D),
        "v": (N, H, T, D), "stats": (N, H, T, 1), "heads": (N, H, T, D), "middle": flat, "up": (N, 1, T, F)}.items()}
    f.operation(29, (2000, 27, 0), (2001, 28, 1), (2002, DESCRIPTOR, given), (2003, DESCRIPTOR, kept_["mean"]),
                (2004, DESCRIPTOR, kept_["inverse"]), (2005, DESCRIPTOR, on["scale"]), (2006, DESCRIPTOR, on["bias"]),
                (2007, DESCRIPTOR, f.value(0.125)), (2013, DESCRIPTOR, kept_["normal"]))
    for name in "qkv":
        f.product(kept_[name], kept_["normal"], on[name])
    masked = Graph()
    masked.uid = 900
    scores, hidden = masked.tensor((N, H, T, T)), masked.tensor((N, H, T, T))
    masked.operation(44, (3000, DESCRIPTOR, scores), (3005, DESCRIPTOR, masked.value(-np.inf)),
                     (3006, DESCRIPTOR, hidden), (3007, 14, 303))
    f.at.update(masked.at)
    f.operation(41, (2800, DESCRIPTOR, kept_["q"]), (2801, DESCRIPTOR, kept_["k"]), (2802, DESCRIPTOR, kept_["v"]),
                (2803, DESCRIPTOR, kept_["heads"]), (2804, DESCRIPTOR, kept_["stats"]),
                (2805, DESCRIPTOR, f.value(D**-0.5)), (2811, DESCRIPTOR, masked.descriptor()),
                (2812, INT64, scores.uid), (2813, INT64, hidden.uid))
    added = f.reduction(SUM, f.virtual(flat), f.product(f.virtual((N, H, T, E)), kept_["heads"], on["o"]))
    f.pointwise(ADD, kept_["middle"], given, added)
    f.product(kept_["up"], kept_["middle"], on["up"])
    inner = f.pointwise(GELU, f.output((N, 1, T, F)), kept_["up"])
    y = f.pointwise(ADD, f.virtual(flat), kept_["middle"], f.product(f.virtual(flat), inner, on["down"]))
    loss = f.reduction(SUM, f.output((1, 1, 1, 1)), f.pointwise(MUL, f.virtual(flat), y, f.input(along)))
    f.run()
    assert np.isclose(loss_of(f.got(loss).item()), network(w), rtol=1e-4)

    b = Graph()
    on = {name: b.input(value) for name, value in w.items()}
    was = {name: b.input(f.got(each)) for name, each in kept_.items()}
    was["inner"], dy = b.input(f.got(inner)), b.input(along)
    turned = lambda of: b.turned(b.pointwise(21, b.virtual(of.shape), of))
    def gradient(name, left, right):  # summed over the sequences
        whole = b.product(b.virtual((N, *w[name].shape[1:])), turned(left), right)
        return b.reduction(SUM, b.output(w[name].shape), whole)
    found = {"down": gradient("down", was["inner"], dy)}
    inner = b.product(b.virtual((N, 1, T, F)), dy, turned(on["down"]))
    up = b.pointwise(GELU + BACK, b.virtual((N, 1, T, F)), was["up"], inner)
    found["up"] = gradient("up", was["middle"], up)
    middle = b.pointwise(ADD, b.virtual(flat), dy, b.product(b.virtual(flat), up, turned(on["up"])))
    found["o"] = gradient("o", was["heads"], middle)
    heads = b.product(b.virtual((N, H, T, D)), middle, turned(on["o"]))
    # attention, as the statistics have it: shares again, and back through softmax
    square, scale = (N, H, T, T), b.value(D**-0.5)
    scores = b.product(b.virtual(square), was["q"], turned(was["k"]))
    scores = b.pointwise(MUL, b.virtual(square), scores, scale)
    rows, columns = (b.pointwise(501, b.virtual(square, "int32"), scores, settings=[(9, INT64, axis)])
                     for axis in (2, 3))
    seen = b.pointwise(303, b.virtual(square, "uint8"), rows, columns)
    scores = b.pointwise(601, b.virtual(square), scores, b.value(-np.inf), seen)
    shares = b.pointwise(13, b.virtual(square), b.pointwise(SUB, b.virtual(square), scores, was["stats"]))
    dv = b.product(b.virtual((N, H, T, D)), b.turned(shares), heads)
    dots = b.reduction(SUM, b.virtual((N, H, T, 1)), b.pointwise(MUL, b.virtual((N, H, T, D)), heads, was["heads"]))
    ds = b.pointwise(SUB, b.virtual(square), b.product(b.virtual(square), heads, turned(was["v"])), dots)
    ds = b.pointwise(MUL, b.virtual(square), b.pointwise(MUL, b.virtual(square), ds, shares), scale)
    into = {"q": b.product(b.virtual((N, H, T, D)), ds, was["k"]),
            "k": b.product(b.virtual((N, H, T, D)), b.turned(ds), was["q"]), "v": dv}
    normal = None
    for name, each in into.items():
        found[name] = gradient(name, was["normal"], each)
        part = b.reduction(SUM, b.virtual(flat), b.product(b.virtual((N, H, T, E)), each, turned(on[name])))
        normal = b.pointwise(ADD, b.virtual(flat), normal, part) if normal else part
    found["scale"], found["bias"] = b.output((1, 1, 1, E)), b.output((1, 1, 1, E))
    b.operation(30, (2100, 27, 0), (2101, DESCRIPTOR, b.input(x)), (2102, DESCRIPTOR, was["mean"]),
                (2103, DESCRIPTOR, was["inverse"]), (2104, DESCRIPTOR, normal), (2105, DESCRIPTOR, on["scale"]),
                (2107, DESCRIPTOR, found["scale"]), (2108, DESCRIPTOR, found["bias"]),
                (2109, DESCRIPTOR, b.output(flat)))
    b.run()
    slopes(network, w, {name: b.got(each) for name, each in found.items()})
    say(answers)
"""

PROGRAM: Final = START + BACKEND + GRAPH + COMMON + PERCEPTRON + CONVOLUTION + TRANSFORMER


@pytest.fixture(scope="module")
def local(sim: Machine) -> list[str]:
    """What the program answers where the card is."""
    return run(sim, PROGRAM)


@pytest.mark.parametrize("where", ["slice", "shm", "tcp"])
def test_training_is_the_same_to_the_bit(sim: Machine, local: list[str], tmp_path: Path, where: str) -> None:
    assert len(local) == 6 + 3 + 5 + 2 + 1 + 8
    assert inside(sim, tmp_path, where, PROGRAM) == local


def inside(sim: Machine, tmp_path: Path, where: str, program: str) -> list[str]:
    """What a program answers in a slice of a card, or of one that is elsewhere."""
    if where != "slice":
        with remote(sim, tmp_path, "shm" if where == "shm" else "tcp") as (client, _, _):
            return run(client, program)
    egpu = ["run", "--simulate", "A100-80G", "--core", "50", "--memory", "1GiB"]
    command = [*egpu, "--state-dir", str(tmp_path), "--", sys.executable, "-c", source(program)]
    done = forked_commands.run(command, env=os.environ, timeout=DEADLINE_SECONDS)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


# Two cards, each with half of the data: the gradients are averaged, and so both have the weights that one would have.
PARALLEL: Final = """
    blas, nccl = ctypes.CDLL("libcublas.so.13"), ctypes.CDLL("libnccl.so.2")
    pointer, size, FLOAT, AVERAGE, cards = ctypes.c_void_p, ctypes.c_size_t, 7, 4, (0, 1)
    def call(of, name, *arguments):
        got = of[name](*arguments)
        assert got == 0, (name, got)
    by = lambda value: ctypes.byref(ctypes.c_float(value))
    random = np.random.default_rng(3)
    n, inputs, outputs, rate = 8, 4, 3, 0.25
    x, target = (random.standard_normal((rows, 2 * n)).astype(np.float32) for rows in (inputs, outputs))
    start = random.standard_normal((outputs, inputs)).astype(np.float32)
    devices, streams, handles, at = [context(card) for card in cards], [], [], []
    columns = lambda array: np.ascontiguousarray(array.ravel("F"))
    for card in cards:
        ok(d.cuCtxSetCurrent(devices[card]))
        streams.append(pointer(int(ok(d.cuStreamCreate(1)))))
        handles.append(pointer())
        call(blas, "cublasCreate_v2", ctypes.byref(handles[card]))
        call(blas, "cublasSetStream_v2", handles[card], streams[card])
        mine = slice(card * n, (card + 1) * n)
        room = [x[:, mine], target[:, mine], start, np.zeros((outputs, n), np.float32), np.zeros_like(start)]
        at.append([pointer(int(upload(columns(each)))) for each in room])
    comms = (pointer * 2)()
    call(nccl, "ncclCommInitAll", comms, 2, None)
    losses, w = [], start.astype(np.float64)
    for _ in range(8):
        for card in cards:
            ok(d.cuCtxSetCurrent(devices[card]))
            X, T, W, E, G = at[card]
            ok(d.cuMemcpyDtoDAsync(E.value, T.value, 4 * outputs * n, streams[card].value))
            sizes = (0, 0, outputs, n, inputs)
            call(blas, "cublasSgemm_v2", handles[card], *sizes, by(1), W, outputs, X, inputs, by(-1), E, outputs)
            sizes = (0, 1, outputs, inputs, n)
            call(blas, "cublasSgemm_v2", handles[card], *sizes, by(1 / n), E, outputs, X, inputs, by(0), G, outputs)
        call(nccl, "ncclGroupStart")
        for card in cards:
            G = at[card][4]
            call(nccl, "ncclAllReduce", G, G, size(outputs * inputs), FLOAT, AVERAGE, pointer(comms[card]),
                 streams[card])
        call(nccl, "ncclGroupEnd")
        errors = []
        for card in cards:
            ok(d.cuCtxSetCurrent(devices[card]))
            _, _, W, E, G = at[card]
            call(blas, "cublasSaxpy_v2", handles[card], outputs * inputs, by(-rate), G, 1, W, 1)
            ok(d.cuStreamSynchronize(streams[card].value))
            errors.append(download(E.value, np.zeros(outputs * n, np.float32)))
        losses.append(np.float32(np.concatenate(errors) @ np.concatenate(errors) / (2 * n)))
        error = w @ x - target
        assert np.isclose(losses[-1], (error**2).sum() / (2 * n), rtol=1e-4)
        w = w - rate * error @ x.T / (2 * n)
    weights = []
    for card in cards:
        ok(d.cuCtxSetCurrent(devices[card]))
        weights.append(download(at[card][2].value, np.zeros(outputs * inputs, np.float32)))
    assert weights[0].tobytes() == weights[1].tobytes()
    assert np.allclose(weights[0].reshape(w.shape, order="F"), w, rtol=1e-4, atol=1e-5)
    assert losses[-1] < losses[0]
    for comm in comms:
        call(nccl, "ncclCommDestroy", pointer(comm))
    say([each.tobytes().hex() for each in (*losses, *weights)])
"""


def test_ranks_that_share_their_gradients_have_the_weights_of_one(sim: Machine, tmp_path: Path) -> None:
    said: dict[str, list[str]] = {}
    for where in ("local", "shm", "tcp"):
        with contextlib.ExitStack() as stack:
            on: Machine | Path = sim
            if where != "local":
                folder = tmp_path / where
                transport = "shm" if where == "shm" else "tcp"
                on = stack.enter_context(remote(sim, folder, transport, "--network"))[0]
            said[where] = stack.enter_context(Program(on, PARALLEL)).hear()
    assert said["shm"] == said["tcp"] == said["local"]
