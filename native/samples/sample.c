#include "sample.h"

#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/clock.h"

struct cuda cuda;
bool sample_json;
const char *sample_name = "egpu-sample";
int sample_device;
char sample_device_name[128];

void sample_json_string(const char *text) {
    putchar('"');
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            printf("\\%c", c);
        else if (c < 0x20)
            printf("\\u%04x", c);
        else
            putchar(c);
    }
    putchar('"');
}

static _Noreturn void give_up(int code, const char *what, const char *why) {
    if (sample_json) {
        printf("{\"sample\": ");
        sample_json_string(sample_name);
        printf(", \"ok\": false, \"call\": ");
        sample_json_string(what);
        printf(", \"error\": ");
        sample_json_string(why);
        printf("}\n");
    }
    fprintf(stderr, "%s: %s: %s\n", sample_name, what, why);
    fflush(NULL);
    _Exit(code); /* not exit(): a driver in trouble should not run its destructors */
}

const char *cuda_error_name(cu_result result) {
    static char number[32];
    const char *name = NULL;
    if (cuda.error_name && cuda.error_name(result, &name) == CU_SUCCESS && name) return name;
    snprintf(number, sizeof number, "CUDA error %d", result);
    return number;
}

void cuda_check(cu_result result, const char *what) {
    if (result != CU_SUCCESS) give_up(EXIT_CUDA, what, cuda_error_name(result));
}

static void load_driver(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (!library) give_up(EXIT_NO_DRIVER, "libcuda.so.1", dlerror());
#define LOOK_UP(symbol, name, parameters)                            \
    *(void **)&cuda.name = dlsym(library, #symbol);                  \
    if (!cuda.name && strcmp(#symbol, "cuEventElapsedTime_v2") == 0) \
        *(void **)&cuda.name = dlsym(library, "cuEventElapsedTime"); \
    if (!cuda.name) give_up(EXIT_NO_DRIVER, "libcuda.so.1", "this driver has no " #symbol);
    CUDA_FUNCTIONS(LOOK_UP)
#undef LOOK_UP
}

/* ---- flags ---- */

static _Noreturn void usage(int code, const char *purpose, const struct flag *flags) {
    FILE *to = code ? stderr : stdout;
    fprintf(to, "usage: %s [flags]\n%s\n\n", sample_name, purpose);
    for (; flags->name; flags++) fprintf(to, "  --%-10s %s\n", flags->name, flags->help);
    fprintf(to, "  --%-10s %s\n  --%-10s %s\n  --%-10s %s\n", "device", "ordinal of the GPU (0)",
            "json", "print one JSON object", "help", "this text");
    exit(code);
}

static _Noreturn void bad_flag(const char *flag, const char *value) {
    fprintf(stderr, "%s: --%s cannot be '%s'\n", sample_name, flag, value);
    exit(EXIT_USAGE);
}

static uint64_t parse_count(const char *flag, const char *value, bool bytes) {
    static const struct {
        const char *suffix;
        unsigned shift;
    } units[] = {{"", 0},     {"B", 0},   {"KiB", 10}, {"Ki", 10},
                 {"MiB", 20}, {"Mi", 20}, {"GiB", 30}, {"Gi", 30}};
    char *stop;
    errno = 0;
    unsigned long long n = strtoull(value, &stop, 10);
    if (errno || stop == value || value[0] == '-') bad_flag(flag, value);
    for (size_t i = 0; i < (bytes ? sizeof units / sizeof *units : 1); i++)
        if (strcmp(stop, units[i].suffix) == 0 && n <= UINT64_MAX >> units[i].shift)
            return (uint64_t)n << units[i].shift;
    bad_flag(flag, value);
}

static void set_flag(const struct flag *flag, const char *value) {
    if (flag->kind == FLAG_SECONDS) {
        char *stop;
        double v = strtod(value, &stop);
        if (stop == value || *stop || !(v >= 0) || isinf(v)) bad_flag(flag->name, value);
        *flag->value.seconds = v;
    } else {
        uint64_t n = parse_count(flag->name, value, flag->kind == FLAG_BYTES);
        if (n == 0 || (flag->most && n > flag->most)) bad_flag(flag->name, value);
        *flag->value.count = n;
    }
}

static void parse_flags(int argc, char **argv, const char *purpose, const struct flag *flags) {
    for (int i = 1; i < argc; i++) {
        const char *argument = argv[i];
        if (strcmp(argument, "--help") == 0) usage(0, purpose, flags);
        if (strcmp(argument, "--json") == 0) {
            sample_json = true;
            continue;
        }
        const char *equals = strchr(argument, '=');
        const char *value = equals ? equals + 1 : i + 1 < argc ? argv[++i] : NULL;
        size_t length = equals ? (size_t)(equals - argument) : strlen(argument);
        if (!value || length <= 2 || strncmp(argument, "--", 2) != 0)
            usage(EXIT_USAGE, purpose, flags);
        const char *name = argument + 2;
        if (length - 2 == 6 && strncmp(name, "device", 6) == 0) {
            sample_device = (int)(parse_count("device", value, false) & 0x7fffffff);
            continue;
        }
        const struct flag *flag = flags;
        while (flag->name &&
               !(strlen(flag->name) == length - 2 && strncmp(flag->name, name, length - 2) == 0))
            flag++;
        if (!flag->name) {
            fprintf(stderr, "%s: unknown flag --%.*s\n", sample_name, (int)length - 2, name);
            usage(EXIT_USAGE, purpose, flags);
        }
        set_flag(flag, value);
    }
}

void sample_begin(int argc, char **argv, const char *name, const char *purpose,
                  const struct flag *flags, bool context) {
    sample_name = name;
    parse_flags(argc, argv, purpose, flags);
    load_driver();
    CUDA(init, 0);
    if (!context) return;
    cu_device device;
    cu_context current;
    CUDA(device_get, &device, sample_device);
    CUDA(device_name, sample_device_name, sizeof sample_device_name, device);
    CUDA(context_retain, &current, device);
    CUDA(context_use, current);
}

cu_function sample_kernel(const char *ptx, const char *name) {
    cu_module module;
    cu_function function;
    CUDA(module_load, &module, ptx);
    CUDA(function_get, &function, module, name);
    return function;
}

cu_pointer sample_alloc(size_t bytes) {
    cu_pointer pointer;
    CUDA(alloc, &pointer, bytes);
    return pointer;
}

cu_pointer sample_upload(const void *data, size_t bytes) {
    cu_pointer pointer = sample_alloc(bytes);
    CUDA(to_device, pointer, data, bytes);
    return pointer;
}

double sample_seconds(void) { return 1e-9 * (double)clock_now_ns(); }

int sample_end(bool right, const char *fields, const char *format, ...) {
    va_list args;
    va_start(args, format);
    if (sample_json) {
        printf("{\"sample\": ");
        sample_json_string(sample_name);
        printf(", \"device\": ");
        sample_json_string(sample_device_name);
        printf(", \"ok\": %s%s%s}\n", right ? "true" : "false", fields[0] ? ", " : "", fields);
    } else {
        printf("%s: ", sample_name);
        vprintf(format, args);
        printf("%s\n", right ? ": ok" : ": WRONG");
    }
    va_end(args);
    fflush(stdout);
    return right ? 0 : EXIT_WRONG;
}
