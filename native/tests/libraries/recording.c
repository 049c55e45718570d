/* A library for tests: each call prints one line on stderr: `recorded SYMBOL` and for each
 * parameter w, b or n (a word, bytes, NULL) and hexadecimal bytes. RECORDING: the generated file
 * with the functions. */
#include "recording.h"

#include <stdio.h>
#include <unistd.h>

static _Thread_local char line[1 << 16];
static _Thread_local size_t length;

static void saw_begin(const char *symbol) {
    length = (size_t)snprintf(line, sizeof line, "recorded %s", symbol);
}

static void saw(char form, const void *bytes, size_t count) {
    length += (size_t)snprintf(line + length, sizeof line - length, " %c", form);
    for (size_t i = 0; i < count && length + 4 < sizeof line; i++)
        length += (size_t)snprintf(line + length, sizeof line - length, "%02x",
                                   ((const uint8_t *)bytes)[i]);
}

static void saw_end(void) {
    line[length++] = '\n';
    if (write(STDERR_FILENO, line, length) < 0) abort();
}

#pragma GCC diagnostic ignored "-Wmissing-prototypes"
#include RECORDING
