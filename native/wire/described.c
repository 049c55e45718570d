/* See described.h. */
#include "described.h"

#include <pthread.h>
#include <stdlib.h>

enum { DATA_TYPE = 901, DIMENSIONS = 902, UNIQUE_ID = 906, BY_VALUE = 908 };
enum { PACK_IDS = 1000, PACK_POINTERS = 1001, PACK_WORKSPACE = 1003 };
enum { BUCKETS = 1024, FROM_WHERE_IT_IS = -1 /* takes the place of an attribute */ };

struct value {
    int64_t id;
    int attribute; /* attribute of the descriptor through which the value came */
    unsigned bytes;
};

struct described {
    uint64_t name;
    struct described *next;
    /* Values that it has from other descriptors. */
    unsigned used;
    bool too_many;
    struct value *values; /* room for VALUES_MOST; NULL before the first */
    /* If it is a tensor. */
    struct value own;
    int type;
    int64_t elements;
    bool is_by_value;
    /* If it is a variant pack. */
    int64_t *ids;
    void **pointers, *workspace;
    uint64_t id_count, pointer_count;
};

static struct described *buckets[BUCKETS];
static bool lost_some; /* out of memory: from now on nothing is known */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct described **place_of(uint64_t name) {
    struct described **at = &buckets[(name * UINT64_C(0x9e3779b97f4a7c15)) >> 54];
    while (*at != NULL && (*at)->name != name) at = &(*at)->next;
    return at;
}

static struct described *find(uint64_t name) { return *place_of(name); }

static struct described *find_or_make(uint64_t name) {
    struct described **at = place_of(name);
    if (*at != NULL) return *at;
    *at = calloc(1, sizeof **at);
    if (*at == NULL)
        lost_some = true;
    else
        **at = (struct described){.name = name, .elements = 1};
    return *at;
}

static void add(struct described *to, struct value value, int attribute) {
    value.attribute = attribute;
    for (unsigned i = 0; i < to->used; i++)
        if (memcmp(&to->values[i], &value, sizeof value) == 0) return;
    if (to->values == NULL) to->values = calloc(VALUES_MOST, sizeof *to->values);
    if (to->values == NULL || to->used == VALUES_MOST)
        to->too_many = true; /* so plans with it are not executed */
    else
        to->values[to->used++] = value;
}

/* Add all values of one descriptor to another. */
static void flow(const struct described *from, struct described *to, int attribute) {
    if (from == NULL || to == NULL || from == to) return;
    to->too_many |= from->too_many;
    for (unsigned i = 0; i < from->used; i++) add(to, from->values[i], attribute);
    if (!from->is_by_value) return;
    struct value own = {0}; /* including the padding, which is compared */
    uint64_t bytes = (uint64_t)from->elements * cudnn_type_bytes(from->type);
    own.id = from->own.id;
    own.bytes = bytes > VALUE_MOST_BYTES ? VALUE_MOST_BYTES + 1 : (unsigned)bytes;
    add(to, own, attribute);
}

static uint64_t word(const void *at, int64_t index) {
    uint64_t found;
    memcpy(&found, (const uint8_t *)at + index * 8, sizeof found);
    return found;
}

static void forget(struct described *d, int attribute) {
    unsigned kept = 0;
    for (unsigned i = 0; i < d->used; i++)
        if (d->values[i].attribute != attribute) d->values[kept++] = d->values[i];
    d->used = kept;
}

static void refer(struct described *d, int attribute, int64_t count, const void *at) {
    forget(d, attribute);
    for (int64_t i = 0; i < count; i++) flow(find(word(at, i)), d, attribute);
}

static uint64_t keep(void *where, int64_t count, const void *at) {
    void **to = where;
    free(*to);
    *to = count <= 0 ? NULL : malloc((size_t)count * 8);
    if (*to == NULL) return 0;
    memcpy(*to, at, (size_t)count * 8);
    return (uint64_t)count;
}

/* Return the number of elements, or more than can be sent. */
static int64_t product(int64_t count, const void *at) {
    int64_t elements = 1;
    for (int64_t i = 0; i < count; i++) {
        int64_t size = (int64_t)word(at, i);
        bool none = size < 1 || size > VALUE_MOST_BYTES;
        elements = none || elements > VALUE_MOST_BYTES ? VALUE_MOST_BYTES + 1 : elements * size;
    }
    return elements;
}

static void describe(struct described *d, int attribute, int64_t count, const void *at) {
    switch (attribute) {
    case DATA_TYPE: memcpy(&d->type, at, sizeof d->type); break;
    case DIMENSIONS: d->elements = product(count, at); break;
    case UNIQUE_ID: d->own.id = (int64_t)word(at, 0); break;
    case BY_VALUE: d->is_by_value = *(const uint8_t *)at != 0; break;
    case PACK_IDS: d->id_count = keep(&d->ids, count, at); break;
    case PACK_POINTERS: d->pointer_count = keep(&d->pointers, count, at); break;
    case PACK_WORKSPACE: d->workspace = (void *)(uintptr_t)word(at, 0); break;
    default: break;
    }
}

/* Return whether the attribute is set in the only way that the library accepts. */
static bool matters(const struct elements *are, int64_t count) {
    switch (are->attribute) {
    case DATA_TYPE: return are->bytes == sizeof(int) && count == 1;
    case BY_VALUE: return are->bytes == 1 && count == 1;
    case UNIQUE_ID:
    case PACK_WORKSPACE: return are->bytes == 8 && count == 1;
    case DIMENSIONS:
    case PACK_IDS:
    case PACK_POINTERS: return are->bytes == 8;
    default: return false;
    }
}

void described_set(uint64_t name, const struct elements *are, int64_t count, const void *at) {
    if (at == NULL || count < 0) return;
    pthread_mutex_lock(&lock);
    struct described *d = are->filled || matters(are, count) ? find_or_make(name) : NULL;
    if (d != NULL && are->filled)
        refer(d, are->attribute, count, at);
    else if (d != NULL)
        describe(d, are->attribute, count, at);
    pthread_mutex_unlock(&lock);
}

void described_got(uint64_t name, const struct elements *are, int64_t count, const void *at) {
    if (!are->filled || at == NULL) return;
    pthread_mutex_lock(&lock);
    const struct described *from = find(name);
    for (int64_t i = 0; from != NULL && i < count; i++)
        flow(from, find_or_make(word(at, i)), FROM_WHERE_IT_IS);
    pthread_mutex_unlock(&lock);
}

void described_gone(uint64_t name) {
    pthread_mutex_lock(&lock);
    struct described **at = place_of(name), *gone = *at;
    if (gone != NULL) {
        *at = gone->next;
        free(gone->values);
        free(gone->ids);
        free(gone->pointers);
        free(gone);
    }
    pthread_mutex_unlock(&lock);
}

static unsigned bytes_of(const struct described *plan, int64_t id) {
    for (unsigned i = 0; i < plan->used; i++)
        if (plan->values[i].id == id) return plan->values[i].bytes;
    return 0;
}

static struct described_pack *pack_for(const struct described *plan, const struct described *pack,
                                       bool *lost) {
    uint64_t count = pack->id_count < pack->pointer_count ? pack->id_count : pack->pointer_count;
    struct described_pack *found = calloc(1, sizeof *found + count * sizeof found->of[0]);
    bool values = plan->too_many;
    if (found == NULL) *lost = true;
    if (found == NULL) return NULL;
    *found = (struct described_pack){pack->workspace, count, !plan->too_many};
    for (uint64_t i = 0; i < count; i++) {
        unsigned bytes = bytes_of(plan, pack->ids[i]);
        values |= bytes != 0;
        if (bytes > VALUE_MOST_BYTES) found->sendable = false;
        found->of[i] = (struct bound){pack->ids[i], pack->pointers[i], bytes};
    }
    if (values) return found;
    free(found);
    return NULL;
}

struct described_pack *described_pack(uint64_t plan, uint64_t pack, bool *lost) {
    pthread_mutex_lock(&lock);
    *lost = lost_some;
    const struct described *its = find(plan), *of = find(pack);
    struct described_pack *found = NULL;
    if (its != NULL && of != NULL && (its->used > 0 || its->too_many))
        found = pack_for(its, of, lost);
    pthread_mutex_unlock(&lock);
    return found;
}
