/* Texture reads as in the CUDA programming guide (appendix on texture fetching): addressing modes,
 * linear filtering with weights of 8 fractional bits, mipmaps, cubes, layers.
 */
#include "exec.h"

#include <math.h>
#include <string.h>

union value {
    uint32_t bits;
    float number;
};

struct texel {
    union value channel[4];
};

/* Where to read: missing axes are 0. */
struct point {
    unsigned axes;
    double at[3];
    int64_t layer;              /* slice of a texture with fewer than three axes */
    bool by_number, normalized; /* elements by number; coordinates from 0 to 1 */
    bool on_face;               /* of a cube: it ends at the edges of the face */
};

const egpu_ptx_texture *texture_of(struct exec *x, uint64_t object, bool surface) {
    unsigned place = (unsigned)(object >> 4) & (TEXTURE_CACHE - 1);
    if (x->textures[place].texture && x->textures[place].object == object &&
        x->textures[place].surface == surface)
        return x->textures[place].texture;
    const egpu_ptx_texture *found =
        x->launch->texture ? x->launch->texture(x->launch->check_ctx, object, surface) : NULL;
    if (!found) {
        refuse(x, EGPU_PTX_ILLEGAL_ADDRESS, object, 0, false);
        return NULL;
    }
    x->textures[place].object = object;
    x->textures[place].surface = surface;
    x->textures[place].texture = found;
    return found;
}

static bool gives_floats(const egpu_ptx_texture *t) {
    return t->channel == EGPU_PTX_FLOAT || t->normalized_values;
}

/* ---- one element ---- */

static float of_srgb(float v) {
    return v <= 0.04045f ? v / 12.92f : (float)pow((v + 0.055) / 1.055, 2.4);
}

static union value decode(const egpu_ptx_texture *t, const uint8_t *from) {
    union value v = {.bits = 0};
    unsigned bits = t->channel_bytes * 8;
    memcpy(&v.bits, from, t->channel_bytes);
    switch (t->channel) {
    case EGPU_PTX_FLOAT:
        if (bits == 16) v.number = half_to_float((uint16_t)v.bits);
        break;
    case EGPU_PTX_SIGNED:
        v.bits = (uint32_t)((int32_t)(v.bits << (32 - bits)) >> (32 - bits));
        if (t->normalized_values)
            v.number = fmaxf((float)(int32_t)v.bits / (float)((1u << (bits - 1)) - 1), -1.0f);
        break;
    case EGPU_PTX_UNSIGNED:
        if (t->normalized_values) v.number = (float)v.bits / (float)((UINT64_C(1) << bits) - 1);
        break;
    }
    return v;
}

static bool element(struct exec *x, const egpu_ptx_texture *t, const egpu_ptx_level *level,
                    const int64_t at[3], struct texel *out) {
    uint32_t bytes = t->channels * t->channel_bytes;
    uint64_t address = level->address + (uint64_t)at[2] * level->slice +
                       (uint64_t)at[1] * level->pitch + (uint64_t)at[0] * bytes;
    const uint8_t *from = global_memory(x, address, bytes, 1, false);
    if (!from) return false;
    memset(out, 0, sizeof *out);
    for (unsigned c = 0; c < t->channels; c++) {
        out->channel[c] = decode(t, from + c * t->channel_bytes);
        if (t->srgb && c < 3) out->channel[c].number = of_srgb(out->channel[c].number);
    }
    return true;
}

/* ---- one level ---- */

static int64_t whole(double v) {
    const double most = 1e12; /* beyond every texture, and exact */
    return isnan(v) ? 0 : (int64_t)floor(v < -most ? -most : v > most ? most : v);
}

/* Return the element for an index outside; false: the border. Wrapping and mirroring need
 * normalized coordinates. Others are clamped, as the guide says. */
static bool inside(egpu_ptx_addressing mode, bool normalized, int64_t size, int64_t *at) {
    int64_t i = *at;
    if (i >= 0 && i < size) return true;
    if (mode == EGPU_PTX_BORDER) return false;
    if (mode == EGPU_PTX_CLAMP || !normalized) {
        *at = i < 0 ? 0 : size - 1;
        return true;
    }
    int64_t period = mode == EGPU_PTX_MIRROR ? 2 * size : size;
    i = (i % period + period) % period;
    *at = i < size ? i : period - 1 - i;
    return true;
}

static bool neighbour(struct exec *x, const egpu_ptx_texture *t, const egpu_ptx_level *level,
                      const struct point *p, const int64_t at[3], struct texel *out) {
    const int64_t sizes[3] = {level->width, level->height, level->depth};
    int64_t place[3] = {at[0], at[1], at[2]};
    bool there = true;
    for (unsigned a = 0; a < p->axes; a++) {
        egpu_ptx_addressing mode = t->by_index  ? EGPU_PTX_BORDER
                                   : p->on_face ? EGPU_PTX_CLAMP
                                                : t->addressing[a];
        there = there && inside(mode, p->normalized, sizes[a], &place[a]);
    }
    if (p->axes < 3) place[2] = p->layer < 0 ? 0 : p->layer < sizes[2] ? p->layer : sizes[2] - 1;
    if (there) return element(x, t, level, place, out);
    for (unsigned c = 0; c < 4; c++) {
        out->channel[c].bits = 0;
        if (gives_floats(t) && !t->by_index) out->channel[c].number = t->border[c];
    }
    return true;
}

/* Return an axis's first element, and the weight of the next one: a multiple of 1/256. */
static int64_t first_of(const egpu_ptx_texture *t, const struct point *p, unsigned axis,
                        uint32_t size, bool between, double *weight) {
    double u = p->at[axis];
    *weight = 0;
    if (p->by_number || t->by_index) return whole(u);
    if (p->normalized) u *= size;
    if (!between) return whole(u);
    int64_t first = whole(u - 0.5);
    double beyond = u - 0.5 - (double)first;
    *weight = beyond > 0 && beyond < 1 ? floor(beyond * 256 + 0.5) / 256 : 0;
    return first;
}

static bool sample(struct exec *x, const egpu_ptx_texture *t, unsigned number,
                   const struct point *p, struct texel *out) {
    const egpu_ptx_level *level = &t->levels[number];
    const uint32_t sizes[3] = {level->width, level->height, level->depth};
    int64_t first[3] = {0};
    double weight[3] = {0};
    bool between = t->interpolate && gives_floats(t);
    for (unsigned a = 0; a < p->axes; a++)
        first[a] = first_of(t, p, a, sizes[a], between, &weight[a]);
    if (weight[0] == 0 && weight[1] == 0 && weight[2] == 0)
        return neighbour(x, t, level, p, first, out);
    memset(out, 0, sizeof *out);
    for (unsigned corner = 0; corner < 1u << p->axes; corner++) {
        int64_t at[3] = {0};
        float part = 1;
        for (unsigned a = 0; a < p->axes; a++) {
            at[a] = first[a] + (corner >> a & 1);
            part *= (float)(corner >> a & 1 ? weight[a] : 1 - weight[a]);
        }
        struct texel one;
        if (part == 0) continue;
        if (!neighbour(x, t, level, p, at, &one)) return false;
        for (unsigned c = 0; c < 4; c++) out->channel[c].number += part * one.channel[c].number;
    }
    return true;
}

/* ---- which level ---- */

static float gradient_level(const egpu_ptx_texture *t, const struct point *p, const union slot *R,
                            const struct ins *words) {
    const uint32_t sizes[3] = {t->levels[0].width, t->levels[0].height, t->levels[0].depth};
    double longest = 0;
    for (unsigned i = 0; i < 2; i++) {
        const uint16_t slots[3] = {words[i].d, words[i].a, words[i].b};
        double square = 0;
        for (unsigned a = 0; a < p->axes; a++) {
            double step = R[slots[a]].f32 * (p->normalized ? (double)sizes[a] : 1.0);
            square += step * step;
        }
        longest = fmax(longest, square);
    }
    return (float)(0.5 * log2(longest));
}

static float chosen_level(const egpu_ptx_texture *t, const struct point *p, const union slot *R,
                          const struct ins *at) {
    float level = 0;
    if (AUX_MODE(at->aux) == LEVEL_GIVEN)
        level = p->by_number ? (float)R[at[3].d].s32 : R[at[3].d].f32;
    else if (AUX_MODE(at->aux) == LEVEL_GRADIENT)
        level = gradient_level(t, p, R, at + 3);
    if (AUX_MODE(at->aux) != LEVEL_FIRST) level += t->level_offset;
    level = fminf(fmaxf(level, t->level_least), t->level_most); /* also for NaN */
    return fminf(fmaxf(level, 0), (float)(t->level_count - 1));
}

static bool between_levels(struct exec *x, const egpu_ptx_texture *t, float level,
                           const struct point *p, struct texel *out) {
    if (!t->interpolate_levels || !gives_floats(t))
        return sample(x, t, (unsigned)floorf(level + 0.5f), p, out);
    unsigned below = (unsigned)level;
    float weight = floorf((level - (float)below) * 256 + 0.5f) / 256;
    if (!sample(x, t, below, p, out)) return false;
    if (weight == 0 || below + 1 == t->level_count) return true;
    struct texel above;
    if (!sample(x, t, below + 1, p, &above)) return false;
    for (unsigned c = 0; c < 4; c++)
        out->channel[c].number =
            (1 - weight) * out->channel[c].number + weight * above.channel[c].number;
    return true;
}

/* ---- coordinates ---- */

/* A direction is a place on one of six faces: table in the programming guide. */
static int64_t face_of(const float v[3], double at[3]) {
    float x = v[0], y = v[1], z = v[2];
    float ax = fabsf(x), ay = fabsf(y), az = fabsf(z);
    int64_t face;
    float m, s, t;
    if (ax >= ay && ax >= az) {
        face = x < 0, m = ax, s = x < 0 ? z : -z, t = -y;
    } else if (ay >= az) {
        face = 2 + (y < 0), m = ay, s = x, t = y < 0 ? -z : z;
    } else {
        face = 4 + (z < 0), m = az, s = z < 0 ? -x : x, t = -y;
    }
    at[0] = m > 0 ? ((double)s / m + 1) / 2 : 0;
    at[1] = m > 0 ? ((double)t / m + 1) / 2 : 0;
    return face;
}

static struct point point_of(const egpu_ptx_texture *t, enum shape shape, bool by_number,
                             const union slot *R, const struct ins *word) {
    static const unsigned axes[] = {1, 2, 3, 1, 2, 2, 2};
    const union slot *const values[4] = {&R[word->d], &R[word->a], &R[word->b], &R[word->c]};
    struct point p = {.axes = axes[shape],
                      .by_number = by_number,
                      .normalized = t->normalized_coordinates && !by_number};
    bool layered = shape == SHAPE_A1D || shape == SHAPE_A2D || shape == SHAPE_ACUBE;
    if (layered) p.layer = values[0]->u32;
    if (shape == SHAPE_CUBE || shape == SHAPE_ACUBE) {
        const float direction[3] = {values[layered]->f32, values[layered + 1]->f32,
                                    values[layered + 2]->f32};
        p.on_face = p.normalized = true;
        p.layer = 6 * p.layer + face_of(direction, p.at);
        return p;
    }
    for (unsigned a = 0; a < p.axes; a++)
        p.at[a] = by_number ? (double)values[a + layered]->s32 : (double)values[a + layered]->f32;
    return p;
}

static void give(union slot *R, const struct ins *word, const struct texel *texel) {
    const uint16_t slots[4] = {word->d, word->a, word->b, word->c};
    for (unsigned c = 0; c < 4; c++) R[slots[c]].u64 = texel->channel[c].bits;
}

/* ---- the instructions ---- */

bool texture_read(struct exec *x, union slot *R, const struct ins *at) {
    const egpu_ptx_texture *t = texture_of(x, R[at->a].u64, false);
    struct texel texel;
    if (!t) return false;
    struct point p = point_of(t, AUX_SHAPE(at->aux), AUX_BY_NUMBER(at->aux), R, at + 2);
    if (!between_levels(x, t, chosen_level(t, &p, R, at), &p, &texel)) return false;
    give(R, at + 1, &texel);
    return true;
}

/* One channel of the four elements that linear filtering would mix, in PTX's order. */
bool texture_gather(struct exec *x, union slot *R, const struct ins *at) {
    static const int64_t order[4][2] = {{0, 1}, {1, 1}, {1, 0}, {0, 0}};
    const egpu_ptx_texture *t = texture_of(x, R[at->a].u64, false);
    if (!t) return false;
    const egpu_ptx_level *level = &t->levels[0];
    struct point p = point_of(t, AUX_SHAPE(at->aux), false, R, at + 2);
    struct texel all, one;
    double ignored;
    int64_t left = first_of(t, &p, 0, level->width, true, &ignored);
    int64_t top = first_of(t, &p, 1, level->height, true, &ignored);
    for (unsigned i = 0; i < 4; i++) {
        const int64_t place[3] = {left + order[i][0], top + order[i][1], 0};
        if (!neighbour(x, t, level, &p, place, &one)) return false;
        all.channel[i] = one.channel[AUX_MODE(at->aux)];
    }
    give(R, at + 1, &all);
    return true;
}

bool texture_query(struct exec *x, union slot *R, const struct ins *at) {
    const egpu_ptx_texture *t = texture_of(x, R[at->a].u64, AUX_BY_NUMBER(at->aux));
    if (!t) return false;
    const egpu_ptx_level *level = &t->levels[0];
    const uint32_t facts[] = {level->width, level->height, level->depth, level->depth,
                              t->level_count};
    R[at->d].u64 = facts[AUX_MODE(at->aux)];
    return true;
}
