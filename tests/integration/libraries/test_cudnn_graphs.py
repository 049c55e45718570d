"""Graphs of cuDNN's backend, simulated: numpy's answers, the same in this process and carried to a server."""

import re
from pathlib import Path
from typing import Final

import pytest

from egpu_sim.machines.machine import Machine
from support.cudnn_programs import BACKEND, GRAPH, START
from support.remote_gpu import Transport, remote
from support.simulated_gpu import run

CARDS = ("A100-80G", 1)

POINTWISE: Final = """
    import math
    x, b, row = floats(2, 3, 4), floats(2, 3, 4), floats(1, 3, 1)
    each = np.vectorize
    sigmoid, erf = lambda v: 1 / (1 + np.exp(-v)), each(math.erf)
    relu = [(3, FLOAT, -0.5), (4, FLOAT, 1.0), (5, FLOAT, 0.25)]
    clipped = lambda v: np.where(v < -0.5, -0.5 + 0.25 * (v + 0.5), np.minimum(v, 1))
    gelu = lambda v: v / 2 * (1 + erf(v / np.sqrt(2)))
    by_tanh = lambda v: v / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (v + 0.044715 * v**3)))
    softplus = lambda v: np.log1p(np.exp(2 * v)) / 2
    swish = lambda v: v * sigmoid(3 * v)
    elu = lambda v: np.where(v < 0, 0.5 * np.expm1(v), v)
    ones = {4: (np.sqrt, np.abs(x)), 10: np.abs, 11: np.ceil, 12: np.cos, 13: np.exp, 14: np.floor,
            15: (np.log, np.abs(x)), 16: np.negative, 17: (lambda v: 1 / np.sqrt(v), np.abs(x)), 18: np.sin,
            19: np.tan, 20: erf, 21: np.array, 22: lambda v: 1 / v, 402: lambda v: v == 0}
    for mode, how in ones.items():
        f, given = how if isinstance(how, tuple) else (how, x)
        g = Graph()
        y = g.pointwise(mode, g.output(x.shape), g.input(given))
        g.run()
        near(g.got(y), f(given))
    twos = {0: np.add, 1: np.multiply, 2: np.minimum, 3: np.maximum, 5: lambda v, w: v + w * w, 6: np.divide,
            7: np.fmod, 9: np.subtract, 23: np.arctan2, 24: np.mod, 300: np.equal, 301: np.not_equal,
            302: np.greater, 303: np.greater_equal, 304: np.less, 305: np.less_equal, 400: np.logical_and,
            401: np.logical_or}
    for mode, f in twos.items():
        for other in (b, row):
            g = Graph()
            y = g.pointwise(mode, g.output(x.shape), g.input(x), g.input(other), alpha=2.0)
            g.run()
            near(g.got(y), f(2 * x, other))
    g = Graph()
    y = g.pointwise(8, g.output(x.shape), g.input(np.abs(x)), g.input(b))
    g.run()
    near(g.got(y), np.abs(x) ** b)
    # activations, and their derivatives by small differences
    activations = {100: (clipped, relu), 101: (np.tanh, []), 102: (sigmoid, []), 103: (elu, [(6, FLOAT, 0.5)]),
                   104: (gelu, []), 105: (softplus, [(7, FLOAT, 2.0)]), 106: (swish, [(8, FLOAT, 3.0)]),
                   107: (by_tanh, [])}
    for mode, (f, settings) in activations.items():
        g = Graph()
        given = g.input(x)
        y = g.pointwise(mode, g.output(x.shape), given, settings=settings)
        dx = g.pointwise(mode + 100, g.output(x.shape), given, g.input(b), settings=settings)
        g.run()
        near(g.got(y), f(x))
        wide = x.astype(np.float64)
        near(g.got(dx), b * (f(wide + 1e-6) - f(wide - 1e-6)) / 2e-6, 1e-3)
    g = Graph()
    index = g.pointwise(501, g.virtual(x.shape, "int32"), g.input(x), settings=[(9, INT64, 2)])
    mask = g.pointwise(302, g.virtual(x.shape, "uint8"), index, g.value(1, "int32", 3))
    y = g.pointwise(601, g.output(x.shape), g.input(x), g.value(-5, rank=3), mask)
    g.run()
    near(g.got(y), np.where(np.arange(4) > 1, x, -5))
"""

REDUCTIONS: Final = """
    x = floats(2, 3, 4)
    x[0, 0] = 0
    kinds = {0: np.sum, 1: np.prod, 2: np.min, 3: np.max, 4: lambda v, **k: np.max(np.abs(v), **k), 5: np.mean,
             6: lambda v, **k: np.sum(np.abs(v), **k), 7: lambda v, **k: np.sqrt(np.sum(v * v, **k)),
             8: lambda v, **k: np.prod(np.where(v == 0, 1, v), **k)}
    for mode, f in kinds.items():
        g = Graph()
        y = g.reduction(mode, g.output((2, 1, 4)), g.input(x))
        whole = g.reduction(mode, g.output((1, 1, 1)), g.input(x))
        g.run()
        near(g.got(y), f(x, axis=1, keepdims=True))
        near(g.got(whole), f(x, axis=(0, 1, 2), keepdims=True))
"""

PRODUCTS: Final = """
    # a layer in halves, summed in single precision; the operations are given in the wrong order
    x, w, bias = floats(1, 5, 3, kind=np.float16), floats(1, 3, 4, kind=np.float16), floats(1, 1, 4)
    g = Graph()
    product, sum_ = g.virtual((1, 5, 4)), g.virtual((1, 5, 4))
    y = g.output((1, 5, 4), "float16")
    g.pointwise(100, y, sum_)
    g.pointwise(0, sum_, product, g.input(bias))
    g.product(product, g.input(x), g.input(w))
    g.run()
    near(g.got(y), np.maximum(x.astype(float) @ w.astype(float) + bias, 0), 1e-2)
    # softmax in pointwise operations and reductions, as one operation, and heads that share a factor
    a, b = floats(2, 4, 3, 5), floats(2, 2, 5, 3)
    g = Graph()
    scores = g.product(g.virtual((2, 4, 3, 3)), g.input(a), g.input(b))
    most = g.reduction(3, g.virtual((2, 4, 3, 1)), scores)
    parts = g.pointwise(13, g.virtual((2, 4, 3, 3)), g.pointwise(9, g.virtual((2, 4, 3, 3)), scores, most))
    y = g.pointwise(6, g.output((2, 4, 3, 3)), parts, g.reduction(0, g.virtual((2, 4, 3, 1)), parts))
    stats = g.output((2, 4, 3, 1))
    other = g.softmax(g.output((2, 4, 3, 3)), scores, stats)
    g.run()
    shares = np.exp(a @ np.repeat(b, 2, 1))
    near(g.got(y), shares / shares.sum(-1, keepdims=True))
    near(g.got(other), shares / shares.sum(-1, keepdims=True))
    near(g.got(stats), np.log(shares.sum(-1, keepdims=True)))
    # what is turned is a view; a transposed one is a copy
    g = Graph()
    copied = g.pointwise(21, g.virtual((2, 4, 3, 5)), g.input(a))
    y = g.product(g.output((2, 4, 5, 5)), g.turned(copied), g.input(a))
    z = g.output((3, 2, 5, 4))
    g.operation(46, (3200, DESCRIPTOR, copied), (3201, DESCRIPTOR, z), (3202, INT64, 2, 0, 3, 1))
    g.run()
    near(g.got(y), a.swapaxes(2, 3) @ a)
    near(g.got(z), a.transpose(2, 0, 3, 1))
    # and what is reshaped as such keeps the order of its elements
    g = Graph()
    copied = g.pointwise(21, g.virtual((2, 4, 3, 5)), g.input(a))
    y = g.output((4, 30))
    g.operation(31, (2200, DESCRIPTOR, copied), (2201, DESCRIPTOR, y), (2202, 31, 1))
    g.run()
    near(g.got(y), a.reshape(4, 30))
"""

NORMS: Final = """
    x, dy = floats(4, 6, 1, 1), floats(4, 6, 1, 1)
    scale, bias, LAYER, RMS = floats(1, 6, 1, 1), floats(1, 6, 1, 1), 0, 4
    for mode in (LAYER, RMS):
        mean = x.mean(1, keepdims=True) * (mode == LAYER)
        inverse = 1 / np.sqrt(((x - mean) ** 2).mean(1, keepdims=True) + 0.125)
        normal = (x - mean) * inverse
        g = Graph()
        y, m, i = g.output(x.shape), g.output((4, 1, 1, 1)), g.output((4, 1, 1, 1))
        given, by = g.input(x), g.input(scale)
        stats = [(2003, DESCRIPTOR, m)] if mode == LAYER else []
        g.operation(29, (2000, 27, mode), (2001, 28, 1), (2002, DESCRIPTOR, given), (2004, DESCRIPTOR, i), *stats,
                    (2005, DESCRIPTOR, by), (2006, DESCRIPTOR, g.input(bias)), (2007, DESCRIPTOR, g.value(0.125)),
                    (2013, DESCRIPTOR, y))
        g.run()
        near(g.got(y), normal * scale + bias)
        near(g.got(i), inverse)
        if mode == LAYER:
            near(g.got(m), mean)
        back_ = Graph()
        dx, dscale, dbias = back_.output(x.shape), back_.output(scale.shape), back_.output(scale.shape)
        stats = [(2102, DESCRIPTOR, back_.input(mean))] if mode == LAYER else []
        back_.operation(30, (2100, 27, mode), (2101, DESCRIPTOR, back_.input(x)), *stats,
                        (2103, DESCRIPTOR, back_.input(inverse)), (2104, DESCRIPTOR, back_.input(dy)),
                        (2105, DESCRIPTOR, back_.input(scale)), (2107, DESCRIPTOR, dscale),
                        (2108, DESCRIPTOR, dbias), (2109, DESCRIPTOR, dx))
        back_.run()
        slope = dy * scale
        less = slope.mean(1, keepdims=True) * (mode == LAYER)
        near(back_.got(dx), inverse * (slope - less - normal * (slope * normal).mean(1, keepdims=True)))
        near(back_.got(dscale), (dy * normal).sum(0, keepdims=True))
        near(back_.got(dbias), dy.sum(0, keepdims=True))
    # over images: of each image and channel, and of each channel of all images
    x, scale, bias = floats(2, 3, 4, 5), floats(1, 3, 1, 1), floats(1, 3, 1, 1)
    for mode, axes, shape_ in ((1, (2, 3), (2, 3, 1, 1)), (2, (0, 2, 3), (1, 3, 1, 1))):
        g = Graph()
        y, m, i = g.output(x.shape), g.output(shape_), g.output(shape_)
        g.operation(29, (2000, 27, mode), (2001, 28, 1), (2002, DESCRIPTOR, g.input(x)), (2003, DESCRIPTOR, m),
                    (2004, DESCRIPTOR, i), (2005, DESCRIPTOR, g.input(scale)), (2006, DESCRIPTOR, g.input(bias)),
                    (2007, DESCRIPTOR, g.value(0.5)), (2013, DESCRIPTOR, y))
        g.run()
        deviation = np.sqrt(x.var(axes, keepdims=True) + 0.5)
        near(g.got(y), (x - x.mean(axes, keepdims=True)) / deviation * scale + bias)
"""

ATTENTION: Final = """
    B, H, HK, S, T, D = 2, 4, 2, 3, 5, 8
    q, k, v = floats(B, H, S, D, kind=np.float16), floats(B, HK, T, D, kind=np.float16), floats(B, HK, T, D)
    v = v.astype(np.float16)
    shared = lambda each: np.repeat(each.astype(float), H // HK, 1)
    for causal in (False, True):
        within, g = Graph(), Graph()
        within.uid = 500
        o, stats = g.output((B, H, S, D), "float16"), g.output((B, H, S, 1))
        given = within.tensor((B, H, S, T))
        masked, low, shift = within.tensor((B, H, S, T)), within.value(-np.inf), within.value(1, "int32")
        within.operation(44, (3000, DESCRIPTOR, given), (3004, DESCRIPTOR, shift), (3005, DESCRIPTOR, low),
                         (3006, DESCRIPTOR, masked), (3007, 14, 303))
        scale = g.value(0.25)
        unused, also = g.virtual((B, H, S, T)), g.virtual((B, H, S, T))
        softmax = descriptor(45, (3100, DESCRIPTOR, unused.is_), (3101, DESCRIPTOR, also.is_),
                             (3102, DESCRIPTOR, stats.is_))
        mask = [(2811, DESCRIPTOR, within.descriptor()), (2812, INT64, given.uid), (2813, INT64, masked.uid)]
        g.operation(41, (2800, DESCRIPTOR, g.input(q)), (2801, DESCRIPTOR, g.input(k)), (2802, DESCRIPTOR, g.input(v)),
                    (2803, DESCRIPTOR, o), (2805, DESCRIPTOR, scale), (2814, DESCRIPTOR, softmax),
                    *(mask if causal else []))
        g.at.update(within.at if causal else {})
        g.run()
        scores = 0.25 * q.astype(float) @ shared(k).swapaxes(2, 3)
        if causal:
            scores = np.where(np.arange(S)[:, None] + 1 >= np.arange(T), scores, -np.inf)
        shares = np.exp(scores)
        sums = shares.sum(-1, keepdims=True)
        near(g.got(o), shares / sums @ shared(v), 1e-2)
        near(g.got(stats), np.log(sums))
"""

# A value is that of the moment of the execution, and belongs to the graph whose tensor it is: another graph may have
# the same number for one on the card.
VALUES: Final = """
    x = floats(2, 3)
    first, second = Graph(), Graph()
    by = first.value(3, rank=2)
    y = first.pointwise(1, first.output(x.shape), first.input(x), by)
    done, pack = first.plan(), first.pack()
    for number in (3, 5):
        kept[-1] = None
        ctypes.cast(first.at[by.uid], ctypes.POINTER(ctypes.c_float))[0] = number
        call("cudnnBackendExecute", handle, done, pack)
        near(first.got(y), number * x)
    second.uid = by.uid - 1
    on_card = second.input(np.float32([[7]]))
    assert on_card.uid == by.uid
    z = second.pointwise(1, second.output(x.shape), second.input(x), on_card)
    second.run()
    near(second.got(z), 7 * x)
    half = Graph()
    z = half.pointwise(0, half.output(x.shape), half.input(x), half.value(0.5, "float16", 2))
    half.run()
    near(half.got(z), x + 0.5)
    call("cudnnBackendDestroyDescriptor", done)
    say(answers)
"""

PROGRAM: Final = START + BACKEND + GRAPH + POINTWISE + REDUCTIONS + PRODUCTS + NORMS + ATTENTION + VALUES


@pytest.fixture(scope="module")
def local(sim: Machine) -> list[str]:
    """What the program answers where the card is."""
    return run(sim, PROGRAM)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_answers_are_right_and_the_same_from_afar(
    sim: Machine, local: list[str], tmp_path: Path, transport: Transport
) -> None:
    assert len(local) > 110
    with remote(sim, tmp_path, transport) as (client, _, _):
        assert run(client, PROGRAM) == local


REFUSED: Final = (
    START
    + BACKEND
    + GRAPH
    + """
    read, write = os.pipe()
    os.dup2(write, 2)
    x, g = floats(2, 3), Graph()
    one = g.input(x)
    said = []
    def refused(type, *attributes, status):
        at = made("cudnnBackendCreateDescriptor", type)
        for attribute, kind, *values in attributes:
            values = [each.is_ if isinstance(each, Tensor) else each for each in values]
            call("cudnnBackendSetAttribute", at, attribute, kind, long(len(values)), array(kind, values))
        assert nn.cudnnBackendFinalize(at) == status, (type, attributes)
    unknown = descriptor(0, (0, 14, 999), (1, DATA, 0))
    refused(13, (750, DESCRIPTOR, unknown), (751, DESCRIPTOR, one), (753, DESCRIPTOR, one), status=3000)
    rng = g.output((2, 3))
    refused(33, (2310, DESCRIPTOR, rng), status=3000)
    heads = [g.output((1, 1, 2, 2)) for _ in range(5)]
    given = [(2800 + i, DESCRIPTOR, heads[i]) for i in range(4)]
    refused(41, *given, (2818, FLOAT, 0.5), status=3000)
    refused(41, *given, (2809, DESCRIPTOR, heads[4]), status=3000)
    # shapes that do not fit, what is missing, and what waits for itself
    add = descriptor(0, (0, 14, 0), (1, DATA, 0))
    other = g.input(floats(3, 2))
    refused(13, (750, DESCRIPTOR, add), (751, DESCRIPTOR, one), (752, DESCRIPTOR, other), (753, DESCRIPTOR, one),
            status=2008)
    refused(13, (750, DESCRIPTOR, add), (751, DESCRIPTOR, one), (753, DESCRIPTOR, one), status=2000)
    round_ = Graph()
    a, b = round_.virtual((2, 3)), round_.virtual((2, 3))
    round_.pointwise(21, a, b), round_.pointwise(21, b, a)
    refused(15, (800, HANDLE, handle), (801, DESCRIPTOR, *round_.operations), status=3001)
    say(os.read(read, 4096).decode())
"""
)


def test_what_there_is_not_is_refused_by_name(sim: Machine) -> None:
    assert re.findall(r"the simulated cuDNN does not support (.*)\n", run(sim, REFUSED)) == [
        "this mode of pointwise operation",
        "descriptors of type 33",
        "dropout in attention",
        "attention over sequences of different lengths",
    ]
