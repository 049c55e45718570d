/* The commands of nvidia-cuda-mps-control, as in its manual. Defaults apply from the next server
 * on, settings of a server to clients that join later. */
#include "daemon.h"

#include "common/clock.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_WORDS 5
#define SECOND_NS UINT64_C(1000000000)

static void say(struct mps_message *answer, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void say(struct mps_message *answer, const char *format, ...) {
    size_t used = strlen(answer->text);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(answer->text + used, sizeof answer->text - used, format, arguments);
    va_end(arguments);
}

static void refuse(struct mps_message *answer, const char *why) {
    say(answer, "%s\n", why);
    answer->result = 1;
}

/* ---- one function per command; `words` are its arguments, NULL after the last one ---- */

static void server_list(struct control *control, char **words, struct mps_message *answer) {
    (void)words;
    if (control->serving) say(answer, "%d\n", (int)getpid());
}

static void server_status(struct control *control, char **words, struct mps_message *answer) {
    (void)words;
    say(answer, "%s\n", control->fault ? "FAULT" : "ACTIVE");
}

static void start_server(struct control *control, char **words, struct mps_message *answer) {
    if (!words[0] || strcmp(words[0], "-uid") != 0 || !words[1])
        refuse(answer, "start_server needs -uid USER");
    else
        control_start_server(control);
}

static void client_list(struct control *control, char **words, struct mps_message *answer) {
    (void)words;
    for (int i = 0; i < control->count; i++)
        if (control->connections[i].client) say(answer, "%d\n", (int)control->connections[i].pid);
}

static void get_percentage(const struct limits *limits, struct mps_message *answer) {
    say(answer, "%.1f\n", (double)limits->percentage);
}

static void set_percentage(struct limits *limits, const char *word, struct mps_message *answer) {
    char *end = NULL;
    float value = word ? strtof(word, &end) : 0;
    if (!word || end == word || *end || !(value > 0 && value <= 100)) {
        refuse(answer, "want a percentage above 0 and at most 100");
        return;
    }
    limits->percentage = value;
    get_percentage(limits, answer);
}

static bool read_device(const char *word, int *device, struct mps_message *answer) {
    char *end = NULL;
    long number = word ? strtol(word, &end, 10) : -1;
    *device = (int)number;
    if (word && end != word && !*end && number >= 0 && number < MPS_MAX_DEVICES) return true;
    refuse(answer, "want the number of a device");
    return false;
}

static void get_limit(const struct limits *limits, char **words, struct mps_message *answer) {
    int device;
    if (!read_device(words[0], &device, answer)) return;
    if (limits->bytes[device] == MPS_NO_LIMIT)
        say(answer, "no limit\n");
    else
        say(answer, "%lluM\n", (unsigned long long)(limits->bytes[device] >> 20));
}

static void set_limit(struct limits *limits, char **words, struct mps_message *answer) {
    int device;
    uint64_t bytes;
    if (!read_device(words[0], &device, answer)) return;
    if (!words[1] || !mps_parse_bytes(words[1], &bytes))
        refuse(answer, "want a limit in bytes, or with a unit such as 512M or 4G");
    else
        limits->bytes[device] = bytes;
}

static void get_default_percentage(struct control *control, char **words, struct mps_message *to) {
    (void)words;
    get_percentage(&control->defaults, to);
}

static void set_default_percentage(struct control *control, char **words, struct mps_message *to) {
    set_percentage(&control->defaults, words[0], to);
}

static void get_server_percentage(struct control *control, char **words, struct mps_message *to) {
    (void)words;
    get_percentage(&control->server, to);
}

static void set_server_percentage(struct control *control, char **words, struct mps_message *to) {
    set_percentage(&control->server, words[1], to);
}

static void get_default_limit(struct control *control, char **words, struct mps_message *to) {
    get_limit(&control->defaults, words, to);
}

static void set_default_limit(struct control *control, char **words, struct mps_message *to) {
    set_limit(&control->defaults, words, to);
}

static void get_server_limit(struct control *control, char **words, struct mps_message *to) {
    get_limit(&control->server, words + 1, to);
}

static void set_server_limit(struct control *control, char **words, struct mps_message *to) {
    set_limit(&control->server, words + 1, to);
}

static void quit(struct control *control, char **words, struct mps_message *answer) {
    (void)answer;
    bool bounded = words[0] && strcmp(words[0], "-t") == 0 && words[1];
    control->quitting = true;
    control->deadline_ns =
        bounded ? clock_now_ns() + strtoull(words[1], NULL, 10) * SECOND_NS : UINT64_MAX;
}

/* `of_server`: the first argument is the pid of a server. */
static const struct command {
    const char *word;
    void (*carry_out)(struct control *, char **, struct mps_message *);
    bool of_server;
} commands[] = {
    {"get_server_list", server_list, false},
    {"get_server_status", server_status, true},
    {"start_server", start_server, false},
    {"get_client_list", client_list, true},
    {"get_default_active_thread_percentage", get_default_percentage, false},
    {"set_default_active_thread_percentage", set_default_percentage, false},
    {"get_active_thread_percentage", get_server_percentage, true},
    {"set_active_thread_percentage", set_server_percentage, true},
    {"get_default_device_pinned_mem_limit", get_default_limit, false},
    {"set_default_device_pinned_mem_limit", set_default_limit, false},
    {"get_device_pinned_mem_limit", get_server_limit, true},
    {"set_device_pinned_mem_limit", set_server_limit, true},
    {"quit", quit, false},
};

static bool is_server(const struct control *control, const char *word) {
    return control->serving && word && strtol(word, NULL, 10) == (long)getpid();
}

void control_command(struct control *control, char *text, struct mps_message *answer) {
    char *words[MAX_WORDS + 1] = {NULL}, *rest = text;
    int count = 0;
    for (char *word; count < MAX_WORDS && (word = strsep(&rest, " \t\r\n")) != NULL;)
        if (*word) words[count++] = word;
    for (size_t i = 0; count && i < sizeof commands / sizeof *commands; i++) {
        if (strcmp(commands[i].word, words[0]) != 0) continue;
        if (commands[i].of_server && !is_server(control, words[1]))
            refuse(answer, "want the pid of a server; get_server_list shows it");
        else
            commands[i].carry_out(control, words + 1, answer);
        return;
    }
    if (count) refuse(answer, "unknown command");
}
