"""Texture and surface objects of the simulated driver: what is refused, and what objects say of themselves."""

from egpu_sim.machines.machine import Machine
from support.simulated_gpu import run

CARDS = ("A100-80G", 1)

HELPERS = """
F, R = d.CUarray_format, d.CUresourcetype
def array(width, height=0, depth=0, flags=0, channels=1, form=F.CU_AD_FORMAT_FLOAT):
    a = d.CUDA_ARRAY3D_DESCRIPTOR()
    a.Width, a.Height, a.Depth, a.Flags, a.NumChannels, a.Format = width, height, depth, flags, channels, form
    return a
def of_array(handle):
    resource = d.CUDA_RESOURCE_DESC()
    resource.resType, resource.res.array.hArray = R.CU_RESOURCE_TYPE_ARRAY, handle
    return resource
def linear(pointer, size):
    resource = d.CUDA_RESOURCE_DESC()
    resource.resType = R.CU_RESOURCE_TYPE_LINEAR
    l = resource.res.linear
    l.devPtr, l.format, l.numChannels, l.sizeInBytes = pointer, F.CU_AD_FORMAT_FLOAT, 1, size
    return resource
def how(filtering=0, flags=0):
    t = d.CUDA_TEXTURE_DESC()
    t.filterMode, t.flags = d.CUfilter_mode(filtering), flags
    return t
context()
"""


def test_arrays_keep_to_the_attributes_of_the_card(sim: Machine) -> None:
    assert run(
        sim,
        HELPERS
        + """
A = d.CUdevice_attribute
most = lambda which: ok(d.cuDeviceGetAttribute(getattr(A, "CU_DEVICE_ATTRIBUTE_MAXIMUM_" + which), 0))
wide, layers, cube = most("TEXTURE1D_WIDTH"), most("TEXTURE2D_LAYERED_LAYERS"), d.CUDA_ARRAY3D_CUBEMAP
L, S, G = d.CUDA_ARRAY3D_LAYERED, d.CUDA_ARRAY3D_SURFACE_LDST, d.CUDA_ARRAY3D_TEXTURE_GATHER
tries = {
    "widest": array(wide), "too wide": array(wide + 1), "surface": array(most("SURFACE1D_WIDTH") + 1, flags=S),
    "layers": array(1, 1, layers, L), "too many": array(1, 1, layers + 1, L), "no layers": array(4, 4, 0, L),
    "no row": array(4, 0, 4), "deep": array(1, 1, most("TEXTURE3D_DEPTH_ALTERNATE")), "nothing": array(0),
    "cube": array(4, 4, 6, cube), "five faces": array(4, 4, 5, cube), "oblong": array(4, 8, 6, cube),
    "cubes": array(4, 4, 12, cube | L), "seven faces": array(4, 4, 7, cube | L), "gathered": array(4, 4, flags=G),
    "gathered line": array(4, flags=G), "three channels": array(4, channels=3),
    "video": array(4, 4, form=F.CU_AD_FORMAT_NV12),
}
def outcome(one):
    result = d.cuArray3DCreate(one)
    if name(result) == "SUCCESS": ok(d.cuArrayDestroy(result[1]))
    return name(result)
said = {which: outcome(one) for which, one in tries.items()}
said["mipmapped"] = name(d.cuMipmappedArrayCreate(array(most("TEXTURE2D_MIPMAPPED_WIDTH") + 1, 1), 1))
say({which: result for which, result in said.items() if result != "SUCCESS"})
""",
    ) == dict.fromkeys(
        (
            "too wide", "surface", "too many", "no layers", "no row", "nothing", "five faces", "oblong", "seven faces",
            "gathered line", "three channels", "mipmapped",
        ),
        "INVALID_VALUE",
    ) | {"video": "NOT_SUPPORTED"}  # fmt: skip


def test_objects_are_refused_that_could_not_be_read(sim: Machine) -> None:
    assert run(
        sim,
        HELPERS
        + """
floats, whole = ok(d.cuArray3DCreate(array(8, 8))), ok(d.cuArray3DCreate(array(8, 8, form=F.CU_AD_FORMAT_SIGNED_INT32)))
gone = ok(d.cuArray3DCreate(array(8)))
deferred = ok(d.cuArray3DCreate(array(8, 8, flags=d.CUDA_ARRAY3D_DEFERRED_MAPPING)))
surface = ok(d.cuArray3DCreate(array(8, 8, flags=d.CUDA_ARRAY3D_SURFACE_LDST)))
p = int(ok(d.cuMemAlloc(4096)))
view = d.CUDA_RESOURCE_VIEW_DESC()
view.format, view.width, view.height = d.CUresourceViewFormat.CU_RES_VIEW_FORMAT_UINT_4X8, 8, 8
wider = d.CUDA_RESOURCE_VIEW_DESC(); wider.width, wider.height = 9, 8
texture = ok(d.cuTexObjectCreate(of_array(floats), how(1, 2), view))
plain = ok(d.cuTexObjectCreate(linear(p, 4096), how(), None))
written = ok(d.cuSurfObjectCreate(of_array(surface)))
kept = [int(ok(d.cuTexObjectGetResourceDesc(texture)).res.array.hArray) == int(floats),
        ok(d.cuTexObjectGetTextureDesc(texture)).flags,
        ok(d.cuTexObjectGetResourceViewDesc(texture)).width, name(d.cuTexObjectGetResourceViewDesc(plain)),
        int(ok(d.cuSurfObjectGetResourceDesc(written)).res.array.hArray) == int(surface)]
ok(d.cuArrayDestroy(gone))
refused = [name(r) for r in (
    d.cuTexObjectCreate(of_array(gone), how(), None), d.cuTexObjectCreate(of_array(deferred), how(), None),
    d.cuTexObjectCreate(of_array(whole), how(1, 1), None), d.cuTexObjectCreate(of_array(floats), how(), wider),
    d.cuTexObjectCreate(linear(p, 4096), how(), view), d.cuTexObjectCreate(linear(p + 4, 400), how(), None),
    d.cuTexObjectCreate(linear(p, 0), how(), None), d.cuSurfObjectCreate(of_array(floats)),
    d.cuSurfObjectCreate(linear(p, 4096)), d.cuSurfObjectDestroy(d.CUsurfObject(int(texture))))]
ok(d.cuTexObjectDestroy(texture)); ok(d.cuTexObjectDestroy(plain)); ok(d.cuSurfObjectDestroy(written))
say([kept, refused, name(d.cuTexObjectDestroy(texture)),
     ok(d.cuDeviceGetTexture1DLinearMaxWidth(F.CU_AD_FORMAT_FLOAT, 4, 0)) > 1 << 20])
""",
    ) == [
        [True, 2, 8, "INVALID_VALUE", True],
        ["INVALID_HANDLE", *["INVALID_VALUE"] * 8, "INVALID_HANDLE"],
        "INVALID_HANDLE",
        True,
    ]  # fmt: skip


def test_what_is_in_a_context_goes_with_it(sim: Machine) -> None:
    """Nothing that is made later, where they lay, is taken for them."""
    assert run(
        sim,
        HELPERS
        + """
a, m = ok(d.cuArray3DCreate(array(512, 512, flags=2))), ok(d.cuMipmappedArrayCreate(array(64, 64), 3))
level = ok(d.cuMipmappedArrayGetLevel(m, 1))
t, s = ok(d.cuTexObjectCreate(of_array(a), how(), None)), ok(d.cuSurfObjectCreate(of_array(a)))
ok(d.cuDevicePrimaryCtxReset(0)); context()
later = [ok(d.cuMemAlloc(1 << 20)) for _ in range(4)]
gone = [name(r) for r in (
    d.cuArrayDestroy(a), d.cuMipmappedArrayDestroy(m), d.cuArray3DGetDescriptor(level), d.cuTexObjectDestroy(t),
    d.cuSurfObjectDestroy(s), d.cuTexObjectCreate(of_array(a), how(), None))]
say([gone, [name(d.cuMemsetD8(p, 1, 1 << 20)) for p in later], [name(d.cuMemFree(p)) for p in later]])
""",
    ) == [["INVALID_HANDLE"] * 6, ["SUCCESS"] * 4, ["SUCCESS"] * 4]


def test_arrays_are_neither_made_nor_destroyed_while_streams_capture(sim: Machine) -> None:
    assert (
        run(
            sim,
            HELPERS
            + """
a, m = ok(d.cuArray3DCreate(array(64, 64))), ok(d.cuMipmappedArrayCreate(array(64, 64), 3))
s, said = ok(d.cuStreamCreate(1)), []
GLOBAL = list(d.CUstreamCaptureMode)[0]
for call in (lambda: d.cuArray3DCreate(array(8)), lambda: d.cuMipmappedArrayCreate(array(8), 1),
             lambda: d.cuArrayDestroy(a), lambda: d.cuMipmappedArrayDestroy(m)):
    ok(d.cuStreamBeginCapture(s, GLOBAL))
    said.append([name(call()), name(d.cuStreamEndCapture(s))])
ok(d.cuArrayDestroy(a)); ok(d.cuMipmappedArrayDestroy(m))
say(said)
""",
        )
        == [["STREAM_CAPTURE_UNSUPPORTED", "STREAM_CAPTURE_INVALIDATED"]] * 4
    )


def test_a_kernel_that_reads_no_texture_fails(sim: Machine) -> None:
    """A number that is none, and an array that is gone, are what an illegal address is."""
    ptx = (
        ".version 7.0 .target sm_70 .address_size 64 .visible .entry k(.param .u64 t) { .reg .u64 %t; .reg .f32 %f<4>;"
        "ld.param.u64 %t,[t]; tex.2d.v4.f32.f32 {%f0,%f1,%f2,%f3},[%t,{0f00000000,0f00000000}]; ret; }"
    )
    source = f"k = function({ptx!r}, 'k')\nok(launch(k, 1, 1, t)); say(name(d.cuCtxSynchronize()))"
    assert run(sim, HELPERS + "t = 4096\n" + source) == "ILLEGAL_ADDRESS"
    made = "a = ok(d.cuArray3DCreate(array(8, 8)))\nt = ok(d.cuTexObjectCreate(of_array(a), how(), None))\n"
    assert run(sim, HELPERS + made + source) == "SUCCESS"
    assert run(sim, HELPERS + made + "ok(d.cuArrayDestroy(a))\n" + source) == "ILLEGAL_ADDRESS"
