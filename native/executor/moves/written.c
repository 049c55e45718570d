/* Writes a session down that is stopped: what its client must find again, the memory, and the
 * frames that made everything else. */
#include "executor/session/session.h"

#include <stdio.h>

#include "executor/moves/moves.h"

/* ---- what prevents a move ---- */

static const struct kept *maker_of(const struct handle_seen *seen) {
    for (const struct kept *kept = seen->kept; kept != NULL; kept = kept->next)
        if (kept->rule->class == MOVES_CREATES || kept->rule->class == MOVES_FINDS) return kept;
    return NULL;
}

/* A function that came with its module's list, or a kernel with its library's: found by its name.
 */
static bool is_named(const struct handle_seen *seen) {
    unsigned kind = wire_kind_of(seen->id), parent = wire_kind_of(seen->parent);
    return (kind == KIND_function && parent == KIND_module) ||
           (kind == KIND_kernel && parent == KIND_library);
}

static bool see_prevention(const struct handle_seen *seen, void *data) {
    char *why = data;
    const struct kept *maker = maker_of(seen);
    unsigned kind = wire_kind_of(seen->id);
    if (kept_prevents(seen->kept, why)) return false;
    if (maker == NULL && !is_named(seen))
        snprintf(why, MOVES_WHY_BYTES, "%s: not carried",
                 kind < KIND_COUNT && moves_kinds[kind] != NULL ? moves_kinds[kind] : "an object");
    else if (maker != NULL && maker->stays != NULL)
        snprintf(why, MOVES_WHY_BYTES, "%s: its image stays: %s", moves_kinds[kind], maker->stays);
    return why[0] == 0;
}

bool session_moves(char *why, uint64_t *bytes) {
    why[0] = 0;
    *bytes = arena_bytes();
    if (session.transport == NULL)
        snprintf(why, MOVES_WHY_BYTES, "the session is just beginning");
    else if (kept_overflowed())
        snprintf(why, MOVES_WHY_BYTES, "the session has more objects and settings than are kept");
    else if (!kept_session_prevents(why) && !arena_prevents(why) && !host_prevents(why))
        handles_each(see_prevention, why);
    return why[0] == 0;
}

/* ---- the list of what lives ---- */

struct item {
    uint64_t order;
    const struct kept *kept;
};
struct living {
    struct item *items;
    struct moved_handle *handles;
    struct handle_seen *named, *events, *loads;
    uint64_t *contexts;
    size_t item_count, item_room, handle_count, handle_room, named_count, named_room, event_count,
        event_room, load_count, load_room, context_count, context_room;
    bool bad;
};

#define APPEND(living, list, what, ...)                                                      \
    do {                                                                                     \
        if ((living)->what##_count == (living)->what##_room) {                               \
            size_t room_ = (living)->what##_room ? 2 * (living)->what##_room : 256;          \
            void *grown_ = realloc((living)->list, room_ * sizeof *(living)->list);          \
            if (grown_ == NULL) return !((living)->bad = true);                              \
            (living)->list = grown_;                                                         \
            (living)->what##_room = room_;                                                   \
        }                                                                                    \
        (living)->list[(living)->what##_count++] = (__typeof__(*(living)->list))__VA_ARGS__; \
    } while (0)

static bool is_load(const struct kept *kept) {
    return kept != NULL && (kept->op == OP_MODULE_LOAD || kept->op == OP_LIBRARY_LOAD);
}

static bool add_kept(struct living *living, const struct kept *list) {
    for (; list != NULL; list = list->next) APPEND(living, items, item, {list->order, list});
    return true;
}

static bool see_living(const struct handle_seen *seen, void *data) {
    struct living *living = data;
    APPEND(living, handles, handle, {seen->id, seen->parent});
    if (maker_of(seen) == NULL && is_named(seen)) APPEND(living, named, named, *seen);
    if (wire_kind_of(seen->id) == KIND_event) APPEND(living, events, event, *seen);
    if (wire_kind_of(seen->id) == KIND_context) APPEND(living, contexts, context, seen->id);
    if (is_load(maker_of(seen))) APPEND(living, loads, load, *seen);
    return add_kept(living, seen->kept);
}

static int by_order(const void *a, const void *b) {
    const struct item *one = a, *other = b;
    return (one->order > other->order) - (one->order < other->order);
}

static void living_free(struct living *living) {
    free(living->items);
    free(living->handles);
    free(living->named);
    free(living->events);
    free(living->loads);
    free(living->contexts);
}

/* ---- its parts ---- */

static void put_session(struct moved_stream *to) {
    struct session_progress progress = session_progress();
    struct moved_session is = {.version = MOVED_VERSION,
                               .table = EGPU_WIRE_TABLE_HASH,
                               .taken = progress.taken,
                               .context = progress.context,
                               .mode = progress.mode,
                               .pending_error = progress.pending_error,
                               .callbacks = callbacks_number(),
                               .handles = handles_state(),
                               .arena = arena_state()};
    size_t bytes;
    const uint8_t *snapshot = connection_snapshot(&bytes);
    moved_put(to, PART_SESSION, &is, sizeof is, NULL, 0);
    moved_put(to, PART_CARDS, snapshot, bytes, NULL, 0);
    for (uint32_t i = 0; i < is.arena.mappings; i++)
        moved_put(to, PART_MAPPING, arena_mapping(i), sizeof(struct arena_mapping), NULL, 0);
    for (uint32_t i = 0; i < is.arena.allocations; i++)
        moved_put(to, PART_ALLOCATIONS, arena_allocation(i), sizeof(struct arena_allocation), NULL,
                  0);
}

/* False: it is not kept any more. */
static bool put_image(struct moved_stream *to, const struct kept *kept) {
    struct wire_load load;
    memcpy(&load, kept->payload, sizeof load);
    if (load.inline_bytes != 0 || ahead_has(kept)) return true; /* in the frame itself; there */
    const struct image *image = image_known(load.digest, load.total);
    if (image != NULL) moved_put_image(to, load.digest, image->bytes, image->total);
    return image != NULL;
}

/* The functions of a module that was just put. */
static bool put_named(struct moved_stream *to, const struct living *living,
                      const struct kept *kept) {
    for (size_t i = 0; i < living->named_count; i++) {
        const struct handle_seen *seen = &living->named[i];
        if (seen->parent != kept->subject) continue;
        const char *name = NULL;
        egpu_driver_id ask =
            wire_kind_of(seen->id) == KIND_kernel ? EGPU_FN_cuKernelGetName : EGPU_FN_cuFuncGetName;
        CUresult (*names)(const char **, void *) =
            (CUresult (*)(const char **, void *))driver_function(ask);
        driver_enter(kept->context);
        if (names == NULL || names(&name, (void *)(uintptr_t)seen->value) != CUDA_SUCCESS ||
            name == NULL)
            return false;
        struct moved_named is = {seen->id, seen->parent, kept->context};
        moved_put(to, PART_NAMED, &is, sizeof is, name, strlen(name) + 1);
    }
    return true;
}

static bool put_frames(struct moved_stream *to, const struct living *living, char *why) {
    for (size_t i = 0; i < living->item_count; i++) {
        const struct kept *kept = living->items[i].kept;
        struct moved_frame frame = {kept->subject, kept->context, kept->op, kept->bytes};
        if (is_load(kept) && !put_image(to, kept)) {
            snprintf(why, MOVES_WHY_BYTES, "%s: its image is not kept any more", kept->rule->name);
            return false;
        }
        moved_put(to, PART_FRAME, &frame, sizeof frame, kept->payload, kept->bytes);
        if ((kept->rule->class == MOVES_CREATES || kept->rule->class == MOVES_FINDS) &&
            !put_named(to, living, kept)) {
            snprintf(why, MOVES_WHY_BYTES, "this driver does not name functions");
            return false;
        }
    }
    for (size_t i = 0; i < living->handle_count; i++)
        moved_put(to, PART_HANDLES, &living->handles[i], sizeof *living->handles, NULL, 0);
    return true;
}

/* Events of one context are compared with one that is recorded now. */
static void put_times(struct moved_stream *to, const struct living *living) {
    CUevent now = NULL;
    uint64_t context = 0;
    for (size_t i = 0; i < living->event_count; i++) {
        const struct handle_seen *seen = &living->events[i];
        struct moved_time time = {seen->id, seen->parent, 0};
        if (now == NULL || context != seen->parent) {
            if (now != NULL) DRIVER(cuEventDestroy_v2, CUevent)(now);
            now = NULL;
            driver_enter(context = seen->parent);
            if (DRIVER(cuEventCreate, CUevent *, unsigned)(&now, 0) != CUDA_SUCCESS) continue;
            DRIVER(cuEventRecord, CUevent, CUstream)(now, NULL);
            DRIVER(cuEventSynchronize, CUevent)(now);
        }
        if (times_of(seen->id, (CUevent)(uintptr_t)seen->value, now, &time.before_ms))
            moved_put(to, PART_TIME, &time, sizeof time, NULL, 0);
    }
    if (now != NULL) DRIVER(cuEventDestroy_v2, CUevent)(now);
}

static bool put_variables(struct moved_stream *to, const struct living *living, char *why) {
    for (size_t i = 0; i < living->load_count; i++) {
        const struct handle_seen *seen = &living->loads[i];
        struct variables_of of = {seen->id, maker_of(seen), seen->kept, living->contexts,
                                  (uint32_t)living->context_count};
        if (!variables_put(to, &of, why)) return false;
    }
    return true;
}

static void put_replies(struct moved_stream *to) {
    const struct reply *reply;
    for (unsigned i = 0; (reply = stream_kept(i)) != NULL; i++) {
        struct moved_reply head = {reply->seq, reply->head.result, reply->head.pending};
        moved_put(to, PART_REPLY, &head, sizeof head, reply->data, reply->bytes);
    }
    uint8_t *printed = printed_any() ? malloc(PRINTED_BYTES) : NULL;
    if (printed != NULL) moved_put(to, PART_PRINTED, printed, printed_copy(printed), NULL, 0);
    free(printed);
}

bool session_write(int descriptor, char *why, uint64_t *bytes, bool *broke) {
    struct moved_stream to = {.descriptor = descriptor};
    struct living living = {.items = NULL};
    *bytes = 0;
    if (!session_moves(why, bytes)) return false;
    bool good = add_kept(&living, kept_of_session()) && handles_each(see_living, &living);
    if (!good) snprintf(why, MOVES_WHY_BYTES, "no memory");
    if (good && living.item_count != 0)
        qsort(living.items, living.item_count, sizeof *living.items, by_order);
    if (good) {
        put_session(&to);
        good = put_frames(&to, &living, why);
    }
    if (good) {
        put_times(&to, &living);
        put_replies(&to);
        shared_put(&to);
        good = put_variables(&to, &living, why) && memory_put(&to, why);
    }
    living_free(&living);
    if (good) {
        moved_put(&to, PART_END, NULL, 0, NULL, 0);
        good = moved_flush(&to);
    }
    *broke = to.bad;
    if (to.bad) snprintf(why, MOVES_WHY_BYTES, "the connection to the target broke");
    driver_leave();
    free(to.buffer);
    *bytes = to.bytes;
    return good;
}
