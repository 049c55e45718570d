/* The contents of variables of modules and libraries. The target's driver puts them elsewhere, so
 * they are carried by their names: those that the code writes itself, and those that the program
 * has named. All others are what the image says. A library has its variables once in each context.
 */
#include "executor/session/session.h"

#include <stdio.h>

#include "executor/moves/mappings.h"

/* ---- their names ---- */

struct names {
    char **names;
    uint32_t count, room;
};

static bool add_name(const char *name, size_t bytes, void *data) {
    struct names *to = data;
    for (uint32_t i = 0; i < to->count; i++)
        if (strlen(to->names[i]) == bytes && memcmp(to->names[i], name, bytes) == 0) return true;
    char *copy = moves_grow((void **)&to->names, to->count, &to->room, sizeof *to->names)
                     ? strndup(name, bytes)
                     : NULL;
    if (copy != NULL) to->names[to->count++] = copy;
    return copy != NULL;
}

static void names_free(struct names *names) {
    for (uint32_t i = 0; i < names->count; i++) free(names->names[i]);
    free(names->names);
}

/* Of images that were looked at before the session stopped. */
static struct looked {
    uint8_t digest[32];
    struct names names;
} *looked;
static uint32_t looked_count, looked_room;

void variables_look(const struct image_hold *image) {
    struct looked found = {.names = {NULL, 0, 0}};
    const struct image_seer seer = {add_name, &found.names};
    memcpy(found.digest, image->digest, sizeof found.digest);
    if (image_written(image->bytes, image->total, &seer) &&
        moves_grow((void **)&looked, looked_count, &looked_room, sizeof *looked))
        looked[looked_count++] = found;
    else
        names_free(&found.names);
}

void variables_forget(void) {
    while (looked_count != 0) names_free(&looked[--looked_count].names);
}

static bool add_looked(struct names *to, const uint8_t digest[32], bool *good) {
    for (uint32_t i = 0; i < looked_count; i++) {
        const struct names *names = &looked[i].names;
        if (memcmp(looked[i].digest, digest, sizeof looked[i].digest) != 0) continue;
        *good = true;
        for (uint32_t j = 0; j < names->count && *good; j++)
            *good = add_name(names->names[j], strlen(names->names[j]), to);
        return true;
    }
    return false;
}

static bool add_written(struct names *to, const struct kept *load) {
    const struct image_seer seer = {add_name, to};
    struct wire_load ask;
    bool good;
    memcpy(&ask, load->payload, sizeof ask);
    if (add_looked(to, ask.digest, &good)) return good;
    if (ask.inline_bytes == 0) {
        const struct image *image = image_known(ask.digest, ask.total);
        return image != NULL && image_written(image->bytes, image->total, &seer);
    }
    uint8_t *image = malloc(ask.inline_bytes + 1); /* with an end, as texts have */
    if (image == NULL) return false;
    memcpy(image, load->payload + sizeof ask, ask.inline_bytes);
    image[ask.inline_bytes] = 0;
    good = image_written(image, ask.inline_bytes, &seer);
    free(image);
    return good;
}

/* ---- where they are ---- */

static CUresult find(uint64_t object, const char *name, CUdeviceptr *address, size_t *bytes) {
    CUresult bad = CUDA_SUCCESS;
    unsigned kind = wire_kind_of(object);
    uint64_t value = handle_value(kind, object, &bad);
    if (bad != CUDA_SUCCESS || (kind != KIND_module && kind != KIND_library))
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult (*ask)(CUdeviceptr *, size_t *, void *, const char *) =
        (CUresult (*)(CUdeviceptr *, size_t *, void *, const char *))driver_function(
            kind == KIND_module ? EGPU_FN_cuModuleGetGlobal_v2 : EGPU_FN_cuLibraryGetGlobal);
    return ask == NULL ? CUDA_ERROR_NOT_SUPPORTED
                       : ask(address, bytes, (void *)(uintptr_t)value, name);
}

/* ---- the source ---- */

static bool put_one(struct moved_stream *to, const struct moved_variable *is, const char *name,
                    CUdeviceptr address, uint8_t *stage) {
    moved_put(to, PART_VARIABLE, is, sizeof *is, name, strlen(name) + 1);
    for (uint64_t at = 0; at < is->bytes && !to->bad;) {
        uint64_t left = is->bytes - at;
        struct moved_data data = {at, left < MOVED_DATA_BYTES ? left : MOVED_DATA_BYTES};
        if (DRIVER(cuMemcpyDtoH_v2, void *, CUdeviceptr, size_t)(stage, address + at, data.bytes) !=
            CUDA_SUCCESS)
            return false;
        moved_put(to, PART_VARIABLE_DATA, &data, sizeof data, stage, data.bytes);
        at += data.bytes;
    }
    return true;
}

static bool put_names(struct moved_stream *to, const struct names *names, struct moved_variable *is,
                      uint8_t *stage, char *why) {
    driver_enter(is->context);
    for (uint32_t i = 0; i < names->count; i++) {
        CUdeviceptr address = 0;
        size_t bytes = 0;
        bool good = find(is->object, names->names[i], &address, &bytes) == CUDA_SUCCESS;
        is->bytes = bytes;
        if (good && put_one(to, is, names->names[i], address, stage)) continue;
        snprintf(why, MOVES_WHY_BYTES, "variable %s cannot be read", names->names[i]);
        return false;
    }
    return true;
}

bool variables_put(struct moved_stream *to, const struct variables_of *of, char *why) {
    struct names names = {NULL, 0, 0};
    bool good = add_written(&names, of->load);
    for (const struct kept *kept = of->kept; good && kept != NULL; kept = kept->next)
        if (kept->rule->class == MOVES_USES)
            good = add_name(variable_name(kept), strlen(variable_name(kept)), &names);
    if (!good) snprintf(why, MOVES_WHY_BYTES, "%s: its image is not kept", of->load->rule->name);
    uint8_t *stage = names.count != 0 ? malloc(MOVED_DATA_BYTES) : NULL;
    if (names.count != 0 && stage == NULL) good = false;
    bool module = wire_kind_of(of->object) == KIND_module;
    for (uint32_t i = 0; good && names.count != 0 && i < (module ? 1 : of->context_count); i++) {
        struct moved_variable is = {of->object, module ? of->load->context : of->contexts[i], 0};
        good = put_names(to, &names, &is, stage, why);
    }
    names_free(&names);
    free(stage);
    return good;
}

/* ---- the target ---- */

static CUdeviceptr current;
static uint64_t current_bytes;

bool variables_take(const uint8_t *payload, size_t bytes, char *why) {
    struct moved_variable is;
    size_t found = 0;
    current_bytes = 0;
    if (bytes <= sizeof is || payload[bytes - 1] != 0) return false;
    memcpy(&is, payload, sizeof is);
    const char *name = (const char *)payload + sizeof is;
    driver_enter(is.context);
    if (find(is.object, name, &current, &found) != CUDA_SUCCESS || found != is.bytes) {
        snprintf(why, MOVES_WHY_BYTES, "variable %.400s is not the same at the target", name);
        return false;
    }
    current_bytes = found;
    return true;
}

bool variables_take_data(const uint8_t *payload, size_t bytes) {
    struct moved_data is;
    if (bytes < sizeof is) return false;
    memcpy(&is, payload, sizeof is);
    return is.bytes == bytes - sizeof is && is.address <= current_bytes &&
           is.bytes <= current_bytes - is.address &&
           DRIVER(cuMemcpyHtoD_v2, CUdeviceptr, const void *,
                  size_t)(current + is.address, payload + sizeof is, is.bytes) == CUDA_SUCCESS;
}
