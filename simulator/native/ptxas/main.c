/* The assembler of simulated cards, whose machine code is PTX. Compilers that run it to make a
 * cubin of their PTX (Triton, XLA) get the card's check of that PTX, and the PTX itself. Options
 * follow NVIDIA's public documentation; those that only tune machine code have no effect. */
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ptx/ptx.h"

#define MOST_BYTES (256u << 20)

enum { EXIT_USAGE = 1, EXIT_REFUSED = 255 }; /* as NVIDIA's */

/* Compilers read the release, and use the PTX that it supports. */
static const char VERSION[] = "ptxas: Elastic GPU's assembler for simulated cards\n"
                              "Cuda compilation tools, release 13.0, V13.0.0\n";
static const char HELP[] =
    "Elastic GPU's ptxas for simulated cards. They run PTX, so it checks and copies PTX.\n\n"
    "  ptxas [OPTION]... INPUT.ptx [-o OUTPUT]\n\n"
    "  -o, --output-file=FILE   output file; elf.o by default\n"
    "  -arch, --gpu-name=SM     refuse PTX with a newer .target than this\n"
    "  -c, --compile-only       accept undefined names; another input may define them\n"
    "  -v, --verbose            print what each kernel needs\n"
    "  -V, --version\n\n"
    "NVIDIA's options that tune machine code are accepted and have no effect.\n";

struct options {
    const char *input, *output;
    unsigned architecture; /* 0: any */
    bool part, verbose;
};

/* NVIDIA's options with a value, which may follow after a space. */
static const char *const tuning[] = {
    "-O",
    "--opt-level",
    "-maxrregcount",
    "--maxrregcount",
    "-m",
    "--machine",
    "-dlcm",
    "--def-load-cache",
    "-dscm",
    "--def-store-cache",
    "-flcm",
    "--force-load-cache",
    "-fscm",
    "--force-store-cache",
    "-fmad",
    "--fmad",
    "--split-compile",
    "-split-compile",
    "-e",
    "--entry",
    "--register-usage-level",
    "-register-usage-level",
    "--device-function-maxrregcount",
    "-device-function-maxrregcount",
    "--ftz",
    "--compress",
    "--regAllocOptLevel",
    NULL,
};

static _Noreturn void fatal(int status, const char *format, const char *what) {
    fputs("ptxas fatal   : ", stderr);
    fprintf(stderr, format, what);
    fputc('\n', stderr);
    exit(status);
}

/* Return whether `argument` is this option; `value`: the text after =, or the next argument. */
static bool is_option(const char *name, char **argument, int *used, const char **value) {
    size_t length = strlen(name);
    if (strncmp(*argument, name, length) != 0) return false;
    if ((*argument)[length] == '=') {
        *value = *argument + length + 1;
        return true;
    }
    if ((*argument)[length] != 0) return false;
    *value = argument[1];
    *used = 2;
    return true;
}

static unsigned architecture_of(const char *name) {
    char *end;
    unsigned long number = strncmp(name, "sm_", 3) == 0 ? strtoul(name + 3, &end, 10) : 0;
    /* sm_90a, sm_100f */
    if (number < 10 || number > 999 ||
        (*end != 0 && strcmp(end, "a") != 0 && strcmp(end, "f") != 0))
        fatal(EXIT_USAGE, "Value '%s' is not defined for option 'gpu-name'", name);
    return (unsigned)number;
}

/* Return how many arguments an option without effect takes, including its value. */
static int skipped(char **argument) {
    const char *value;
    int used = 1;
    for (const char *const *name = tuning; *name; name++)
        if (is_option(*name, argument, &used, &value)) break;
    return used;
}

static struct options read_options(char **argument) {
    struct options options = {.output = "elf.o"};
    const char *value;
    for (int used; *argument; argument += used) {
        used = 1;
        value = "";
        if (strcmp(*argument, "-V") == 0 || strcmp(*argument, "--version") == 0)
            fputs(VERSION, stdout), exit(0);
        else if (strcmp(*argument, "-h") == 0 || strcmp(*argument, "--help") == 0)
            fputs(HELP, stdout), exit(0);
        else if (strcmp(*argument, "-v") == 0 || strcmp(*argument, "--verbose") == 0)
            options.verbose = true;
        else if (strcmp(*argument, "-c") == 0 || strcmp(*argument, "--compile-only") == 0)
            options.part = true;
        else if (is_option("-o", argument, &used, &value) ||
                 is_option("--output-file", argument, &used, &value))
            options.output = value;
        else if (is_option("-arch", argument, &used, &value) ||
                 is_option("--gpu-name", argument, &used, &value))
            options.architecture = value == NULL ? 0 : architecture_of(value);
        else if ((*argument)[0] == '-' && (*argument)[1] != 0)
            used = skipped(argument);
        else if (options.input)
            fatal(EXIT_USAGE, "More than one input: '%s'; linking is not supported", *argument);
        else
            options.input = *argument;
        if (value == NULL) fatal(EXIT_USAGE, "Option '%s' needs a value", *argument);
        if (used == 2 && argument[1] == NULL) used = 1;
    }
    if (options.input == NULL) fatal(EXIT_USAGE, "No input files specified%s", "");
    return options;
}

/* Read a whole file and add a NUL. */
static char *contents(const char *path, size_t *length) {
    FILE *file = strcmp(path, "-") == 0 ? stdin : fopen(path, "rb");
    if (file == NULL) fatal(EXIT_REFUSED, "Could not open input file '%s'", path);
    char *text = NULL;
    size_t room = 0;
    *length = 0;
    do {
        if (*length + 1 >= room) text = realloc(text, room = room ? 2 * room : 1 << 16);
        if (text == NULL || room > MOST_BYTES)
            fatal(EXIT_REFUSED, "Input file '%s' is too large", path);
        *length += fread(text + *length, 1, room - 1 - *length, file);
    } while (!feof(file) && !ferror(file));
    if (ferror(file)) fatal(EXIT_REFUSED, "Could not read input file '%s'", path);
    if (file != stdin) fclose(file);
    text[*length] = 0;
    *length = strlen(text);
    return text;
}

/* Leave no incomplete file. */
static void write_out(const char *path, const char *text, size_t bytes) {
    FILE *file = fopen(path, "wb");
    if (file == NULL) fatal(EXIT_REFUSED, "Could not open output file '%s'", path);
    bool whole = fwrite(text, 1, bytes, file) == bytes;
    if (fclose(file) == 0 && whole) return;
    unlink(path);
    fatal(EXIT_REFUSED, "Could not write output file '%s'", path);
}

/* Variables, which are not used. */
static bool room(void *context, uint64_t size, uint64_t align, uint64_t *address, void **host) {
    uint64_t *next = context;
    *address = (*next + align - 1) / align * align;
    *next = *address + size;
    *host = calloc(1, size ? size : 1);
    return *host != NULL;
}

static void no_release(void *context, uint64_t address, uint64_t size) {
    (void)context, (void)address, (void)size;
}

static void tell(const egpu_ptx_module *module, unsigned architecture) {
    for (size_t i = 0; i < egpu_ptx_kernel_count(module); i++) {
        const egpu_ptx_kernel_info *kernel =
            egpu_ptx_kernel_describe(egpu_ptx_kernel_at(module, i));
        fprintf(stderr,
                "ptxas info    : Compiling entry function '%s' for 'sm_%u'\n"
                "ptxas info    : Used %u registers, %u bytes smem, %u bytes lmem\n",
                kernel->name, architecture ? architecture : kernel->target, kernel->registers,
                kernel->static_shared_bytes, kernel->local_bytes);
    }
}

/* End the program if the card would refuse the PTX. */
static void check(const struct options *options, const char *text, size_t length) {
    char log[1024] = "";
    uint64_t next = UINT64_C(1) << 32;
    egpu_ptx_allocator allocator = {&next, room, no_release};
    egpu_ptx_module *module;
    egpu_ptx_status status = egpu_ptx_load(text, length, &allocator, log, sizeof log, &module);
    if (status == EGPU_PTX_UNRESOLVED && options->part) return;
    if (status != EGPU_PTX_OK) {
        fprintf(stderr, "ptxas %s, %s\n", options->input, log);
        fatal(EXIT_REFUSED, "A simulated card cannot run it: %s", egpu_ptx_status_name(status));
    }
    for (size_t i = 0; options->architecture && i < egpu_ptx_kernel_count(module); i++)
        if (egpu_ptx_kernel_describe(egpu_ptx_kernel_at(module, i))->target > options->architecture)
            fatal(EXIT_REFUSED, "%s: .target is higher than the requested SM version",
                  options->input);
    if (options->verbose) tell(module, options->architecture);
}

int main(int count, char **arguments) {
    (void)count;
    struct options options = read_options(arguments + 1);
    size_t length;
    char *text = contents(options.input, &length);
    check(&options, text, length);
    /* A loader may pass only the bytes, and PTX ends with a NUL. */
    write_out(options.output, text, length + 1);
    return 0;
}
