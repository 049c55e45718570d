/* vprintf and __assertfail: the text passed on, the value returned to a thread, and errors. Tests
 * with compiled programs compare the text with the host's printf. */
#include "harness.h"

static char said[4096];
static size_t length;
static bool is_error, takes = true;

static bool take(void *ctx, const char *text, size_t bytes, bool error) {
    (void)ctx;
    if (!takes) return false;
    if (bytes > sizeof said - 1 - length) abort();
    if (bytes) memcpy(said + length, text, bytes);
    said[length += bytes] = 0;
    is_error = error;
    return true;
}

#define DECLARED                                                                              \
    ".extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);\n"                  \
    ".extern .func __assertfail(.param .b64 m, .param .b64 f, .param .b32 l, .param .b64 u, " \
    ".param .b64 c);\n"
/* Print with a list of three words: two numbers, and the text after the format. */
#define PRINTS(format)                                                                    \
    HEADER DECLARED ".global .align 1 .b8 format[2048] = {" format ", 0};\n"              \
                    ".global .align 1 .b8 word[4] = {119, 111, 119, 0};\n"                \
                    ".visible .entry k(.param .u64 out, .param .u32 from) {\n"            \
                    ".local .align 8 .b8 list[272];\n"                                    \
                    ".reg .b64 %d<8>; .reg .b32 %r<8>; .reg .pred %p;\n"                  \
                    "mov.u64 %d1, list; cvta.local.u64 %d1, %d1;\n"                       \
                    "st.u32 [%d1], 7; st.u32 [%d1+4], 8;\n"                               \
                    "mov.u64 %d2, word; cvta.global.u64 %d2, %d2; st.u64 [%d1+8], %d2;\n" \
                    "mov.u64 %d3, format; cvta.global.u64 %d3, %d3;\n"                    \
                    "ld.param.u32 %r1, [from]; setp.eq.u32 %p, %r1, 1;\n"                 \
                    "@%p mov.u64 %d3, 0; setp.eq.u32 %p, %r1, 2; @%p mov.u64 %d3, 64;\n"  \
                    "setp.eq.u32 %p, %r1, 3; @%p mov.u64 %d1, 64;\n"                      \
                    "{ .param .b64 f; .param .b64 a; .param .b32 r;\n"                    \
                    "st.param.b64 [f], %d3; st.param.b64 [a], %d1;\n"                     \
                    "call.uni (r), vprintf, (f, a); ld.param.b32 %r2, [r]; }\n"           \
                    "ld.param.u64 %d4, [out]; st.global.u32 [%d4], %r2; }\n"

struct parameters {
    void *out;
    unsigned from;
};

static egpu_ptx_status run_print(const char *text, unsigned from, int *returned) {
    egpu_ptx_module *m = load(text);
    int *out = device(sizeof *out);
    struct parameters parameters = {out, from};
    egpu_ptx_launch launch = shape(1, 1, &parameters, sizeof parameters);
    launch.print = take;
    length = said[0] = 0;
    egpu_ptx_status status = run_kernel(m, "k", launch);
    *returned = *out;
    CHECK(egpu_ptx_kernel_describe(egpu_ptx_kernel_at(m, 0))->prints, "it says that it prints");
    egpu_ptx_unload(m);
    return status;
}

/* Write a format as in PTX: as numbers. */
static const char *bytes_of(const char *format) {
    static char text[2048];
    size_t at = 0;
    for (const char *c = format; *c; c++)
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%d", c == format ? "" : ", ",
                               (unsigned char)*c);
    return text;
}

static const char *program(const char *format) {
    static char text[8192];
    static const char whole[] = PRINTS("%s");
    const char *place = strstr(whole, "{%s");
    snprintf(text, sizeof text, "%.*s{%s%s", (int)(place - whole), whole, bytes_of(format),
             place + 3);
    return text;
}

static void prints(const char *format, const char *expected, int arguments) {
    int returned = 77;
    egpu_ptx_status status = run_print(program(format), 0, &returned);
    CHECK(status == EGPU_PTX_OK, "'%s': %s", format, egpu_ptx_status_name(status));
    CHECK(strcmp(said, expected) == 0 && !is_error, "'%s' is '%s'", format, said);
    CHECK(returned == arguments, "'%s' returns %d", format, returned);
}

static void test_formats(void) {
    prints("plain", "plain", 0);
    prints("%d and %d, %s", "7 and 8, wow", 3);
    prints("100%% of %i%%", "100% of 7%", 1);
    prints("%*d", "      8", 2); /* the width is the first number */
    prints("%d %d %10.2s|%-5s|", "7 8         wo|(null)|", 4);
    prints("%y %d %n %", "%y 7 %n %", 1); /* unknown types: as they are */
    prints("%hhd%hu", "78", 2);
}

static void test_limits(void) {
    char format[200] = "", expected[200] = "";
    int returned;
    for (int i = 0; i < 34; i++)
        strcat(format, "%c"), strcat(expected, i == 0 ? "\7" : i == 1 ? "\10" : "");
    CHECK(run_print(program(format), 0, &returned) == EGPU_PTX_OK && returned == 32,
          "the 32 of them: %d", returned);
    CHECK(length == 32 + 4 && memcmp(said + 32, "%c%c", 4) == 0, "what is beyond stays: %zu",
          length);
    CHECK(run_print(program("%1001d"), 0, &returned) == EGPU_PTX_OK && returned == -2, "too wide");
    CHECK(run_print(program("%.1001f"), 0, &returned) == EGPU_PTX_OK && returned == -2,
          "too precise");
    CHECK(length == 0, "and nothing is said");
    CHECK(run_print(program("%1000d"), 0, &returned) == EGPU_PTX_OK && length == 1000, "just so");
    takes = false;
    CHECK(run_print(program("text"), 0, &returned) == EGPU_PTX_OK && returned == -2, "lost");
    takes = true;
}

static void test_failures(void) {
    int returned;
    CHECK(run_print(program("text"), 1, &returned) == EGPU_PTX_OK && returned == -1, "no format");
    CHECK(run_print(program("text"), 2, &returned) == EGPU_PTX_ILLEGAL_ADDRESS, "a stray format");
    CHECK(last_fault.address == 64 && !last_fault.write, "and where");
    CHECK(run_print(program("%d"), 3, &returned) == EGPU_PTX_ILLEGAL_ADDRESS, "stray arguments");
    CHECK(run_print(program("%s"), 0, &returned) == EGPU_PTX_ILLEGAL_ADDRESS && length == 0,
          "a stray string");
}

static void test_assertions(void) {
    egpu_ptx_module *m =
        load(HEADER DECLARED
             ".global .align 1 .b8 a[6] = {120, 32, 62, 32, 48, 0};\n"
             ".global .align 1 .b8 b[3] = {97, 98, 0};\n"
             ".visible .entry k() {\n.reg .b64 %d<8>; .reg .b32 %r<2>; .reg .pred %p;\n"
             "mov.u32 %r1, %tid.x; setp.ne.u32 %p, %r1, 2; @%p ret;\n"
             "mov.u64 %d1, a; cvta.global.u64 %d1, %d1; mov.u64 %d2, b; cvta.global.u64 %d2, %d2;\n"
             "{ .param .b64 m; .param .b64 f; .param .b32 l; .param .b64 u; .param .b64 c;\n"
             "st.param.b64 [m], %d1; st.param.b64 [f], %d2; st.param.b32 [l], 12;"
             " st.param.b64 [u], %d2;\n"
             "st.param.b64 [c], 1; call.uni __assertfail, (m, f, l, u, c); } }\n");
    egpu_ptx_launch launch = shape(2, 4, NULL, 0);
    launch.print = take;
    length = 0;
    CHECK(run_kernel(m, "k", launch) == EGPU_PTX_ASSERT, "it fails");
    CHECK(is_error &&
              strcmp(said,
                     "ab:12: ab: block: [0,0,0], thread: [2,0,0] Assertion `x > 0` failed.\n") == 0,
          "and says '%s'", said);
    CHECK(last_fault.thread[0] == 2 && last_fault.line == 14, "line %u", last_fault.line);
    is_error = false;
    egpu_ptx_unload(m);
}

static void refused(const char *text, egpu_ptx_status expected, const char *log) {
    egpu_ptx_module *m;
    egpu_ptx_status status = egpu_ptx_load(text, 0, &allocator, load_log, sizeof load_log, &m);
    CHECK(status == expected && strstr(load_log, log), "%s: %s", egpu_ptx_status_name(status),
          load_log);
}

static void test_declarations(void) {
    refused(HEADER ".extern .func (.param .b32 r) vprintf(.param .b64 f);\n.entry k() {\n"
                   ".param .b64 f; .param .b32 r; call (r), vprintf, (f); }\n",
            EGPU_PTX_SYNTAX, "'vprintf' is declared with the wrong");
    refused(HEADER
            ".extern .func (.param .b32 r) vprintf(.param .b64 f, .param .align 8 .b8 a[64]);\n"
            ".entry k() {\n.param .b64 f; .param .align 8 .b8 a[64]; .param .b32 r;\n"
            "call (r), vprintf, (f, a); }\n",
            EGPU_PTX_SYNTAX, "'vprintf' is declared with the wrong");
    refused(HEADER ".extern .func other();\n.entry k() { call other; }\n", EGPU_PTX_UNRESOLVED,
            "'other'");
    /* a pointer to it cannot be called */
    egpu_ptx_module *m =
        load(HEADER DECLARED
             ".visible .entry k() {\n.reg .b64 %d1; .param .b64 f; .param .b64 a; .param .b32 r;\n"
             "mov.u64 %d1, vprintf;\nP: .callprototype (.param .b32 _) _ "
             "(.param .b64 _, .param .b64 _);\n"
             "call (r), %d1, (f, a), P; }\n");
    CHECK(run_kernel(m, "k", shape(1, 1, NULL, 0)) == EGPU_PTX_ILLEGAL_ADDRESS, "no address");
    egpu_ptx_unload(m);
}

int main(void) {
    test_formats();
    test_limits();
    test_failures();
    test_assertions();
    test_declarations();
    return report("prints");
}
