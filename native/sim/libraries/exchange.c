/* The part of the machine's file by which ranks meet and pass each other data. */
#include "exchange.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LOOK_NS 10000000 /* how often somebody who waits looks whether the others are there */

int egpuSimMachineFile(void); /* the simulated driver's */

static struct clique *cliques;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void map(void) {
    struct sim_header header;
    struct stat status;
    int file = egpuSimMachineFile();
    if (file < 0) return;
    if (pread(file, &header, sizeof header, 0) == (ssize_t)sizeof header &&
        fstat(file, &status) == 0 &&
        (uint64_t)status.st_size >= header.file_bytes + SIM_EXCHANGE_BYTES) {
        void *at = mmap(NULL, sizeof *cliques * MOST_CLIQUES, PROT_READ | PROT_WRITE, MAP_SHARED,
                        file, (off_t)header.file_bytes);
        if (at != MAP_FAILED) cliques = at;
    }
    close(file);
}

/* ---- locks: of the table of cliques, then a byte for each rank of each ---- */

static bool lock(int file, int command, int kind, int64_t at, int64_t bytes, short *found) {
    struct flock asked = {.l_type = (short)kind,
                          .l_whence = SEEK_SET,
                          .l_start = SIM_LOCK_EXCHANGE + at,
                          .l_len = bytes};
    bool good = fcntl(file, command, &asked) == 0;
    if (found != NULL) *found = asked.l_type;
    return good;
}

static int64_t place_of(const struct clique *clique, unsigned rank) {
    return 1 + (clique - cliques) * MOST_RANKS + rank;
}

/* Whether somebody holds one of these bytes through another descriptor. */
static bool held(int file, int64_t at, int64_t bytes) {
    short found;
    return !lock(file, F_OFD_GETLK, F_WRLCK, at, bytes, &found) || found != F_UNLCK;
}

/* ---- cliques ---- */

struct clique_id clique_id_of(const uint64_t words[2]) {
    struct stat status;
    uint64_t network = stat("/proc/self/ns/net", &status) == 0 ? (uint64_t)status.st_ino : 0;
    return (struct clique_id){{words[0], words[1]}, network};
}

/* Under the table's lock. What nobody is in any more is free. */
static struct clique *find(int file, const struct clique_id *id, unsigned ranks) {
    struct clique *unused = NULL;
    for (struct clique *clique = cliques; clique < cliques + MOST_CLIQUES; clique++) {
        bool lives = clique->ranks != 0 && held(file, place_of(clique, 0), MOST_RANKS);
        if (lives && memcmp(&clique->id, id, sizeof *id) == 0) return clique;
        if (!lives) unused = clique;
    }
    if (unused == NULL) return NULL;
    for (unsigned from = 0; from < ranks; from++)
        for (unsigned to = 0; to < ranks; to++) atomic_store(&unused->channels[from][to].full, 0);
    memset(unused, 0, offsetof(struct clique, channels));
    unused->id = *id;
    unused->ranks = ranks;
    return unused;
}

/* A lock of the file keeps other processes out; of this one, other threads. */
static pthread_mutex_t table = PTHREAD_MUTEX_INITIALIZER;

int seat_take(struct seat *seat, struct clique_id id, unsigned ranks, unsigned rank) {
    *seat = (struct seat){.file = -1, .rank = rank};
    pthread_once(&once, map);
    int file = cliques == NULL ? -1 : egpuSimMachineFile();
    if (file < 0) return SYSTEM;
    int result = SYSTEM;
    pthread_mutex_lock(&table);
    if (lock(file, F_OFD_SETLKW, F_WRLCK, 0, 1, NULL)) {
        struct clique *clique = find(file, &id, ranks);
        bool fits = clique != NULL && clique->ranks == ranks &&
                    (atomic_load(&clique->joined) >> rank & 1) == 0;
        if (clique != NULL) result = INVALID_USAGE;
        if (fits && lock(file, F_OFD_SETLK, F_WRLCK, place_of(clique, rank), 1, NULL)) {
            atomic_fetch_or(&clique->joined, 1u << rank);
            seat->file = file;
            seat->clique = clique;
            result = OK;
        }
        lock(file, F_OFD_SETLK, F_UNLCK, 0, 1, NULL);
    }
    pthread_mutex_unlock(&table);
    if (result == OK)
        clique_tell(seat->clique);
    else
        close(file);
    return result;
}

void seat_leave(struct seat *seat) {
    if (seat->file < 0) return;
    atomic_fetch_or(&seat->clique->left, 1u << seat->rank);
    clique_tell(seat->clique);
    close(seat->file); /* and with it its lock */
    seat->file = -1;
}

bool seat_sees(const struct seat *seat, uint32_t ranks) {
    for (unsigned rank = 0; rank < seat->clique->ranks; rank++)
        if (rank != seat->rank && ranks >> rank & 1 &&
            !held(seat->file, place_of(seat->clique, rank), 1))
            return false;
    return true;
}

void clique_fail(struct clique *clique) {
    atomic_store(&clique->failed, 1);
    clique_tell(clique);
}

void clique_tell(struct clique *clique) {
    atomic_fetch_add(&clique->changes, 1);
    syscall(SYS_futex, &clique->changes, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

void clique_await(struct clique *clique, uint32_t changes) {
    struct timespec most = {0, LOOK_NS};
    syscall(SYS_futex, &clique->changes, FUTEX_WAIT, changes, &most, NULL, 0);
}
