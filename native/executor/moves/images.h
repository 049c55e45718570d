/* What the code of an image says about its variables. See images.c. */
#ifndef EGPU_EXECUTOR_MOVES_IMAGES_H
#define EGPU_EXECUTOR_MOVES_IMAGES_H

#include "executor/moves/moves.h"

/* Each returns why the code stays, or NULL. PTX names the variables that it writes itself. */
const char *ptx_stays(const char *text, const struct image_seer *seer);
const char *cubin_stays(const uint8_t *bytes, size_t total);
const char *fat_stays(const uint8_t *bytes, size_t total, const struct image_seer *seer);

/* Whether one of the session's cards may choose code for this architecture: compiled code, or PTX.
 */
bool image_fits(bool compiled, unsigned architecture);
/* Of text or a cubin: an image, or a part of a fat binary. */
const char *image_code_stays(const uint8_t *bytes, size_t total, const struct image_seer *seer);

/* ---- packed.c: returns the bytes that were unpacked ---- */

size_t unpack_zstd(uint8_t *to, size_t room, const uint8_t *from, size_t bytes);
size_t unpack_lz4(uint8_t *to, size_t room, const uint8_t *from, size_t bytes);

#endif
