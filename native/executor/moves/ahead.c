/* What the target can have before the session stops: the contexts of its cards, its modules and its
 * memory. The session goes on meanwhile. What it changes is found when it is written down: its list
 * of mappings is whole, memory is compared, and an image that was loaded since is sent then. What
 * was loaded ahead waits for the frame that loads it.
 */
#include "executor/session/session.h"

#include <stdio.h>

#include "executor/moves/mappings.h"

#define AHEAD_IMAGES 128 /* with those of the rest of the session, as many as are kept at all */
#define AHEAD_BYTES WIRE_MAX_IMAGE
#define AHEAD_LOADS 1024
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
    uint64_t order, context;
    struct moved_load is;
    bool first; /* of its image */
};
struct ahead {
    struct load *loads;
    struct image_hold images[AHEAD_IMAGES];
    struct arena_mapping *mappings;
    uint64_t contexts, primary[WIRE_MAX_DEVICES]; /* by card */
    uint64_t last;                                /* of the loads whose images are held */
    uint32_t load_count, load_room, image_count, mapping_count;
    bool bad;
};

static int by_order(const void *a, const void *b) {
    const struct load *one = a, *other = b;
    return (one->order > other->order) - (one->order < other->order);
}

static void see_context(struct ahead *ahead, uint64_t context, uint64_t card) {
    ahead->contexts |= card;
    if (card != 0) ahead->primary[__builtin_ctzll(card)] = context;
}

static bool see_object(const struct handle_seen *seen, void *data) {
    struct ahead *ahead = data;
    for (const struct kept *kept = seen->kept; kept != NULL; kept = kept->next) {
        struct wire_load load;
        if (kept->op == OP_cuDevicePrimaryCtxRetain) see_context(ahead, seen->id, card_of(kept));
        if (kept->op != OP_MODULE_LOAD && kept->op != OP_LIBRARY_LOAD) continue;
        memcpy(&load, kept->payload, sizeof load);
        if (load.inline_bytes != 0) continue; /* in the frame itself */
        if (!moves_grow((void **)&ahead->loads, ahead->load_count, &ahead->load_room,
                        sizeof *ahead->loads))
            return !(ahead->bad = true);
        struct load *added = &ahead->loads[ahead->load_count++];
        *added = (struct load){.order = kept->order,
                               .context = kept->context,
                               .is = {.total = load.total, .kind = wire_kind_of(seen->id)}};
        memcpy(added->is.digest, load.digest, sizeof load.digest);
    }
    return true;
}

static struct image_hold *held(struct ahead *ahead, const struct load *load) {
    for (uint32_t i = 0; i < ahead->image_count; i++)
        if (memcmp(ahead->images[i].digest, load->is.digest, sizeof load->is.digest) == 0)
            return &ahead->images[i];
    return NULL;
}

/* Keeps the first images, each once. No call runs meanwhile. */
static void hold_images(struct ahead *ahead) {
    uint64_t bytes = 0;
    uint32_t count = 0;
    if (ahead->load_count != 0)
        qsort(ahead->loads, ahead->load_count, sizeof *ahead->loads, by_order);
    for (; count < ahead->load_count && count < AHEAD_LOADS; count++) {
        struct load *load = &ahead->loads[count];
        load->first = held(ahead, load) == NULL;
        if (load->first) {
            if (ahead->image_count == AHEAD_IMAGES || (bytes += load->is.total) > AHEAD_BYTES)
                break;
            struct image_hold *hold = &ahead->images[ahead->image_count];
            hold->total = load->is.total;
            memcpy(hold->digest, load->is.digest, sizeof hold->digest);
            if (!image_hold(hold)) break;
            ahead->image_count++;
        }
        ahead->last = load->order;
    }
    ahead->load_count = count;
}

/* False: the module is in a context that the target makes when it is rebuilt. */
static bool find_card(const struct ahead *ahead, struct load *load) {
    for (; load->is.card < WIRE_MAX_DEVICES; load->is.card++)
        if (load->is.kind == KIND_library || (ahead->contexts >> load->is.card & 1 &&
                                              ahead->primary[load->is.card] == load->context))
            return true;
    return false;
}

static void put_load(struct moved_stream *to, struct ahead *ahead, struct load *load) {
    const struct image_hold *image = held(ahead, load);
    if (load->first) {
        moved_put_image(to, image->digest, image->bytes, image->total);
        variables_look(image);
    }
    if (find_card(ahead, load)) moved_put(to, PART_LOAD, &load->is, sizeof load->is, NULL, 0);
}

static void put_all(struct moved_stream *to, struct ahead *ahead) {
    struct arena_state arena = arena_state();
    struct moved_ahead is = {MOVED_VERSION, EGPU_WIRE_TABLE_HASH, arena.base, arena.bytes,
                             ahead->contexts};
    size_t bytes;
    const uint8_t *snapshot = connection_snapshot(&bytes);
    moved_put(to, PART_AHEAD, &is, sizeof is, NULL, 0);
    moved_put(to, PART_CARDS, snapshot, bytes, NULL, 0);
    for (uint32_t i = 0; i < ahead->mapping_count; i++)
        moved_put(to, PART_MAPPING, &ahead->mappings[i], sizeof *ahead->mappings, NULL, 0);
    for (uint32_t i = 0; i < ahead->load_count; i++) put_load(to, ahead, &ahead->loads[i]);
    bool pauses = true;
    for (uint32_t i = 0; i < ahead->mapping_count && pauses; i++)
        if (ahead->contexts >> ahead->mappings[i].device & 1)
            pauses = memory_put_ahead(to, &ahead->mappings[i]);
    moved_put(to, PART_END, NULL, 0, NULL, 0);
    moved_flush(to);
}

void ahead_forget(void) {
    last_load = 0;
    variables_forget();
    memory_forget();
}

bool ahead_write(int descriptor, char *why, uint64_t *bytes, bool *broke) {
    struct moved_stream to = {.descriptor = descriptor};
    struct ahead ahead = {.loads = NULL};
    ahead_forget();
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
    for (uint32_t i = 0; i < ahead.image_count; i++) image_give(&ahead.images[i]);
    free(ahead.loads);
    free(ahead.mappings);
    free(to.buffer);
    *broke = to.bad;
    *bytes = to.bytes;
    if (to.bad) snprintf(why, MOVES_WHY_BYTES, "the connection to the target broke");
    return !ahead.bad && !to.bad;
}

/* ---- the target ---- */

static struct ready {
    struct moved_load is;
    CUcontext context; /* of a module */
    uint64_t value;    /* 0: a frame has it */
} *ready;
static uint32_t ready_count, ready_room;

static void load(const struct moved_load *is) {
    const struct image *image = image_known(is->digest, is->total);
    struct ready made = {.is = *is};
    char log[2] = "";
    if (image == NULL || !image_is_whole(image) || image_stays(image->bytes, image->total) != NULL)
        return;
    if (is->kind == KIND_module &&
        (!contexts_enter(is->card) || DRIVER(cuCtxGetCurrent, CUcontext *)(&made.context) != 0))
        return;
    if (moves_grow((void **)&ready, ready_count, &ready_room, sizeof *ready) &&
        image_load(image, is->kind, log, 0, &made.value) == CUDA_SUCCESS)
        ready[ready_count++] = made;
}

bool loads_take(const uint8_t *payload, size_t bytes) {
    struct moved_load is;
    if (bytes != sizeof is || ready_count == AHEAD_LOADS) return false;
    memcpy(&is, payload, sizeof is);
    if ((is.kind != KIND_module && is.kind != KIND_library) || is.card >= WIRE_MAX_DEVICES)
        return false;
    load(&is);
    return true;
}

bool loads_find(const struct wire_load *ask, unsigned kind, uint64_t *value) {
    CUcontext current = NULL;
    if (ready_count == 0) return false;
    if (kind == KIND_module && DRIVER(cuCtxGetCurrent, CUcontext *)(&current) != CUDA_SUCCESS)
        return false;
    for (uint32_t i = 0; i < ready_count; i++) {
        struct ready *one = &ready[i];
        if (one->value == 0 || one->is.kind != kind || one->context != current ||
            one->is.total != ask->total || memcmp(one->is.digest, ask->digest, 32) != 0)
            continue;
        *value = one->value;
        one->value = 0;
        return true;
    }
    return false;
}

void loads_drop(void) {
    for (uint32_t i = 0; i < ready_count; i++) {
        const struct ready *one = &ready[i];
        if (one->value == 0) continue;
        if (one->is.kind == KIND_library)
            DRIVER(cuLibraryUnload, CUlibrary)((CUlibrary)(uintptr_t)one->value);
        else if (contexts_enter(one->is.card))
            DRIVER(cuModuleUnload, CUmodule)((CUmodule)(uintptr_t)one->value);
    }
    driver_leave();
    free(ready);
    ready = NULL;
    ready_count = ready_room = 0;
}
