/* What loading a module and loading a library have in common. */
#ifndef EGPU_INTERPOSER_LOADS_H
#define EGPU_INTERPOSER_LOADS_H

#include "interposer.h"

struct load {
    CUresult (*make)(struct load *load);
    CUresult (*undo)(struct load *load);
    const void *image; /* or a path */
    uint64_t least;    /* bytes, as the image says */
    unsigned count;
    CUjit_option *names;
    void **values;
    unsigned library_count;
    CUlibraryOption *library_names;
    void **library_values;
    CUmodule module;
    CUlibrary library;
};

/* Loads, and leaves reserved what that takes of the device; a load that does not fit is undone.
 * Without a context nothing is. */
CUresult load_charged(struct load *load, CUcontext context, int device, uint64_t *bytes);

#endif
