/* Connections, clients, and the fault that clients share.
 *
 * A client that ends with a fault ends all of them, each with that error. No client may join until
 * all of them have ended; then the server starts afresh.
 */
#include "daemon.h"

#include "common/clock.h"

#include <cuda.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define LOOK_MS 100 /* while clients are waited for */

void control_log(const char *format, ...) {
    char line[256], now[32];
    struct tm parts;
    time_t seconds = time(NULL);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    strftime(now, sizeof now, "%F %T", gmtime_r(&seconds, &parts));
    fprintf(stderr, "[%s Control %d] %s\n", now, (int)getpid(), line);
}

void control_init(struct control *control, int listener, int privileged) {
    *control = (struct control){
        .listener = listener, .privileged = privileged, .defaults = {.percentage = 100}};
    for (int i = 0; i < MPS_MAX_DEVICES; i++) control->defaults.bytes[i] = MPS_NO_LIMIT;
}

int control_clients(const struct control *control) {
    int clients = 0;
    for (int i = 0; i < control->count; i++) clients += control->connections[i].client;
    return clients;
}

void control_start_server(struct control *control) {
    if (control->serving) return;
    control->serving = true;
    control->server = control->defaults;
    control_log("server %d started at %g %%", (int)getpid(), (double)control->server.percentage);
}

static void drop(struct control *control, int at) {
    struct connection gone = control->connections[at];
    close(gone.fd);
    control->connections[at] = control->connections[--control->count];
    if (gone.client) control_log("client %d left", (int)gone.pid);
    if (!control->fault || control_clients(control)) return;
    control->fault = 0;
    control_log("all clients of the fault are gone");
}

static void come_in(struct control *control, bool privileged) {
    struct ucred peer = {0};
    socklen_t size = sizeof peer;
    int from = privileged ? control->privileged : control->listener;
    int fd = accept4(from, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0) return;
    if (control->count >= (privileged ? MAX_CONNECTIONS : MAX_PROGRAMS) ||
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
        close(fd);
        return;
    }
    control->connections[control->count++] =
        (struct connection){.fd = fd, .pid = peer.pid, .privileged = privileged};
}

static CUresult admitted(const struct control *control) {
    if (control->fault || control->quitting) return CUDA_ERROR_MPS_SERVER_NOT_READY;
    return control_clients(control) < MAX_CLIENTS ? CUDA_SUCCESS
                                                  : CUDA_ERROR_MPS_MAX_CLIENTS_REACHED;
}

static void join(struct control *control, struct connection *who, struct mps_message *answer) {
    *answer = (struct mps_message){.kind = MPS_WELCOME, .result = admitted(control)};
    if (answer->result != CUDA_SUCCESS) return;
    control_start_server(control);
    answer->server = (uint32_t)getpid();
    answer->percentage = control->server.percentage;
    memcpy(answer->limit_bytes, control->server.bytes, sizeof answer->limit_bytes);
    who->client = true;
    control_log("client %d came", (int)who->pid);
}

static void share_fault(struct control *control, const struct connection *from, int fault) {
    if (!from->client || control->fault) return;
    control->fault = fault;
    control_log("client %d ended with error %d, and with it all others", (int)from->pid, fault);
    struct mps_message news = {.kind = MPS_FAULT, .result = fault};
    for (int i = 0; i < control->count; i++) {
        const struct connection *other = &control->connections[i];
        if (other->client && other != from) mps_send(other->fd, &news);
    }
}

static bool hear(struct control *control, struct connection *who) {
    struct mps_message message, answer = {.kind = MPS_ANSWER};
    if (!mps_receive(who->fd, &message, MSG_DONTWAIT)) return false;
    switch (message.kind) {
    case MPS_COMMAND:
        if (!who->privileged) return false;
        control_command(control, message.text, &answer);
        break;
    case MPS_JOIN: join(control, who, &answer); break;
    case MPS_FAULT: share_fault(control, who, message.result); return true;
    default: return false;
    }
    return mps_send(who->fd, &answer);
}

static bool over(const struct control *control) {
    return control->quitting &&
           (!control_clients(control) || clock_now_ns() >= control->deadline_ns);
}

void control_run(struct control *control) {
    while (!over(control)) {
        struct pollfd waits[MAX_CONNECTIONS + 2];
        int count = control->count;
        for (int i = 0; i < count; i++)
            waits[i] = (struct pollfd){.fd = control->connections[i].fd, .events = POLLIN};
        waits[count] = (struct pollfd){.fd = control->listener, .events = POLLIN};
        waits[count + 1] = (struct pollfd){.fd = control->privileged, .events = POLLIN};
        if (poll(waits, (nfds_t)count + 2, control->quitting ? LOOK_MS : -1) <= 0) continue;
        if (waits[count].revents) come_in(control, false);
        if (waits[count + 1].revents) come_in(control, true);
        /* from the last one: a dropped one's place goes to one that was handled, or is new */
        for (int i = count - 1; i >= 0; i--)
            if (waits[i].revents && !hear(control, &control->connections[i])) drop(control, i);
    }
}
