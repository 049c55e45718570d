/* Registers that live shortly share slots: long functions fit, and no value is lost. */
#include "harness.h"

#include <stdarg.h>

static char *text;
static size_t length, room;
static uint32_t registers; /* of the last kernel */

static void put(const char *format, ...) {
    va_list args;
    if (room - length < 512 && !(text = realloc(text, room += 1 << 20))) abort();
    va_start(args, format);
    length += (size_t)vsnprintf(text + length, room - length, format, args);
    va_end(args);
}

/* Run a body with %out, %tid and its own registers; its result is in %result. */
static uint32_t result_of(const char *body) {
    static const char head[] =
        HEADER ".visible .entry k(.param .u64 out) {\n"
               ".reg .u64 %out; .reg .b32 %result; ld.param.u64 %out,[out]; mov.u32 %result,0;\n";
    char *whole = malloc(sizeof head + strlen(body) + 64);
    if (!whole) abort();
    sprintf(whole, "%s%s\nst.global.u32 [%%out],%%result; ret; }\n", head, body);
    egpu_ptx_module *module = load(whole);
    free(whole);
    uint32_t *out = device(4), value = 0;
    uint64_t params[1] = {(uintptr_t)out};
    if (module) {
        registers = egpu_ptx_kernel_describe(egpu_ptx_kernel_at(module, 0))->registers;
        egpu_ptx_status status = run_kernel(module, "k", shape(1, 1, params, sizeof params));
        CHECK(status == EGPU_PTX_OK, "%s", egpu_ptx_status_name(status));
        value = *out;
    }
    egpu_ptx_unload(module);
    return value;
}

/* Each value is written once, as by compilers: far more registers than a frame has slots. */
static void unrolled_code_fits(unsigned count) {
    length = 0;
    put(".reg .b32 %%r<%u>; mov.u32 %%r0,%%tid.x;\n", count);
    for (unsigned i = 1; i < count; i++) put("add.u32 %%r%u,%%r%u,%u;\n", i, i - 1, i & 7);
    put("mov.u32 %%result,%%r%u;", count - 1);
    uint32_t sum = 0;
    for (unsigned i = 1; i < count; i++) sum += i & 7;
    uint32_t got = result_of(text);
    CHECK(got == sum, "%u registers: %u, not %u", count, got, sum);
    CHECK(registers <= 32, "%u registers count as %u", count, registers);
}

/* Blocks with registers of their own, as inline assembly has them. */
static void blocks_share(unsigned count) {
    length = 0;
    for (unsigned i = 0; i < count; i++)
        put("{ .reg .b32 a, b; .reg .pred p; mov.u32 a,%u; setp.gt.u32 p,a,2; selp.u32 b,a,0,p;"
            " add.u32 %%result,%%result,b; }\n",
            i & 3);
    uint32_t got = result_of(text);
    CHECK(got == 3 * (count / 4), "%u blocks: %u", count, got);
}

static void too_many_at_once(unsigned count) {
    length = 0;
    put(".reg .b32 %%r<%u>;\n", count);
    for (unsigned i = 0; i < count; i++) put("mov.u32 %%r%u,%%tid.x;\n", i);
    put("LATER: ");
    for (unsigned i = 0; i < count; i++) put("add.u32 %%r0,%%r0,%%r%u;\n", i);
    put("ret; }");
    char *whole = malloc(length + 256);
    if (!whole) abort();
    sprintf(whole, HEADER ".visible .entry k() {\n%s\n", text);
    egpu_ptx_module *module;
    egpu_ptx_status status =
        egpu_ptx_load(whole, 0, &allocator, load_log, sizeof load_log, &module);
    free(whole);
    CHECK(status == EGPU_PTX_UNSUPPORTED && strstr(load_log, "65535 registers"), "%s: %s",
          egpu_ptx_status_name(status), load_log);
}

int main(void) {
    static const struct {
        const char *what, *body;
        uint32_t expected;
    } cases[] = {
        {"first written in some iterations only",
         ".reg .b32 %v<9>; .reg .pred %p<3>; mov.u32 %v8,0;\n"
         "LOOP: mov.u32 %v5,%v8; setp.eq.u32 %p1,%v5,0; @%p1 mov.u32 %v1,100;"
         " mov.u32 %v2,%v8; add.u32 %v3,%v2,1;\n"
         "mov.u32 %v4,%v3; add.u32 %v1,%v1,%v4; mov.u32 %v8,%v4; setp.lt.u32 %p2,%v8,5;"
         " @%p2 bra LOOP;\n"
         "mov.u32 %result,%v1;",
         115},
        {"written before a loop, read in it",
         ".reg .b32 %v<9>; .reg .pred %p<3>; mov.u32 %v1,7; mov.u32 %v2,0;\n"
         "LOOP: mov.u32 %v3,%v2; add.u32 %v4,%v3,1; add.u32 %result,%result,%v1; mov.u32 %v2,%v4;\n"
         "setp.lt.u32 %p1,%v2,6; @%p1 bra LOOP;",
         42},
        {"a branch out of its region",
         ".reg .b32 %v<9>; .reg .pred %p<3>; mov.u32 %v1,5; setp.eq.u32 %p1,%v1,5;"
         " mov.u32 %v2,%v1;\n"
         "@%p1 bra OVER; mov.u32 %v2,9; OVER: mov.u32 %v3,1; mov.u32 %v4,2;"
         " add.u32 %result,%v2,%v3;",
         6},
        {"one name in two blocks",
         ".reg .b32 %v<9>; mov.u32 %v1,3; { .reg .b32 %v<4>; mov.u32 %v1,50; mov.u32 %v2,%v1;\n"
         "add.u32 %result,%result,%v2; } mov.u32 %v3,%v1; add.u32 %result,%result,%v3;",
         53},
        {"a block's registers in its own loop",
         ".reg .b32 %v<9>; mov.u32 %v1,1; add.u32 %v2,%v1,1; { .reg .b32 i, sum; .reg .pred p;\n"
         "mov.u32 i,0; mov.u32 sum,0; AGAIN: { .reg .b32 t; mov.u32 t,i; add.u32 sum,sum,t; }\n"
         "add.u32 i,i,1; setp.lt.u32 p,i,5; @p bra AGAIN; add.u32 %result,%v2,sum; }",
         12},
        {"names in comments and strings do not count",
         ".reg .b32 %v<9>; mov.u32 %v1,4; // %v1: }\n"
         "add.u32 %v2,%v1,1; /* %v2 L9: */ .pragma \"%v2 {\"; mov.u32 %v3,9;"
         " add.u32 %result,%v2,%v3;",
         14},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint32_t got = result_of(cases[i].body);
        CHECK(got == cases[i].expected, "%s: %u, not %u", cases[i].what, got, cases[i].expected);
    }
    unrolled_code_fits(20);
    unrolled_code_fits(100000);
    blocks_share(40000);
    too_many_at_once(70000);
    free(text);
    return report("lives");
}
