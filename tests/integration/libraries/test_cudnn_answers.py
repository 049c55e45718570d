"""cuDNN, simulated: numpy's answers, the same in this process and carried to a server."""

from pathlib import Path
from typing import Final

import pytest

from egpu_sim.machines.machine import Machine
from support.cudnn_programs import BACKEND, START
from support.remote_gpu import Transport, remote
from support.simulated_gpu import run

CARDS = ("A100-80G", 1)

TAPS: Final = """
    # Every (input, weight, output) that belong to each other, by definition.
    def taps(x, w, y, padding, stride, dilation):
        groups, places = x.shape[1] // w.shape[1], range(x.ndim - 2)
        per = w.shape[0] // groups
        for n, k, c in itertools.product(range(x.shape[0]), range(w.shape[0]), range(w.shape[1])):
            for out in np.ndindex(*y.shape[2:]):
                for tap in np.ndindex(*w.shape[2:]):
                    at = tuple(out[i] * stride[i] + tap[i] * dilation[i] - padding[i] for i in places)
                    if all(0 <= at[i] < x.shape[2 + i] for i in places):
                        yield (n, k // per * w.shape[1] + c, *at), (k, c, *tap), (n, k, *out)
    def expected(which, x, w, y, *how):
        sums = {name: np.zeros(each.shape) for name, each in (("x", x), ("w", w), ("y", y))}
        for i, j, k in taps(x, w, y, *how):
            values = {"x": float(x[i]), "w": float(w[j]), "y": float(y[k])}
            place = {"x": i, "w": j, "y": k}[which]
            sums[which][place] += np.prod([value for name, value in values.items() if name != which])
        return sums[which]
"""

CONVOLUTIONS: Final = """
    def convolution(x, w, y, padding, stride, dilation):
        how = made("cudnnCreateConvolutionDescriptor")
        call("cudnnSetConvolutionNdDescriptor", how, len(padding), ints(*padding), ints(*stride), ints(*dilation), 1, 0)
        call("cudnnSetConvolutionGroupCount", how, x.shape[1] // w.shape[1])
        return how
    def passes(x, w, y, *how, within=1e-4):
        conv, xd, wd, yd = convolution(x, w, y, *how), tensor(x), weights(w), tensor(y)
        count, room, bytes = ctypes.c_int(), ctypes.create_string_buffer(48 * 4), ctypes.c_size_t(1)
        call("cudnnGetConvolutionForwardAlgorithm_v7", handle, xd, wd, conv, yd, 4, ctypes.byref(count), room)
        call("cudnnGetConvolutionForwardWorkspaceSize", handle, xd, wd, conv, yd, 1, ctypes.byref(bytes))
        assert (count.value, bytes.value) == (1, 0)
        at, none = card(y), (1, None, ctypes.c_size_t(0))
        call("cudnnConvolutionForward", handle, of(2, x), xd, card(x), wd, card(w), conv, *none, of(0.5, x), yd, at)
        near(back(at, y), 2 * expected("y", x, w, y, *how) + 0.5 * y, within)
        at = card(np.full_like(x, np.nan))  # what is not added may hold anything
        call("cudnnConvolutionBackwardData", handle, of(1, x), wd, card(w), yd, card(y), conv, *none, of(0, x), xd, at)
        near(back(at, x), expected("x", x, w, y, *how), within)
        at = card(w)
        call("cudnnConvolutionBackwardFilter", handle, of(1, x), xd, card(x), yd, card(y), conv, *none, of(1, x), wd,
             at)
        near(back(at, w), w + expected("w", x, w, y, *how), within)
    passes(floats(2, 4, 5, 6), floats(6, 2, 3, 2), floats(2, 6, 3, 2), (1, 0), (2, 2), (1, 2))
    for kind, within in ((np.float64, 1e-4), (np.float16, 2e-2)):
        shapes = (1, 2, 4, 3), (2, 1, 2, 2), (1, 2, 3, 2)
        passes(*(floats(*shape, kind=kind) for shape in shapes), (0, 0), (1, 1), (1, 1), within=within)
    passes(floats(1, 2, 3, 4, 3), floats(2, 2, 2, 2, 2), floats(1, 2, 2, 3, 2), (0, 0, 0), (1, 1, 1), (1, 1, 1))
    x, w, y, bias = floats(1, 2, 4, 4), floats(3, 2, 3, 3), floats(1, 3, 4, 4), floats(1, 3, 1, 1)
    how, relu = ((1, 1), (1, 1), (1, 1)), made("cudnnCreateActivationDescriptor")
    call("cudnnSetActivationDescriptor", relu, 1, 0, ctypes.c_double(0))
    at, size = card(np.zeros_like(y)), ctypes.c_size_t(0)
    call("cudnnConvolutionBiasActivationForward", handle, of(1, x), tensor(x), card(x), weights(w), card(w),
         convolution(x, w, y, *how), 1, None, size, of(2, x), tensor(y), card(y), tensor(bias), card(bias), relu,
         tensor(y), at)
    near(back(at, y), np.maximum(expected("y", x, w, y, *how) + 2 * y + bias, 0))
"""

LAYERS: Final = """
    x, dy = floats(2, 3, 4, 5), floats(2, 3, 4, 5)
    y, e = np.exp(x) / np.exp(x).sum(1, keepdims=True), np.tanh(x)
    at = card(np.zeros_like(x))
    call("cudnnSoftmaxForward", handle, 1, 1, of(1, x), tensor(x), card(x), of(0, x), tensor(x), at)
    near(back(at, x), y)
    call("cudnnSoftmaxBackward", handle, 1, 1, of(1, x), tensor(x), card(y), tensor(x), card(dy), of(0, x), tensor(x),
         at)
    near(back(at, x), y * (dy - (y * dy).sum(1, keepdims=True)))
    at, given = card(np.zeros_like(x)), (handle, 1, 1, of(1, x), tensor(x), card(x), of(0, x), tensor(x))
    said, other = [], threading.Thread(target=lambda: said.append(nn.cudnnSoftmaxForward(*given, at)))
    other.start(), other.join()  # a thread that has no context of its own
    assert said == [0]
    near(back(at, x), y)
    call("cudnnSoftmaxForward", handle, 2, 0, of(1, x), tensor(x), card(x), of(0, x), tensor(x), at)
    near(back(at, x), x - np.log(np.exp(x).sum((1, 2, 3), keepdims=True)))
    tanh = made("cudnnCreateActivationDescriptor")
    call("cudnnSetActivationDescriptor", tanh, 2, 0, ctypes.c_double(0))
    call("cudnnActivationForward", handle, tanh, of(1, x), tensor(x), card(x), of(0, x), tensor(x), at)
    near(back(at, x), e)
    call("cudnnActivationBackward", handle, tanh, of(1, x), tensor(x), card(e), tensor(x), card(dy), tensor(x), card(x),
         of(0, x), tensor(x), at)
    near(back(at, x), dy * (1 - e * e))
    pooled, padded = np.zeros((2, 3, 2, 3), np.float32), np.full((2, 3, 4, 7), np.nan)
    padded[..., 1:-1] = x
    windows = np.lib.stride_tricks.sliding_window_view(padded, (2, 3), (2, 3))[:, :, ::2, ::2]
    for mode, reduced in ((0, np.nanmax), (1, lambda w, axis: np.nansum(w, axis=axis) / 6), (2, np.nanmean)):
        pooling, at = made("cudnnCreatePoolingDescriptor"), card(pooled)
        call("cudnnSetPooling2dDescriptor", pooling, mode, 0, 2, 3, 0, 1, 2, 2)
        call("cudnnPoolingForward", handle, pooling, of(1, x), tensor(x), card(x), of(0, x), tensor(pooled), at)
        near(back(at, pooled), reduced(windows, axis=(4, 5)))
"""

NORMALISATION: Final = """
    x, dy, scale, bias = floats(4, 3, 2, 5), floats(4, 3, 2, 5), floats(1, 3, 1, 1), floats(1, 3, 1, 1)
    mean, var, real = x.mean((0, 2, 3), keepdims=True), x.var((0, 2, 3), keepdims=True), ctypes.c_double
    normal, old = (x - mean) / np.sqrt(var + 1e-5), np.ones((1, 3, 1, 1), np.float32)
    at, running, spread, saved, inverse = card(x), card(old), card(old), card(old), card(old)
    call("cudnnBatchNormalizationForwardTrainingEx", handle, 1, 0, of(1, x), of(0, x), tensor(x), card(x), None, None,
         tensor(x), at, tensor(scale), card(scale), card(bias), real(0.1), running, spread, real(1e-5), saved, inverse,
         None, None, ctypes.c_size_t(0), None, ctypes.c_size_t(0))
    near(back(at, x), normal * scale + bias)
    near(back(running, old), 0.9 + 0.1 * mean)
    near(back(spread, old), 0.9 + 0.1 * var * 40 / 39)
    near(back(saved, old), mean)
    call("cudnnBatchNormalizationForwardInference", handle, 1, of(1, x), of(0, x), tensor(x), card(x), tensor(x), at,
         tensor(scale), card(scale), card(bias), card(mean), card(var), real(1e-5))
    near(back(at, x), normal * scale + bias)
    dscale, dbias = card(old), card(old)
    call("cudnnBatchNormalizationBackwardEx", handle, 1, 0, of(1, x), of(0, x), of(1, x), of(0, x), tensor(x), card(x),
         None, None, tensor(x), card(dy), None, None, tensor(x), at, tensor(scale), card(scale), card(bias), dscale,
         dbias, real(1e-5), saved, inverse, None, None, ctypes.c_size_t(0), None, ctypes.c_size_t(0))
    sum, product = dy.sum((0, 2, 3), keepdims=True), (dy * normal).sum((0, 2, 3), keepdims=True)
    near(back(at, x), scale / np.sqrt(var + 1e-5) * (dy - (sum + normal * product) / 40))
    near(back(dscale, old), product)
    near(back(dbias, old), sum)
    states, size = made("cudnnCreateDropoutDescriptor"), ctypes.c_size_t()
    call("cudnnDropoutGetStatesSize", handle, ctypes.byref(size))
    room, share, seed = card(np.zeros(size.value, np.uint8)), ctypes.c_float(), ctypes.c_uint64()
    call("cudnnSetDropoutDescriptor", states, handle, ctypes.c_float(0.25), room, size, ctypes.c_uint64(7))
    call("cudnnGetDropoutDescriptor", states, handle, ctypes.byref(share), ctypes.byref(found), ctypes.byref(seed))
    assert (share.value, found.value, seed.value) == (0.25, room.value, 7)
"""

GRAPHS: Final = """
    def graph(kind, first, order, x, w, y, padding, stride, dilation):
        how = descriptor(1, (100, DATA, 0), (101, MODE, 1), (106, INT64, len(padding)), (105, INT64, *padding),
                         (104, INT64, *padding), (103, INT64, *stride), (102, INT64, *dilation))
        tensors = {"x": shape(x, "x"), "w": shape(w, "w"), "y": shape(y, "y")}
        operation = descriptor(kind, (first, FLOAT, 1.0), (first + 1, FLOAT, 0.0), (first + 2, DESCRIPTOR, how),
                               *((first + 3 + i, DESCRIPTOR, tensors[name]) for i, name in enumerate(order)))
        return descriptor(15, (800, HANDLE, handle), (801, DESCRIPTOR, operation))
    x, w, y = floats(2, 4, 5, 5), floats(4, 2, 3, 3), floats(2, 4, 3, 3)
    how = ((1, 1), (2, 2), (1, 1))
    for kind, first, order, result in ((10, 700, "wxy", "y"), (12, 706, "wxy", "x"), (11, 712, "wxy", "w")):
        done = plan(graph(kind, first, order, x, w, y, *how))
        at = {name: card(each) for name, each in (("x", x), ("w", w), ("y", y))}
        pack = descriptor(16, (1000, INT64, *map(ord, "xwy")), (1001, POINTER, *(at[name] for name in "xwy")),
                          (1003, POINTER, 0))
        call("cudnnBackendExecute", handle, done, pack)
        near(back(at[result], {"x": x, "w": w, "y": y}[result]), expected(result, x, w, y, *how))
    random_numbers = descriptor(33, status=3000)
    call("cudnnBackendFinalize", made("cudnnBackendCreateDescriptor", 15), status=2000)
    descriptor(15, (801, DESCRIPTOR, random_numbers), status=3001)
    say(answers)
"""

PROGRAM: Final = START + TAPS + CONVOLUTIONS + LAYERS + NORMALISATION + BACKEND + GRAPHS


@pytest.fixture(scope="module")
def local(sim: Machine) -> list[str]:
    """What the program answers where the card is."""
    return run(sim, PROGRAM)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_answers_are_right_and_the_same_from_afar(
    sim: Machine, local: list[str], tmp_path: Path, transport: Transport
) -> None:
    assert len(local) > 25
    with remote(sim, tmp_path, transport) as (client, _, _):
        assert run(client, PROGRAM) == local


LATE: Final = (
    START
    + """
    x, w, y = floats(1, 1, 4, 4), floats(1, 1, 3, 3), floats(1, 1, 4, 4)
    conv, wrong = made("cudnnCreateConvolutionDescriptor"), made("cudnnCreateConvolutionDescriptor")
    call("cudnnSetConvolutionNdDescriptor", conv, 2, ints(0, 0), ints(1, 1), ints(1, 1), 1, 0)
    at, none = card(y), (1, None, ctypes.c_size_t(0))
    def forward(how, by):
        return nn.cudnnConvolutionForward(handle, by, tensor(x), card(x), weights(w), card(w), how, *none, of(0, x),
                                          tensor(y), at)
    said = [forward(handle, of(1, x)), forward(conv, None), forward(conv, of(1, x))]  # sizes: posted, and refused there
    late = name(d.cuStreamSynchronize(stream))
    plan, pack = made("cudnnBackendCreateDescriptor", 5), made("cudnnBackendCreateDescriptor", 16)
    said += [late, nn.cudnnBackendFinalize(plan), nn.cudnnBackendFinalize(pack)]
    said.append(nn.cudnnBackendExecute(handle, plan, pack))  # which is not finalized: posted, too
    late = name(d.cuStreamSynchronize(stream))
    say([*said, late, name(d.cuStreamSynchronize(stream))])
"""
)


def test_what_the_server_refuses_is_said_by_the_next_call_that_waits(sim: Machine, tmp_path: Path) -> None:
    """By the category of cuDNN's status; what is no object or no factor is refused at once."""
    with remote(sim, tmp_path, "shm") as (client, _, _):
        not_finalized = [2004, 0, 0, "INVALID_VALUE", "SUCCESS"]
        assert run(client, LATE) == [2000, 2000, 0, "INVALID_VALUE", *not_finalized]
