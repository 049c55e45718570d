/* The source's parent: a daemon says what to do, on a socket of its own.
 *
 * A session runs at one place. Until `finish` the target's sessions wait for clients that nobody
 * leads there, and whatever fails, the source goes on: its sessions only stand still. `finish` ends
 * them all and the parent itself. So no state of the source is left that could go on, and the
 * answer `left` comes after it: whoever has read it may lead the clients to the target.
 */
#define _GNU_SOURCE
#include "executor/moves/mover.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/descriptor.h"
#include "executor/moves/moves.h"
#include "executor/parent.h"
#include "executor/session/greeting.h"

#define LOOK_MS 5000
#define STOP_MS 40000     /* more than a session takes itself (gate.c) */
#define PREPARE_MS 120000 /* the target's processes and drivers; nothing stands still meanwhile */
#define ANSWER_MS 60000   /* from the last byte to the target's answer */
#define STALLED_SECONDS 30

static int control = -1; /* the daemon's connection */
static int target = -1;  /* all is rebuilt there, and nothing has been decided */
static char line[256];
static size_t line_bytes;
static int passed = -1; /* came with the line */
static uint64_t last_order;

bool mover_stands(void) { return target >= 0; }

/* ---- orders to sessions ---- */

static bool order(const struct session *session, enum moves_order what, int descriptor) {
    struct greeting greeting = {.order = what, .hello.received = last_order};
    return greeting_pass(session->control, &greeting, descriptor);
}

/* The daemon's connection has ended: what it wanted is not wanted any more. */
static bool cancelled(void) {
    char byte;
    return control >= 0 && recv(control, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

static bool terminated(void) {
    sigset_t pending;
    return sigpending(&pending) == 0 &&
           (sigismember(&pending, SIGTERM) || sigismember(&pending, SIGINT));
}

/* A session's report on the last order, before the deadline and as long as it is wanted. */
static bool await_report(const struct session *session, int64_t deadline,
                         struct moves_report *report) {
    for (;;) {
        struct pollfd ready[2] = {{.fd = session->control, .events = POLLIN},
                                  {.fd = control, .events = POLLRDHUP}};
        int64_t left = deadline - clock_now_ms();
        bool given_up = left <= 0 || cancelled() || terminated();
        if (!given_up && poll(ready, 2, left > 1000 ? 1000 : (int)left) >= 0 &&
            ready[0].revents != 0) {
            if (!descriptor_receive_all(session->control, report, sizeof *report, NULL,
                                        clock_now_ms() + LOOK_MS))
                break;
            if (report->order == last_order) {
                report->why[sizeof report->why - 1] = 0;
                return true;
            }
        }
        if (given_up) break;
    }
    *report = (struct moves_report){.good = 0};
    snprintf(report->why, sizeof report->why, "a session does not answer");
    return false;
}

/* ---- answers to the daemon ---- */

/* The text, as JSON has it. */
static const char *escaped(const char *text, char *to, size_t room) {
    size_t at = 0;
    for (; *text != 0 && at + 7 < room; text++)
        if (*text == '"' || *text == '\\' || (unsigned char)*text < 32)
            at += (size_t)snprintf(to + at, room - at, "\\u%04x", (unsigned char)*text);
        else
            to[at++] =
                (unsigned char)*text < 127 ? *text : '?'; /* of a session: it may be any byte */
    to[at] = 0;
    return to;
}

static void say(const char *text, size_t bytes) {
    struct iovec part = {(void *)(uintptr_t)text, bytes};
    if (control >= 0) descriptor_send_all(control, &part, 1, -1, MSG_DONTWAIT);
}

static void refuse(const char *why) {
    char text[4 * MOVES_WHY_BYTES], plain[3 * MOVES_WHY_BYTES];
    int bytes = snprintf(text, sizeof text, "{\"state\": \"refused\", \"why\": \"%s\"}\n",
                         escaped(why, plain, sizeof plain));
    say(text, (size_t)bytes);
}

static void look(void) {
    char *text = NULL, plain[3 * MOVES_WHY_BYTES];
    size_t bytes = 0;
    uint64_t all = 0;
    bool movable = options.movable, first = true;
    int64_t deadline = clock_now_ms() + LOOK_MS;
    FILE *list = open_memstream(&text, &bytes);
    if (list == NULL) return refuse("no memory");
    for (int i = 0; i < MAX_SESSIONS; i++) {
        struct moves_report report = {.why = "the executor runs without --movable"};
        if (sessions[i].pid == 0) continue;
        last_order++;
        if (options.movable && order(&sessions[i], ORDER_LOOK, -1))
            await_report(&sessions[i], deadline, &report);
        fprintf(list, "%s{\"session\": \"", first ? "" : ", ");
        for (int byte = 0; byte < 16; byte++) fprintf(list, "%02x", sessions[i].id[byte]);
        fprintf(list, "\", \"bytes\": %llu, \"prevents\": [", (unsigned long long)report.bytes);
        if (!report.good) fprintf(list, "\"%s\"", escaped(report.why, plain, sizeof plain));
        fprintf(list, "]}");
        movable &= report.good != 0;
        all += report.bytes;
        first = false;
    }
    fclose(list);
    char head[128];
    int length = snprintf(head, sizeof head, "{\"movable\": %s, \"bytes\": %llu, \"sessions\": [",
                          movable ? "true" : "false", (unsigned long long)all);
    say(head, (size_t)length);
    say(text, bytes);
    say("]}\n", 3);
    free(text);
}

/* ---- the source ---- */

static void go_on(void) {
    if (target >= 0) close(target);
    target = -1;
    for (int i = 0; i < MAX_SESSIONS; i++)
        if (sessions[i].pid != 0) order(&sessions[i], ORDER_GO_ON, -1);
}

static bool stop_all(char *why) {
    int64_t deadline = clock_now_ms() + STOP_MS;
    struct moves_report report;
    last_order++;
    for (int i = 0; i < MAX_SESSIONS; i++)
        if (sessions[i].pid != 0) order(&sessions[i], ORDER_STOP, -1);
    bool good = true;
    for (int i = 0; i < MAX_SESSIONS && good; i++) {
        if (sessions[i].pid == 0) continue;
        good = await_report(&sessions[i], deadline, &report) && report.good;
        if (!good) snprintf(why, MOVES_WHY_BYTES, "%s", report.why);
    }
    return good;
}

/* Whether descriptors may reach the target: the target says whether one has. */
static int probe_for(int to) {
    struct sockaddr_storage name;
    socklen_t length = sizeof name;
    bool here =
        getsockname(to, (struct sockaddr *)&name, &length) == 0 && name.ss_family == AF_UNIX;
    return here ? memfd_create("egpu-probe", MFD_CLOEXEC) : -1;
}

static bool send_head(int to) {
    struct moved_head head = {.magic = MOVED_MAGIC, .version = MOVED_VERSION};
    struct moved_client clients[MAX_SESSIONS] = {0};
    for (int i = 0; i < MAX_SESSIONS; i++) {
        if (sessions[i].pid == 0) continue;
        memcpy(clients[head.sessions].id, sessions[i].id, 16);
        clients[head.sessions++].client = session_client(&sessions[i]);
    }
    struct iovec parts[] = {{&head, sizeof head}, {clients, head.sessions * sizeof *clients}};
    int probe = probe_for(to);
    bool sent = descriptor_send_all(to, parts, head.sessions != 0 ? 2 : 1, probe, 0);
    if (probe >= 0) close(probe);
    return sent;
}

/* What the target says, before the deadline and as long as it is wanted. */
static bool await_target(int to, int64_t deadline, char *why, bool *here) {
    struct moves_report report;
    for (;;) {
        struct pollfd ready[2] = {{.fd = to, .events = POLLIN},
                                  {.fd = control, .events = POLLRDHUP}};
        int64_t left = deadline - clock_now_ms();
        if (left <= 0 || cancelled() || terminated()) break;
        if (poll(ready, 2, left > 1000 ? 1000 : (int)left) <= 0 || ready[0].revents == 0) continue;
        if (!descriptor_receive_all(to, &report, sizeof report, NULL, clock_now_ms() + LOOK_MS))
            break;
        report.why[sizeof report.why - 1] = 0;
        if (!report.good) snprintf(why, MOVES_WHY_BYTES, "%s", report.why);
        if (here != NULL) *here = report.here;
        return report.good;
    }
    if (why[0] == 0) snprintf(why, MOVES_WHY_BYTES, "the target has ended, or does not answer");
    return false;
}

static bool write_all(int to, enum moves_order what, uint64_t *bytes, char *why) {
    struct moves_report report;
    bool good = true;
    for (int i = 0; i < MAX_SESSIONS && good; i++) {
        if (sessions[i].pid == 0) continue;
        last_order++;
        good = order(&sessions[i], what, to) &&
               await_report(&sessions[i], DESCRIPTOR_NO_DEADLINE, &report) && report.good;
        if (!good) snprintf(why, MOVES_WHY_BYTES, "%s", report.why);
        *bytes += report.bytes;
    }
    if (good) return await_target(to, clock_now_ms() + ANSWER_MS, why, NULL);
    /* A target that has refused something says what; otherwise it waits for more. */
    char better[MOVES_WHY_BYTES] = "";
    shutdown(to, SHUT_WR);
    if (report.broke && !await_target(to, clock_now_ms() + LOOK_MS, better, NULL) && better[0] != 0)
        snprintf(why, MOVES_WHY_BYTES, "%s", better);
    return false;
}

/* Once more, now that the target is known; nothing stands still yet. */
static bool all_may_move(bool here, char *why) {
    int64_t deadline = clock_now_ms() + LOOK_MS;
    struct moves_report report;
    last_order++;
    bool good = true;
    for (int i = 0; i < MAX_SESSIONS && good; i++) {
        if (sessions[i].pid == 0) continue;
        order(&sessions[i], ORDER_LOOK, -1);
        good = await_report(&sessions[i], deadline, &report) && report.good;
        if (!good) snprintf(why, MOVES_WHY_BYTES, "%s", report.why);
        if (good && report.here && !here) {
            snprintf(why, MOVES_WHY_BYTES, "shared memory: the target is on another machine");
            good = false;
        }
    }
    return good;
}

static void send_sessions(int to) {
    char why[MOVES_WHY_BYTES] = "", text[256];
    uint64_t bytes = 0, begun = 0, stopped = 0;
    if (to < 0) return refuse("no descriptor of the target came with the line");
    if (!options.movable) {
        close(to);
        return refuse("the executor runs without --movable");
    }
    struct timeval stalled = {.tv_sec = STALLED_SECONDS};
    setsockopt(to, SOL_SOCKET, SO_SNDTIMEO, &stalled, sizeof stalled);
    bool here = false;
    bool good = send_head(to) && await_target(to, clock_now_ms() + PREPARE_MS, why, &here) &&
                all_may_move(here, why) && write_all(to, ORDER_AHEAD, &bytes, why);
    begun = clock_now_ns();
    target = to;
    good = good && stop_all(why);
    stopped = clock_now_ns();
    good = good && write_all(to, ORDER_WRITE, &bytes, why) && !cancelled();
    if (!good) {
        go_on();
        return refuse(why[0] != 0 ? why : "the connection to the target broke");
    }
    int length = snprintf(text, sizeof text,
                          "{\"state\": \"restored\", \"bytes\": %llu, \"quiesced_ns\": %llu, "
                          "\"copied_ns\": %llu}\n",
                          (unsigned long long)bytes, (unsigned long long)(stopped - begun),
                          (unsigned long long)(clock_now_ns() - stopped));
    say(text, (size_t)length);
}

static bool target_ended(void) {
    char byte;
    return recv(target, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

/* The point of no return. True: this parent is over. */
static bool finish(void) {
    static const char left[] = "{\"state\": \"left\"}\n";
    if (target < 0) refuse("nothing has been sent");
    if (target >= 0 && target_ended()) {
        go_on();
        refuse("the target has ended");
    }
    if (target < 0) return false;
    for (int i = 0; i < MAX_SESSIONS; i++)
        if (sessions[i].pid != 0) kill(sessions[i].pid, SIGKILL);
    for (int i = 0; i < MAX_SESSIONS; i++)
        if (sessions[i].pid != 0) waitpid(sessions[i].pid, NULL, 0);
    printf("{\"event\": \"moved\"}\n");
    fflush(stdout);
    struct moves_report over = {.good = 1};
    orders_report(target, &over); /* to sessions that wait with the client's connection */
    say(left, sizeof left - 1);
    return true;
}

static void hang_up(void) {
    close(control);
    control = -1;
    line_bytes = 0;
    if (passed >= 0) close(passed);
    passed = -1;
    if (target >= 0) go_on();
}

static bool carry_out(void) {
    char what[16];
    int with = passed;
    passed = -1;
    if (sscanf(line, " { \"do\" : \"%15[a-z]\" }", what) != 1) what[0] = 0;
    bool sends = strcmp(what, "send") == 0;
    if (!sends && with >= 0) close(with);
    if (strcmp(what, "look") == 0)
        look();
    else if (sends && target < 0)
        send_sessions(with);
    else if (strcmp(what, "finish") == 0)
        return finish();
    else if (strcmp(what, "cancel") == 0)
        go_on();
    else
        refuse("this cannot be done now");
    return false;
}

/* Reads what there is of a line. True: this parent is over. */
static bool listen_to_daemon(void) {
    int came = -1;
    size_t count;
    ssize_t got = descriptor_receive(control, line + line_bytes, sizeof line - 1 - line_bytes,
                                     &came, 1, &count, MSG_DONTWAIT);
    if (count != 0 && passed >= 0) close(passed);
    if (count != 0) passed = came;
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (got <= 0 || line_bytes + (size_t)got == sizeof line - 1) {
        hang_up();
        return false;
    }
    line_bytes += (size_t)got;
    line[line_bytes] = 0;
    char *end = strchr(line, '\n');
    if (end == NULL) return false;
    *end = 0;
    line_bytes = 0; /* one line at a time: the daemon waits for the answer */
    return carry_out();
}

void mover_poll(struct pollfd ready[MOVER_POLLS]) {
    ready[0] = (struct pollfd){.fd = options.moves_fd, .events = POLLIN};
    ready[1] = (struct pollfd){.fd = control, .events = POLLIN};
    ready[2] = (struct pollfd){.fd = target, .events = POLLRDHUP};
    ready[3] = (struct pollfd){.fd = restored_from(), .events = POLLIN};
}

bool mover_serve(const struct pollfd ready[MOVER_POLLS]) {
    if (ready[3].fd >= 0 && ready[3].revents != 0) restored_begin();
    if (ready[2].fd >= 0 && ready[2].fd == target && ready[2].revents != 0) go_on();
    if (ready[1].fd >= 0 && ready[1].fd == control && ready[1].revents != 0 && listen_to_daemon())
        return true;
    if (ready[0].fd < 0 || ready[0].revents == 0) return false;
    int fd = accept4(options.moves_fd, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0) return false;
    if (control >= 0) hang_up(); /* a daemon that was started again */
    control = fd;
    return false;
}
