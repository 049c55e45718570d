/* Simulated NCCL, for tests and for trying programs: ranks in any processes pass each other data
 * over TCP, in the order of their streams, wherever their network leads. Unlike NCCL's, several may
 * be on one card.
 *
 *   nccl.c          the interface, and groups
 *   communicator.c  how ranks come together, and know that one is gone
 *   station.c       where a process is found, and where ranks of one unique id meet
 *   exchange.c      connections: who is there, and what passes between two ranks
 *   collective.c    what each operation passes to whom
 *   reduction.c     what is made of what came
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
#define PIECE_BYTES (16u << 10) /* what passes at once */

/* ---- station.c ---- */

struct place { /* of a process; as the network writes it */
    uint32_t address;
    uint16_t port, unused;
};

/* The first 24 bytes of a unique id. Who knows the words may join; `at` is where. */
struct clique_id {
    uint64_t words[2];
    struct place at;
};

/* What a connection begins with: a rank that comes to where its clique meets, which is answered
 * with a `meeting` when all are there; or one that another rank is linked to. */
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

/* This process's, made when it is first asked for. False: it cannot be had. */
bool station_place(struct place *place);
int station_connect(struct place place); /* a socket that is not blocking and may still connect */
bool send_all(int fd, const void *data, size_t bytes);
bool receive_all(int fd, void *data, size_t bytes);

/* ---- exchange.c ---- */

/* From one rank to another. `full` is what its data are worth: the writer waits until it is 0. */
struct channel {
    _Atomic uint32_t full, bytes;
    _Alignas(16) uint8_t data[PIECE_BYTES]; /* of any type */
};

/* Ranks that belong together, as one of them sees it. */
struct clique {
    struct clique *next; /* of this process */
    struct clique_id id;
    uint32_t rank, ranks;
    _Atomic uint32_t joined, left; /* a bit each */
    _Atomic uint32_t here;         /* with whom there is a connection */
    _Atomic uint32_t failed;       /* one of them was lost, or gave up */
    _Atomic int refused;           /* why it cannot be: a result of NCCL's */
    _Atomic uint32_t changes;      /* a futex */
    struct {
        _Atomic uint32_t turn;
        _Atomic int32_t color, key;
    } splits[MOST_RANKS];
    struct place places[MOST_RANKS];
    pthread_t thread; /* reads what others say */
    int wake[2];
    _Atomic bool leaving;
    pthread_mutex_t writing;
    _Atomic int sockets[MOST_RANKS]; /* -1: none */
    struct channel out[MOST_RANKS], in[MOST_RANKS];
};

/* A rank's own hold on its clique. */
struct seat {
    struct clique *clique; /* NULL: none */
    unsigned rank;
};

/* Begins to take a rank's place. A result of NCCL's. */
int seat_take(struct seat *seat, struct clique_id id, unsigned ranks, unsigned rank);
void seat_leave(struct seat *seat);
/* Whether all of these ranks (a bit each) are there. */
bool seat_sees(const struct seat *seat, uint32_t ranks);
void clique_fail(struct clique *clique);
void clique_tell(struct clique *clique); /* something in it changed */
void clique_await(struct clique *clique, uint32_t changes);
void clique_split(struct clique *clique, uint32_t turn, int color, int key);
/* `data` goes to the rank, whose channel is empty; or what came from it has been taken. */
void clique_put(struct clique *clique, unsigned rank, const void *data, size_t bytes);
void clique_taken(struct clique *clique, unsigned rank);
/* Another rank of a clique of this process has come: true, and the socket is the clique's. */
bool clique_link(const struct greeting *greeting, int fd);

/* ---- communicator.c ---- */

#define MOST_FACTORS 8

/* What a rank's own contributions are multiplied by (ncclRedOpCreatePreMulSum). */
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
    uint32_t splits;       /* how often it was split or shrunk */
    struct batch *waiting; /* of one that does not block: queued when it is asked how it goes */
    struct factor factors[MOST_FACTORS];
    /* of one that is being split off: from whom, and as what; NULL: it is one already */
    struct communicator *from;
    uint32_t split;
    int color, key;
};

struct communicator *communicator_new(bool blocking);
void communicator_release(struct communicator *communicator);
/* One more look at what is not there yet: OK, IN_PROGRESS or why it will never be. */
int communicator_progress(struct communicator *communicator);
int communicator_await(struct communicator *communicator); /* until it is no more in progress */
/* Of those who go on together, of whom `first` is one. */
struct clique_id communicator_next_id(const struct communicator *communicator, int color,
                                      unsigned first);
/* Waits for a change; false: an operation has to end. `needed` are ranks (a bit each). */
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
    bool again; /* a graph may do it more than once */
    struct communicator *communicator;
    unsigned count;
    struct operation at[];
};
size_t batch_bytes(unsigned count);
CUresult batch_queue(const struct batch *batch);

/* ---- reduction.c ---- */

size_t type_width(int type); /* 0: there is no such type */
void multiply(int type, void *values, size_t count, const struct factor *factor);
/* Of `ranks` arrays, in their order: so all ranks come to the same. */
void combine(int type, int op, void *to, const void *const *from, unsigned ranks, size_t count);

#pragma GCC visibility pop
#endif
