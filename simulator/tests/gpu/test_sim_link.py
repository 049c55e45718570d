"""cuLink on the simulated driver: several PTX texts become one module, and the log has the reason of a failure."""

from textwrap import dedent

import pytest

from egpu_sim.machines.machine import Machine
from support.simulated_gpu import run

CARDS = ("A100-80G", 1)

HEADER = ".version 8.0\n.target sm_70\n.address_size 64\n"
# Both texts have names of their own: `step`, a variable and a function.
FIRST = (
    HEADER
    + """
.extern .func (.param .b32 r) twice(.param .b32 v);
.extern .global .align 4 .u32 shared_total;
.global .align 4 .u32 step = 5;
.weak .func (.param .b32 r) common(.param .b32 v) {
    .reg .b32 %a; ld.param.b32 %a, [v]; add.u32 %a, %a, 1; st.param.b32 [r], %a; ret; }
.func (.param .b32 r) own(.param .b32 v) {
    .reg .b32 %a, %b; ld.param.b32 %a, [v]; ld.global.u32 %b, [step]; add.u32 %a, %a, %b; st.param.b32 [r], %a; ret; }
.visible .entry first(.param .u64 out) {
    .reg .b64 %p; .reg .b32 %v;
    ld.param.u64 %p, [out]; mov.u32 %v, 1;
    { .param .b32 i; .param .b32 o; st.param.b32 [i], %v; call (o), own, (i); ld.param.b32 %v, [o]; }
    { .param .b32 i; .param .b32 o; st.param.b32 [i], %v; call (o), twice, (i); ld.param.b32 %v, [o]; }
    { .param .b32 i; .param .b32 o; st.param.b32 [i], %v; call (o), common, (i); ld.param.b32 %v, [o]; }
    st.global.u32 [%p], %v; st.global.u32 [shared_total], %v; ret; }
"""
)
SECOND = (
    HEADER.replace("8.0", "8.3")
    + """
.visible .global .align 4 .u32 shared_total;
.global .align 4 .u32 step = 7;
.weak .func (.param .b32 r) common(.param .b32 v) {
    .reg .b32 %a; ld.param.b32 %a, [v]; add.u32 %a, %a, 1; st.param.b32 [r], %a; ret; }
.func (.param .b32 r) own(.param .b32 v) {
    .reg .b32 %a; ld.param.b32 %a, [v]; mul.lo.u32 %a, %a, 2; st.param.b32 [r], %a; ret; }
.visible .func (.param .b32 r) twice(.param .b32 v) {
    .reg .b32 %a;
    ld.param.b32 %a, [v];
    { .param .b32 i; .param .b32 o; st.param.b32 [i], %a; call (o), own, (i); ld.param.b32 %a, [o]; }
    st.param.b32 [r], %a; ret; }
.visible .entry second(.param .u64 out) {
    .reg .b64 %p; .reg .b32 %v, %w;
    ld.param.u64 %p, [out]; ld.global.u32 %v, [shared_total]; ld.global.u32 %w, [step]; add.u32 %v, %v, %w;
    st.global.u32 [%p], %v; ret; }
"""
)
LINK = f"""
FIRST, SECOND = {FIRST!r}, {SECOND!r}
driver = ctypes.CDLL("libcuda.so.1")
ERROR_LOG, ERROR_SIZE, PTX, OBJECT = 5, 6, 1, 3

class Link:
    def __init__(self):
        self.log = ctypes.create_string_buffer(500)
        self.names = (ctypes.c_int * 2)(ERROR_LOG, ERROR_SIZE)
        self.values = (ctypes.c_void_p * 2)(ctypes.addressof(self.log), len(self.log))
        self.state = ctypes.c_void_p()
        self.results = [driver.cuLinkCreate_v2(2, self.names, self.values, ctypes.byref(self.state))]

    def add(self, text, type=PTX, name=b"input"):
        data = text.encode() + bytes(1)
        self.results.append(driver.cuLinkAddData_v2(self.state, type, data, len(data), name, 0, None, None))
        return self

    def complete(self):
        image, size = ctypes.c_void_p(), ctypes.c_size_t()
        self.results.append(driver.cuLinkComplete(self.state, ctypes.byref(image), ctypes.byref(size)))
        return ctypes.string_at(image, size.value) if self.results[-1] == 0 else b""

    def end(self):
        said = self.log.value.decode()
        self.results.append(driver.cuLinkDestroy(self.state))
        return [self.results, said, self.values[1] or 0]
"""


def linked(sim: Machine, program: str) -> object:
    return run(sim, f"context()\n{LINK}\n{dedent(program)}")


@pytest.mark.parametrize("order", ["FIRST, SECOND", "SECOND, FIRST"])
def test_texts_call_each_other_and_keep_their_own_names(sim: Machine, order: str) -> None:
    assert linked(
        sim,
        f"""
        link = Link()
        for text in ({order}): link.add(text)
        module = ok(d.cuModuleLoadData(link.complete()))
        results, said, _ = link.end()
        out = upload(np.zeros(1, np.uint32))
        found = []
        for name_ in (b"first", b"second"):
            f = ok(d.cuModuleGetFunction(module, name_))
            ok(launch(f, 1, 1, out))
            ok(d.cuCtxSynchronize())
            found += download(out, np.zeros(1, np.uint32)).tolist()
        say([results, said, found])
        """,
    ) == [[0] * 5, "", [13, 20]]


@pytest.mark.parametrize(
    ("program", "results", "said"),
    [
        ("link = Link().add(FIRST); link.complete()", [0, 0, 218, 0], "'twice' is not defined"),
        ("link = Link().add(SECOND); link.add(SECOND); link.complete()", [0, 0, 0, 218, 0], "twice"),
        ("link = Link().add('no PTX at all')", [0, 218, 0], "input: line 1"),
        ("link = Link().add('ELF', OBJECT)", [0, 209, 0], "links only PTX"),
        ("link = Link(); link.complete()", [0, 200, 0], ""),
        ("link = Link(); ctypes.c_void_p.from_buffer(link.state).value = 8; link.add(FIRST)", [0, 400, 400], ""),
    ],
)
def test_a_failed_link_says_why_in_the_log(sim: Machine, program: str, results: list[int], said: str) -> None:
    found, log, length = linked(sim, f"{program}\nsay(link.end())")  # type: ignore[misc]
    assert found == results
    assert said in log
    assert length == (len(log) if said else 500)
