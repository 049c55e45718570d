/* Images of modules, by their digests: those that the session has, and those that its store has. */
#define _GNU_SOURCE
#include "executor/executor.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/fat_binary.h"
#include "sha256.h"
#include "executor/images/store.h"
#include "executor/moves/moves.h"

#define IMAGES 256
#define IMAGE_CACHE_BYTES WIRE_MAX_IMAGE /* the largest has room, when all others go */

static struct image images[IMAGES];
static uint64_t image_bytes, image_clock;

static void release(uint8_t *bytes, uint64_t total, bool mapped) {
    if (mapped)
        munmap(bytes, STORE_FILE_BYTES(total));
    else
        free(bytes);
}

/* ---- those that are on their way to the target of a move ---- */

static struct image_hold *holds;
static pthread_mutex_t holds_lock = PTHREAD_MUTEX_INITIALIZER;

bool image_hold(struct image_hold *hold) {
    const struct image *image = image_known(hold->digest, hold->total);
    if (image == NULL) return false;
    pthread_mutex_lock(&holds_lock);
    hold->bytes = image->bytes;
    hold->next = holds;
    holds = hold;
    pthread_mutex_unlock(&holds_lock);
    return true;
}

void image_give(struct image_hold *hold) {
    pthread_mutex_lock(&holds_lock);
    struct image_hold **at = &holds;
    while (*at != hold) at = &(*at)->next;
    *at = hold->next;
    pthread_mutex_unlock(&holds_lock);
    if (hold->dropped) release((uint8_t *)(uintptr_t)hold->bytes, hold->total, hold->mapped);
}

/* True: its bytes go when it is given back. */
static bool is_held(const struct image *image) {
    pthread_mutex_lock(&holds_lock);
    struct image_hold *hold = holds;
    while (hold != NULL && hold->bytes != image->bytes) hold = hold->next;
    if (hold != NULL) {
        hold->dropped = true;
        hold->mapped = image->mapped;
    }
    pthread_mutex_unlock(&holds_lock);
    return hold != NULL;
}

/* ---- the session's ---- */

static void image_forget(struct image *image) {
    if (image->bytes != NULL) image_bytes -= image->total;
    if (image->bytes != NULL && !is_held(image)) release(image->bytes, image->total, image->mapped);
    *image = (struct image){0};
}

struct image *image_find(const uint8_t digest[32]) {
    for (unsigned i = 0; i < IMAGES; i++)
        if (images[i].bytes != NULL && memcmp(images[i].digest, digest, 32) == 0) {
            images[i].used = ++image_clock;
            return &images[i];
        }
    return NULL;
}

/* A place for one of that many bytes: the least recently used goes. */
static struct image *image_place(uint64_t total) {
    while (true) {
        struct image *oldest = NULL, *empty = NULL;
        for (unsigned i = 0; i < IMAGES; i++)
            if (images[i].bytes == NULL)
                empty = &images[i];
            else if (oldest == NULL || images[i].used < oldest->used)
                oldest = &images[i];
        if (empty != NULL && image_bytes + total <= IMAGE_CACHE_BYTES) return empty;
        if (oldest == NULL) return NULL;
        image_forget(oldest);
    }
}

static void image_put(struct image *image, const uint8_t digest[32], uint8_t *bytes,
                      uint64_t total) {
    *image = (struct image){.bytes = bytes, .total = total, .used = ++image_clock};
    memcpy(image->digest, digest, 32);
    image_bytes += total;
}

static struct image *image_new(const uint8_t digest[32], uint64_t total) {
    struct image *image = image_place(total);
    uint8_t *bytes = image == NULL ? NULL : malloc(STORE_FILE_BYTES(total));
    if (bytes == NULL) return NULL;
    bytes[total] = 0; /* text ends, whatever was sent */
    image_put(image, digest, bytes, total);
    return image;
}

/* ---- the store ---- */

static bool has_digest(const uint8_t *bytes, uint64_t total, const uint8_t digest[32]) {
    uint8_t is[32];
    egpu_sha256(bytes, total, is);
    return memcmp(is, digest, 32) == 0;
}

/* The file's bytes, or NULL: it does not hold what its name says. What it holds may have come from
 * another session, or off a bad disk. The descriptor is used up. */
static uint8_t *map_stored(int fd, const uint8_t digest[32], uint64_t total) {
    struct stat status;
    bool fits = fstat(fd, &status) == 0 && (uint64_t)status.st_size == STORE_FILE_BYTES(total);
    uint8_t *bytes =
        fits ? mmap(NULL, STORE_FILE_BYTES(total), PROT_READ, MAP_PRIVATE | MAP_POPULATE, fd, 0)
             : MAP_FAILED;
    close(fd);
    if (bytes == MAP_FAILED) return NULL;
    if (bytes[total] == 0 && has_digest(bytes, total, digest)) return bytes;
    release(bytes, total, true);
    return NULL;
}

static struct image *image_stored(const uint8_t digest[32], uint64_t total) {
    int fd = total <= WIRE_SMALL_IMAGE || session_store() < 0
                 ? -1
                 : store_find(session_store(), digest, total);
    uint8_t *bytes = fd < 0 ? NULL : map_stored(fd, digest, total);
    struct image *image = bytes == NULL ? NULL : image_place(total);
    if (image == NULL) return bytes != NULL ? (release(bytes, total, true), NULL) : NULL;
    image_put(image, digest, bytes, total);
    image->mapped = image->complete = true;
    return image;
}

/* Has the store keep it. A file's pages can be had back by the kernel, those of our heap cannot. */
static void image_store(struct image *image) {
    if (image->total <= WIRE_SMALL_IMAGE || session_store() < 0) return;
    int fd = store_keep(session_store(), image->digest, image->bytes, image->total);
    uint8_t *bytes = fd < 0 ? NULL : map_stored(fd, image->digest, image->total);
    if (bytes == NULL) return;
    release(image->bytes, image->total, false);
    image->bytes = bytes;
    image->mapped = true;
}

/* ---- what comes ---- */

bool image_add(const uint8_t digest[32], uint64_t total, uint64_t offset, const uint8_t *bytes,
               uint64_t count) {
    struct image *image = image_find(digest);
    if (image == NULL) image = image_new(digest, total);
    /* no room: the load will ask again and fail; or there already */
    if (image == NULL || image->complete) return true;
    if (image->total != total || offset != image->have || count > total - offset) return false;
    memcpy(image->bytes + offset, bytes, count);
    image->have += count;
    if (image->have < total) return true;
    image->complete = has_digest(image->bytes, total, digest);
    if (image->complete)
        image_store(image);
    else
        image_forget(image);
    return image_find(digest) != NULL;
}

CUresult image_part(struct task *task) {
    struct wire_image part;
    if (!begins(task, &part, sizeof part, true) || part.total == 0 || part.total > WIRE_MAX_IMAGE ||
        task->data_bytes != padded(part.bytes) || part.offset > part.total ||
        !image_add(part.digest, part.total, part.offset, task->data, part.bytes))
        return violation(task);
    return CUDA_SUCCESS;
}

bool images_are_coming(void) {
    for (unsigned i = 0; i < IMAGES; i++)
        if (images[i].bytes != NULL && !images[i].complete) return true;
    return false;
}

const struct image *image_known(const uint8_t digest[32], uint64_t total) {
    struct image *image = image_find(digest);
    if (image == NULL) image = image_stored(digest, total);
    return image != NULL && image->complete ? image : NULL;
}

bool image_is_whole(const struct image *image) {
    const size_t head = sizeof(struct fat_binary);
    return image->total < head || !fat_binary_is(image->bytes) ||
           fat_binary_rest_bytes(image->bytes) <= image->total - head;
}
