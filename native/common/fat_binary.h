/* A fat binary, which nvcc puts into programs and a runtime passes to the driver.
 *
 * Only this is known here: how one begins, and how many bytes follow its head. A program's own
 * pointer to it is in a wrapper (crt/host_runtime.h and fatbinary_section.h of the toolkit). */
#ifndef EGPU_COMMON_FAT_BINARY_H
#define EGPU_COMMON_FAT_BINARY_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define FAT_BINARY_MAGIC "\x50\xed\x55\xba"  /* 0xba55ed50 */
#define FAT_WRAPPER_MAGIC "\xb1\x43\x62\x46" /* 0x466243b1, FATBINC_MAGIC */

struct fat_binary {
    uint32_t magic, unread;
    uint64_t rest_bytes; /* after this head */
};

struct fat_wrapper {
    uint32_t magic, version;
    const void *image;
};

/* An image may be a text of one byte: compare it as text, not as a number. */
static inline bool fat_binary_is(const void *image) {
    return strncmp(image, FAT_BINARY_MAGIC, 4) == 0;
}

static inline bool fat_wrapper_is(const void *image) {
    return strncmp(image, FAT_WRAPPER_MAGIC, 4) == 0;
}

/* Return the wrapped image; `image` itself if it is not a wrapper. */
static inline const void *fat_binary_unwrapped(const void *image) {
    struct fat_wrapper wrapper;
    if (!fat_wrapper_is(image)) return image;
    memcpy(&wrapper, image, sizeof wrapper);
    return wrapper.image;
}

/* Return the bytes after a fat binary's head, according to the head. */
static inline uint64_t fat_binary_rest_bytes(const void *image) {
    struct fat_binary head;
    memcpy(&head, image, sizeof head);
    return head.rest_bytes;
}

#endif
