/* What a channel format of the runtime's API is to the driver. */
#ifndef EGPU_RUNTIME_CHANNEL_H
#define EGPU_RUNTIME_CHANNEL_H

#include "runtime.h"

#pragma GCC visibility push(hidden)

struct channels {
    CUarray_format format;
    unsigned count;
};

/* cudaErrorInvalidChannelDescriptor: channels of several sizes, three of them, or none. */
cudaError_t runtime_channels(const struct cudaChannelFormatDesc *asked, struct channels *channels);
struct cudaChannelFormatDesc runtime_channels_asked(struct channels channels);
/* Bytes of an element of an array: what the runtime counts in where the driver counts bytes. */
cudaError_t runtime_element_bytes(cudaArray_const_t array, size_t *bytes);

#pragma GCC visibility pop

#endif
