/* Textures and surfaces by the number of an object. References by name, which CUDA has removed, are
 * refused at their declaration. */
#include "compile.h"

#include <string.h>

static const char *const shapes[] = {"1d", "2d", "3d", "a1d", "a2d", "cube", "acube", NULL};

static enum shape shape_of(struct parser *p) {
    int i = mod_of(p, shapes);
    if (i < 0) unknown(p);
    return (enum shape)i;
}

static unsigned coordinates(enum shape shape) {
    static const unsigned counts[] = {1, 2, 3, 2, 3, 3, 4};
    return counts[shape];
}

/* Three coordinates are written as four; the last is ignored. */
static struct vector position(struct parser *p, unsigned wanted) {
    struct vector v = {.count = 1};
    if (is_punct(p, '{'))
        v = vector_of(p, TYPE_B32, false, false);
    else
        v.slot[0] = src(p, TYPE_B32);
    if (v.count != wanted && !(wanted == 3 && v.count == 4))
        syntax(p, "'%s' with %u coordinates", p->mnemonic, v.count);
    return v;
}

static void word(struct parser *p, const struct vector *v) {
    emit(p, OP_ext, v->count, v->slot[0], v->slot[1], v->slot[2], v->slot[3], 0);
}

struct operands {
    uint16_t object;
    struct vector at;
};

/* `[object, {coordinates}]` */
static struct operands operands(struct parser *p, enum shape shape) {
    struct operands o;
    expect(p, '[');
    o.object = src(p, TYPE_B64);
    comma(p);
    o.at = position(p, coordinates(shape));
    expect(p, ']');
    return o;
}

/* `{d, …}`, and perhaps `|p`: whether there is memory under it, which is always true. */
static struct vector results(struct parser *p) {
    struct vector v = vector_of(p, TYPE_B32, true, false);
    if (v.count != 4) syntax(p, "'%s' with %u results", p->mnemonic, v.count);
    if (accept(p, '|')) emit(p, OP_mov, 0, dst(p, TYPE_PRED), constant(p, 1), 0, 0, 0);
    return v;
}

static void result_type(struct parser *p) {
    if (!mod(p, "v4")) unknown(p);
    enum type t = next_type(p);
    if (type_bytes(t) != 4) unknown(p);
}

void compile_tex(struct parser *p) {
    static const char *const modes[] = {"base", "level", "grad", NULL};
    int given = mod_of(p, modes);
    enum level_mode mode = given < 0 ? LEVEL_FIRST : (enum level_mode)given;
    enum shape shape = shape_of(p);
    result_type(p);
    enum type t = next_type(p);
    if (t != TYPE_F32 && t != TYPE_S32) unknown(p);
    if (mode == LEVEL_GRADIENT && (shape == SHAPE_CUBE || shape == SHAPE_ACUBE)) unknown(p);
    struct vector to = results(p);
    comma(p);
    struct operands o = operands(p, shape);
    struct vector more[2] = {{.count = 1}};
    unsigned axes = coordinates(shape) - (shape == SHAPE_A1D || shape == SHAPE_A2D);
    unsigned words = mode == LEVEL_GRADIENT ? 2 : mode == LEVEL_GIVEN ? 1 : 0;
    for (unsigned i = 0; i < words; i++) {
        comma(p);
        if (mode == LEVEL_GRADIENT)
            more[i] = position(p, axes);
        else
            more[i].slot[0] = src(p, t == TYPE_F32 ? TYPE_F32 : TYPE_B32);
    }
    emit(p, OP_tex, (unsigned)TEXTURE_AUX(shape, mode, t == TYPE_S32), 0, o.object, 0, 0,
         (int32_t)words + 2);
    word(p, &to);
    word(p, &o.at);
    for (unsigned i = 0; i < words; i++) word(p, &more[i]);
    finish(p); /* offsets and depth comparison would follow */
}

void compile_tld4(struct parser *p) {
    static const char *const channels[] = {"r", "g", "b", "a", NULL};
    int channel = mod_of(p, channels);
    enum shape shape = shape_of(p);
    result_type(p);
    if (next_type(p) != TYPE_F32 || channel < 0 || (shape != SHAPE_2D && shape != SHAPE_A2D))
        unknown(p);
    struct vector to = results(p);
    comma(p);
    struct operands o = operands(p, shape);
    emit(p, OP_tld4, (unsigned)TEXTURE_AUX(shape, channel, 0), 0, o.object, 0, 0, 2);
    word(p, &to);
    word(p, &o.at);
    finish(p);
}

void compile_query(struct parser *p) {
    static const char *const facts[] = {
        "width", "height", "depth", "array_size", "num_mipmap_levels", NULL};
    bool surface = p->base[0] == 's';
    int fact = mod_of(p, facts);
    if (fact < 0 || (surface && fact == FACT_LEVELS) || type_bytes(next_type(p)) != 4) unknown(p);
    uint16_t to = dst(p, TYPE_B32);
    comma(p);
    expect(p, '[');
    uint16_t object = src(p, TYPE_B64);
    expect(p, ']');
    emit(p, OP_txq, (unsigned)TEXTURE_AUX(0, fact, surface), to, object, 0, 0, 0);
    finish(p);
}

void compile_surface(struct parser *p) {
    static const char *const edges[] = {"trap", "clamp", "zero", NULL};
    static const char *const hints[] = {"ca", "cg", "cs", "cv", "wb", "wt", NULL};
    bool load = p->base[2] == 'l';
    if (!mod(p, "b")) unknown(p); /* .p converts to the surface's format */
    enum shape shape = shape_of(p);
    mod_of(p, hints);
    unsigned count = mod(p, "v2") ? 2 : mod(p, "v4") ? 4 : 1;
    enum type t = next_type(p);
    int edge = mod_of(p, edges);
    if (shape > SHAPE_A2D || !type_is_bits(t) || count * type_bytes(t) > 16) unknown(p);
    struct vector elements;
    struct operands o;
    if (load) {
        elements = vector_of(p, t, true, true);
        comma(p);
    }
    o = operands(p, shape);
    if (!load) {
        comma(p);
        elements = vector_of(p, t, false, true);
    }
    if (elements.count != count) syntax(p, "'%s' of %u elements", p->mnemonic, elements.count);
    emit(p, load ? OP_suld : OP_sust, (unsigned)TEXTURE_AUX(shape, edge < 0 ? EDGE_TRAP : edge, 0),
         0, o.object, 0, 0, 2);
    emit(p, OP_ext, type_bytes(t), elements.slot[0], elements.slot[1], elements.slot[2],
         elements.slot[3], (int32_t)count);
    word(p, &o.at);
    finish(p);
}
