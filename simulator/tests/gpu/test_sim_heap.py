"""Memory that kernels allocate themselves: malloc, new, free, delete."""
# ruff: noqa: E501  statements of the programs inside read better on one line

import textwrap
from typing import Any, Final

from egpu_sim.machines.machine import Machine
from support.simulated_gpu import run

CARDS = ("A100-80G", 1)
KERNELS: Final = r"""
.version 8.0
.target sm_80
.address_size 64
.extern .func (.param .b64 result) malloc(.param .b64 size);
.extern .func (.param .b64 result) __nv_aligned_device_malloc(.param .b64 size, .param .b64 align);
.extern .func free(.param .b64 block);
// Each thread allocates `size` bytes, aligned if `align` is not 0, and writes its number to the first four.
.visible .entry take(.param .u64 blocks, .param .u64 size, .param .u64 align)
{
    .reg .b64 %d<8>; .reg .b32 %r<6>; .reg .pred %p<3>;
    .param .b64 size_; .param .b64 align_; .param .b64 block;
    ld.param.u64 %d1, [blocks]; ld.param.u64 %d2, [size]; ld.param.u64 %d3, [align];
    mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; mad.lo.u32 %r4, %r1, %r2, %r3;
    st.param.b64 [size_], %d2; st.param.b64 [align_], %d3; setp.ne.u64 %p1, %d3, 0; @%p1 bra ALIGNED;
    call (block), malloc, (size_);
    bra DONE;
ALIGNED:
    call (block), __nv_aligned_device_malloc, (size_, align_);
DONE:
    ld.param.b64 %d4, [block]; mul.wide.u32 %d5, %r4, 8; add.u64 %d1, %d1, %d5; st.global.u64 [%d1], %d4;
    setp.eq.u64 %p2, %d4, 0; @%p2 ret;
    st.u32 [%d4], %r4;
    ret;
}
// Each thread reads its block into `seen` and frees it.
.visible .entry give(.param .u64 blocks, .param .u64 seen)
{
    .reg .b64 %d<8>; .reg .b32 %r<6>; .reg .pred %p; .param .b64 block;
    ld.param.u64 %d1, [blocks]; ld.param.u64 %d2, [seen];
    mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; mad.lo.u32 %r4, %r1, %r2, %r3;
    mul.wide.u32 %d3, %r4, 8; add.u64 %d1, %d1, %d3; ld.global.u64 %d4, [%d1];
    mul.wide.u32 %d5, %r4, 4; add.u64 %d2, %d2, %d5; setp.eq.u64 %p, %d4, 0; @%p bra FREE;
    ld.u32 %r5, [%d4]; st.global.u32 [%d2], %r5;
FREE:
    st.param.b64 [block], %d4; call free, (block);
    ret;
}
"""
PROGRAM: Final = f"""
context()
module = ok(d.cuModuleLoadData({KERNELS!r}.encode() + b"\\0"))
take, give = (ok(d.cuModuleGetFunction(module, each)) for each in (b"take", b"give"))
L = d.CUlimit.CU_LIMIT_MALLOC_HEAP_SIZE
def taken(count, size, align=0):
    blocks = upload(np.zeros(count, np.uint64))
    ok(launch(take, (count + 255) // 256, min(count, 256), blocks, (size, ctypes.c_uint64), (align, ctypes.c_uint64)))
    ok(d.cuCtxSynchronize())
    return blocks, download(blocks, np.zeros(count, np.uint64))
def given(blocks, count):
    seen = upload(np.zeros(count, np.uint32))
    ok(launch(give, (count + 255) // 256, min(count, 256), blocks, seen))
    result = name(d.cuCtxSynchronize())
    return download(seen, np.zeros(count, np.uint32)) if result == "SUCCESS" else result
"""


def said(sim: Machine, code: str) -> Any:
    return run(sim, PROGRAM + textwrap.dedent(code))


def test_blocks_stay_until_another_kernel_frees_them(sim: Machine) -> None:
    heard = said(
        sim,
        """
        blocks, at = taken(1024, 40)
        apart = np.diff(np.sort(at)).min()
        seen = given(blocks, 1024)
        again, second = taken(1024, 40)
        say([int(apart) >= 48, bool((at % 16 == 0).all()), bool((seen == np.arange(1024)).all()), bool((second != 0).all())])
        """,
    )
    assert heard == [True] * 4


def test_the_heap_ends_at_its_limit(sim: Machine) -> None:
    heard = said(
        sim,
        """
        default = ok(d.cuCtxGetLimit(L))
        ok(d.cuCtxSetLimit(L, 1 << 20))
        blocks, at = taken(20, 1 << 16)
        none = int((at == 0).sum())
        given(blocks, 20)
        whole, one = taken(1, 1 << 20)
        too_much = int(taken(1, 1)[1][0])
        given(whole, 1)
        again = int(taken(1, 1 << 20)[1][0])
        say([default, none, int(one[0]) != 0, too_much, again != 0, name(d.cuCtxSetLimit(L, 2 << 20)), int(taken(1, 1 << 63)[1][0])])
        """,
    )
    assert heard == [8 << 20, 4, True, 0, True, "INVALID_VALUE", 0]


def test_aligned_blocks_and_wrong_frees(sim: Machine) -> None:
    heard = said(
        sim,
        """
        taken(1, 8)
        aligned = taken(8, 24, 256)[1]
        odd = int(taken(1, 24, 3)[1][0])
        blocks, at = taken(1, 100)
        given(blocks, 1)
        say([bool((aligned % 256 == 0).all() and (aligned != 0).all()), odd, given(blocks, 1)])
        """,
    )
    assert heard == [True, 0, "ILLEGAL_ADDRESS"]
