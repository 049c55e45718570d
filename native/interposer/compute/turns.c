/* Turns on a card that slices of latency work share with others: see egpu_abi.h and
 * native/turns/turns.h.
 *
 * A slice of latency work asks when it begins to work, and launches its first work without waiting
 * for the answer: once for each turn that it had. More waits for the turn. It asks for as long as
 * it worked the last time, and again when it needs more. The arbiter may hear of several requests
 * at once, so none of a burst takes back a part of the one before.
 *
 * A yielding slice starts a kernel shortly before the one before it should end. It does not start
 * one behind a long kernel: this may have begun late, or take longer than before. So never more
 * than the rest of one kernel, and little else, is before the work of others. */
#include "compute.h"

#include <string.h>

enum {
    FREE_NS = 1000000,      /* of work that does not wait for its turn */
    MORE_NS = 100000,       /* than expected, in a second request of the same work */
    FORESEEN_NS = 20000000, /* most that is asked for beyond the work that is known */
    NEARLY_PART = 8,        /* of the budget may lack where work is longer than all of it */
    LATE_NS = 1000000,      /* a turn that was asked for so late is not that of a launch */
    BEFORE_NS = 20000,      /* a kernel is queued so long before the one before it should end */
    SPIN_NS = 120000,       /* a timer is late by as much as half of it */
    LONG_NS = 1000000,      /* a kernel that no other is queued behind; it costs one look */
    LOOK_AGAIN_NS = 20000,
    LONG_WAIT_NS = 2000000, /* after so long a wait it looks less often */
};
#define SILENCE_NS 2500000000u /* longer than any wait for a part of the budget */

static struct burst {
    uint64_t began_ns, cost_ns, last_ns; /* what it and the one before cost so far */
    uint64_t asked_until_ns;
    uint64_t waits_since_ns; /* for an answer; 0: it does not */
    uint32_t used;           /* the turn before which work was launched without waiting */
    bool has_used;
} bursts[EGPU_MAX_DEVICES];

void turns_forget(void) { memset(bursts, 0, sizeof bursts); }

static void want(int device, uint64_t now) { POKE(slice_usage()->asks[device].wanted_ns, now); }

static void ask(int device, uint64_t until, uint64_t spare_ns) {
    struct egpu_usage_ask *ask = &slice_usage()->asks[device];
    POKE(ask->spare_us, (uint32_t)(spare_ns / 1000));
    POKE(ask->until_ns, until);
    __atomic_fetch_add(&ask->serial, 1, __ATOMIC_RELEASE);
    turn_wake(&ask->serial);
}

/* Work that is longer than any turn begins with one of nearly the whole budget. */
static uint64_t most_of(int device) {
    uint64_t budget = share_of(LATENCY_BURST_NS, LIMIT(device, core_ppm));
    return budget - budget / NEARLY_PART;
}

/* Return whether the slice may queue work until `needs` in the turn that it has. */
static bool is_covered(int device, uint64_t now, uint64_t needs, uint64_t expected_ns,
                       uint64_t until) {
    uint64_t most = most_of(device);
    return needs <= until ||
           (expected_ns > most && needs == now + expected_ns && until > now + most - LATE_NS);
}

uint64_t turn_wait_ns(int device, uint64_t now, uint64_t busy_until, uint64_t expected_ns,
                      uint64_t *until) {
    const struct egpu_policy_turn *turn = &policy_turns[device];
    struct burst *burst = &bursts[device];
    bool begins = busy_until <= now;
    uint64_t needs = (begins ? now : busy_until) + expected_ns;
    *until = PEEK(turn->until_ns);
    if (is_covered(device, now, needs, expected_ns, *until)) {
        burst->waits_since_ns = 0;
        if (*until < needs) *until = needs;
        return 0;
    }
    /* No arbiter: one that lives gives out some of the budget within the time that it is of. */
    if (burst->waits_since_ns == 0) burst->waits_since_ns = now;
    if (now - burst->waits_since_ns > SILENCE_NS) {
        *until = needs;
        return 0;
    }
    uint64_t more = (needs - burst->began_ns) / 4, asks = needs;
    bool fresh = begins && burst->began_ns + POLL_NS < now;
    if (fresh) {
        burst->last_ns = PEEK(burst->cost_ns);
        if (burst->last_ns > FORESEEN_NS) burst->last_ns = FORESEEN_NS;
        POKE(burst->cost_ns, 0);
        burst->began_ns = now;
        if (burst->last_ns > expected_ns) asks = now + burst->last_ns;
        more = BEFORE_NS;
    } else {
        more = MORE_NS + (more < FORESEEN_NS / 4 ? more : FORESEEN_NS / 4);
    }
    uint32_t serial = PEEK(turn->serial);
    want(device, now);
    uint64_t least = expected_ns > most_of(device) ? now + most_of(device) : needs;
    asks += more;
    if (!fresh && asks < burst->asked_until_ns) asks = burst->asked_until_ns;
    burst->asked_until_ns = asks;
    ask(device, asks, asks - least);
    if (begins && expected_ns <= FREE_NS && (!burst->has_used || burst->used != serial)) {
        burst->used = serial;
        burst->has_used = true;
        burst->waits_since_ns = 0;
        *until = needs;
        return 0;
    }
    return now - burst->waits_since_ns > LONG_WAIT_NS ? LONG_WAIT_NS / 4 : LOOK_AGAIN_NS;
}

void turn_done(int device, uint64_t now) {
    struct egpu_usage_ask *mine = &slice_usage()->asks[device];
    if (LIMIT(device, work) == EGPU_WORK_LATENCY && PEEK(mine->until_ns) > now + SPIN_NS / 2)
        ask(device, now, 0);
}

uint64_t yield_wait_ns(struct meter *meter, uint64_t now, uint64_t expected_ns) {
    const struct egpu_policy_turn *turn = &policy_turns[meter->device];
    uint64_t held = PEEK(turn->until_ns), ended = 0, queued = 0;
    int outstanding = 0;
    want(meter->device, now);
    if (held > now + BEFORE_NS) return held - BEFORE_NS - now;
    lock_take(&meter->lock);
    if (now - meter->polled_ns > LOOK_AGAIN_NS / 2) charge_ended(meter, now);
    for (int i = 0; i < BATCHES; i++) {
        struct batch *batch = &meter->batches[i];
        if (__atomic_load_n(&batch->state, __ATOMIC_ACQUIRE) != BATCH_ENDED) continue;
        outstanding++;
        queued = PEEK(batch->estimate_ns);
        if (batch->opened_ns > ended) ended = batch->opened_ns;
    }
    if (meter->has_latest && (uint64_t)(meter->latest_ns + meter->offset_ns) > ended)
        ended = (uint64_t)(meter->latest_ns + meter->offset_ns);
    lock_drop(&meter->lock);
    if (outstanding > 1) return LOOK_AGAIN_NS;
    uint64_t ends = outstanding == 0 ? now : ended + queued;
    if (ends > now + BEFORE_NS) return ends - BEFORE_NS - now;
    if (outstanding == 1 && queued >= LONG_NS) return LOOK_AGAIN_NS;
    if (LIMIT(meter->device, window_period_us) != 0) return 0; /* queue_wait_ns counts it */
    POKE(slice_usage()->devices[meter->device].queued_until_ns,
         (ends > now ? ends : now) + expected_ns);
    return 0;
}

/* Half of the time at most: work may be over earlier than expected, and timers are late. */
void turn_pause(int device, uint64_t wait_ns) {
    const uint32_t *serial = &policy_turns[device].serial;
    if (wait_ns > SPIN_NS)
        turn_sleep(serial, PEEK(*serial), wait_ns / 2);
    else
        turn_spin(wait_ns < LOOK_AGAIN_NS ? wait_ns : LOOK_AGAIN_NS);
}

struct turn_cost turn_cost(const struct batch *batch, uint64_t start_ns, uint64_t end_ns,
                           uint64_t cost_ns) {
    int device = batch->lane->meter->device;
    uint64_t estimate_ns = batch->estimate_ns;
    const struct egpu_policy_turn *turn = &policy_turns[device];
    uint64_t own = cost_ns, until = PEEK(turn->until_ns), since = PEEK(turn->since_ns),
             from = PEEK(turn->from_ns);
    struct turn_cost found = {.sample_ns = cost_ns};
    if (LIMIT(device, work) == EGPU_WORK_LATENCY) { /* others' work ran before it */
        /* not a turn after it, nor one that was over before it */
        bool its_own = since < batch->opened_ns + LATE_NS && until > batch->opened_ns;
        found.upper = !its_own || from >= end_ns;
        if (its_own && from > start_ns) own = end_ns > from ? end_ns - from : 0;
        if (!found.upper) found.sample_ns = own;
    } else { /* or with it, on a card that slices time */
        uint64_t first = since > start_ns ? since : start_ns,
                 last = until < end_ns ? until : end_ns;
        if (last > first) own = cost_ns > last - first ? cost_ns - (last - first) : 0;
        found.upper = since < end_ns && until + LATE_NS > start_ns;
    }
    own = own > estimate_ns ? own : estimate_ns;
    found.cost_ns = own < cost_ns ? own : cost_ns;
    __atomic_fetch_add(&bursts[device].cost_ns, found.cost_ns, __ATOMIC_RELAXED);
    return found;
}
