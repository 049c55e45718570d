/* Translation of the runtime API's channel formats for the driver. */
#ifndef EGPU_RUNTIME_CHANNEL_H
#define EGPU_RUNTIME_CHANNEL_H

#include "runtime.h"

#pragma GCC visibility push(hidden)

struct channels {
    CUarray_format format;
    unsigned count;
};

/* cudaErrorInvalidChannelDescriptor: different sizes, three channels, or none. */
cudaError_t runtime_channels(const struct cudaChannelFormatDesc *asked, struct channels *channels);
struct cudaChannelFormatDesc runtime_channels_asked(struct channels channels);
/* Return the bytes of an array's element, the runtime's unit where the driver uses bytes. */
cudaError_t runtime_element_bytes(cudaArray_const_t array, size_t *bytes);

#pragma GCC visibility pop

#endif
