"""What NVRTC writes is what the simulated card reads: CUDA C of many kinds, compiled here, loaded there."""

import json
from typing import Final

import pytest

from egpu_sim.machines.machine import Machine
from support.simulated_gpu import run

CARDS = ("H100-80G", 1)
HEADER: Final = """
extern "C" int printf(const char *, ...);
__constant__ float table[4] = {1, 2, 3, 4};
__device__ int counter = 3;
__device__ __noinline__ int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
typedef float (*function)(float);
__device__ float more(float x) { return x + 1; }
__device__ float twice(float x) { return x * 2; }
struct Base { int k; __device__ virtual int f() { return 1; } };
struct Other : Base { __device__ int f() override { return k + 1; } };
"""
KERNEL: Final = 'extern "C" __global__ void k(float *a) { int i = blockIdx.x * blockDim.x + threadIdx.x; %s }'

RUNS: Final = {
    "arithmetic": "float x = a[i]; int n = i + 1; a[i] = x / 3.f + n % 7 + (n << 3) + 1. / n + (long long)n / 9;",
    "functions": "float x = a[i]; a[i] = sinf(x) + tanf(x) + expf(x) + logf(x) + powf(x, 2.5f) + rsqrtf(x) + erff(x) +"
    " tgammaf(x) + atan2f(x, 1) + fmodf(x, 3) + rintf(x) + tanhf(x) + nextafterf(x, 2);",
    "double": "double x = a[i]; a[i] = sin(x) + exp(x) + log(x) + pow(x, 2.5) + sqrt(x) + erf(x) + j0(x) + cbrt(x);",
    "fast": "float x = a[i]; a[i] = __sinf(x) + __expf(x) + __fdividef(x, 3) + __frcp_rn(x) + __saturatef(x) +"
    " __fmul_rz(x, x) + __fadd_ru(x, x);",
    "bits": "int x = i; a[i] = __popc(x) + __clz(x) + __ffs(x) + __brev(x) + __byte_perm(x, x, 0x1234) + __mulhi(x, x)"
    " + __funnelshift_l(x, x, 3) + __popcll(x) + __clzll(x);",
    "convert": "a[i] = __float2int_rn(a[i]) + __int2float_rz(i) + __float_as_int(a[i]) + __double2float_ru(a[i]) +"
    " (float)(signed char)i + __double2hiint(a[i]) + __float2ull_rd(a[i]);",
    "shared": "__shared__ float s[64]; s[threadIdx.x] = a[i]; __syncthreads(); a[i] = s[0] + __syncthreads_count(i);",
    "dynamic": "extern __shared__ float s[]; s[threadIdx.x] = a[i]; __syncthreads(); a[i] = s[0];",
    "warp": "float x = a[i]; x += __shfl_down_sync(~0u, x, 1) + __shfl_xor_sync(~0u, x, 2) + __ballot_sync(~0u, x > 0)"
    " + __any_sync(~0u, x > 1) + __match_any_sync(~0u, i) + __reduce_add_sync(~0u, i); __syncwarp(); a[i] = x;",
    "atomics": "int *p = (int *)a; atomicAdd(a, 1.f); atomicSub(p, 1); atomicMin(p, 1); atomicInc((unsigned *)p, 5);"
    " atomicExch(a, 2.f); atomicCAS(p, 1, 2); atomicXor(p, 1); atomicAdd_system(p, 1); atomicAdd_block(p, 1);",
    "memory": "a[i] = __ldg(a + 1) + __ldcg(a + 2) + __ldcv(a + 6); __stcs(a + 1, 1.f); __threadfence(); clock64();"
    " float4 v = ((float4 *)a)[i]; v.x += v.w; ((float4 *)a)[i] = v; memcpy(a + i, a + 4, 16);",
    "control": "float t[32]; for (int n = 0; n < 32; n++) t[n] = a[n]; switch (i % 6) { case 0: a[i] = 1; break;"
    " case 1: a[i] *= 7; break; case 2: a[i] = t[i & 31]; break; case 3: a[i] = 4; break; case 4: a[i] -= 6; break;"
    " default: a[i] = 8; }",
    "printing": 'printf("%d of %s", i, "kernels"); if (a[i] > 4) printf("%f", a[i]);',
    "calls": "function f[2] = {more, twice}; Other o; o.k = i; Base *b = &o;"
    " a[i] = f[i & 1](a[i]) + fib(i % 9) + table[i & 3] + b->f(); counter++;",
}
SAYS_NO: Final = {
    "video": ("a[i] = __vabsdiffu4(i, i);", "vabsdiff4"),
    "memory of tensor cores": ('asm volatile("tcgen05.fence::before_thread_sync;");', "tcgen05.fence"),
}
OPTIONS: Final = (["-arch=compute_80"], ["-arch=compute_90", "-G"], ["-arch=compute_75", "-use_fast_math", "-lineinfo"])

PROGRAM: Final = """
from cuda.bindings import nvrtc
context()
def ptx(source, options):
    program = ok(nvrtc.nvrtcCreateProgram(source.encode(), b"k.cu", 0, [], []))
    made, = nvrtc.nvrtcCompileProgram(program, len(options), [each.encode() for each in options])
    text = b" " * ok((nvrtc.nvrtcGetPTXSize if int(made) == 0 else nvrtc.nvrtcGetProgramLogSize)(program))
    (nvrtc.nvrtcGetPTX if int(made) == 0 else nvrtc.nvrtcGetProgramLog)(program, text)
    if int(made): raise SystemExit(f"{source} {options}: {text.decode()}")
    return text
def refused(text):
    log, J = bytes(2000), d.CUjit_option
    names = [J.CU_JIT_ERROR_LOG_BUFFER, J.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES]
    done, _ = d.cuModuleLoadDataEx(text, 2, names, [log, len(log)])
    return "" if int(done) == 0 else log.rstrip(bytes(1)).decode()
say([refused(ptx(source, options)) for source, options in json.loads(WORK)])
"""


def refusals(sim: Machine, *sources: str, options: tuple[list[str], ...] = OPTIONS) -> list[str]:
    """Why each is refused; nothing for what is loaded."""
    work = [(HEADER + KERNEL % source, each) for source in sources for each in options]
    return run(sim, f"WORK = {json.dumps(work)!r}\n{PROGRAM}")


@pytest.mark.timeout(300)
def test_ordinary_kernels_are_loaded_optimised_and_for_debugging(sim: Machine) -> None:
    sources = {name: body for name, body in RUNS.items() if name != "warp"}  # whose reduction is younger than 7.5
    named = [f"{name} {' '.join(each)}" for name in sources for each in OPTIONS]
    said = refusals(sim, *sources.values())
    assert {name: why for name, why in zip(named, said, strict=True) if why} == {}
    assert refusals(sim, RUNS["warp"], options=OPTIONS[:2]) == ["", ""]


def test_what_is_not_there_is_refused_by_name(sim: Machine) -> None:
    said = refusals(sim, *(body for body, _ in SAYS_NO.values()), options=OPTIONS[1:2])
    assert [named for (_, named), why in zip(SAYS_NO.values(), said, strict=True) if named not in why] == []
