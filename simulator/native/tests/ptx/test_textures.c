/* Textures and surfaces: reads and writes of the instructions, against numbers computed by hand
 * from the CUDA programming guide. */
#include "harness.h"

#define KERNEL(name, instruction)                                                            \
    ".visible .entry " name "(.param .u64 o, .param .u64 t, .param .b32 a, .param .b32 b,\n" \
    ".param .b32 c, .param .b32 d) {\n"                                                      \
    ".reg .u64 %o, %t; .reg .b32 %a, %b, %c, %d, %r<4>; .reg .b16 %h<4>; .reg .pred %p;\n"   \
    "ld.param.u64 %o,[o]; ld.param.u64 %t,[t]; ld.param.b32 %a,[a]; ld.param.b32 %b,[b];\n"  \
    "ld.param.b32 %c,[c]; ld.param.b32 %d,[d]; mov.b32 %r0,0; mov.b32 %r1,0;\n"              \
    "mov.b32 %r2,0; mov.b32 %r3,0;\n" instruction "\n"                                       \
    "st.global.v4.b32 [%o],{%r0,%r1,%r2,%r3}; ret; }\n"
#define TO "{%r0,%r1,%r2,%r3}"

static const char text[] = HEADER KERNEL("read1", "tex.1d.v4.f32.f32 " TO ",[%t,{%a}];")
    KERNEL("read2", "tex.2d.v4.f32.f32 " TO "|%p,[%t,{%a,%b}]; @!%p trap;") KERNEL(
        "read3", "tex.3d.v4.f32.f32 " TO
                 ",[%t,{%a,%b,%c,%c}];") KERNEL("whole1", "tex.1d.v4.s32.s32 " TO ",[%t,{%a}];")
        KERNEL("layer1", "tex.a1d.v4.f32.f32 " TO ",[%t,{%a,%b}];") KERNEL(
            "layer2", "tex.a2d.v4.u32.f32 " TO ",[%t,{%a,%b,%c,%c}];")
            KERNEL("cube", "tex.cube.v4.f32.f32 " TO ",[%t,{%a,%b,%c,%c}];") KERNEL(
                "cubes", "tex.acube.v4.f32.f32 " TO ",[%t,{%a,%b,%c,%d}];")
                KERNEL("level", "tex.level.2d.v4.f32.f32 " TO ",[%t,{%a,%b}],%c;") KERNEL(
                    "gradient", "tex.grad.2d.v4.f32.f32 " TO ",[%t,{%a,%b}],{%c,%d},{%d,%d};")
                    KERNEL("gather", "tld4.r.2d.v4.f32.f32 " TO ",[%t,{%a,%b}];") KERNEL(
                        "query", "txq.width.b32 %r0,[%t]; txq.height.b32 %r1,[%t];\n"
                                 "txq.num_mipmap_levels.b32 %r2,[%t]; suq.width.b32 %r3,[%t];")
                        KERNEL("load2", "suld.b.2d.b32.trap {%r0},[%t,{%a,%b}];") KERNEL(
                            "load4", "suld.b.2d.v4.b32.zero " TO ",[%t,{%a,%b}];")
                            KERNEL("clamp2", "suld.b.2d.b32.clamp {%r0},[%t,{%a,%b}];") KERNEL(
                                "store2", "sust.b.2d.v2.b32.zero [%t,{%a,%b}],{%c,%d};")
                                KERNEL(
                                    "bytes",
                                    "cvt.u16.u32 %h0,%c; sust.b.a1d.b8.trap [%t,{%a,%b}],{%h0};\n"
                                    "suld.b.a1d.b8.trap {%h1},[%t,{%a,%b}]; cvt.u32.u16 %r0,%h1;");

static egpu_ptx_module *module;
static egpu_ptx_texture texture;
static union {
    float f[4];
    uint32_t u[4];
} *out;

static const egpu_ptx_texture *find(void *ctx, uint64_t object, bool surface) {
    (void)ctx, (void)surface;
    return object == 77 ? &texture : NULL;
}

union word {
    float f;
    uint32_t u;
};
#define F(v) ((union word){.f = (v)})
#define U(v) ((union word){.u = (uint32_t)(v)})

static egpu_ptx_status of_object(const char *kernel, uint64_t object, union word a, union word b,
                                 union word c, union word d) {
    struct {
        uint64_t out, object;
        union word words[4];
    } params = {(uint64_t)(uintptr_t)out, object, {a, b, c, d}};
    egpu_ptx_launch launch = shape(1, 1, &params, sizeof params);
    launch.texture = find;
    return run_kernel(module, kernel, launch);
}

static void run(const char *kernel, union word a, union word b, union word c, union word d) {
    egpu_ptx_status status = of_object(kernel, 77, a, b, c, d);
    CHECK(status == EGPU_PTX_OK, "%s: %s", kernel, egpu_ptx_status_name(status));
}

static void expect_float(const char *what, float got, float wanted) {
    CHECK(got == wanted, "%s: %.9g, not %.9g", what, (double)got, (double)wanted);
}

/* A texture of one-channel floats that count from 0. */
static void of_floats(uint32_t width, uint32_t height, uint32_t depth) {
    uint32_t count = width * height * depth;
    float *memory = device(count * sizeof *memory);
    for (uint32_t i = 0; i < count; i++) memory[i] = (float)i;
    texture = (egpu_ptx_texture){
        .channel = EGPU_PTX_FLOAT,
        .channel_bytes = 4,
        .channels = 1,
        .level_count = 1,
        .levels = {{(uint64_t)(uintptr_t)memory, width, height, depth, width * 4,
                    (uint64_t)width * height * 4}},
        .addressing = {EGPU_PTX_CLAMP, EGPU_PTX_CLAMP, EGPU_PTX_CLAMP},
    };
}

static float at1(float x) {
    run("read1", F(x), F(0), F(0), F(0));
    return out->f[0];
}

static void test_addressing(void) {
    static const struct {
        egpu_ptx_addressing mode;
        float below, above, far; /* for -0.1, 1.1 and 2.6 of 4 elements */
    } cases[] = {{EGPU_PTX_WRAP, 3, 0, 2},
                 {EGPU_PTX_CLAMP, 0, 3, 3},
                 {EGPU_PTX_MIRROR, 0, 3, 2},
                 {EGPU_PTX_BORDER, 9, 9, 9}};
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        of_floats(4, 1, 1);
        texture.normalized_coordinates = true;
        texture.addressing[0] = cases[i].mode;
        texture.border[0] = 9;
        expect_float("below", at1(-0.1f), cases[i].below);
        expect_float("above", at1(1.1f), cases[i].above);
        expect_float("far", at1(2.6f), cases[i].far);
        expect_float("inside", at1(0.5f), 2);
    }
    of_floats(4, 1, 1);
    texture.addressing[0] = EGPU_PTX_WRAP; /* clamps coordinates that count elements */
    expect_float("not normalized", at1(5), 3);
    expect_float("no number", at1(__builtin_nanf("")), 0);
    expect_float("endless", at1(__builtin_inff()), 3);
}

static void test_filtering(void) {
    of_floats(4, 1, 1);
    texture.interpolate = true;
    expect_float("an element", at1(1.5f), 1);
    expect_float("half way", at1(2), 1.5f);
    expect_float("8 bits", at1(1.5f + 0.3f), 1 + 77.0f / 256); /* 0.3 is 76.8 of 256 */
    expect_float("rounded up to the next", at1(2.4999f), 2);
    expect_float("before the first", at1(0.1f), 0);
    texture.addressing[0] = EGPU_PTX_BORDER;
    expect_float("half of the border", at1(0), 0);
    texture.normalized_coordinates = true;
    texture.addressing[0] = EGPU_PTX_WRAP;
    expect_float("around", at1(0), 1.5f);
    of_floats(3, 2, 1);
    texture.interpolate = true;
    run("read2", F(1), F(1), F(0), F(0));
    expect_float("of four", out->f[0], (0 + 1 + 3 + 4) / 4.0f);
    of_floats(2, 2, 2);
    texture.interpolate = true;
    run("read3", F(1), F(1), F(1), F(0));
    expect_float("of eight", out->f[0], 3.5f);
}

static void test_values(void) {
    int8_t *memory = device(4);
    memory[0] = -128, memory[1] = 127, memory[2] = -1, memory[3] = 64;
    of_floats(1, 1, 1);
    texture.levels[0] = (egpu_ptx_level){(uint64_t)(uintptr_t)memory, 1, 1, 1, 4, 4};
    texture.channel = EGPU_PTX_SIGNED;
    texture.channel_bytes = 1;
    texture.channels = 4;
    run("read1", F(0), F(0), F(0), F(0));
    CHECK(out->u[0] == (uint32_t)-128 && out->u[1] == 127 && out->u[2] == UINT32_MAX, "numbers");
    texture.normalized_values = true;
    run("read1", F(0), F(0), F(0), F(0));
    expect_float("least", out->f[0], -1);
    expect_float("most", out->f[1], 1);
    expect_float("some", out->f[3], 64 / 127.0f);
    texture.channel = EGPU_PTX_UNSIGNED;
    run("read1", F(0), F(0), F(0), F(0));
    expect_float("unsigned", out->f[2], 1);
    expect_float("unsigned", out->f[3], 64 / 255.0f);
    texture.srgb = true;
    run("read1", F(0), F(0), F(0), F(0));
    CHECK(out->f[0] > 0.2158f && out->f[0] < 0.2159f, "sRGB: %.9g", (double)out->f[0]);
    expect_float("alpha is linear", out->f[3], 64 / 255.0f);
    texture.channel = EGPU_PTX_FLOAT;
    texture.srgb = texture.normalized_values = false;
    texture.channel_bytes = 2;
    texture.channels = 2;
    memory[0] = 0, memory[1] = 0x3c; /* 1.0 in 16 bits */
    run("read1", F(0), F(0), F(0), F(0));
    expect_float("half", out->f[0], 1);
    expect_float("no such channel", out->f[2], 0);
}

static void test_shapes(void) {
    of_floats(4, 1, 1);
    texture.by_index = true;
    run("whole1", U(3), U(0), U(0), U(0));
    expect_float("linear memory", out->f[0], 3);
    run("whole1", U(4), U(0), U(0), U(0));
    expect_float("beyond it", out->f[0], 0);
    run("whole1", U(-1), U(0), U(0), U(0));
    expect_float("before it", out->f[0], 0);
    of_floats(3, 1, 2);
    run("layer1", U(1), F(2), F(0), F(0));
    expect_float("a layer", out->f[0], 5);
    run("layer1", U(9), F(2), F(0), F(0));
    expect_float("the last layer", out->f[0], 5);
    of_floats(2, 2, 2);
    run("layer2", U(1), F(1), F(1), F(0));
    expect_float("of planes", out->f[0], 7);
    of_floats(2, 2, 12);
    static const float directions[6][3] = {{1, 0.1f, 0.1f},  {-1, 0.1f, 0.1f}, {0.1f, 1, 0.1f},
                                           {0.1f, -1, 0.1f}, {0.1f, 0.1f, 1},  {0.1f, 0.1f, -1}};
    static const float corners[6] = {0, 1, 3, 1, 1, 0}; /* by the guide's table of s and t */
    for (int i = 0; i < 6; i++) {
        const float *v = directions[i];
        run("cube", F(v[0]), F(v[1]), F(v[2]), F(0));
        expect_float("a face", out->f[0], (float)(4 * i) + corners[i]);
        run("cubes", U(1), F(v[0]), F(v[1]), F(v[2]));
        expect_float("a face of the second", out->f[0], (float)(24 + 4 * i) + corners[i]);
    }
    of_floats(3, 2, 1);
    run("gather", F(1), F(1), F(0), F(0));
    CHECK(out->f[0] == 3 && out->f[1] == 4 && out->f[2] == 1 && out->f[3] == 0, "gathered");
    run("query", F(0), F(0), F(0), F(0));
    CHECK(out->u[0] == 3 && out->u[1] == 2 && out->u[2] == 1 && out->u[3] == 3, "queried");
}

static float at_level(float level) {
    run("level", F(0.5f), F(0.5f), F(level), F(0));
    return out->f[0];
}

static void test_levels(void) {
    of_floats(4, 4, 1);
    egpu_ptx_level first = texture.levels[0];
    for (unsigned i = 0; i < 3; i++) { /* one value each: 0, 10 and 20 */
        float *memory = device(first.pitch * 4);
        for (int j = 0; j < 16; j++) memory[j] = (float)i * 10;
        texture.levels[i] = (egpu_ptx_level){
            (uint64_t)(uintptr_t)memory, 4u >> i, 4u >> i, 1, first.pitch, first.slice};
    }
    texture.level_count = 3;
    texture.normalized_coordinates = true;
    expect_float("none is allowed but the first", at_level(2), 0);
    texture.level_most = 10;
    expect_float("nearest", at_level(0.6f), 10);
    expect_float("the last", at_level(7), 20);
    texture.interpolate_levels = true;
    expect_float("between", at_level(1.5f), 15);
    texture.level_offset = 0.25f;
    expect_float("moved", at_level(0.5f), 7.5f);
    texture.level_least = 1;
    expect_float("not below", at_level(0), 10);
    texture.level_least = texture.level_offset = 0;
    run("gradient", F(0.5f), F(0.5f), F(0.5f), F(0)); /* two elements per step */
    expect_float("by gradient", out->f[0], 10);
    run("read2", F(0.5f), F(0.5f), F(0), F(0));
    expect_float("without one", out->f[0], 0);
}

static void test_surfaces(void) {
    of_floats(4, 2, 1);
    run("load2", U(8), U(1), U(0), U(0));
    expect_float("loaded", out->f[0], 6);
    run("clamp2", U(100), U(7), U(0), U(0));
    expect_float("clamped", out->f[0], 7);
    run("load4", U(16), U(0), U(0), U(0));
    CHECK(out->u[0] == 0 && out->u[3] == 0, "zeros outside");
    run("load4", U(0), U(1), U(0), U(0));
    CHECK(out->f[0] == 4 && out->f[3] == 7, "a vector");
    run("store2", U(8), U(1), F(50), F(51));
    run("store2", U(8), U(2), F(60), F(61));
    run("load4", U(0), U(1), U(0), U(0));
    CHECK(out->f[1] == 5 && out->f[2] == 50 && out->f[3] == 51, "stored");
    CHECK(of_object("load2", 77, U(16), U(0), U(0), U(0)) == EGPU_PTX_ILLEGAL_ADDRESS, "trap");
    CHECK(of_object("load2", 77, U(-4), U(0), U(0), U(0)) == EGPU_PTX_ILLEGAL_ADDRESS, "trap");
    CHECK(of_object("load2", 77, U(2), U(0), U(0), U(0)) == EGPU_PTX_MISALIGNED, "misaligned");
    of_floats(4, 1, 2);
    run("bytes", U(1), U(5), U(0x1ab), U(0));
    CHECK(out->u[0] == 0xab, "a byte: %x", out->u[0]);
}

static void test_faults(void) {
    of_floats(4, 2, 1);
    CHECK(of_object("read2", 78, F(0), F(0), F(0), F(0)) == EGPU_PTX_ILLEGAL_ADDRESS &&
              last_fault.address == 78,
          "no such object");
    texture.levels[0].address += 1 << 20; /* its memory does not exist */
    CHECK(of_object("read2", 77, F(0), F(0), F(0), F(0)) == EGPU_PTX_ILLEGAL_ADDRESS, "no memory");
}

static void refused(const char *instruction) {
    static const char format[] =
        HEADER ".visible .entry k() { .reg .u64 %%t; .reg .b32 %%a, %%r<4>;\n"
               "mov.u64 %%t,0; mov.b32 %%a,0;\n"
               "%s ret; }\n";
    char ptx[512];
    egpu_ptx_module *none;
    snprintf(ptx, sizeof ptx, format, instruction);
    egpu_ptx_status status = egpu_ptx_load(ptx, 0, &allocator, load_log, sizeof load_log, &none);
    CHECK(status == EGPU_PTX_UNSUPPORTED || status == EGPU_PTX_SYNTAX, "loaded: %s", instruction);
    CHECK(strstr(load_log, "tex") || strstr(load_log, "sust") || strstr(load_log, "tld4"),
          "not by name: %s", load_log);
}

static void test_refused(void) {
    refused("tex.2dms.v4.f32.s32 " TO ",[%t,{%a,%a,%a,%a}];");
    refused("tex.2d.v2.f16x2.f32 {%r0,%r1},[%t,{%a,%a}];");
    refused("tex.2d.v4.f32.f32 " TO ",[%t,{%a}];");
    refused("tex.2d.v4.f32.f32 " TO ",[%t,%t,{%a,%a}];");
    refused("tld4.r.cube.v4.f32.f32 " TO ",[%t,{%a,%a,%a,%a}];");
    refused("sust.p.2d.b32.trap [%t,{%a,%a}],{%r0};");
}

int main(void) {
    out = device(16);
    module = load(text);
    test_addressing();
    test_filtering();
    test_values();
    test_shapes();
    test_levels();
    test_surfaces();
    test_faults();
    test_refused();
    egpu_ptx_unload(module);
    return report("textures");
}
