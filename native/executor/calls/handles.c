/* What the client's handles stand for. Two tables, of those that the client chose and of those that
 * we did; an entry is found by index, and all of the handle is compared. A map leads from the
 * driver's values back. */
#define _GNU_SOURCE
#include "executor/libraries/libraries.h"
#include "executor/moves/moves.h"

#include <pthread.h>
#include <sys/mman.h>

struct entry {
    uint64_t id; /* 0: free */
    uint64_t value;
    uint64_t parent;
    struct kept *kept; /* for a move */
    uint32_t version;  /* another one for each handle that gets this place */
    bool has_children;
};

static struct entry *tables[2];
static uint32_t used[2] = {1, 1}; /* indexes below were used */
static uint32_t generation;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* (kind, value) → id, open addressing; ids of removed entries stay as marks until the map is
 * rebuilt: twice as large where what lives fills it, otherwise as it was. */
static uint64_t *map;
static uint32_t map_size, map_used;

bool handles_init(void) {
    for (int i = 0; i < 2; i++) {
        tables[i] = mmap(NULL, WIRE_INDEXES * sizeof **tables, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (tables[i] == MAP_FAILED) return false;
    }
    map_size = 1024;
    map = calloc(map_size, sizeof *map);
    return map != NULL;
}

static struct entry *entry_of(uint64_t id) {
    struct entry *entry = &tables[wire_is_executors(id)][wire_index(id)];
    return id != 0 && __atomic_load_n(&entry->id, __ATOMIC_ACQUIRE) == id ? entry : NULL;
}

static uint32_t slot_of(unsigned kind, uint64_t value) {
    uint64_t hash = (value ^ (uint64_t)kind << 56) * UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(hash >> 32) & (map_size - 1);
}

static uint32_t map_living(void) {
    uint32_t living = 0;
    for (uint32_t i = 0; i < map_size; i++) living += map[i] != 0 && entry_of(map[i]) != NULL;
    return living;
}

static void map_put(uint64_t id, unsigned kind, uint64_t value) {
    if (map_used * 2 >= map_size) {
        uint32_t old_size = map_size, size = map_living() * 4 > old_size ? old_size * 2 : old_size;
        uint64_t *old = map, *made = calloc(size, sizeof *made);
        if (made == NULL) return;
        map = made;
        map_size = size;
        map_used = 0;
        for (uint32_t i = 0; i < old_size; i++) {
            struct entry *entry = old[i] ? entry_of(old[i]) : NULL;
            if (entry != NULL) map_put(old[i], wire_kind_of(old[i]), entry->value);
        }
        free(old);
    }
    uint32_t slot = slot_of(kind, value);
    while (map[slot] != 0 && map[slot] != id) slot = (slot + 1) & (map_size - 1);
    if (map[slot] == 0) map_used++;
    map[slot] = id;
}

static uint64_t map_get(unsigned kind, uint64_t value) {
    for (uint32_t slot = slot_of(kind, value); map[slot] != 0; slot = (slot + 1) & (map_size - 1)) {
        struct entry *entry = entry_of(map[slot]);
        if (entry != NULL && entry->value == value && wire_kind_of(map[slot]) == kind)
            return map[slot];
    }
    return 0;
}

uint64_t handle_value(unsigned kind, uint64_t handle, CUresult *bad) {
    if (handle == 0 && (kind == KIND_context || kind == KIND_stream)) return 0;
    const struct entry *place = &tables[wire_is_executors(handle)][wire_index(handle)];
    while (wire_kind_serves(wire_kind_of(handle), kind)) {
        /* Another thread may let go of it and give its place to something else, and then to the
         * same handle again. A place that got another version meanwhile is looked at again. */
        uint32_t version = __atomic_load_n(&place->version, __ATOMIC_ACQUIRE);
        if (entry_of(handle) == NULL) break;
        uint64_t value = __atomic_load_n(&place->value, __ATOMIC_ACQUIRE);
        if (__atomic_load_n(&place->version, __ATOMIC_RELAXED) == version) return value;
    }
    if (*bad == CUDA_SUCCESS)
        *bad = kind == KIND_context ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_HANDLE;
    return 0;
}

uint64_t task_handle(struct task *task, unsigned kind, int destroy) {
    uint64_t handle = get_word(&task->in);
    if (destroy) task->destroyed = handle;
    return handle_value(kind, handle, &task->bad);
}

bool handle_is_bound(unsigned kind, uint64_t value) {
    pthread_mutex_lock(&lock);
    bool bound = map_get(kind, value) != 0;
    pthread_mutex_unlock(&lock);
    return bound;
}

uint64_t task_number(struct task *task, unsigned kind, int destroy) {
    uint64_t number = get_word(&task->in);
    pthread_mutex_lock(&lock);
    uint64_t id = map_get(kind, number);
    pthread_mutex_unlock(&lock);
    if (destroy) task->destroyed = id;
    if (id == 0 && task->bad == CUDA_SUCCESS) task->bad = CUDA_ERROR_INVALID_HANDLE;
    return number;
}

uint64_t task_owner(struct task *task, unsigned kind) {
    struct reader before = task->in;
    uint64_t handle = get_word(&before), value = task_handle(task, kind, 0);
    if (value != 0) task->context = handle;
    return value;
}

size_t task_handles(struct task *task, unsigned kind, void *values) {
    size_t bytes;
    const uint8_t *sent = get_span(&task->in, &bytes);
    size_t count = bytes / sizeof(uint64_t);
    if (bytes % sizeof(uint64_t) != 0 || count > WIRE_MAX_NODES) task->in.bad = true;
    for (size_t i = 0; i < count && !task->in.bad; i++) {
        uint64_t handle, value;
        memcpy(&handle, sent + i * sizeof handle, sizeof handle);
        value = handle_value(kind, handle, &task->bad);
        memcpy((uint8_t *)values + i * sizeof value, &value, sizeof value);
    }
    return count;
}

static void drop(uint64_t id);

/* What owns something of this kind: a graph all its nodes, also those found by way of another. */
static uint64_t owner_of(unsigned kind, uint64_t given) {
    if (kind == KIND_graph_node && wire_kind_of(given) == KIND_graph_node)
        return handle_parent(given);
    return given;
}

static void own(struct entry *entry, uint64_t parent) {
    entry->parent = parent;
    struct entry *owner = entry_of(parent);
    if (owner != NULL) owner->has_children = true;
}

/* Under the lock. `handle_value` reads without it: version, handle, value. */
static void fill(struct entry *entry, uint64_t id, uint64_t value, uint64_t parent) {
    __atomic_store_n(&entry->version, entry->version + 1, __ATOMIC_RELEASE);
    __atomic_store_n(&entry->value, value, __ATOMIC_RELEASE);
    entry->has_children = false;
    own(entry, parent);
    __atomic_store_n(&entry->id, id, __ATOMIC_RELEASE);
}

void handle_bind(struct task *task, unsigned kind, uint64_t handle, uint64_t value) {
    uint32_t index = wire_index(handle);
    pthread_mutex_lock(&lock);
    struct entry *entry = &tables[0][index];
    if (index == 0 || wire_is_executors(handle) || handle != wire_without_server(handle) ||
        wire_kind_of(handle) != kind || entry->id != 0) {
        task->violated = true; /* the driver's object is lost with the session */
    } else {
        /* The driver has made it just now: what had this address before went with its graph. */
        if (kind == KIND_graph || kind == KIND_graph_node) drop(map_get(kind, value));
        fill(entry, handle, value, owner_of(kind, task->context));
        task->bound = handle;
        if (index >= used[0]) used[0] = index + 1;
        map_put(handle, kind, value);
    }
    pthread_mutex_unlock(&lock);
}

/* Contexts, libraries, pools, allocations and graphs are made while a context is current, and
 * outlive it. */
static bool outlives_context(uint64_t id) {
    switch (wire_kind_of(id)) {
    case KIND_context:
    case KIND_green_context:
    case KIND_library:
    case KIND_kernel:
    case KIND_pool:
    case KIND_allocation:
    case KIND_graph:
    case KIND_graph_node:
    case KIND_graph_exec:
    case KIND_user_object: return true;
    default: return library_kinds[wire_kind_of(id)].stays;
    }
}

static void drop_children(uint64_t id) {
    bool context = wire_kind_of(id) == KIND_context;
    for (int table = 0; table < 2; table++)
        for (uint32_t i = 1; i < used[table]; i++)
            if (tables[table][i].id != 0 && tables[table][i].parent == id &&
                !(context && outlives_context(tables[table][i].id)))
                drop(tables[table][i].id);
}

/* What belongs to a context, a module, a library, an array, a graph or a node goes with it. */
static void drop(uint64_t id) {
    struct entry *entry = entry_of(id);
    if (entry == NULL) return;
    __atomic_store_n(&entry->id, 0, __ATOMIC_RELEASE);
    kept_drop(entry->kept);
    entry->kept = NULL;
    if (moves_on && wire_kind_of(id) == KIND_context) arena_context_gone(id);
    if (entry->has_children) drop_children(id);
}

void handle_forget(uint64_t id, bool itself) {
    pthread_mutex_lock(&lock);
    if (itself)
        drop(id);
    else if (entry_of(id) != NULL) {
        drop_children(id);
        if (moves_on && wire_kind_of(id) == KIND_context) arena_context_gone(id);
    }
    pthread_mutex_unlock(&lock);
}

void handle_release_children(uint64_t id) {
    pthread_mutex_lock(&lock);
    struct entry *entry = entry_of(id);
    for (int table = 0; entry != NULL && entry->has_children && table < 2; table++)
        for (uint32_t i = 1; i < used[table]; i++)
            if (tables[table][i].parent == id) tables[table][i].parent = 0;
    if (entry != NULL) entry->has_children = false;
    pthread_mutex_unlock(&lock);
}

void handle_unbind(struct task *task, unsigned kind) {
    (void)kind;
    pthread_mutex_lock(&lock);
    drop(task->destroyed);
    pthread_mutex_unlock(&lock);
}

/* ---- what the driver finds ---- */

static bool rebuilding;
static uint64_t expected;

/* Under the lock; 0: there is no room, or a session is being rebuilt and expects none. */
static uint64_t id_for_found(unsigned kind) {
    uint64_t id = expected;
    expected = 0;
    if (rebuilding) return id;
    uint32_t index = used[1] < WIRE_INDEXES ? used[1]++ : 0;
    for (uint32_t i = 1; index == 0 && i < WIRE_INDEXES; i++)
        if (tables[1][i].id == 0) index = i;
    return index == 0 ? 0 : wire_handle(kind, true, ++generation, index);
}

static uint64_t find_or_bind(unsigned kind, uint64_t value, uint64_t parent, uint64_t *bound) {
    if (value == 0) return 0;
    pthread_mutex_lock(&lock);
    uint64_t id = map_get(kind, value);
    if (id == 0 && (id = id_for_found(kind)) != 0) {
        struct entry *entry = &tables[wire_is_executors(id)][wire_index(id)];
        fill(entry, id, value, owner_of(kind, parent));
        map_put(id, kind, value);
        if (bound != NULL) *bound = id;
    }
    pthread_mutex_unlock(&lock);
    return id;
}

uint64_t handle_of_child(unsigned kind, uint64_t value, uint64_t parent) {
    return find_or_bind(kind, value, parent, NULL);
}

uint64_t handle_parent(uint64_t handle) {
    struct entry *entry = entry_of(handle);
    return entry == NULL ? 0 : entry->parent;
}

void put_handles(struct task *task, unsigned kind, const void *values, size_t count) {
    for (size_t i = 0; i < count; i++) {
        uint64_t value;
        memcpy(&value, (const uint8_t *)values + i * sizeof value, sizeof value);
        put_word(&task->out, handle_of(task, kind, value));
    }
}

uint64_t handle_of(struct task *task, unsigned kind, uint64_t value) {
    return find_or_bind(kind, value, task->context, &task->found);
}

/* ---- moves ---- */

bool handle_keep(struct kept *kept) {
    struct kept *replaced = NULL;
    pthread_mutex_lock(&lock);
    struct entry *entry = entry_of(kept->subject);
    for (struct kept **at = entry != NULL ? &entry->kept : NULL; at != NULL; at = &(*at)->next) {
        if (*at != NULL && kept_replaces(kept, *at)) {
            replaced = *at;
            *at = replaced->next;
            replaced->next = NULL;
        }
        if (*at == NULL) {
            *at = kept;
            break;
        }
    }
    kept_drop(replaced);
    pthread_mutex_unlock(&lock);
    return entry != NULL;
}

bool handles_each(bool (*see)(const struct handle_seen *seen, void *data), void *data) {
    bool all = true;
    pthread_mutex_lock(&lock);
    for (int table = 0; table < 2; table++)
        for (uint32_t i = 1; all && i < used[table]; i++) {
            const struct entry *entry = &tables[table][i];
            struct handle_seen seen = {entry->id, entry->value, entry->parent, entry->kept};
            if (entry->id != 0) all = see(&seen, data);
        }
    pthread_mutex_unlock(&lock);
    return all;
}

struct handles_state handles_state(void) { return (struct handles_state){generation, used[1]}; }

void handles_rebuild(bool on, const struct handles_state *state) {
    rebuilding = on;
    expected = 0;
    generation = (uint32_t)state->generation;
    used[1] = (uint32_t)state->used;
}

void handle_expect(uint64_t id) { expected = id; }

bool handle_bind_found(uint64_t id, uint64_t value) {
    expected = id;
    return find_or_bind(wire_kind_of(id), value, 0, NULL) == id;
}

bool handle_set_parent(uint64_t id, uint64_t parent) {
    pthread_mutex_lock(&lock);
    struct entry *entry = entry_of(id);
    if (entry != NULL) own(entry, parent);
    pthread_mutex_unlock(&lock);
    return entry != NULL;
}
