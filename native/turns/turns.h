/* Turns: who has a card now, when slices of latency work share it with others. The rule alone: no
 * clock, no files. The arbiter (main.c) and the model (tests/interposer/pace_world.c) run it.
 *
 * A slice of latency work asks for the card until a time, as if nothing else ran there. If another
 * slice wants the card too, the answer is a *turn*: work that was launched before may end, then the
 * card is the slice's for as long as it asked, and nothing else starts meanwhile (a *hold*).
 *
 * A turn is charged by its length on our clock, whatever the slice did in it: a hold costs the
 * others so much time. No slice gets more than its share of TURN_BUDGET_NS in any TURN_BUDGET_NS. A
 * slice without budget gets no turn while others want the card. So a false request wastes the
 * asking slice's own budget, and a slice that says that it is done has paid for the time until
 * then.
 */
#ifndef EGPU_TURNS_H
#define EGPU_TURNS_H

#include <stdbool.h>
#include <stdint.h>

#include "egpu_abi.h"

enum {
    TURN_SLICES = 64,            /* of one card; others of it take no turns */
    TURN_BUDGET_NS = 2000000000, /* the time over which shares are guaranteed */
    TURN_PARTS = 20,             /* of that time; */
    TURN_RING = 64,              /* and those of turns that are not over */
    TURN_SWITCH_NS = 100000,     /* is charged where a turn ends early */
    TURN_FREE_NS = 2000000,      /* more than is asked, while no other wants the card */
    TURN_WANTED_NS = 5000000,    /* how long ago another's launch counts as wanting the card */
    TURN_RUN_ON_NS = 100000000,  /* most that is believed of work that was launched before */
};

/* A slice on the card. The first part is set by the caller, as it is now. */
struct turn_slice {
    bool latency;
    uint32_t core_ppm;
    /* The slice's own words, believed only as far as they cost itself: of latency work, until when
     * it asks for the card, and how much less is of use; of others, when it last wanted to launch,
     * and when its work ends. */
    uint64_t ask_until_ns, ask_spare_ns, wanted_ns, queued_until_ns;

    uint64_t until_ns, since_ns, from_ns; /* the turn, or the last one */
    uint32_t serial;                      /* of turns so far */
    uint64_t paid_until_ns;               /* at least from_ns; 0: the turn is free */
    struct {
        uint64_t number;
        int64_t cost_ns;
    } parts[TURN_RING]; /* turns that ended in this part of our clock */
};

struct turn_card {
    struct turn_slice slices[TURN_SLICES];
    int count;
    /* the hold, or the last one: nothing starts from since_ns to until_ns; held_ns of it and of all
     * before were time of the card */
    uint64_t until_ns, since_ns, from_ns, held_ns, held_before_ns;
    uint32_t serial;
};

/* Takes in what a slice says of itself: the words of its usage file, which may be any. */
void turn_hear(struct turn_slice *slice, const struct egpu_usage_device *totals,
               const struct egpu_usage_ask *ask);
/* Writes what a slice has to know. */
void turn_tell(const struct turn_card *card, const struct turn_slice *slice,
               struct egpu_policy_turn *turn);
/* Answers the request of a slice of latency work. */
void turn_answer(struct turn_card *card, struct turn_slice *slice, uint64_t now);

#endif
