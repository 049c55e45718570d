/* What the keeper of images makes of a session that code of somebody else runs in: its requests, in
 * any order and of any length. What is left is bounded, and nothing of it is half written.
 *
 * Input: what the session says; a first byte of which bit 0 is set has the rest begin with a
 * request to keep of a length that fits.
 */
#include "../../executor/images/store.c"

bool confinement_give_up(void) { return true; }
int landlock_abi(void) { return 0; }
int landlock_directory(int directory) { return (void)directory, -1; }
bool landlock_enter(int rules) { return (void)rules, true; }

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char path[] = "/tmp/egpu-fuzz-store-XXXXXX";
static int directory = -1;

static void say(int socket, const void *bytes, size_t count) {
    if (count != 0 && send(socket, bytes, count, MSG_NOSIGNAL) != (ssize_t)count) abort();
}

/* Up to so many files may stay for the next input. */
static void check_and_clear(int most) {
    struct store_entry *entries = calloc(2 * STORE_ENTRIES, sizeof *entries);
    int count = entries == NULL ? -1 : look(directory, entries);
    uint64_t bytes = 0;
    if (count < 0 || count > STORE_ENTRIES) abort();
    for (int i = 0; i < count; i++) {
        bytes += entries[i].bytes;
        if (entries[i].busy || strlen(entries[i].name) != 64) abort();
        if (count > most) unlinkat(directory, entries[i].name, 0);
    }
    if (bytes > STORE_FILE_BYTES(STORE_SHARE)) abort();
    free(entries);
}

static void remove_directory(void) {
    check_and_clear(0);
    unlinkat(directory, LOCK, 0);
    rmdir(path);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (directory < 0) {
        if (mkdtemp(path) == NULL || (directory = open(path, O_RDONLY | O_DIRECTORY)) < 0) abort();
        atexit(remove_directory);
    }
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) abort();
    if (size > 1 && data[0] & 1) {
        struct store_request request = {.kind = STORE_KEEP, .total = size - 1};
        memcpy(request.digest, data, size < 32 ? size : 32);
        say(pair[1], &request, sizeof request);
    }
    if (size != 0) say(pair[1], data + 1, size - 1);
    if (size > 1 && data[0] & 1) say(pair[1], "", 1); /* the NUL */
    shutdown(pair[1], SHUT_WR);
    store_serve(directory, pair[0]);
    close(pair[1]);
    check_and_clear(4);
    return 0;
}
