/* Room on a card that several slices share. Their limits together are more than the card has, so an
 * arbiter outside says in the policy page how much of each may be on the card (room_bytes), and
 * whoever needs more waits here. The driver has the last word: it may still be full when the
 * arbiter has given the room away, as another slice takes its time to leave.
 *
 * Bytes are charged first, and count as "on the card" (charged, and not parked_bytes) before
 * anybody compares them with the room. So of two processes of the slice, at least one sees the
 * other; and whoever takes room away from the slice, and reads its bytes afterwards, sees them too.
 *
 * If the arbiter is gone, its last word holds for some seconds (room_until_ns), and then the
 * driver's alone.
 */
#define _GNU_SOURCE
#include "parking.h"

#include <unistd.h>

enum { FIRST_RETRY_NS = 1000000, LONGEST_RETRY_NS = 50000000 };
/* How long a call waits for room, before it fails with the memory as it was: while nobody keeps the
 * room from it; and while an arbiter does, who gives each its turn. */
#ifndef EGPU_WAKE_PATIENCE_NS
#define EGPU_WAKE_PATIENCE_NS 120000000000u
#endif
#define HELD_PATIENCE_NS 3600000000000u

static uint64_t parked_shown;

void room_forget(void) { parked_shown = 0; }

static void count_away(uint64_t more) { /* modular: may be negative */
    struct egpu_usage_slot *slot = slot_of(0);
    if (slot != NULL && more != 0) __atomic_fetch_add(&slot->parked_bytes, more, __ATOMIC_SEQ_CST);
}

void room_show_parked(uint64_t bytes) {
    count_away(bytes - parked_shown);
    parked_shown = bytes;
}

/* What the slice's processes have on the card. The slice has one device: a condition of the gate.
 */
static uint64_t on_card(void) {
    const struct egpu_usage *usage = slice_usage();
    uint64_t away = 0, all = __atomic_load_n(&usage->devices[0].memory_bytes, __ATOMIC_SEQ_CST);
    for (unsigned i = 0; i < EGPU_USAGE_SLOTS; i++)
        if (__atomic_load_n(&usage->slots[i].state, __ATOMIC_ACQUIRE) == EGPU_SLOT_LIVE)
            away =
                add_bytes(away, __atomic_load_n(&usage->slots[i].parked_bytes, __ATOMIC_SEQ_CST));
    return away < all ? all - away : 0;
}

static bool is_held(uint64_t now) {
    policy_look();
    return now < __atomic_load_n(&room_until_ns, __ATOMIC_RELAXED);
}

static bool fits(void) {
    return !is_held(now_ns()) || on_card() <= __atomic_load_n(&room_bytes, __ATOMIC_RELAXED);
}

static bool is_waking(const struct room_wait *wait) { return wait->bytes == 0; }

void room_begin(struct room_wait *wait, uint64_t bytes) {
    *wait = (struct room_wait){.bytes = bytes, .retry_ns = FIRST_RETRY_NS};
    count_away(bytes);
    /* A process that wakes is outside. */
    wait->out = !is_waking(wait) && gate_step_out();
}

bool room_claim(struct room_wait *wait) {
    count_away(-(is_waking(wait) ? parked_shown : wait->bytes));
    wait->claimed = true;
    wait->refused = !fits();
    if (wait->refused) room_unclaim(wait);
    return wait->claimed;
}

void room_unclaim(struct room_wait *wait) {
    count_away(is_waking(wait) ? parked_shown : wait->bytes);
    wait->claimed = false;
}

bool room_pause(struct room_wait *wait) {
    uint64_t began = now_ns();
    account_reap(0);
    if (room_is_shared())
        __atomic_store_n(&slice_usage()->devices[0].room_asked_ns, began, __ATOMIC_RELEASE);
    /* Not in step with another that waits for the same room. */
    sleep_ns(wait->retry_ns + (uint64_t)getpid() % 16 * (wait->retry_ns / 16));
    if (wait->retry_ns < LONGEST_RETRY_NS) wait->retry_ns *= 2;
    *(wait->refused ? &wait->held_ns : &wait->alone_ns) += now_ns() - began;
    return wait->alone_ns < EGPU_WAKE_PATIENCE_NS && wait->held_ns < HELD_PATIENCE_NS;
}

bool room_end(struct room_wait *wait) {
    if (is_waking(wait)) {
        if (wait->claimed) parked_shown = 0;
        return true;
    }
    if (!wait->claimed) count_away(-wait->bytes); /* about to be released */
    return !wait->out || gate_step_in();
}

bool room_admit(uint64_t bytes) {
    if (fits()) return true;
    struct room_wait wait;
    room_begin(&wait, bytes);
    while (!room_claim(&wait) && room_pause(&wait)) continue;
    return room_end(&wait) && wait.claimed;
}
