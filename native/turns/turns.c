/* The rule of turns. See turns.h. */
#include "turns.h"

static uint64_t later(uint64_t a, uint64_t b) { return a > b ? a : b; }
static uint64_t earlier(uint64_t a, uint64_t b) { return a < b ? a : b; }

enum { PART_NS = TURN_BUDGET_NS / TURN_PARTS };

/* Charges a turn, or takes back what a shorter one did not use, when it ends. */
static void charge(struct turn_slice *slice, uint64_t until, int64_t cost_ns) {
    uint64_t number = until / PART_NS;
    int place = (int)(number % TURN_RING);
    if (slice->parts[place].number != number) slice->parts[place].cost_ns = 0;
    slice->parts[place].number = number;
    slice->parts[place].cost_ns += cost_ns;
}

static uint64_t left_ns(const struct turn_slice *slice, uint64_t now) {
    int64_t left = (int64_t)((uint64_t)TURN_BUDGET_NS / 1000000 * slice->core_ppm);
    for (int i = 0; i < TURN_RING; i++)
        if (slice->parts[i].number + TURN_PARTS > now / PART_NS) left -= slice->parts[i].cost_ns;
    return left > 0 ? (uint64_t)left : 0;
}

/* Return whether another slice wants the card, and in `free_ns` when its work should be over. */
static bool is_wanted(const struct turn_card *card, uint64_t now, uint64_t *free_ns) {
    bool wanted = false;
    *free_ns = now;
    for (int i = 0; i < card->count; i++) {
        const struct turn_slice *slice = &card->slices[i];
        if (slice->latency) continue;
        uint64_t last = later(slice->wanted_ns, slice->queued_until_ns);
        wanted |= last + TURN_WANTED_NS > now;
        *free_ns = later(*free_ns, earlier(slice->queued_until_ns, now + TURN_RUN_ON_NS));
    }
    return wanted;
}

/* Sets the end of the card's hold by the turns that are paid for. */
static void hold(struct turn_card *card, uint64_t now) {
    uint64_t until = 0, from = UINT64_MAX;
    for (int i = 0; i < card->count; i++) {
        const struct turn_slice *slice = &card->slices[i];
        if (!slice->latency || slice->paid_until_ns == 0 || slice->until_ns <= now) continue;
        until = later(until, slice->until_ns);
        from = earlier(from, slice->from_ns);
    }
    if (card->until_ns > now || until > now) card->serial++;
    if (card->until_ns <= now && until > now) { /* a new hold */
        card->since_ns = now;
        card->from_ns = from;
        card->held_before_ns = card->held_ns;
    } else if (card->until_ns > now) {
        until = later(until, now); /* longer, shorter, or over */
    } else {
        return;
    }
    card->until_ns = until;
    card->held_ns = card->held_before_ns + (until > card->from_ns ? until - card->from_ns : 0);
}

static void finish(struct turn_card *card, struct turn_slice *slice, uint64_t now) {
    if (slice->until_ns <= now) return;
    if (slice->paid_until_ns != 0) /* those that it held learn of the end late */
        charge(slice, slice->paid_until_ns,
               (int64_t)(later(now, slice->from_ns) + TURN_SWITCH_NS) -
                   (int64_t)slice->paid_until_ns);
    slice->until_ns = now;
    slice->serial++;
    hold(card, now);
}

void turn_answer(struct turn_card *card, struct turn_slice *slice, uint64_t now) {
    if (slice->ask_until_ns <= now) {
        finish(card, slice, now);
        return;
    }
    uint64_t free_ns, ask_ns = earlier(slice->ask_until_ns, now + TURN_BUDGET_NS);
    bool wanted = is_wanted(card, now, &free_ns), goes_on = slice->until_ns > now;
    if (!wanted) {
        if (!goes_on) slice->since_ns = slice->from_ns = now;
        slice->until_ns = later(slice->until_ns, ask_ns + TURN_FREE_NS);
        slice->paid_until_ns = 0;
    } else {
        goes_on = goes_on && slice->paid_until_ns != 0;
        uint64_t since = goes_on ? slice->since_ns : now, from = goes_on ? slice->from_ns : free_ns,
                 paid = goes_on ? slice->paid_until_ns : from;
        /* It asks by its own clock, and does not know what runs before its work. */
        uint64_t until = earlier(ask_ns + (from - since), paid + left_ns(slice, now));
        if (until <= paid || until + slice->ask_spare_ns < ask_ns + (from - since)) return;
        charge(slice, until, (int64_t)(until - paid));
        slice->since_ns = since;
        slice->from_ns = from;
        slice->paid_until_ns = slice->until_ns = until;
    }
    slice->serial++;
    hold(card, now);
}

void turn_hear(struct turn_slice *slice, const struct egpu_usage_device *totals,
               const struct egpu_usage_ask *ask) {
    slice->ask_until_ns = ask->until_ns;
    slice->ask_spare_ns = ask->spare_us * 1000ull;
    slice->wanted_ns = ask->wanted_ns;
    slice->queued_until_ns = totals->queued_until_ns;
}

static void store(uint64_t *word, uint64_t value) {
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

void turn_tell(const struct turn_card *card, const struct turn_slice *slice,
               struct egpu_policy_turn *turn) {
    store(&turn->since_ns, slice->latency ? slice->since_ns : card->since_ns);
    store(&turn->from_ns, slice->latency ? slice->from_ns : card->from_ns);
    store(&turn->held_ns, slice->latency ? slice->paid_until_ns : card->held_ns);
    store(&turn->until_ns, slice->latency ? slice->until_ns : card->until_ns);
    __atomic_store_n(&turn->serial, slice->latency ? slice->serial : card->serial,
                     __ATOMIC_RELEASE);
}
