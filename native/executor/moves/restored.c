/* The target's parent: all sessions are rebuilt before the first client is let in. */
#include "executor/moves/mover.h"

#include <stdio.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/descriptor.h"
#include "executor/moves/moves.h"
#include "executor/parent.h"
#include "executor/session/greeting.h"

#define HEAD_MS 60000
#define LIST_MS 5000

/* A session's next report. */
static bool told(const struct session *session, struct moves_report *report) {
    bool came = descriptor_receive_all(session->control, report, sizeof *report, NULL,
                                       DESCRIPTOR_NO_DEADLINE);
    report->why[sizeof report->why - 1] = 0;
    if (!came) snprintf(report->why, sizeof report->why, "a session ended at the target");
    return came && report->good;
}

/* Processes, drivers and contexts are made while the program still runs at the source. */
static bool prepare(const struct moved_client *clients, uint32_t count, struct session **made,
                    struct moves_report *report) {
    struct greeting greeting = {.order = ORDER_PREPARE};
    for (uint32_t i = 0; i < count; i++) {
        made[i] = session_find(clients[i].id) == NULL
                      ? session_start(clients[i].id, clients[i].client)
                      : NULL;
        snprintf(report->why, sizeof report->why, "the target has no room for the sessions");
        if (made[i] == NULL || !greeting_pass(made[i]->control, &greeting, -1)) return false;
    }
    for (uint32_t i = 0; i < count; i++)
        if (!told(made[i], report)) return false;
    return true;
}

/* Each reads what its source writes for this order. */
static bool take_all(int from, uint32_t order, struct session **made, uint32_t count,
                     struct moves_report *report) {
    struct greeting greeting = {.order = order};
    bool good = true;
    for (uint32_t i = 0; good && i < count; i++)
        good = greeting_pass(made[i]->control, &greeting, from) && told(made[i], report);
    return good;
}

static bool answer_source(int from, struct moves_report *report, bool here, bool good) {
    struct iovec part = {report, sizeof *report};
    report->good = good;
    report->here = here;
    return descriptor_send_all(from, &part, 1, -1, 0) && good;
}

static int source = -1;

int restored_from(void) { return source; }

/* A source that has only ended may go on as another process: sessions then wait in vain. */
void restored_begin(void) {
    struct greeting greeting = {.order = ORDER_BEGIN};
    struct moves_report report;
    bool left =
        descriptor_receive_all(source, &report, sizeof report, NULL, clock_now_ms() + LIST_MS);
    for (int i = 0; left && report.good && i < MAX_SESSIONS; i++)
        if (sessions[i].pid != 0) greeting_pass(sessions[i].control, &greeting, -1);
    close(source);
    source = -1;
}

bool mover_restore(int from) {
    struct moved_head head;
    struct moved_client clients[MAX_SESSIONS];
    struct session *made[MAX_SESSIONS];
    struct moves_report report = {.why = "what was written down is malformed"};
    printf("{\"event\": \"waiting\"}\n");
    fflush(stdout);
    int probe;
    bool good =
        descriptor_receive_all(from, &head, sizeof head, &probe, clock_now_ms() + HEAD_MS) &&
        memcmp(head.magic, MOVED_MAGIC, sizeof head.magic) == 0 && head.version == MOVED_VERSION &&
        head.sessions <= (uint32_t)options.sessions &&
        descriptor_receive_all(from, clients, head.sessions * sizeof *clients, NULL,
                               clock_now_ms() + LIST_MS);
    bool here = good && probe >= 0;
    if (here) close(probe);
    good =
        answer_source(from, &report, here, good && prepare(clients, head.sessions, made, &report));
    static const uint32_t orders[] = {ORDER_AHEAD, ORDER_REBUILD};
    for (unsigned i = 0; good && i < 2; i++) {
        good = take_all(from, orders[i], made, head.sessions, &report);
        good = answer_source(from, &report, here, good);
    }
    if (good)
        printf("{\"event\": \"restored\", \"sessions\": %u}\n", head.sessions);
    else
        fprintf(stderr, "egpu-executor: nothing is restored: %s\n", report.why);
    fflush(stdout);
    if (good) source = from;
    return good; /* `from` stays open: its end tells the source of ours */
}
