#include "channel.h"

#include <stdbool.h>

/* Normalized formats have the same order in both APIs, each with its number of channels. */
static const int normalized = cudaChannelFormatKindUnsignedNormalized8X1;
static const int normalized_last = cudaChannelFormatKindSignedNormalized16X4;

static const struct {
    enum cudaChannelFormatKind kind;
    int bits;
    CUarray_format format;
} plain[] = {
    {cudaChannelFormatKindUnsigned, 8, CU_AD_FORMAT_UNSIGNED_INT8},
    {cudaChannelFormatKindUnsigned, 16, CU_AD_FORMAT_UNSIGNED_INT16},
    {cudaChannelFormatKindUnsigned, 32, CU_AD_FORMAT_UNSIGNED_INT32},
    {cudaChannelFormatKindSigned, 8, CU_AD_FORMAT_SIGNED_INT8},
    {cudaChannelFormatKindSigned, 16, CU_AD_FORMAT_SIGNED_INT16},
    {cudaChannelFormatKindSigned, 32, CU_AD_FORMAT_SIGNED_INT32},
    {cudaChannelFormatKindFloat, 16, CU_AD_FORMAT_HALF},
    {cudaChannelFormatKindFloat, 32, CU_AD_FORMAT_FLOAT},
};
enum { PLAIN = sizeof plain / sizeof *plain };

static bool is_normalized(int kind) { return kind >= normalized && kind <= normalized_last; }

/* 0: the sizes are not 1, 2 or 4 equal channels. */
static unsigned count_of(const struct cudaChannelFormatDesc *asked) {
    const int bits[4] = {asked->x, asked->y, asked->z, asked->w};
    unsigned count = 0;
    while (count < 4 && bits[count]) count++;
    for (unsigned i = 0; i < 4; i++)
        if (bits[i] != (i < count ? asked->x : 0)) return 0;
    return count == 3 ? 0 : count;
}

cudaError_t runtime_channels(const struct cudaChannelFormatDesc *asked, struct channels *channels) {
    if (!asked) return cudaErrorInvalidValue;
    channels->count = count_of(asked);
    if (channels->count && is_normalized(asked->f)) {
        channels->format =
            (CUarray_format)(CU_AD_FORMAT_UNORM_INT8X1 + ((int)asked->f - normalized));
        return cudaSuccess;
    }
    if ((int)asked->f > normalized_last)
        return runtime_refuse("a compressed or planar format", "arrays support plain formats");
    for (unsigned i = 0; channels->count && i < PLAIN; i++)
        if (plain[i].kind == asked->f && plain[i].bits == asked->x) {
            channels->format = plain[i].format;
            return cudaSuccess;
        }
    return cudaErrorInvalidChannelDescriptor;
}

static struct cudaChannelFormatDesc equal_channels(int bits, unsigned count,
                                                   enum cudaChannelFormatKind kind) {
    return (struct cudaChannelFormatDesc){.x = bits,
                                          .y = count > 1 ? bits : 0,
                                          .z = count > 2 ? bits : 0,
                                          .w = count > 3 ? bits : 0,
                                          .f = kind};
}

struct cudaChannelFormatDesc runtime_channels_asked(struct channels channels) {
    for (unsigned i = 0; i < PLAIN; i++)
        if (plain[i].format == channels.format)
            return equal_channels(plain[i].bits, channels.count, plain[i].kind);
    int kind = normalized + ((int)channels.format - CU_AD_FORMAT_UNORM_INT8X1);
    if (!is_normalized(kind)) return (struct cudaChannelFormatDesc){.f = cudaChannelFormatKindNone};
    int bits = (kind - normalized) / 3 % 2 ? 16 : 8;
    return equal_channels(bits, channels.count, (enum cudaChannelFormatKind)kind);
}

cudaError_t runtime_element_bytes(cudaArray_const_t array, size_t *bytes) {
    CUDA_ARRAY3D_DESCRIPTOR descriptor;
    cudaError_t error = runtime_context();
    if (error != cudaSuccess) return error;
    CUresult result = driver.cuArray3DGetDescriptor(&descriptor, (CUarray)array);
    if (result != CUDA_SUCCESS) return (cudaError_t)result;
    struct cudaChannelFormatDesc element =
        runtime_channels_asked((struct channels){descriptor.Format, descriptor.NumChannels});
    *bytes = (size_t)(element.x + element.y + element.z + element.w) / 8;
    return *bytes ? cudaSuccess : cudaErrorInvalidValue;
}

API struct cudaChannelFormatDesc cudaCreateChannelDesc(int x, int y, int z, int w,
                                                       enum cudaChannelFormatKind kind) {
    return (struct cudaChannelFormatDesc){x, y, z, w, kind};
}
