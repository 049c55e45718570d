/* Texture and surface objects, translated for the kernel interpreter. */
#include "engine.h"

#include <stdlib.h>

#define LINEAR_ALIGNMENT 512u /* values of the attributes: of addresses, and of pitches */
#define PITCH_ALIGNMENT 32u

static bool set_elements(egpu_ptx_texture *shown, CUarray_format format, unsigned channels) {
    shown->channel_bytes = (uint32_t)array_format_bytes(format);
    shown->channels = channels;
    switch ((int)format) {
    case CU_AD_FORMAT_SIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT32: shown->channel = EGPU_PTX_SIGNED; break;
    case CU_AD_FORMAT_HALF:
    case CU_AD_FORMAT_FLOAT: shown->channel = EGPU_PTX_FLOAT; break;
    default: shown->channel = EGPU_PTX_UNSIGNED; break;
    }
    return shown->channel_bytes != 0 && (channels == 1 || channels == 2 || channels == 4);
}

static uint32_t element_bytes(const egpu_ptx_texture *shown) {
    return shown->channel_bytes * shown->channels;
}

static void add_level(egpu_ptx_texture *shown, const struct array *array) {
    shown->levels[shown->level_count++] =
        (egpu_ptx_level){.address = array->address,
                         .width = (uint32_t)array->descriptor.Width,
                         .height = (uint32_t)array->rows,
                         .depth = (uint32_t)array->slices,
                         .pitch = array->pitch,
                         .slice = array->pitch * array->rows};
}

static CUresult show_array(egpu_ptx_texture *shown, CUarray handle) {
    if (handle_kind_of(handle) != HANDLE_ARRAY) return CUDA_ERROR_INVALID_HANDLE;
    const struct array *array = (const struct array *)handle;
    if (!array->address) return CUDA_ERROR_INVALID_VALUE; /* its memory is not mapped yet */
    set_elements(shown, array->descriptor.Format, array->descriptor.NumChannels);
    add_level(shown, array);
    return CUDA_SUCCESS;
}

static CUresult show_mipmap(egpu_ptx_texture *shown, CUmipmappedArray handle) {
    if (handle_kind_of(handle) != HANDLE_MIPMAP) return CUDA_ERROR_INVALID_HANDLE;
    const struct mipmap *mipmap = (const struct mipmap *)handle;
    if (!mipmap->address || mipmap->level_count > EGPU_PTX_LEVELS) return CUDA_ERROR_INVALID_VALUE;
    set_elements(shown, mipmap->descriptor.Format, mipmap->descriptor.NumChannels);
    for (unsigned i = 0; i < mipmap->level_count; i++) add_level(shown, &mipmap->levels[i]);
    return CUDA_SUCCESS;
}

static CUresult show_linear(egpu_ptx_texture *shown, const CUDA_RESOURCE_DESC *resource) {
    size_t most = (size_t)array_limit(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LINEAR_WIDTH);
    if (!set_elements(shown, resource->res.linear.format, resource->res.linear.numChannels))
        return CUDA_ERROR_INVALID_VALUE;
    size_t width = resource->res.linear.sizeInBytes / element_bytes(shown);
    uint64_t address = resource->res.linear.devPtr;
    if (width == 0 || width > most || address == 0 || address % LINEAR_ALIGNMENT)
        return CUDA_ERROR_INVALID_VALUE;
    shown->by_index = true;
    shown->level_count = 1;
    shown->levels[0] =
        (egpu_ptx_level){.address = address, .width = (uint32_t)width, .height = 1, .depth = 1};
    return CUDA_SUCCESS;
}

static CUresult show_pitched(egpu_ptx_texture *shown, const CUDA_RESOURCE_DESC *resource) {
    size_t width = resource->res.pitch2D.width, height = resource->res.pitch2D.height;
    size_t pitch = resource->res.pitch2D.pitchInBytes;
    uint64_t address = resource->res.pitch2D.devPtr;
    if (!set_elements(shown, resource->res.pitch2D.format, resource->res.pitch2D.numChannels) ||
        address == 0 || address % LINEAR_ALIGNMENT || width == 0 || height == 0 ||
        width > (size_t)array_limit(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_WIDTH) ||
        height > (size_t)array_limit(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_HEIGHT) ||
        pitch > (size_t)array_limit(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_PITCH) ||
        pitch % PITCH_ALIGNMENT || pitch < width * element_bytes(shown))
        return CUDA_ERROR_INVALID_VALUE;
    shown->level_count = 1;
    shown->levels[0] = (egpu_ptx_level){.address = address,
                                        .width = (uint32_t)width,
                                        .height = (uint32_t)height,
                                        .depth = 1,
                                        .pitch = pitch};
    return CUDA_SUCCESS;
}

static CUresult show(egpu_ptx_texture *shown, const CUDA_RESOURCE_DESC *resource) {
    if (resource->flags) return CUDA_ERROR_INVALID_VALUE;
    switch (resource->resType) {
    case CU_RESOURCE_TYPE_ARRAY: return show_array(shown, resource->res.array.hArray);
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY:
        return show_mipmap(shown, resource->res.mipmap.hMipmappedArray);
    case CU_RESOURCE_TYPE_LINEAR: return show_linear(shown, resource);
    case CU_RESOURCE_TYPE_PITCH2D: return show_pitched(shown, resource);
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

/* ---- how it is sampled ---- */

#define FLAGS_KNOWN                                                            \
    (CU_TRSF_READ_AS_INTEGER | CU_TRSF_NORMALIZED_COORDINATES | CU_TRSF_SRGB | \
     CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION)

/* Only reads as floats interpolate. Neighbouring faces of a cube never mix here. */
static CUresult set_reading(egpu_ptx_texture *shown, const CUDA_TEXTURE_DESC *how) {
    bool whole = shown->channel != EGPU_PTX_FLOAT;
    shown->normalized_values =
        whole && shown->channel_bytes < 4 && !(how->flags & CU_TRSF_READ_AS_INTEGER);
    shown->normalized_coordinates = how->flags & CU_TRSF_NORMALIZED_COORDINATES;
    shown->interpolate = how->filterMode == CU_TR_FILTER_MODE_LINEAR;
    shown->interpolate_levels = how->mipmapFilterMode == CU_TR_FILTER_MODE_LINEAR;
    shown->srgb = (how->flags & CU_TRSF_SRGB) && shown->normalized_values &&
                  shown->channel == EGPU_PTX_UNSIGNED && shown->channel_bytes == 1;
    shown->level_offset = how->mipmapLevelBias;
    shown->level_least = how->minMipmapLevelClamp;
    shown->level_most = how->maxMipmapLevelClamp;
    for (unsigned i = 0; i < 3; i++) {
        if (how->addressMode[i] > CU_TR_ADDRESS_MODE_BORDER) return CUDA_ERROR_INVALID_VALUE;
        shown->addressing[i] = (egpu_ptx_addressing)how->addressMode[i];
    }
    for (unsigned i = 0; i < 4; i++) shown->border[i] = how->borderColor[i];
    if (how->filterMode > CU_TR_FILTER_MODE_LINEAR ||
        how->mipmapFilterMode > CU_TR_FILTER_MODE_LINEAR || how->maxAnisotropy > 16 ||
        (shown->interpolate && whole && !shown->normalized_values) ||
        (shown->level_count > 1 && !shown->normalized_coordinates))
        return CUDA_ERROR_INVALID_VALUE;
    if (how->flags & ~(unsigned)FLAGS_KNOWN)
        return engine_unsupported("a texture with such a flag", "leave it out");
    return CUDA_SUCCESS;
}

/* ---- views of an array ---- */

/* The plain formats come in threes: 1, 2 and 4 channels. */
static bool set_format(egpu_ptx_texture *shown, CUresourceViewFormat format) {
    static const CUarray_format formats[] = {CU_AD_FORMAT_UNSIGNED_INT8,  CU_AD_FORMAT_SIGNED_INT8,
                                             CU_AD_FORMAT_UNSIGNED_INT16, CU_AD_FORMAT_SIGNED_INT16,
                                             CU_AD_FORMAT_UNSIGNED_INT32, CU_AD_FORMAT_SIGNED_INT32,
                                             CU_AD_FORMAT_HALF,           CU_AD_FORMAT_FLOAT};
    if (format == CU_RES_VIEW_FORMAT_NONE) return true;
    unsigned number = (unsigned)format - CU_RES_VIEW_FORMAT_UINT_1X8;
    uint32_t bytes = element_bytes(shown);
    return format <= CU_RES_VIEW_FORMAT_FLOAT_4X32 &&
           set_elements(shown, formats[number / 3], 1u << number % 3) &&
           element_bytes(shown) == bytes;
}

static CUresult set_view(egpu_ptx_texture *shown, const CUDA_RESOURCE_DESC *resource,
                         const CUDA_RESOURCE_VIEW_DESC *view) {
    bool mipmapped = resource->resType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
    if (!mipmapped && resource->resType != CU_RESOURCE_TYPE_ARRAY) return CUDA_ERROR_INVALID_VALUE;
    if (view->format > CU_RES_VIEW_FORMAT_FLOAT_4X32 &&
        view->format <= CU_RES_VIEW_FORMAT_UNSIGNED_BC7)
        return engine_unsupported("a view of a texture in a compressed format",
                                  "use a format of plain channels");
    const egpu_ptx_level *first = &shown->levels[0];
    size_t height = first->height == 1 && !view->height ? 1 : view->height;
    if (!set_format(shown, view->format) || view->width != first->width ||
        height != first->height || view->firstMipmapLevel > view->lastMipmapLevel ||
        view->lastMipmapLevel >= shown->level_count || view->firstLayer > view->lastLayer ||
        view->lastLayer >= first->depth)
        return CUDA_ERROR_INVALID_VALUE;
    shown->level_count = view->lastMipmapLevel - view->firstMipmapLevel + 1;
    for (unsigned i = 0; i < shown->level_count; i++)
        shown->levels[i] = shown->levels[i + view->firstMipmapLevel];
    for (unsigned i = 0; view->lastLayer && i < shown->level_count; i++) {
        shown->levels[i].address += view->firstLayer * shown->levels[i].slice;
        shown->levels[i].depth = view->lastLayer - view->firstLayer + 1;
    }
    return CUDA_SUCCESS;
}

/* ---- objects ---- */

static CUresult keep(struct texture *texture, enum handle_kind kind, struct texture **out) {
    struct texture *kept = malloc(sizeof *kept);
    if (kept) *kept = *texture;
    if (!kept || !handle_add(kept, kind)) {
        free(kept);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = kept;
    return CUDA_SUCCESS;
}

CUresult texture_create(struct context *context, const CUDA_RESOURCE_DESC *resource,
                        const CUDA_TEXTURE_DESC *how, const CUDA_RESOURCE_VIEW_DESC *view,
                        struct texture **out) {
    struct texture texture = {.context = context, .resource = *resource, .how = *how};
    CUresult result = show(&texture.shown, resource);
    if (result == CUDA_SUCCESS && view) {
        texture.has_view = true;
        texture.view = *view;
        result = set_view(&texture.shown, resource, view);
    }
    if (result == CUDA_SUCCESS) result = set_reading(&texture.shown, how);
    return result == CUDA_SUCCESS ? keep(&texture, HANDLE_TEXTURE, out) : result;
}

CUresult surface_create(struct context *context, const CUDA_RESOURCE_DESC *resource,
                        struct texture **out) {
    struct texture surface = {.context = context, .resource = *resource};
    if (resource->resType != CU_RESOURCE_TYPE_ARRAY) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = show(&surface.shown, resource);
    if (result != CUDA_SUCCESS) return result;
    const struct array *array = (const struct array *)resource->res.array.hArray;
    if (!(array->descriptor.Flags & CUDA_ARRAY3D_SURFACE_LDST)) return CUDA_ERROR_INVALID_VALUE;
    return keep(&surface, HANDLE_SURFACE, out);
}

/* Kernels that read it finish first. */
CUresult texture_destroy(struct texture *texture) {
    CUresult result = context_synchronize(texture->context);
    handle_remove(texture);
    free(texture);
    return result;
}

void texture_context_gone(const struct context *context) {
    static const enum handle_kind kinds[] = {HANDLE_TEXTURE, HANDLE_SURFACE};
    for (unsigned i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        void **all = handle_all(kinds[i]);
        for (void **at = all; at && *at; at++)
            if (((struct texture *)*at)->context == context) {
                handle_remove(*at);
                free(*at);
            }
        free(all);
    }
}

const egpu_ptx_texture *texture_shown(void *context, uint64_t object, bool surface) {
    const struct texture *texture = (const struct texture *)(uintptr_t)object;
    if (handle_kind_of(texture) != (surface ? HANDLE_SURFACE : HANDLE_TEXTURE)) return NULL;
    return texture->context == context ? &texture->shown : NULL;
}
