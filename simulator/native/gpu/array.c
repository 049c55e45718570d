/* Arrays and mipmaps, and the meaning of the driver's descriptions of copies. */
#include "engine.h"

#include <stdlib.h>
#include <string.h>

#define PITCH 512u

size_t array_format_bytes(CUarray_format format) {
    switch ((int)format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8: return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF: return 2;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT: return 4;
    default: return 0; /* planar video and compressed formats */
    }
}

#define FLAGS_KNOWN                                                            \
    (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_SURFACE_LDST | CUDA_ARRAY3D_CUBEMAP | \
     CUDA_ARRAY3D_TEXTURE_GATHER | CUDA_ARRAY3D_DEFERRED_MAPPING)

static CUresult lay_out(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, struct array *array) {
    size_t element = array_format_bytes(descriptor->Format) * descriptor->NumChannels;
    if (element == 0)
        return engine_unsupported("an array of a planar or compressed format",
                                  "use a format of one to four plain channels");
    if (descriptor->Flags & ~(unsigned)FLAGS_KNOWN)
        return engine_unsupported("a sparse, depth or colour array",
                                  "use an array without its flag");
    if (descriptor->NumChannels != 1 && descriptor->NumChannels != 2 &&
        descriptor->NumChannels != 4)
        return CUDA_ERROR_INVALID_VALUE;
    array->descriptor = *descriptor;
    array->row_bytes = descriptor->Width * element;
    array->rows = descriptor->Height ? descriptor->Height : 1;
    array->slices = descriptor->Depth ? descriptor->Depth : 1;
    bool line = array->rows == 1 && array->slices == 1;
    array->pitch = line ? array->row_bytes : (array->row_bytes + PITCH - 1) / PITCH * PITCH;
    size_t rows;
    if (__builtin_mul_overflow(array->rows, array->slices, &rows) ||
        __builtin_mul_overflow(rows, array->pitch, &array->bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return CUDA_SUCCESS;
}

/* Its memory would come from cuMemMapArrayAsync, which is not simulated. So it can be measured, but
 * not used. */
static bool deferred(const CUDA_ARRAY3D_DESCRIPTOR *descriptor) {
    return descriptor->Flags & CUDA_ARRAY3D_DEFERRED_MAPPING;
}

CUresult array_create(struct context *context, const CUDA_ARRAY3D_DESCRIPTOR *descriptor,
                      struct array **out) {
    if (!array_fits(descriptor, false)) return CUDA_ERROR_INVALID_VALUE;
    struct array *array = calloc(1, sizeof *array);
    if (!array) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = lay_out(descriptor, array);
    if (result == CUDA_SUCCESS && !deferred(descriptor) &&
        memory_alloc(&context->memory, array->bytes, &array->address) != 0)
        result = CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS && !handle_add(array, HANDLE_ARRAY)) {
        if (array->address) memory_free(array->address);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result != CUDA_SUCCESS) {
        free(array);
        return result;
    }
    array->context = context;
    *out = array;
    return CUDA_SUCCESS;
}

void array_destroy(struct array *array) {
    handle_remove(array);
    if (array->address) memory_free(array->address);
    free(array);
}

static size_t halved(size_t size, unsigned level) {
    return size == 0 ? 0 : size >> level ? size >> level : 1;
}

void mipmap_destroy(struct mipmap *mipmap) {
    handle_remove(mipmap);
    for (unsigned i = 0; mipmap->levels && i < mipmap->level_count; i++)
        handle_remove(&mipmap->levels[i]);
    if (mipmap->address) memory_free(mipmap->address);
    free(mipmap->levels);
    free(mipmap);
}

CUresult mipmap_create(struct context *context, const CUDA_ARRAY3D_DESCRIPTOR *descriptor,
                       unsigned levels, struct mipmap **out) {
    if (!array_fits(descriptor, true)) return CUDA_ERROR_INVALID_VALUE;
    struct mipmap *mipmap = calloc(1, sizeof *mipmap);
    if (!mipmap) return CUDA_ERROR_OUT_OF_MEMORY;
    size_t largest =
        descriptor->Width > descriptor->Height ? descriptor->Width : descriptor->Height;
    bool layered = descriptor->Flags & CUDA_ARRAY3D_LAYERED;
    if (!layered && descriptor->Depth > largest) largest = descriptor->Depth;
    unsigned most = 1;
    while (largest >> most) most++;
    if (levels == 0) levels = 1;
    if (levels > most) levels = most; /* as the driver does */
    mipmap->context = context;
    mipmap->descriptor = *descriptor;
    mipmap->level_count = levels;
    mipmap->levels = calloc(levels, sizeof *mipmap->levels);
    CUresult result = mipmap->levels ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    for (unsigned i = 0; i < levels && result == CUDA_SUCCESS; i++) {
        CUDA_ARRAY3D_DESCRIPTOR level = *descriptor;
        level.Width = halved(level.Width, i);
        level.Height = halved(level.Height, i);
        if (!layered) level.Depth = halved(level.Depth, i);
        struct array *array = &mipmap->levels[i];
        result = lay_out(&level, array);
        array->of_mipmap = true;
        array->context = context;
        array->address = mipmap->bytes; /* relative, until there is memory */
        mipmap->bytes += (array->bytes + PITCH - 1) / PITCH * PITCH;
    }
    if (result == CUDA_SUCCESS && !deferred(descriptor) &&
        memory_alloc(&context->memory, mipmap->bytes, &mipmap->address) != 0)
        result = CUDA_ERROR_OUT_OF_MEMORY;
    for (unsigned i = 0; i < levels && result == CUDA_SUCCESS; i++) {
        mipmap->levels[i].address =
            deferred(descriptor) ? 0 : mipmap->levels[i].address + mipmap->address;
        if (!handle_add(&mipmap->levels[i], HANDLE_ARRAY)) result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result == CUDA_SUCCESS && !handle_add(mipmap, HANDLE_MIPMAP))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS)
        *out = mipmap;
    else
        mipmap_destroy(mipmap);
    return result;
}

void array_context_gone(const struct context *context) {
    void **mipmaps = handle_all(HANDLE_MIPMAP), **arrays;
    for (void **at = mipmaps; at && *at; at++)
        if (((struct mipmap *)*at)->context == context) mipmap_destroy(*at);
    arrays = handle_all(HANDLE_ARRAY); /* without the levels of mipmaps */
    for (void **at = arrays; at && *at; at++)
        if (((struct array *)*at)->context == context) array_destroy(*at);
    free(mipmaps);
    free(arrays);
}

/* ---- copies ---- */

struct side {
    CUmemorytype type;
    uint64_t host, device;
    CUarray array;
    size_t x, y, z, pitch, height; /* as given; 0: as wide and high as the copy */
};

/* Compare without a sum, which could overflow. */
static bool within(size_t at, size_t count, size_t all) { return at <= all && count <= all - at; }

static CUresult place(const struct side *side, const struct copy *copy, uint64_t *address,
                      bool *on_device, size_t *pitch, size_t *slice) {
    size_t height = side->height ? side->height : copy->rows;
    *pitch = side->pitch ? side->pitch : copy->width;
    *on_device = side->type == CU_MEMORYTYPE_DEVICE || side->type == CU_MEMORYTYPE_ARRAY;
    switch (side->type) {
    case CU_MEMORYTYPE_HOST: *address = side->host; break;
    case CU_MEMORYTYPE_DEVICE:
    case CU_MEMORYTYPE_UNIFIED: *address = side->device; break;
    case CU_MEMORYTYPE_ARRAY: {
        if (handle_kind_of(side->array) != HANDLE_ARRAY) return CUDA_ERROR_INVALID_HANDLE;
        const struct array *array = (const struct array *)side->array;
        if (!array->address || !within(side->x, copy->width, array->row_bytes) ||
            !within(side->y, copy->rows, array->rows) ||
            !within(side->z, copy->slices, array->slices))
            return CUDA_ERROR_INVALID_VALUE;
        *address = array->address;
        *pitch = array->pitch;
        height = array->rows;
        break;
    }
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    if (copy->rows > 1 && *pitch < copy->width) return CUDA_ERROR_INVALID_VALUE;
    if (copy->slices > 1 && height < copy->rows) return CUDA_ERROR_INVALID_VALUE;
    *slice = *pitch * height;
    *address += side->x + side->y * *pitch + side->z * *slice;
    return CUDA_SUCCESS;
}

static CUresult describe(const struct side *source, const struct side *destination, size_t width,
                         size_t rows, size_t slices, struct copy *copy) {
    *copy = (struct copy){.width = width, .rows = rows, .slices = slices};
    CUresult result = place(source, copy, &copy->source, &copy->source_device, &copy->source_pitch,
                            &copy->source_slice);
    if (result != CUDA_SUCCESS) return result;
    return place(destination, copy, &copy->destination, &copy->destination_device,
                 &copy->destination_pitch, &copy->destination_slice);
}

CUresult copy_of_plane(const CUDA_MEMCPY2D *from, struct copy *copy) {
    if (!from) return CUDA_ERROR_INVALID_VALUE;
    const struct side source = {from->srcMemoryType,
                                (uint64_t)(uintptr_t)from->srcHost,
                                from->srcDevice,
                                from->srcArray,
                                from->srcXInBytes,
                                from->srcY,
                                0,
                                from->srcPitch,
                                0};
    const struct side destination = {from->dstMemoryType,
                                     (uint64_t)(uintptr_t)from->dstHost,
                                     from->dstDevice,
                                     from->dstArray,
                                     from->dstXInBytes,
                                     from->dstY,
                                     0,
                                     from->dstPitch,
                                     0};
    return describe(&source, &destination, from->WidthInBytes, from->Height, 1, copy);
}

CUresult copy_of_volume(const CUDA_MEMCPY3D *from, struct copy *copy) {
    if (!from) return CUDA_ERROR_INVALID_VALUE;
    const struct side source = {from->srcMemoryType, (uint64_t)(uintptr_t)from->srcHost,
                                from->srcDevice,     from->srcArray,
                                from->srcXInBytes,   from->srcY,
                                from->srcZ,          from->srcPitch,
                                from->srcHeight};
    const struct side destination = {from->dstMemoryType, (uint64_t)(uintptr_t)from->dstHost,
                                     from->dstDevice,     from->dstArray,
                                     from->dstXInBytes,   from->dstY,
                                     from->dstZ,          from->dstPitch,
                                     from->dstHeight};
    return describe(&source, &destination, from->WidthInBytes, from->Height, from->Depth, copy);
}
