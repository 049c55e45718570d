/* Maximum sizes of arrays, textures and surfaces. The figures hold for all cards since compute
 * capability 7.0: table of technical specifications in the CUDA programming guide. */
#include "engine.h"

#define TEXTURE(name) CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE##name
#define SURFACE(name) CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE##name

static const struct {
    CUdevice_attribute attribute;
    int value;
} limits[] = {
    {TEXTURE(1D_WIDTH), 131072},
    {TEXTURE(1D_LAYERED_WIDTH), 32768},
    {TEXTURE(1D_LAYERED_LAYERS), 2048},
    {TEXTURE(1D_MIPMAPPED_WIDTH), 32768},
    {TEXTURE(1D_LINEAR_WIDTH), 1 << 28},
    {TEXTURE(2D_WIDTH), 131072},
    {TEXTURE(2D_HEIGHT), 65536},
    {TEXTURE(2D_LAYERED_WIDTH), 32768},
    {TEXTURE(2D_LAYERED_HEIGHT), 32768},
    {TEXTURE(2D_LAYERED_LAYERS), 2048},
    {TEXTURE(2D_GATHER_WIDTH), 32768},
    {TEXTURE(2D_GATHER_HEIGHT), 32768},
    {TEXTURE(2D_MIPMAPPED_WIDTH), 32768},
    {TEXTURE(2D_MIPMAPPED_HEIGHT), 32768},
    {TEXTURE(2D_LINEAR_WIDTH), 131072},
    {TEXTURE(2D_LINEAR_HEIGHT), 65000},
    {TEXTURE(2D_LINEAR_PITCH), 2097120},
    {TEXTURE(3D_WIDTH), 16384},
    {TEXTURE(3D_HEIGHT), 16384},
    {TEXTURE(3D_DEPTH), 16384},
    {TEXTURE(3D_WIDTH_ALTERNATE), 8192},
    {TEXTURE(3D_HEIGHT_ALTERNATE), 8192},
    {TEXTURE(3D_DEPTH_ALTERNATE), 32768},
    {TEXTURE(CUBEMAP_WIDTH), 32768},
    {TEXTURE(CUBEMAP_LAYERED_WIDTH), 32768},
    {TEXTURE(CUBEMAP_LAYERED_LAYERS), 2046},
    {SURFACE(1D_WIDTH), 32768},
    {SURFACE(1D_LAYERED_WIDTH), 32768},
    {SURFACE(1D_LAYERED_LAYERS), 2048},
    {SURFACE(2D_WIDTH), 131072},
    {SURFACE(2D_HEIGHT), 65536},
    {SURFACE(2D_LAYERED_WIDTH), 32768},
    {SURFACE(2D_LAYERED_HEIGHT), 32768},
    {SURFACE(2D_LAYERED_LAYERS), 2048},
    {SURFACE(3D_WIDTH), 16384},
    {SURFACE(3D_HEIGHT), 16384},
    {SURFACE(3D_DEPTH), 16384},
    {SURFACE(CUBEMAP_WIDTH), 32768},
    {SURFACE(CUBEMAP_LAYERED_WIDTH), 32768},
    {SURFACE(CUBEMAP_LAYERED_LAYERS), 2046},
};

int array_limit(CUdevice_attribute attribute) {
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        if (limits[i].attribute == attribute) return limits[i].value;
    return 0;
}

enum kind { LINE, PLANE, VOLUME, LINES, PLANES, CUBE, CUBES, KINDS };

struct extents {
    CUdevice_attribute width, height, depth; /* 0: no such limit */
};

static const struct extents textures[KINDS] = {
    [LINE] = {TEXTURE(1D_WIDTH), 0, 0},
    [PLANE] = {TEXTURE(2D_WIDTH), TEXTURE(2D_HEIGHT), 0},
    [VOLUME] = {TEXTURE(3D_WIDTH), TEXTURE(3D_HEIGHT), TEXTURE(3D_DEPTH)},
    [LINES] = {TEXTURE(1D_LAYERED_WIDTH), 0, TEXTURE(1D_LAYERED_LAYERS)},
    [PLANES] = {TEXTURE(2D_LAYERED_WIDTH), TEXTURE(2D_LAYERED_HEIGHT), TEXTURE(2D_LAYERED_LAYERS)},
    [CUBE] = {TEXTURE(CUBEMAP_WIDTH), TEXTURE(CUBEMAP_WIDTH), TEXTURE(CUBEMAP_LAYERED_LAYERS)},
    [CUBES] = {TEXTURE(CUBEMAP_LAYERED_WIDTH), TEXTURE(CUBEMAP_LAYERED_WIDTH),
               TEXTURE(CUBEMAP_LAYERED_LAYERS)},
};
static const struct extents surfaces[KINDS] = {
    [LINE] = {SURFACE(1D_WIDTH), 0, 0},
    [PLANE] = {SURFACE(2D_WIDTH), SURFACE(2D_HEIGHT), 0},
    [VOLUME] = {SURFACE(3D_WIDTH), SURFACE(3D_HEIGHT), SURFACE(3D_DEPTH)},
    [LINES] = {SURFACE(1D_LAYERED_WIDTH), 0, SURFACE(1D_LAYERED_LAYERS)},
    [PLANES] = {SURFACE(2D_LAYERED_WIDTH), SURFACE(2D_LAYERED_HEIGHT), SURFACE(2D_LAYERED_LAYERS)},
    [CUBE] = {SURFACE(CUBEMAP_WIDTH), SURFACE(CUBEMAP_WIDTH), SURFACE(CUBEMAP_LAYERED_LAYERS)},
    [CUBES] = {SURFACE(CUBEMAP_LAYERED_WIDTH), SURFACE(CUBEMAP_LAYERED_WIDTH),
               SURFACE(CUBEMAP_LAYERED_LAYERS)},
};
static const struct extents gathered = {TEXTURE(2D_GATHER_WIDTH), TEXTURE(2D_GATHER_HEIGHT), 0};
static const struct extents mipmapped_line = {TEXTURE(1D_MIPMAPPED_WIDTH), 0, 0};
static const struct extents mipmapped_plane = {TEXTURE(2D_MIPMAPPED_WIDTH),
                                               TEXTURE(2D_MIPMAPPED_HEIGHT), 0};
static const struct extents deep_volume = {
    TEXTURE(3D_WIDTH_ALTERNATE), TEXTURE(3D_HEIGHT_ALTERNATE), TEXTURE(3D_DEPTH_ALTERNATE)};

static bool fits(const CUDA_ARRAY3D_DESCRIPTOR *array, const struct extents *most) {
    return array->Width <= (size_t)array_limit(most->width) &&
           array->Height <= (size_t)array_limit(most->height) &&
           array->Depth <= (size_t)array_limit(most->depth);
}

static enum kind kind_of(const CUDA_ARRAY3D_DESCRIPTOR *array) {
    bool layered = array->Flags & CUDA_ARRAY3D_LAYERED;
    if (array->Flags & CUDA_ARRAY3D_CUBEMAP) return layered ? CUBES : CUBE;
    if (layered) return array->Height ? PLANES : LINES;
    return array->Depth ? VOLUME : array->Height ? PLANE : LINE;
}

bool array_fits(const CUDA_ARRAY3D_DESCRIPTOR *array, bool mipmapped) {
    enum kind kind = kind_of(array);
    bool gather = array->Flags & CUDA_ARRAY3D_TEXTURE_GATHER;
    if (array->Width == 0) return false;
    if ((array->Flags & CUDA_ARRAY3D_LAYERED) && array->Depth == 0) return false;
    if (kind == VOLUME && array->Height == 0) return false;
    if (kind == CUBE && array->Depth != 6) return false;
    if (kind == CUBES && array->Depth % 6) return false;
    if ((kind == CUBE || kind == CUBES) && array->Width != array->Height) return false;
    if (gather && (kind != PLANE || !fits(array, &gathered))) return false;
    if ((array->Flags & CUDA_ARRAY3D_SURFACE_LDST) && !fits(array, &surfaces[kind])) return false;
    if (mipmapped && kind == LINE && !fits(array, &mipmapped_line)) return false;
    if (mipmapped && kind == PLANE && !fits(array, &mipmapped_plane)) return false;
    return fits(array, &textures[kind]) || (kind == VOLUME && fits(array, &deep_volume));
}
