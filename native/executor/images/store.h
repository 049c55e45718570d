/* The store of images: files named by the SHA-256 of what is in them, in a directory of the lease's
 * caller and nobody else. A process of its own keeps it, forked from the executor's parent before
 * that is confined: it has the daemon's user, for it writes where sessions may not, no
 * capabilities, and where there is Landlock nothing but the directory. Each session has a channel
 * to it.
 *
 *   session  ─ struct store_request FIND ─►  ◄─ struct store_answer, the file's descriptor beside
 * it ─ KEEP ─►  ◄─ there is room  ─ the image and a NUL ─►  ◄─ as above
 *
 * What a session sends is not looked at: who loads a file compares it with its digest, every time.
 * Other sessions of the caller can be cost a file so, and never be given another one.
 */
#ifndef EGPU_EXECUTOR_STORE_H
#define EGPU_EXECUTOR_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include "wire.h"

#define STORE_ENTRIES 256                               /* files of a caller */
#define STORE_SHARE ((uint64_t)WIRE_MAX_IMAGE)          /* bytes of a caller: any one has room */
#define STORE_NAME 72                                   /* longest name, with its NUL */
#define STORE_FILE_BYTES(total) ((uint64_t)(total) + 1) /* text ends, whatever was sent */
#define STORE_SECONDS 30                                /* for an answer, or the next bytes */

enum { STORE_FIND = 1, STORE_KEEP = 2 };
struct store_request {
    uint32_t kind, zero;
    uint64_t total;
    uint8_t digest[32];
};
struct store_answer {
    uint32_t good, zero;
};

/* ---- which files go: a function of values ---- */

struct store_entry {
    char name[STORE_NAME];
    uint64_t bytes;
    int64_t used_ns;
    bool busy, goes; /* busy: it is written just now, and stays */
};
/* Says which go, the longest unused first, so that one more of `wanted` bytes has room. False: it
 * has none, and none goes. */
bool store_make_room(struct store_entry *entries, unsigned count, uint64_t wanted);

/* ---- the parent ---- */

/* Starts the keeper of this directory, a descriptor that is the store's from now on. Before
 * anything is confined. False: errno. */
bool store_start(int directory);
int store_connect(void); /* a session's end of a channel, to be inherited; -1: there is no keeper */
void store_ended(int pid); /* a child has; perhaps it was the keeper */
void store_close(void);    /* it may end */

/* ---- the keeper ---- */

void store_serve(int directory, int channel); /* until its session ends, or breaks the rules */

/* ---- the session: a descriptor of the file, STORE_FILE_BYTES long, or -1 ---- */

int store_find(int channel, const uint8_t digest[32], uint64_t total);
/* `image` has STORE_FILE_BYTES. */
int store_keep(int channel, const uint8_t digest[32], const uint8_t *image, uint64_t total);

#endif
