/* Every symbol of the driver API, for a library that implements some of them. See
 * not_supported.c. */
#ifndef EGPU_NOT_SUPPORTED_H
#define EGPU_NOT_SUPPORTED_H

/* Called by a function that the library does not implement, with its exported name. Returns a
 * CUresult, CUDA_ERROR_NOT_SUPPORTED. The default prints one line per function and process to
 * stderr; define it in the library to do otherwise. */
__attribute__((visibility("hidden"))) int egpu_driver_not_supported(const char *symbol);

/* Return another way to do what `what` does: a function, or a text that begins with its name. NULL:
 * none is known. */
__attribute__((visibility("hidden"))) const char *egpu_driver_remedy(const char *what);

#endif
