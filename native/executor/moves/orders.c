/* What the parent orders a session to do for a move. In the session's control thread: the one that
 * serves stands still meanwhile. */
#include "executor/session/session.h"

#include <sys/socket.h>
#include <unistd.h>

#include "common/descriptor.h"
#include "executor/moves/moves.h"

bool orders_report(int control, const struct moves_report *report) {
    struct iovec part = {(void *)(uintptr_t)report, sizeof *report};
    return descriptor_send_all(control, &part, 1, -1, 0);
}

void orders_carry_out(int control, uint32_t order, uint64_t number, int descriptor) {
    struct moves_report report = {.order = number};
    bool broke = false;
    switch (order) {
    case ORDER_LOOK:
        report.good = session_moves(report.why, &report.bytes);
        report.here = session.transport == &transport_shared;
        break;
    case ORDER_STOP: report.good = gate_close(report.why); break;
    case ORDER_AHEAD:
        report.good = ahead_write(descriptor, report.why, &report.bytes, &broke);
        report.broke = broke;
        break;
    case ORDER_WRITE:
        report.good = session_write(descriptor, report.why, &report.bytes, &broke);
        report.broke = broke;
        break;
    case ORDER_BEGIN: connection_begin(); break;
    default: /* no report */ ahead_forget(); gate_open();
    }
    if (descriptor >= 0) close(descriptor);
    if (order != ORDER_GO_ON && order != ORDER_BEGIN && !orders_report(control, &report))
        session_end(0);
}
