/* Simulated NCCL, for tests and for trying programs: ranks in any processes exchange data over TCP,
 * in the order of their streams, wherever their network leads. Unlike with NCCL, several may be on
 * one card.
 *
 *   nccl.c          the interface, and groups
 *   communicator.c  how ranks form a communicator, and notice a lost one
 *   station.c       where a process is found, and where ranks of one unique id meet
 *   exchange.c      connections: present ranks, and data between two ranks
 *   collective.c    the data that each operation passes between ranks
 *   reduction.c     combining the received data
 */
#ifndef EGPU_SIM_EXCHANGE_H
#define EGPU_SIM_EXCHANGE_H

#include <pthread.h>
#include <stdatomic.h>

#include "sim_machine.h"
#include "work.h"

#pragma GCC visibility push(hidden)

/* ncclResult_t, ncclDataType_t, ncclRedOp_t. */
enum { OK, UNHANDLED_CUDA, SYSTEM, INTERNAL, INVALID_ARGUMENT, INVALID_USAGE, REMOTE, IN_PROGRESS };
enum { INT8, UINT8, INT32, UINT32, INT64, UINT64, FLOAT16, FLOAT32, FLOAT64, BFLOAT16, TYPES };
enum { SUM, PROD, MAX, MIN, AVG, OPS };

#define MOST_RANKS 16
#define PIECE_BYTES (16u << 10) /* passed at once */

/* ---- station.c ---- */

struct place { /* of a process; in network byte order */
    uint32_t address;
    uint16_t port, unused;
};

/* The first 24 bytes of a unique id. Its words allow joining; `at` is the meeting place. */
struct clique_id {
    uint64_t words[2];
    struct place at;
};

/* The greeting of a connection: from a rank that comes to its clique's meeting place, and gets a
 * `meeting` when all have come; or from a rank that links to another one. */
enum { COMES = 0x45474331, LINKS };
struct greeting {
    uint64_t words[2];
    uint32_t kind, rank, ranks, to;
    struct place from;
};
struct meeting {
    int32_t result;
    uint32_t unused;
    struct place places[MOST_RANKS];
};

/* Return this process's place; the first call creates it. False: it cannot be created. */
bool station_place(struct place *place);
int station_connect(
    struct place place); /* a socket that never blocks and may still be connecting */
bool send_all(int fd, const void *data, size_t bytes);
bool receive_all(int fd, void *data, size_t bytes);

/* ---- exchange.c ---- */

/* From one rank to another. `full` is the value of its data: the writer waits until it is 0. */
struct channel {
    _Atomic uint32_t full, bytes;
    _Alignas(16) uint8_t data[PIECE_BYTES]; /* of any type */
};

/* Ranks of one communicator, from the view of one of them. */
struct clique {
    struct clique *next; /* of this process */
    struct clique_id id;
    uint32_t rank, ranks;
    _Atomic uint32_t joined, left; /* bit per rank */
    _Atomic uint32_t here;         /* ranks with a connection */
    _Atomic uint32_t failed;       /* a rank was lost, or gave up */
    _Atomic int refused;           /* the error if it cannot form: a result of NCCL's */
    _Atomic uint32_t changes;      /* a futex */
    struct {
        _Atomic uint32_t turn;
        _Atomic int32_t color, key;
    } splits[MOST_RANKS];
    struct place places[MOST_RANKS];
    pthread_t thread; /* reads messages of others */
    int wake[2];
    _Atomic bool leaving;
    pthread_mutex_t writing;
    _Atomic int sockets[MOST_RANKS]; /* -1: none */
    struct channel out[MOST_RANKS], in[MOST_RANKS];
};

/* A rank's reference to its clique. */
struct seat {
    struct clique *clique; /* NULL: none */
    unsigned rank;
};

/* Start to take a rank's place. Returns a result of NCCL's. */
int seat_take(struct seat *seat, struct clique_id id, unsigned ranks, unsigned rank);
void seat_leave(struct seat *seat);
/* Return whether all of these ranks (a bit each) are present. */
bool seat_sees(const struct seat *seat, uint32_t ranks);
void clique_fail(struct clique *clique);
void clique_tell(struct clique *clique); /* something in it changed */
void clique_await(struct clique *clique, uint32_t changes);
void clique_split(struct clique *clique, uint32_t turn, int color, int key);
/* Send `data` to the rank, whose channel is empty; note that its data was taken. */
void clique_put(struct clique *clique, unsigned rank, const void *data, size_t bytes);
void clique_taken(struct clique *clique, unsigned rank);
/* Another rank of a clique of this process has come: true: the clique owns the socket. */
bool clique_link(const struct greeting *greeting, int fd);

/* ---- communicator.c ---- */

#define MOST_FACTORS 8

/* A rank's own factor for its contributions (ncclRedOpCreatePreMulSum). */
struct factor {
    bool used;
    int type;
    uint64_t value;
    const void *card; /* NULL: `value` */
};

struct communicator {
    struct seat seat;
    unsigned rank, ranks;
    bool blocking;
    _Atomic bool aborted;
    _Atomic int error;
    _Atomic unsigned references;
    pthread_mutex_t turn;  /* one operation at a time */
    uint32_t splits;       /* number of splits and shrinks */
    struct batch *waiting; /* of a non-blocking one: queued when its state is queried */
    struct factor factors[MOST_FACTORS];
    /* while it is being split off: its parent and kind; NULL: done */
    struct communicator *from;
    uint32_t split;
    int color, key;
};

struct communicator *communicator_new(bool blocking);
void communicator_release(struct communicator *communicator);
/* Check once more for missing parts: OK, IN_PROGRESS or an error. */
int communicator_progress(struct communicator *communicator);
int communicator_await(struct communicator *communicator); /* until it is no longer in progress */
/* The id of the ranks that continue together; `first` is one of them. */
struct clique_id communicator_next_id(const struct communicator *communicator, int color,
                                      unsigned first);
/* Wait for a change; false: an operation must end. `needed` are ranks (a bit each). */
bool communicator_waits(struct communicator *communicator, uint32_t changes, uint32_t needed);

/* ---- collective.c ---- */

enum form {
    ALL_REDUCE,
    REDUCE,
    BROADCAST,
    ALL_GATHER,
    REDUCE_SCATTER,
    ALL_TO_ALL,
    GATHER,
    SCATTER
};
enum { SEND = SCATTER + 1, RECEIVE };

struct operation {
    int form, type, op;
    unsigned peer; /* or the root */
    const void *from;
    void *to;
    size_t count;
    struct factor factor;
};

/* Operations of one communicator in one stream. */
struct batch {
    struct batch *next;
    CUstream stream;
    CUcontext context;
    bool again; /* a graph may run it several times */
    struct communicator *communicator;
    unsigned count;
    struct operation at[];
};
size_t batch_bytes(unsigned count);
CUresult batch_queue(const struct batch *batch);

/* ---- reduction.c ---- */

size_t type_width(int type); /* 0: no such type */
void multiply(int type, void *values, size_t count, const struct factor *factor);
/* Combine `ranks` arrays in their order, so all ranks get the same result. */
void combine(int type, int op, void *to, const void *const *from, unsigned ranks, size_t count);

#pragma GCC visibility pop
#endif
