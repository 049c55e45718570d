/* The way out for programs that bring NVIDIA's runtime library. */
#ifndef EGPU_RUNTIME_REMEDY_H
#define EGPU_RUNTIME_REMEDY_H

#include <stddef.h>

/* Write how a program does without NVIDIA's runtime. Call it where that runtime requests its table:
 * the calling library decides. */
void runtime_remedy(char *remedy, size_t size);

#endif
