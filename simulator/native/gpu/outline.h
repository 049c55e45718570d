/* Outlines of compiled kernels: PTX with the same names, parameters and sizes, and no code.
 *
 * A machine that was told to skip compiled kernels (SIM_FLAG_SKIP_COMPILED) loads these. Programs
 * then make all their calls, and no result is right.
 */
#ifndef EGPU_SIM_OUTLINE_H
#define EGPU_SIM_OUTLINE_H

#include <stdbool.h>
#include <stddef.h>

/* Return the bytes of the cubin at `at`; 0: there is none, or it is longer than `left`. */
size_t outline_cubin_bytes(const char *at, size_t left);
/* Return the architecture of a cubin, as in sm_90. */
unsigned outline_target(const char *cubin);
/* Return whether a card of this architecture runs a cubin: the same generation, and not newer. */
bool outline_fits(const char *cubin, unsigned target);
/* Return the outline of a cubin as text, to be freed; NULL: no memory. */
char *outline_of(const char *cubin, size_t bytes);
/* Return whether a text is an outline. */
bool outline_is(const char *text);

#endif
