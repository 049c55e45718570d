/* The store of images: which files go, what is served, and what a killed writer leaves. */
#include "../../executor/images/store.c"

#include <sys/wait.h>

#include "../check.h"

bool confinement_give_up(void) { return true; }
int landlock_abi(void) { return 0; }
int landlock_directory(int directory) { return (void)directory, -1; }
bool landlock_enter(int rules) { return (void)rules, true; }

static uint32_t next_random(void) {
    static uint32_t state = 1;
    return state = state * 1664525u + 1013904223u;
}

/* ---- deletion ---- */

/* For any contents: kept and new files fit; files being written are kept; no deleted file was used
 * after a kept one; and no deletion is unnecessary. */
static void room_is_made_by_the_longest_unused(void) {
    static struct store_entry entries[2 * STORE_ENTRIES];
    for (int round = 0; round < 3000; round++) {
        unsigned count = next_random() >> 16;
        count = round % 3 ? count % 12 : count % (2 * STORE_ENTRIES);
        for (unsigned i = 0; i < count; i++)
            entries[i] = (struct store_entry){
                .bytes = next_random() % (round % 2 ? STORE_SHARE / 4 : STORE_SHARE / 64),
                .used_ns = next_random() >> 24,
                .busy = next_random() >> 16 & 4 && round % 5 == 0};
        uint64_t wanted = STORE_FILE_BYTES(next_random() % STORE_SHARE), busy_bytes = 0;
        unsigned busy = 0;
        for (unsigned i = 0; i < count; i++)
            if (entries[i].busy) busy++, busy_bytes += entries[i].bytes;
        bool can = busy < STORE_ENTRIES && busy_bytes + wanted <= STORE_FILE_BYTES(STORE_SHARE);
        CHECK(store_make_room(entries, count, wanted) == can);
        uint64_t left = 0, youngest_bytes = 0;
        int64_t youngest_gone = -1, oldest_left = INT64_MAX;
        unsigned stay = 0;
        for (unsigned i = 0; i < count; i++) {
            CHECK(!entries[i].goes || (can && !entries[i].busy));
            if (!entries[i].goes) {
                stay++;
                left += entries[i].bytes;
                if (!entries[i].busy && entries[i].used_ns < oldest_left)
                    oldest_left = entries[i].used_ns;
            } else if (entries[i].used_ns >= youngest_gone) {
                youngest_gone = entries[i].used_ns;
                youngest_bytes = entries[i].bytes;
            }
        }
        if (!can) continue;
        CHECK(stay < STORE_ENTRIES && left + wanted <= STORE_FILE_BYTES(STORE_SHARE));
        CHECK(youngest_gone <= oldest_left);
        CHECK(youngest_gone < 0 || stay + 1 >= STORE_ENTRIES ||
              left + youngest_bytes + wanted > STORE_FILE_BYTES(STORE_SHARE));
    }
}

/* ---- the keeper ---- */

struct ends {
    int directory, channel;
};

static void *serve(void *argument) {
    struct ends *ends = argument;
    store_serve(ends->directory, ends->channel);
    return NULL;
}

static unsigned files(int directory, uint64_t *bytes) {
    static struct store_entry entries[2 * STORE_ENTRIES];
    int count = look(directory, entries);
    CHECK(count >= 0);
    *bytes = 0;
    for (int i = 0; i < count; i++) *bytes += entries[i].bytes;
    return (unsigned)count;
}

static uint8_t image[5000];
#define TOTAL (sizeof image - 1)

static bool holds(int fd) {
    uint8_t found[sizeof image + 1];
    ssize_t got = fd < 0 ? -1 : pread(fd, found, sizeof found, 0);
    bool good = got == (ssize_t)sizeof image && memcmp(found, image, sizeof image) == 0;
    if (fd >= 0) {
        CHECK(write(fd, "x", 1) < 0 && errno == EBADF && ftruncate(fd, 0) != 0);
        close(fd);
    }
    return good;
}

static void what_is_kept_is_found(int directory) {
    int pair[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    struct ends ends = {directory, pair[1]};
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, serve, &ends) == 0);
    uint8_t digest[32] = "one", other[32] = "other";
    CHECK(store_find(pair[0], digest, TOTAL) < 0);
    CHECK(holds(store_keep(pair[0], digest, image, TOTAL)));
    CHECK(holds(store_find(pair[0], digest, TOTAL)));
    CHECK(store_find(pair[0], digest, TOTAL - 1) < 0 && store_find(pair[0], other, TOTAL) < 0);
    CHECK(holds(store_keep(pair[0], digest, image, TOTAL))); /* again: still one file */
    uint64_t bytes;
    CHECK(files(directory, &bytes) == 1 && bytes == sizeof image);
    for (unsigned i = 0; i < STORE_ENTRIES + 20; i++) { /* one is used repeatedly, and stays */
        uint8_t many[32] = {(uint8_t)i, (uint8_t)(i >> 8), 'm'};
        CHECK(holds(store_keep(pair[0], many, image, TOTAL)));
        CHECK(holds(store_find(pair[0], digest, TOTAL)));
    }
    CHECK(files(directory, &bytes) == STORE_ENTRIES);
    close(pair[0]);
    pthread_join(thread, NULL);
}

/* Killed after any number of bytes: nothing is found under the digest, and the next keeper removes
 * the rest. */
static void a_killed_writer_leaves_nothing(int directory) {
    for (size_t sent = 0; sent <= sizeof image - 1; sent += sizeof image / 5) {
        int pair[2];
        CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
        pid_t child = fork();
        if (child == 0) {
            close(pair[0]);
            store_serve(directory, pair[1]);
            _exit(0);
        }
        close(pair[1]);
        uint8_t digest[32] = "killed";
        CHECK(ask(pair[0], STORE_KEEP, digest, TOTAL) && answered(pair[0], NULL));
        CHECK(send(pair[0], image, sent, MSG_NOSIGNAL) == (ssize_t)sent);
        uint64_t bytes;
        unsigned before = files(directory, &bytes); /* including the one being written */
        CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
        CHECK(files(directory, &bytes) == before - 1);
        CHECK(files(directory, &bytes) <= STORE_ENTRIES);
        char name[STORE_NAME];
        name_of(digest, name);
        CHECK(faccessat(directory, name, F_OK, 0) != 0);
        close(pair[0]);
    }
}

int main(void) {
    for (size_t i = 0; i < TOTAL; i++) image[i] = (uint8_t)next_random();
    char path[] = "/tmp/egpu-store-test-XXXXXX", name[64];
    CHECK(mkdtemp(path) != NULL);
    int directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    CHECK(directory >= 0);
    room_is_made_by_the_longest_unused();
    what_is_kept_is_found(directory);
    a_killed_writer_leaves_nothing(directory);
    static struct store_entry entries[2 * STORE_ENTRIES];
    for (int i = 0, count = look(directory, entries); i < count; i++)
        CHECK(unlinkat(directory, entries[i].name, 0) == 0);
    CHECK(unlinkat(directory, LOCK, 0) == 0);
    snprintf(name, sizeof name, "%s", path);
    CHECK(rmdir(name) == 0);
    return 0;
}
