/* Surface reads and writes: bytes of an array; the first coordinate is in bytes. */
#include "exec.h"

#include <string.h>

struct place {
    int64_t x, y, z; /* bytes, rows, slices */
};

static struct place place_of(enum shape shape, const union slot *R, const struct ins *word) {
    int64_t a = R[word->d].s32, b = R[word->a].s32, c = R[word->b].s32;
    switch (shape) {
    case SHAPE_1D: return (struct place){a, 0, 0};
    case SHAPE_2D: return (struct place){a, b, 0};
    case SHAPE_A1D: return (struct place){b, 0, a};
    case SHAPE_A2D: return (struct place){b, c, a};
    default: return (struct place){a, b, c};
    }
}

static int64_t clamped(int64_t at, int64_t last) { return at < 0 ? 0 : at > last ? last : at; }

/* False: it is outside and is not clamped. */
static bool within(const egpu_ptx_texture *t, enum surface_edge edge, int64_t bytes,
                   struct place *at) {
    const egpu_ptx_level *level = &t->levels[0];
    int64_t last = (int64_t)level->width * t->channels * t->channel_bytes - bytes;
    if (last < 0) return false;
    if (edge == EDGE_CLAMP)
        *at = (struct place){clamped(at->x, last), clamped(at->y, level->height - 1),
                             clamped(at->z, level->depth - 1)};
    return at->x >= 0 && at->x <= last && at->y >= 0 && at->y < level->height && at->z >= 0 &&
           at->z < level->depth;
}

bool surface_access(struct exec *x, union slot *R, const struct ins *at) {
    bool write = at->op == OP_sust;
    uint32_t each = at[1].aux, count = (uint32_t)at[1].imm, bytes = each * count;
    const uint16_t slots[4] = {at[1].d, at[1].a, at[1].b, at[1].c};
    const egpu_ptx_texture *t = texture_of(x, R[at->a].u64, true);
    if (!t) return false;
    enum surface_edge edge = (enum surface_edge)AUX_MODE(at->aux);
    struct place place = place_of(AUX_SHAPE(at->aux), R, at + 2);
    uint8_t elements[16] = {0}, *memory = NULL;
    bool there = within(t, edge, bytes, &place);
    if (!there && edge != EDGE_ZERO)
        return refuse(x, EGPU_PTX_ILLEGAL_ADDRESS, R[at->a].u64, bytes, write);
    if (there) {
        const egpu_ptx_level *level = &t->levels[0];
        uint64_t address = level->address + (uint64_t)place.z * level->slice +
                           (uint64_t)place.y * level->pitch + (uint64_t)place.x;
        memory = global_memory(x, address, bytes, bytes, write);
        if (!memory) return false;
    }
    for (unsigned i = 0; write && i < count; i++) memcpy(elements + i * each, &R[slots[i]], each);
    if (write && memory) memcpy(memory, elements, bytes);
    if (write) return true;
    if (memory) memcpy(elements, memory, bytes);
    for (unsigned i = 0; i < count; i++) {
        union slot v = {.u64 = 0};
        memcpy(&v, elements + i * each, each);
        R[slots[i]] = v;
    }
    return true;
}
