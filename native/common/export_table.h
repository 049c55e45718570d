/* The driver's undocumented tables that a program requests; we have none of them. */
#ifndef EGPU_EXPORT_TABLE_H
#define EGPU_EXPORT_TABLE_H

#include <cuda.h>
#include <stdbool.h>
#include <string.h>

/* Without this table NVIDIA's runtime library does not work. Programs that request others (NVRTC
 * does) continue without them, so no message is needed. */
static inline bool export_table_of_runtime(const CUuuid *id) {
    static const unsigned char of_runtime[sizeof id->bytes] = {0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4,
                                                               0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39,
                                                               0x12, 0xfd, 0x9d, 0xf9};
    return id && memcmp(id->bytes, of_runtime, sizeof of_runtime) == 0;
}

#endif
