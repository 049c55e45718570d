/* Ranks of one communicator: each has a connection with each other, and a thread that reads. At
 * most one piece is on its way from one rank to another, so writers never wait long.
 */
#include "exchange.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"

#define LOOK_NS 10000000 /* interval at which a waiting thread checks for the other ranks */
#define CONNECT_MS 5000  /* networks may be linked shortly after their leases start */
#define AGAIN_US 20000
#define FAREWELL_MS 2000 /* for the last messages to arrive */

enum said { PIECE, TAKEN, SPLIT, LEFT, FAILED };
struct header {
    uint32_t said, bytes;
    uint32_t turn;
    int32_t color, key;
};

static pthread_mutex_t table = PTHREAD_MUTEX_INITIALIZER;
static struct clique *cliques; /* of this process */

/* ---- sending ---- */

static void say(struct clique *clique, unsigned rank, const struct header *header,
                const void *data) {
    pthread_mutex_lock(&clique->writing);
    int fd = clique->sockets[rank];
    if (fd >= 0 && (!send_all(fd, header, sizeof *header) || !send_all(fd, data, header->bytes)))
        shutdown(fd, SHUT_RDWR); /* its reader detects that */
    pthread_mutex_unlock(&clique->writing);
}

static void say_all(struct clique *clique, const struct header *header) {
    for (unsigned rank = 0; rank < clique->ranks; rank++) say(clique, rank, header, NULL);
}

void clique_put(struct clique *clique, unsigned rank, const void *data, size_t bytes) {
    atomic_store(&clique->out[rank].full, 1);
    say(clique, rank, &(struct header){.said = PIECE, .bytes = (uint32_t)bytes}, data);
}

void clique_taken(struct clique *clique, unsigned rank) {
    atomic_store(&clique->in[rank].full, 0);
    say(clique, rank, &(struct header){.said = TAKEN}, NULL);
}

void clique_split(struct clique *clique, uint32_t turn, int color, int key) {
    struct header header = {.said = SPLIT, .turn = turn, .color = color, .key = key};
    pthread_mutex_lock(&table); /* no rank may be linked between these two steps */
    atomic_store(&clique->splits[clique->rank].color, color);
    atomic_store(&clique->splits[clique->rank].key, key);
    atomic_store(&clique->splits[clique->rank].turn, turn);
    say_all(clique, &header);
    pthread_mutex_unlock(&table);
    clique_tell(clique);
}

void clique_fail(struct clique *clique) {
    if (atomic_exchange(&clique->failed, 1) == 0) say_all(clique, &(struct header){.said = FAILED});
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

/* ---- receiving ---- */

/* False: the connection has ended. */
static bool hear(struct clique *clique, unsigned rank) {
    struct header header;
    struct channel *in = &clique->in[rank];
    if (!receive_all(clique->sockets[rank], &header, sizeof header)) return false;
    switch ((enum said)header.said) {
    case PIECE:
        if (header.bytes > PIECE_BYTES || atomic_load(&in->full) ||
            !receive_all(clique->sockets[rank], in->data, header.bytes))
            return false;
        atomic_store(&in->bytes, header.bytes);
        atomic_store(&in->full, 1);
        break;
    case TAKEN: atomic_store(&clique->out[rank].full, 0); break;
    case SPLIT:
        atomic_store(&clique->splits[rank].color, header.color);
        atomic_store(&clique->splits[rank].key, header.key);
        atomic_store(&clique->splits[rank].turn, header.turn);
        break;
    case LEFT: atomic_fetch_or(&clique->left, 1u << rank); break;
    case FAILED: atomic_store(&clique->failed, 1); break;
    default: return false;
    }
    return true;
}

static void lose(struct clique *clique, unsigned rank) {
    pthread_mutex_lock(&clique->writing);
    close(clique->sockets[rank]);
    clique->sockets[rank] = -1;
    pthread_mutex_unlock(&clique->writing);
    atomic_fetch_and(&clique->here, ~(1u << rank));
}

/* ---- connecting ---- */

/* Note a connection with the rank. */
static void linked(struct clique *clique, unsigned rank, int fd) {
    uint32_t turn = atomic_load(&clique->splits[clique->rank].turn);
    struct header header = {.said = SPLIT,
                            .turn = turn,
                            .color = atomic_load(&clique->splits[clique->rank].color),
                            .key = atomic_load(&clique->splits[clique->rank].key)};
    pthread_mutex_lock(&clique->writing);
    clique->sockets[rank] = fd;
    pthread_mutex_unlock(&clique->writing);
    if (turn != 0) say(clique, rank, &header, NULL);
    if (atomic_load(&clique->failed)) say(clique, rank, &(struct header){.said = FAILED}, NULL);
    atomic_fetch_or(&clique->here, 1u << rank);
    atomic_fetch_or(&clique->joined, 1u << rank);
    clique_tell(clique);
}

/* Make the thread update the connections that it reads. */
static void wake(struct clique *clique) {
    if (write(clique->wake[1], "", 1) != 1) return; /* it is full, so the thread will wake */
}

bool clique_link(const struct greeting *greeting, int fd) {
    bool taken = false;
    pthread_mutex_lock(&table);
    for (struct clique *clique = cliques; clique != NULL && !taken; clique = clique->next) {
        if (memcmp(clique->id.words, greeting->words, sizeof greeting->words) != 0 ||
            clique->rank != greeting->to || clique->ranks != greeting->ranks ||
            atomic_load(&clique->refused) != OK ||
            (atomic_load(&clique->joined) >> greeting->rank & 1) != 0)
            continue;
        taken = true;
        linked(clique, greeting->rank, fd);
        wake(clique);
    }
    pthread_mutex_unlock(&table);
    return taken;
}

/* Wait until the socket is ready. False: not in time (without `most_ms` there is no limit), or this
 * rank leaves. */
static bool ready(const struct clique *clique, int fd, short events, int most_ms) {
    int64_t deadline = clock_now_ms() + most_ms;
    while (!atomic_load(&clique->leaving) && (most_ms < 0 || clock_now_ms() < deadline)) {
        struct pollfd wait = {.fd = fd, .events = events};
        if (poll(&wait, 1, LOOK_NS / 1000000) > 0) return true;
    }
    return false;
}

/* Return a connection that has sent the greeting, or -1. */
static int call(const struct clique *clique, struct place place, const struct greeting *greeting) {
    int64_t deadline = clock_now_ms() + CONNECT_MS;
    while (!atomic_load(&clique->leaving) && clock_now_ms() < deadline) {
        int fd = station_connect(place), error = -1;
        socklen_t length = sizeof error;
        if (fd >= 0 && ready(clique, fd, POLLOUT, CONNECT_MS) &&
            getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0) {
            fcntl(fd, F_SETFL, 0);
            if (send_all(fd, greeting, sizeof *greeting)) return fd;
        }
        if (fd >= 0) close(fd);
        usleep(AGAIN_US);
    }
    return -1;
}

/* Go to the meeting place, and receive the places of the others. */
static int meet(struct clique *clique) {
    struct meeting said = {.result = REMOTE};
    struct greeting greeting = {.words = {clique->id.words[0], clique->id.words[1]},
                                .kind = COMES,
                                .rank = clique->rank,
                                .ranks = clique->ranks};
    if (!station_place(&greeting.from)) return SYSTEM;
    int fd = call(clique, clique->id.at, &greeting);
    if (fd < 0) return REMOTE;
    if (!ready(clique, fd, POLLIN, -1) || !receive_all(fd, &said, sizeof said))
        said.result = REMOTE;
    close(fd);
    memcpy(clique->places, said.places, sizeof said.places);
    return said.result;
}

/* Each rank connects to those before it. */
static int link_all(struct clique *clique) {
    struct greeting greeting = {.words = {clique->id.words[0], clique->id.words[1]},
                                .kind = LINKS,
                                .rank = clique->rank,
                                .ranks = clique->ranks};
    for (unsigned rank = 0; rank < clique->rank; rank++) {
        greeting.to = rank;
        int fd = call(clique, clique->places[rank], &greeting);
        if (fd < 0) return REMOTE;
        pthread_mutex_lock(&table);
        linked(clique, rank, fd);
        pthread_mutex_unlock(&table);
    }
    return OK;
}

static void *attend(void *argument) {
    struct clique *clique = argument;
    int result = meet(clique);
    if (result == OK) result = link_all(clique);
    if (result == OK) {
        atomic_fetch_or(&clique->joined, 1u << clique->rank);
    } else {
        atomic_store(&clique->refused, result);
        clique_fail(clique);
    }
    clique_tell(clique);
    while (!atomic_load(&clique->leaving)) {
        struct pollfd wait[1 + MOST_RANKS] = {{.fd = clique->wake[0], .events = POLLIN}};
        char bytes[MOST_RANKS];
        for (unsigned rank = 0; rank < MOST_RANKS; rank++)
            wait[1 + rank] = (struct pollfd){.fd = clique->sockets[rank], .events = POLLIN};
        if (poll(wait, 1 + MOST_RANKS, -1) < 0) continue;
        if (wait[0].revents != 0 && read(clique->wake[0], bytes, sizeof bytes) < 0) continue;
        for (unsigned rank = 0; rank < MOST_RANKS; rank++) {
            if (wait[1 + rank].revents == 0) continue;
            if (!hear(clique, rank)) lose(clique, rank);
            clique_tell(clique);
        }
    }
    return NULL;
}

/* ---- seats ---- */

static struct clique *clique_new(struct clique_id id, unsigned ranks, unsigned rank) {
    struct clique *made = calloc(1, sizeof *made);
    if (made == NULL || pipe2(made->wake, O_CLOEXEC | O_NONBLOCK) != 0) {
        free(made);
        return NULL;
    }
    made->id = id;
    made->ranks = ranks;
    made->rank = rank;
    pthread_mutex_init(&made->writing, NULL);
    for (unsigned i = 0; i < MOST_RANKS; i++) made->sockets[i] = -1;
    return made;
}

static void clique_free(struct clique *clique) {
    for (unsigned rank = 0; rank < MOST_RANKS; rank++)
        if (clique->sockets[rank] >= 0) close(clique->sockets[rank]);
    close(clique->wake[0]);
    close(clique->wake[1]);
    pthread_mutex_destroy(&clique->writing);
    free(clique);
}

int seat_take(struct seat *seat, struct clique_id id, unsigned ranks, unsigned rank) {
    *seat = (struct seat){.rank = rank};
    struct clique *made = clique_new(id, ranks, rank);
    if (made == NULL) return SYSTEM;
    pthread_mutex_lock(&table);
    made->next = cliques;
    cliques = made;
    bool good = pthread_create(&made->thread, NULL, attend, made) == 0;
    if (!good) cliques = made->next;
    pthread_mutex_unlock(&table);
    if (!good) {
        clique_free(made);
        return SYSTEM;
    }
    seat->clique = made;
    return OK;
}

/* Wait until sent messages have arrived: a connection closed with unread bytes drops its own. */
static bool arrived(struct clique *clique) {
    bool all = true;
    pthread_mutex_lock(&clique->writing);
    for (unsigned rank = 0; rank < clique->ranks; rank++) {
        int waiting = 0, fd = clique->sockets[rank];
        all = all && (fd < 0 || ioctl(fd, SIOCOUTQ, &waiting) != 0 || waiting == 0);
    }
    pthread_mutex_unlock(&clique->writing);
    return all;
}

/* Wake the readers. */
static void hang_up(struct clique *clique) {
    pthread_mutex_lock(&clique->writing);
    for (unsigned rank = 0; rank < clique->ranks; rank++)
        if (clique->sockets[rank] >= 0) shutdown(clique->sockets[rank], SHUT_RDWR);
    pthread_mutex_unlock(&clique->writing);
}

void seat_leave(struct seat *seat) {
    struct clique *clique = seat->clique;
    if (clique == NULL) return;
    pthread_mutex_lock(&table);
    struct clique **at = &cliques;
    while (*at != clique) at = &(*at)->next;
    *at = clique->next;
    pthread_mutex_unlock(&table);
    int64_t deadline = clock_now_ms() + FAREWELL_MS;
    say_all(clique, &(struct header){.said = LEFT});
    while (!atomic_load(&clique->failed) && !arrived(clique) && clock_now_ms() < deadline)
        usleep(500);
    atomic_store(&clique->leaving, true);
    hang_up(clique);
    wake(clique);
    pthread_join(clique->thread, NULL);
    clique_free(clique);
    seat->clique = NULL;
}

bool seat_sees(const struct seat *seat, uint32_t ranks) {
    return (ranks & ~atomic_load(&seat->clique->here) & ~(1u << seat->rank)) == 0;
}
