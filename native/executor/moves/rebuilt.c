/* Rebuilds a session that was written down elsewhere. What comes is hostile until checked, as what
 * a client says is: the frames go through the same decoders, and no frame is carried out that a
 * session would not keep. What cannot be as it was is an error, and the session goes on where it
 * is.
 */
#include "executor/session/session.h"

#include <stdio.h>
#include <unistd.h>

#include "executor/moves/moves.h"

#define MOST_HANDLES (2 * WIRE_INDEXES)
#define ANSWER_BYTES (192u << 10)

struct rebuilding {
    char *why;
    struct moved_session is;
    bool begun, cards, ahead;
    uint64_t handles;
    uint8_t *answer;
};

static bool fails(struct rebuilding *to, const char *why) {
    if (to->why[0] == 0) snprintf(to->why, MOVES_WHY_BYTES, "%s", why);
    return false;
}

static bool malformed(struct rebuilding *to) {
    return fails(to, "what was written down is malformed");
}

/* ---- the cards ---- */

/* Whether a program that knows the first card may go on with the second: what says where a card is
 * may differ. */
static bool same_attribute(unsigned which) {
    switch (which) {
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
    case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID:
    case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID:
    case CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD_GROUP_ID:
    case CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID:
    case CU_DEVICE_ATTRIBUTE_NUMA_ID: return false;
    default: return true;
    }
}

static bool same_cards(struct rebuilding *to, const uint8_t *bytes, size_t count) {
    size_t ours_count;
    const uint8_t *ours_bytes = connection_snapshot(&ours_count);
    struct reader there = {bytes, count, false}, here = {ours_bytes, ours_count, false};
    struct wire_snapshot was, is;
    get_bytes(&there, &was, sizeof was);
    get_bytes(&here, &is, sizeof is);
    if (there.bad) return malformed(to);
    if (was.driver_version != is.driver_version)
        return fails(to, "the target's driver is another version");
    if (was.device_count != is.device_count)
        return fails(to, "the target has another number of cards");
    for (unsigned i = 0; i < is.device_count; i++) {
        struct wire_device old, new;
        int32_t olds[WIRE_ATTRIBUTES], news[WIRE_ATTRIBUTES];
        get_bytes(&there, &old, sizeof old);
        get_bytes(&here, &new, sizeof new);
        if (there.bad || old.attribute_count != WIRE_ATTRIBUTES) return malformed(to);
        get_bytes(&there, olds, sizeof olds);
        get_bytes(&here, news, sizeof news);
        if (there.bad) return malformed(to);
        bool same = memcmp(old.name, new.name, sizeof old.name) == 0 && old.major == new.major &&
                    old.minor == new.minor;
        for (unsigned a = 0; a < WIRE_ATTRIBUTES && same; a++)
            same = olds[a] == news[a] || !same_attribute(a);
        if (!same) return fails(to, "the target's card is another model");
    }
    to->cards = true;
    return true;
}

/* ---- what the session is ---- */

static bool of_our_version(struct rebuilding *to, uint64_t version, uint64_t table) {
    return (version == MOVED_VERSION && table == EGPU_WIRE_TABLE_HASH) ||
           fails(to, "the target is another version");
}

static bool reserve(struct rebuilding *to, uint64_t base, uint64_t bytes, uint64_t numbers) {
    return bytes == 0 || arena_reserve(base, bytes, numbers) ||
           fails(to, "the target cannot have memory at the same addresses");
}

static bool take_session(struct rebuilding *to, const uint8_t *bytes, size_t count) {
    struct moved_session *is = &to->is;
    if (count != sizeof *is || to->begun || to->ahead) return malformed(to);
    memcpy(is, bytes, sizeof *is);
    if (!of_our_version(to, is->version, is->table)) return false;
    if (is->mode > CU_STREAM_CAPTURE_MODE_RELAXED || is->pending_error > UINT32_MAX ||
        is->handles.generation >= UINT32_MAX || is->handles.used > WIRE_INDEXES ||
        is->handles.used == 0 || is->callbacks == 0)
        return malformed(to);
    if (!reserve(to, is->arena.base, is->arena.bytes, is->arena.numbers)) return false;
    handles_rebuild(true, &is->handles);
    to->begun = true;
    return true;
}

/* What comes before the session stops. */
static bool take_ahead(struct rebuilding *to, const uint8_t *bytes, size_t count) {
    struct moved_ahead is;
    if (count != sizeof is || to->begun || !to->ahead) return malformed(to);
    memcpy(&is, bytes, sizeof is);
    if (!of_our_version(to, is.version, is.table) || !reserve(to, is.base, is.bytes, 0))
        return false;
    contexts_hold(is.contexts);
    to->begun = true;
    return true;
}

static bool take_mapping(struct rebuilding *to, const uint8_t *bytes, size_t count) {
    struct arena_mapping is;
    if (count != sizeof is) return malformed(to);
    memcpy(&is, bytes, sizeof is);
    CUresult result = arena_map(&is, to->ahead);
    if (result == CUDA_SUCCESS) return true;
    if (result == CUDA_ERROR_OUT_OF_MEMORY) return fails(to, "the target has too little memory");
    snprintf(to->why, MOVES_WHY_BYTES, "the target cannot map memory: error %d", (int)result);
    return false;
}

static bool take_allocation(struct rebuilding *to, const uint8_t *bytes, size_t count) {
    struct arena_allocation is;
    if (count != sizeof is) return malformed(to);
    memcpy(&is, bytes, sizeof is);
    return arena_allocate(&is) || malformed(to);
}

static bool take_image(struct rebuilding *to, const uint8_t *bytes, size_t count) {
    struct wire_image is;
    if (count < sizeof is) return malformed(to);
    memcpy(&is, bytes, sizeof is);
    if (is.total == 0 || is.total > WIRE_MAX_IMAGE || is.offset > is.total ||
        is.bytes != count - sizeof is)
        return malformed(to);
    return image_add(is.digest, is.total, is.offset, bytes + sizeof is, is.bytes) || malformed(to);
}

/* ---- objects ---- */

bool library_refused(const struct task *task, const uint8_t *answer) {
    uint64_t status = 0;
    if (operation_of(task->header.op) != &library_operations[task->header.op]) return false;
    if (task->out.at - answer >= (ptrdiff_t)sizeof status) memcpy(&status, answer, sizeof status);
    return status != 0;
}

/* It is kept, and not carried out: nobody waits for the address. */
static bool take_use(struct rebuilding *to, const struct moved_frame *is, const uint8_t *payload) {
    CUresult bad = CUDA_SUCCESS;
    uint64_t object = 0;
    struct task task = {.header = {.op = (uint16_t)is->op, .len = is->bytes},
                        .context = is->context};
    struct reader in = {payload, is->bytes, false};
    get_bytes(&in, &object, sizeof object);
    get_string(&in);
    handle_value(KIND_library, is->subject, &bad);
    if (in.bad || object != is->subject || bad != CUDA_SUCCESS) return malformed(to);
    kept_add(&task, payload);
    return true;
}

static bool take_frame(struct rebuilding *to, const uint8_t *bytes, size_t count) {
    struct moved_frame is;
    if (count < sizeof is) return malformed(to);
    memcpy(&is, bytes, sizeof is);
    const struct operation *operation = is.op < OP_COUNT ? operation_of((uint16_t)is.op) : NULL;
    if (operation == NULL || is.bytes != count - sizeof is || is.bytes > WIRE_MAX_PAYLOAD)
        return malformed(to);
    const struct moves_rule *rule = &moves_rules[is.op];
    if (rule->class == MOVES_USES) return take_use(to, &is, bytes + sizeof is);
    if (rule->class == MOVES_NOTHING || rule->class >= MOVES_TELLS) return malformed(to);
    struct task task = {
        .in = {bytes + sizeof is, is.bytes, false},
        .out = {to->answer, ANSWER_BYTES, false},
        .header = {.op = (uint16_t)is.op, .flags = WIRE_REPLY_WANTED, .len = is.bytes},
        .context = is.context,
        .mode = CU_STREAM_CAPTURE_MODE_RELAXED};
    handle_expect(rule->class == MOVES_FINDS ? is.subject : 0);
    CUresult result = driver_run(operation, &task);
    handle_expect(0);
    if (task.violated || task.large != NULL) return malformed(to);
    uint64_t made = rule->class == MOVES_CREATES ? task.bound
                    : rule->class == MOVES_FINDS ? task.found
                                                 : is.subject;
    if (result != CUDA_SUCCESS || made != is.subject || library_refused(&task, to->answer)) {
        snprintf(to->why, MOVES_WHY_BYTES, "%s: not as it was at the target: error %d", rule->name,
                 (int)result);
        return false;
    }
    if (task.stays != NULL) return malformed(to);
    task.context = is.context; /* some calls find for their object in place of it */
    kept_add(&task, bytes + sizeof is);
    return true;
}

static bool take_named(struct rebuilding *to, const uint8_t *bytes, size_t count) {
    struct moved_named is;
    if (count <= sizeof is || bytes[count - 1] != 0) return malformed(to);
    memcpy(&is, bytes, sizeof is);
    const char *name = (const char *)bytes + sizeof is;
    unsigned kind = wire_kind_of(is.id), of = wire_kind_of(is.parent);
    bool kernel = kind == KIND_kernel && of == KIND_library;
    CUresult bad = CUDA_SUCCESS;
    uint64_t value = 0, parent = handle_value(of, is.parent, &bad);
    if (bad != CUDA_SUCCESS || !wire_is_executors(is.id) ||
        (!kernel && (kind != KIND_function || of != KIND_module)))
        return malformed(to);
    driver_enter(is.context);
    CUresult result = kernel ? DRIVER(cuLibraryGetKernel, CUkernel *, CUlibrary, const char *)(
                                   (CUkernel *)&value, (CUlibrary)(uintptr_t)parent, name)
                             : DRIVER(cuModuleGetFunction, CUfunction *, CUmodule, const char *)(
                                   (CUfunction *)&value, (CUmodule)(uintptr_t)parent, name);
    if (result != CUDA_SUCCESS) return fails(to, "a function is not found at the target");
    return (handle_bind_found(is.id, value) && handle_set_parent(is.id, is.parent)) ||
           malformed(to);
}

static bool take_handle(struct rebuilding *to, const uint8_t *bytes, size_t count) {
    struct moved_handle is;
    if (count != sizeof is || ++to->handles > MOST_HANDLES) return malformed(to);
    memcpy(&is, bytes, sizeof is);
    return handle_set_parent(is.id, is.parent) || fails(to, "an object is missing at the target");
}

static bool count_handle(const struct handle_seen *seen, void *data) {
    (void)seen;
    ++*(uint64_t *)data;
    return true;
}

/* ---- what has happened ---- */

static bool take_time(struct rebuilding *to, const uint8_t *bytes, size_t count) {
    struct moved_time is;
    CUresult bad = CUDA_SUCCESS;
    if (count != sizeof is) return malformed(to);
    memcpy(&is, bytes, sizeof is);
    handle_value(KIND_event, is.event, &bad);
    handle_value(KIND_context, is.context, &bad);
    return (bad == CUDA_SUCCESS && is.before_ms >= 0 && times_add(&is)) || malformed(to);
}

static bool take_reply(struct rebuilding *to, const uint8_t *bytes, size_t count) {
    struct moved_reply is;
    if (count < sizeof is) return malformed(to);
    memcpy(&is, bytes, sizeof is);
    struct reply reply = {.seq = is.seq,
                          .head = {is.result, is.pending},
                          .data = (uint8_t *)(uintptr_t)(bytes + sizeof is),
                          .bytes = count - sizeof is};
    return (is.seq <= to->is.taken && reply.bytes <= WIRE_MAX_PAYLOAD && stream_keep(&reply)) ||
           malformed(to);
}

/* ---- all of it ---- */

static bool take_part(struct rebuilding *to, struct moved_stream *from, enum moved_part part,
                      const uint8_t *bytes, size_t count) {
    if (part == PART_SESSION) return take_session(to, bytes, count);
    if (part == PART_AHEAD) return take_ahead(to, bytes, count);
    if (!to->begun) return malformed(to);
    if (part == PART_CARDS) return same_cards(to, bytes, count);
    bool comes_ahead = part == PART_MAPPING || part == PART_IMAGE || part == PART_DATA;
    if (!to->cards || (to->ahead && !comes_ahead && part != PART_LOAD)) return malformed(to);
    switch (part) {
    case PART_MAPPING: return take_mapping(to, bytes, count);
    case PART_ALLOCATIONS: return take_allocation(to, bytes, count);
    case PART_IMAGE: return take_image(to, bytes, count);
    case PART_FRAME: return take_frame(to, bytes, count);
    case PART_NAMED: return take_named(to, bytes, count);
    case PART_HANDLES: return take_handle(to, bytes, count);
    case PART_TIME: return take_time(to, bytes, count);
    case PART_REPLY: return take_reply(to, bytes, count);
    case PART_PRINTED: printed_add(bytes, count); return true;
    case PART_DATA: return memory_take(bytes, count, to->ahead, to->why) || malformed(to);
    case PART_SAME: return memory_take_same(bytes, count, to->why) || malformed(to);
    case PART_LOAD: return (to->ahead && loads_take(bytes, count)) || malformed(to);
    case PART_SHARED: return shared_take(from) || malformed(to);
    case PART_HOST: return shared_take_host(from, bytes, count, to->why) || malformed(to);
    case PART_VARIABLE: return variables_take(bytes, count, to->why) || malformed(to);
    case PART_VARIABLE_DATA: return variables_take_data(bytes, count) || malformed(to);
    default: return malformed(to);
    }
}

static bool finish(struct rebuilding *to) {
    uint64_t living = 0;
    if (!to->cards) return malformed(to);
    if (to->ahead) return true;
    arena_drop_ahead();
    loads_drop();
    contexts_give();
    handles_each(count_handle, &living);
    if (living != to->handles) return fails(to, "the objects at the target are others");
    struct session_progress progress = {to->is.taken, to->is.context, to->is.mode,
                                        to->is.pending_error};
    session_continue(&progress);
    callbacks_continue(to->is.callbacks);
    handles_rebuild(false, &to->is.handles);
    session_shares_output(); /* threads of before are no more, and those to come are not known */
    return true;
}

bool session_rebuild(int descriptor, bool ahead, char *why) {
    struct moved_stream from = {.descriptor = descriptor, .passed = -1};
    struct rebuilding to = {.why = why, .ahead = ahead, .answer = malloc(ANSWER_BYTES)};
    uint8_t *plain = malloc(MOVED_PART_BYTES), *payload = plain;
    bool good = payload != NULL && to.answer != NULL;
    for (bool over = false; good && !over;) {
        enum moved_part part;
        size_t bytes;
        good = moved_get(&from, &part, payload, &bytes) ||
               fails(&to, "the connection to the source broke, or its data are damaged");
        over = good && part == PART_END;
        if (good && over) good = memory_taken(why) && finish(&to);
        if (good && !over) good = take_part(&to, &from, part, payload, bytes);
        if (good && part == PART_DATA) payload = memory_room(plain);
    }
    if (!good) memory_taken(to.why);
    if (from.passed >= 0) close(from.passed);
    driver_leave();
    free(plain);
    free(to.answer);
    return good;
}
