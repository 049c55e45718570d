/* SHA-256 (FIPS 180-4), for the names of module images. */
#ifndef EGPU_WIRE_SHA256_H
#define EGPU_WIRE_SHA256_H

#include <stddef.h>
#include <stdint.h>

void egpu_sha256(const void *data, size_t bytes, uint8_t digest[32])
    __attribute__((visibility("hidden")));

#endif
