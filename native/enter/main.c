/* egpu-enter [OPTIONS] [--] COMMAND [ARGUMENT...]
 *
 *   --bind SOURCE TARGET       TARGET shows SOURCE (file or directory) as it is before all mounts.
 *                              Parents are mounted first. A missing TARGET is created: in the
 *                              writable bind that it is below, else without a trace outside
 *   --ro-bind SOURCE TARGET    the same, read-only
 *   --preload LIBRARY          add it to /etc/ld.so.preload, after the libraries listed there; may
 *                              be repeated
 *   --chdir DIRECTORY          start the command there
 *   --env NAME=VALUE           add or change a variable; --unset-env NAME removes one;
 *                              --clear-env removes all before
 *   --supervise DIRECTORY      run in the background under a supervisor (see supervise.c) and
 *                              return when it runs; others may attach to it (see attach.h). With
 *                              --input they can type for it, with --terminal also on a terminal
 *                              of its own
 *   --join PROCESS             in the mounts of a running process (and its user namespace); it and
 *                              its children end with the command, and at SIGTERM. --terminal: its
 *                              standard input is its controlling terminal
 *   --probe                    report whether this machine allows private mounts: exit status 0 or
 *                              1, one line of text
 *
 * If any option fails, nothing is run: exit status 125 and one line on stderr. 126 and 127 as in a
 * shell.
 */
#define _GNU_SOURCE
#include "enter.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_OPTIONS = 256 };

struct options {
    struct enter_bind binds[MAX_OPTIONS];
    int bind_count;
    char *preloads[MAX_OPTIONS];
    int preload_count;
    const char *directory, *supervise, *join;
    bool probe, input, terminal;
    char **command;
};

_Noreturn void enter_fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    char text[4096];
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "egpu-enter: %s\n", text);
    exit(ENTER_FAILED);
}

static void set_variable(const char *assignment) {
    const char *equals = strchr(assignment, '=');
    if (equals == NULL || equals == assignment) enter_fail("--env %s: want NAME=VALUE", assignment);
    char *name = strndup(assignment, (size_t)(equals - assignment));
    if (name == NULL || setenv(name, equals + 1, 1) != 0)
        enter_fail("--env %s: %s", assignment, strerror(errno));
    free(name);
}

static char *next_value(char ***argument, const char *option) {
    if ((*argument)[1] == NULL) enter_fail("%s needs a value", option);
    return *++*argument;
}

static void require_absolute(const char *option, const char *path) {
    if (path[0] != '/') enter_fail("%s %s: want an absolute path", option, path);
}

static void parse(char **argument, struct options *options) {
    for (; *argument != NULL; argument++) {
        const char *option = *argument;
        if (strcmp(option, "--") == 0) {
            argument++;
            break;
        }
        if (option[0] != '-') break;
        if (strcmp(option, "--bind") == 0 || strcmp(option, "--ro-bind") == 0) {
            if (options->bind_count == MAX_OPTIONS) enter_fail("more than %d binds", MAX_OPTIONS);
            struct enter_bind *bind = &options->binds[options->bind_count++];
            bind->source = next_value(&argument, option);
            bind->target = next_value(&argument, option);
            bind->read_only = option[2] == 'r';
            require_absolute(option, bind->source);
            require_absolute(option, bind->target);
        } else if (strcmp(option, "--preload") == 0) {
            if (options->preload_count == MAX_OPTIONS)
                enter_fail("more than %d preloads", MAX_OPTIONS);
            char *library = next_value(&argument, option);
            require_absolute(option, library);
            if (strpbrk(library, " \t\n:#") != NULL)
                enter_fail(
                    "--preload %s: ld.so.preload cannot name a path with a space, colon or #",
                    library);
            options->preloads[options->preload_count++] = library;
        } else if (strcmp(option, "--chdir") == 0) {
            options->directory = next_value(&argument, option);
        } else if (strcmp(option, "--env") == 0) {
            set_variable(next_value(&argument, option));
        } else if (strcmp(option, "--unset-env") == 0) {
            if (unsetenv(next_value(&argument, option)) != 0)
                enter_fail("--unset-env: %s", strerror(errno));
        } else if (strcmp(option, "--clear-env") == 0) {
            clearenv();
        } else if (strcmp(option, "--supervise") == 0) {
            options->supervise = next_value(&argument, option);
            require_absolute(option, options->supervise);
        } else if (strcmp(option, "--join") == 0) {
            options->join = next_value(&argument, option);
        } else if (strcmp(option, "--input") == 0) {
            options->input = true;
        } else if (strcmp(option, "--terminal") == 0) {
            options->terminal = true;
        } else if (strcmp(option, "--probe") == 0) {
            options->probe = true;
        } else {
            enter_fail("unknown option %s", option);
        }
    }
    options->command = argument;
}

static int probe(void) {
    const char *why = "";
    uid_t user = geteuid();
    if (!enter_unshare(&why) || !enter_try_mounts(&why)) {
        printf("no private mounts: %s: %s\n", why, strerror(errno));
        return 1;
    }
    printf("private mounts: yes (%s)\n", *why        ? why
                                         : user == 0 ? "as root"
                                                     : "in a user namespace");
    return 0;
}

static void make_mounts(struct options *options) {
    const char *why = "";
    char *here = getcwd(NULL, 0);
    if (!enter_unshare(&why))
        enter_fail("this machine allows no private mounts: %s: %s", why, strerror(errno));
    enter_mount(options->binds, options->bind_count);
    if (options->preload_count > 0) enter_preload(options->preloads, options->preload_count);
    /* The current directory may be covered now: walk to it again. */
    if (options->directory == NULL && here != NULL && chdir(here) != 0)
        enter_fail("cannot go back to %s: %s", here, strerror(errno));
    free(here);
}

int main(int count, char **arguments) {
    (void)count;
    static struct options options;
    parse(arguments + 1, &options);
    if (options.probe) return probe();
    if (options.command[0] == NULL) enter_fail("no command given");
    enum enter_input input = options.terminal ? INPUT_TERMINAL
                             : options.input  ? INPUT_PIPE
                                              : INPUT_NONE;
    if (options.supervise != NULL) enter_prepare_supervisor(options.supervise, input);

    if (options.join != NULL) enter_join(options.join);
    if (options.bind_count > 0 || options.preload_count > 0) make_mounts(&options);
    if (options.directory != NULL && chdir(options.directory) != 0)
        enter_fail("cannot enter %s: %s", options.directory, strerror(errno));
    if (options.supervise != NULL) enter_supervise();
    if (options.join != NULL) enter_attend(options.terminal);

    execvp(options.command[0], options.command);
    int error = errno;
    fprintf(stderr, "egpu-enter: cannot run %s: %s\n", options.command[0], strerror(error));
    return error == ENOENT ? ENTER_NOT_FOUND : ENTER_NOT_RUN;
}
