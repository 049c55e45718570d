/* What the target can have before the session stops: its memory, the images of its modules and the
 * contexts of its cards. The session goes on meanwhile. What it changes is found when it is written
 * down: its list of mappings is whole, and an image that was loaded since is sent then.
 */
#include "executor/session/session.h"

#include <stdio.h>

#include "executor/moves/mappings.h"

#define AHEAD_IMAGES 128 /* with those of the rest of the session, as many as are kept at all */
#define AHEAD_BYTES WIRE_MAX_IMAGE
#define PAUSE_MS 30000

static uint64_t last_load; /* the target has the images up to this one */

bool ahead_has(const struct kept *load) { return load->order <= last_load; }

/* ---- the source ---- */

/* The frame has a mask, the context's handle and then the card. */
static uint64_t card_of(const struct kept *retain) {
    struct reader in = {retain->payload, retain->bytes, false};
    CUdevice card = 0;
    get_word(&in);
    get_word(&in);
    get_bytes(&in, &card, sizeof card);
    return in.bad || (unsigned)card >= WIRE_MAX_DEVICES ? 0 : UINT64_C(1) << card;
}

struct load {
    uint64_t order;
    struct image_hold image;
};
struct ahead {
    struct load *loads;
    struct arena_mapping *mappings;
    uint64_t contexts, last; /* of the loads whose images are held */
    uint32_t load_count, load_room, mapping_count;
    bool bad;
};

static int by_order(const void *a, const void *b) {
    const struct load *one = a, *other = b;
    return (one->order > other->order) - (one->order < other->order);
}

static bool see_object(const struct handle_seen *seen, void *data) {
    struct ahead *ahead = data;
    for (const struct kept *kept = seen->kept; kept != NULL; kept = kept->next) {
        struct wire_load load;
        if (kept->op == OP_cuDevicePrimaryCtxRetain) ahead->contexts |= card_of(kept);
        if (kept->op != OP_MODULE_LOAD && kept->op != OP_LIBRARY_LOAD) continue;
        memcpy(&load, kept->payload, sizeof load);
        if (load.inline_bytes != 0) continue; /* in the frame itself */
        if (!moves_grow((void **)&ahead->loads, ahead->load_count, &ahead->load_room,
                        sizeof *ahead->loads))
            return !(ahead->bad = true);
        struct load *added = &ahead->loads[ahead->load_count++];
        *added = (struct load){.order = kept->order, .image.total = load.total};
        memcpy(added->image.digest, load.digest, sizeof load.digest);
    }
    return true;
}

static bool is_held(const struct ahead *ahead, uint32_t held, const struct load *load) {
    for (uint32_t i = 0; i < held; i++)
        if (memcmp(ahead->loads[i].image.digest, load->image.digest, 32) == 0) return true;
    return false;
}

/* Keeps the first images, each once. No call runs meanwhile. */
static void hold_images(struct ahead *ahead) {
    uint64_t bytes = 0;
    uint32_t count = 0, held = 0;
    if (ahead->load_count != 0)
        qsort(ahead->loads, ahead->load_count, sizeof *ahead->loads, by_order);
    for (; count < ahead->load_count && held < AHEAD_IMAGES; count++) {
        struct load *load = &ahead->loads[count];
        bool known = is_held(ahead, held, load);
        if (!known && (bytes += load->image.total) > AHEAD_BYTES) break;
        if (!known) ahead->loads[held] = *load;
        if (!known && !image_hold(&ahead->loads[held].image)) break;
        held += !known;
        ahead->last = load->order;
    }
    ahead->load_count = held;
}

static void put_all(struct moved_stream *to, const struct ahead *ahead) {
    struct arena_state arena = arena_state();
    struct moved_ahead is = {MOVED_VERSION, EGPU_WIRE_TABLE_HASH, arena.base, arena.bytes,
                             ahead->contexts};
    size_t bytes;
    const uint8_t *snapshot = connection_snapshot(&bytes);
    moved_put(to, PART_AHEAD, &is, sizeof is, NULL, 0);
    moved_put(to, PART_CARDS, snapshot, bytes, NULL, 0);
    for (uint32_t i = 0; i < ahead->mapping_count; i++)
        moved_put(to, PART_MAPPING, &ahead->mappings[i], sizeof *ahead->mappings, NULL, 0);
    for (uint32_t i = 0; i < ahead->load_count; i++) {
        const struct image_hold *image = &ahead->loads[i].image;
        moved_put_image(to, image->digest, image->bytes, image->total);
    }
    moved_put(to, PART_END, NULL, 0, NULL, 0);
    moved_flush(to);
}

bool ahead_write(int descriptor, char *why, uint64_t *bytes, bool *broke) {
    struct moved_stream to = {.descriptor = descriptor};
    struct ahead ahead = {.loads = NULL};
    last_load = 0;
    if (!gate_pause(PAUSE_MS)) {
        snprintf(why, MOVES_WHY_BYTES, "a call does not end within %d s", PAUSE_MS / 1000);
        return false;
    }
    handles_each(see_object, &ahead);
    hold_images(&ahead);
    ahead.mappings = arena_mappings(&ahead.mapping_count);
    gate_open();
    ahead.bad |= ahead.mappings == NULL;
    if (ahead.bad)
        snprintf(why, MOVES_WHY_BYTES, "no memory");
    else
        put_all(&to, &ahead);
    if (!ahead.bad && !to.bad) last_load = ahead.last;
    for (uint32_t i = 0; i < ahead.load_count; i++) image_give(&ahead.loads[i].image);
    free(ahead.loads);
    free(ahead.mappings);
    free(to.buffer);
    *broke = to.bad;
    *bytes = to.bytes;
    if (to.bad) snprintf(why, MOVES_WHY_BYTES, "the connection to the target broke");
    return !ahead.bad && !to.bad;
}
