/* The wire between remote client and executor: docs/internals/wire.md in C. All that both sides
 * agree on about bytes is in this header. */
#ifndef EGPU_WIRE_H
#define EGPU_WIRE_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "generated/ops.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the wire is little-endian and structs are copied to it directly"
#endif

#define WIRE_MAGIC "EGPUWIRE"
#define WIRE_VERSION 1u
#define WIRE_MAX_BULK (1u << 20) /* data per frame */
#define WIRE_MAX_PAYLOAD (WIRE_MAX_BULK + (64u << 10))
#define WIRE_MAX_TOKEN 128u
/* Requested but missing replies to a stream client's copies: at most this many bytes. */
#define WIRE_REPLY_WINDOW (4u << 20)
#define WIRE_MAX_MISSING 512u       /* calls that one RECEIVED may name */
#define WIRE_MAX_IMAGE (256u << 20) /* a module, sent in IMAGE frames */
#define WIRE_MAX_SNAPSHOT (64u << 10)
#define WIRE_MAX_ARRAY 16u           /* structs per array */
#define WIRE_MAX_NODES 4096u         /* of a graph, per list */
#define WIRE_MAX_ARGUMENTS 32768u    /* bytes of kernel arguments */
#define WIRE_SMALL_IMAGE (32u << 10) /* sent inline with the load */

enum wire_control {
    WIRE_HELLO = 1,
    WIRE_WELCOME = 2,
    WIRE_REPLY = 3,
    WIRE_PROGRESS = 4,
    WIRE_GOODBYE = 5,
    WIRE_RECEIVED = 6,
    WIRE_CALLBACK = 7,
    WIRE_CALLBACK_DONE = 8,
    WIRE_TRANSPORT = 9,
    WIRE_SET_CONTEXT = 10, /* numbered like the driver's functions */
};

enum wire_flags {
    WIRE_REPLY_WANTED = 1,
    WIRE_IS_REPLY = 2,
    /* other threads of the client use the session too: a wait must not hold them up */
    WIRE_CONCURRENT = 4,
};

enum wire_status {
    WIRE_STATUS_WELCOME = 0,
    WIRE_STATUS_TOKEN = 1,
    WIRE_STATUS_VERSION = 2,
    WIRE_STATUS_SESSION = 3,
    WIRE_STATUS_FULL = 4,
    WIRE_STATUS_DRIVER = 5,
    WIRE_STATUS_TOLD = 6, /* no lease, and the user knows why */
};

enum { WIRE_FEATURE_SHARED = 4 }; /* 1 and 2 were older layouts of the memory */
enum { WIRE_HELLO_RESUME = 1 };

struct wire_header {
    uint16_t op;
    uint16_t flags;
    uint32_t len;
    uint64_t seq;
};
static_assert(sizeof(struct wire_header) == 16, "wire header");

struct wire_hello { /* the token follows */
    char magic[8];
    uint32_t version;
    uint32_t features;
    uint64_t table;
    uint8_t session[16];
    uint32_t pid;
    uint32_t token_length;
    uint32_t flags;
    uint32_t zero;
    uint64_t received;
};
static_assert(sizeof(struct wire_hello) == 64, "wire hello");

struct wire_welcome { /* the snapshot follows */
    uint32_t status;
    uint32_t version;
    uint32_t features;
    uint32_t snapshot_length;
};

struct wire_reply { /* results follow */
    uint32_t result;
    uint32_t pending; /* an error, and whether kernels have printed (PRINTED) */
};
#define WIRE_PRINTED (1u << 31)

struct wire_callback {
    uint64_t id;
    uint32_t status;
    uint32_t zero;
};

#define WIRE_MAX_DEVICES 16u
#define WIRE_ATTRIBUTES 256u
#define WIRE_NO_ATTRIBUTE INT32_MIN

struct wire_snapshot {
    uint32_t driver_version;
    uint32_t device_count;
};

struct wire_device { /* attributes follow: i32[attribute_count], padded to 8 bytes */
    uint64_t total_bytes;
    uint8_t uuid[16];
    char name[64];
    char pci[16];
    uint32_t major;
    uint32_t minor;
    uint32_t attribute_count;
    uint32_t zero;
};
static_assert(sizeof(struct wire_device) == 120, "wire device");

/* ---- handles: server 4 | kind 8 | chosen by the executor 1 | generation 24 | index 20 ---- */

#define WIRE_INDEX_BITS 20
#define WIRE_INDEXES (1u << WIRE_INDEX_BITS)
#define WIRE_GENERATIONS (1u << 24)

static inline uint64_t wire_handle(unsigned kind, bool executors, uint32_t generation,
                                   uint32_t index) {
    return (uint64_t)kind << 45 | (uint64_t)executors << 44 |
           (uint64_t)(generation & (WIRE_GENERATIONS - 1)) << WIRE_INDEX_BITS | index;
}
static inline uint32_t wire_index(uint64_t handle) { return handle & (WIRE_INDEXES - 1); }
static inline bool wire_is_executors(uint64_t handle) { return handle >> 44 & 1; }
static inline unsigned wire_kind_of(uint64_t handle) { return handle >> 45 & 0xff; }
static inline unsigned wire_server(uint64_t handle) { return handle >> 53 & 0xf; }
static inline uint64_t wire_with_server(uint64_t handle, unsigned server) {
    return handle | (uint64_t)server << 53;
}
static inline uint64_t wire_without_server(uint64_t handle) {
    return handle & ((UINT64_C(1) << 53) - 1);
}

/* Return whether a handle of one kind may be used as another: a kernel as a function, a handle of
 * cuBLAS as one of cuBLASLt. */
static inline bool wire_kind_serves(unsigned kind, unsigned wanted) {
    return kind == wanted || (wanted == KIND_function && kind == KIND_kernel) ||
           (wanted == KIND_cublaslt && kind == KIND_cublas);
}

/* Write a header as the two words that it is: a whole read after partial writes is slow. */
static inline void put_header(void *at, uint16_t op, unsigned flags, uint32_t len, uint64_t seq) {
    uint64_t words[2] = {(uint64_t)op | (uint64_t)flags << 16 | (uint64_t)len << 32, seq};
    memcpy(at, words, sizeof words);
}

/* ---- payloads ---- */

static inline size_t padded(size_t bytes) { return (bytes + 7) & ~(size_t)7; }

/* Copy numbers in one piece. If it does not know the length, a compiler that optimises for size
 * copies byte by byte, and the few bytes of a call then take longer than the rest of it.
 */
static inline void copy_bytes(void *to, const void *from, size_t bytes) {
    if (bytes == sizeof(uint64_t))
        memcpy(to, from, sizeof(uint64_t));
    else if (bytes == sizeof(uint32_t))
        memcpy(to, from, sizeof(uint32_t));
    else
        memcpy(to, from, bytes);
}

/* Reads a payload. Past the end, or after any error, it reads zeros and `bad` is set. */
struct reader {
    const uint8_t *at;
    size_t left;
    bool bad;
};

static inline const void *take(struct reader *in, size_t bytes) {
    size_t whole = padded(bytes);
    if (in->bad || whole < bytes || whole > in->left) {
        in->bad = true;
        return NULL;
    }
    const void *here = in->at;
    in->at += whole;
    in->left -= whole;
    return here;
}

static inline void get_bytes(struct reader *in, void *to, size_t bytes) {
    const void *from = take(in, bytes);
    if (from == NULL)
        memset(to, 0, bytes);
    else
        copy_bytes(to, from, bytes);
}

static inline uint64_t get_word(struct reader *in) {
    uint64_t word;
    get_bytes(in, &word, sizeof word);
    return word;
}

/* Return a length and that many bytes, in place; NULL on error. */
static inline const void *get_span(struct reader *in, size_t *bytes) {
    uint64_t length = get_word(in);
    *bytes = length;
    const void *here = length > in->left ? NULL : take(in, length);
    if (here == NULL) {
        in->bad = true;
        *bytes = 0;
    }
    return here;
}

/* The same, copied; return the length. */
static inline size_t get_block(struct reader *in, void *to, size_t room) {
    size_t bytes;
    const void *here = get_span(in, &bytes);
    if (here == NULL || bytes > room) {
        in->bad = true;
        memset(to, 0, room);
        return 0;
    }
    memcpy(to, here, bytes);
    return bytes;
}

/* Return a string in place. Its NUL is in the padding, where a sender always leaves room for it. */
static inline const char *get_string(struct reader *in) {
    uint64_t length = get_word(in);
    const char *here = length >= in->left ? NULL : take(in, length + 1);
    if (here == NULL || memchr(here, 0, length + 1) != here + length) {
        in->bad = true;
        return "";
    }
    return here;
}

/* Writes a payload. Without room `bad` is set and nothing more is written. */
struct writer {
    uint8_t *at;
    size_t left;
    bool bad;
};

static inline void *give(struct writer *out, size_t bytes) {
    size_t whole = padded(bytes);
    if (out->bad || whole > out->left) {
        out->bad = true;
        return NULL;
    }
    uint8_t *here = out->at;
    if (whole != bytes) memset(here + whole - 8, 0, 8);
    out->at += whole;
    out->left -= whole;
    return here;
}

static inline void put_bytes(struct writer *out, const void *from, size_t bytes) {
    void *to = give(out, bytes);
    if (to != NULL) copy_bytes(to, from, bytes);
}

static inline void put_word(struct writer *out, uint64_t word) {
    put_bytes(out, &word, sizeof word);
}

static inline void put_block(struct writer *out, const void *from, size_t bytes) {
    put_word(out, bytes);
    if (bytes != 0) put_bytes(out, from, bytes);
}

/* Write the length without the NUL, then the characters with it. */
static inline void put_string(struct writer *out, const char *text) {
    size_t length = strlen(text);
    put_word(out, length);
    put_bytes(out, text, length + 1);
}

#endif
