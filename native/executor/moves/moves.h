/* Moving a session to another executor (docs/internals/moving.md). Without --movable nothing here
 * does anything.
 *
 *   kept.c       the frames that made what lives, and those that changed it; what prevents a move
 *   arena.c      memory at addresses of our own, which the target can have, too
 *   mappings.c   the pages of that memory
 *   pointers.c   what the driver would say of such memory
 *   images.c     whether an image's code can be moved; ptx.c, fat.c, packed.c: in their forms
 *   variables.c  the contents of variables; memory.c: that of memory
 *   shared.c     what is shared with a client on this machine
 *   times.c      when events were recorded, across a move
 *   gate.c       stops the session between two calls, with its work done
 *   stream.c     parts of a written-down session, with a digest, on a descriptor
 *   ahead.c      what the target has before the session stops
 *   written.c    writes the session down
 *   rebuilt.c    rebuilds one
 *   orders.c     the parent's orders to a session
 *   mover.c      the source's parent: the socket of the daemon
 *   restored.c   the target's parent
 */
#ifndef EGPU_EXECUTOR_MOVES_H
#define EGPU_EXECUTOR_MOVES_H

#include "executor/executor.h"

/* ---- the table (native/driver/moves.yaml) ---- */

enum moves_class {
    MOVES_NOTHING,
    MOVES_CREATES,
    MOVES_FINDS,
    MOVES_CHANGES,
    MOVES_USES,
    MOVES_TELLS,
    MOVES_PREVENTS,
};
#define MOVES_OF_SESSION 0xffff
#define MOVES_OF_CONTEXT 0xfffe
struct moves_rule {
    uint8_t class;
    uint16_t subject_at; /* where the frame of a change names its object, or one of the above */
    uint16_t key_bytes;  /* of the frame: with the same ones a later change replaces an earlier */
    const char *name;
};
extern const struct moves_rule moves_rules[OP_COUNT];
extern const char *const moves_kinds[KIND_COUNT];

extern bool moves_on; /* --movable */

/* ---- kept.c ---- */

/* All frames that a session keeps. Beyond it the session does not move: a client cannot make an
 * executor keep more. */
#define KEPT_BYTES (64u << 20)
#define KEPT_FRAMES (1u << 18)

struct kept {
    struct kept *next; /* of the same object */
    uint64_t order, subject, context;
    const struct moves_rule *rule;
    const char *stays; /* why an image's code cannot move, or NULL */
    uint32_t bytes;
    uint16_t op;
    uint8_t payload[];
};
/* After a call that succeeded. */
void kept_add(const struct task *task, const uint8_t *payload);
/* Whether a library says in its answer that it has not done what it was called for. */
bool library_refused(const struct task *task, const uint8_t *answer);
/* Of an object that is gone. Under the lock of handles.c, as the following three. */
void kept_drop(struct kept *list);
bool kept_replaces(const struct kept *later, const struct kept *earlier);
/* Those of the session itself; it is stopped. */
const struct kept *kept_of_session(void);
bool kept_session_prevents(char *why); /* it need not be stopped */
/* Says what the list prevents, if something: room for MOVES_WHY_BYTES. */
#define MOVES_WHY_BYTES 512
bool kept_prevents(const struct kept *list, char *why);
/* Of a frame that uses or tells the address of a variable; NULL: it is malformed. */
const char *variable_name(const struct kept *kept);
bool kept_overflowed(void);

/* ---- handles.c ---- */

/* Adds to the object's list; false: there is no such object. */
bool handle_keep(struct kept *kept);
struct handle_seen {
    uint64_t id, value, parent;
    const struct kept *kept;
};
/* Calls `see` for each that lives, under the lock, until it returns false. */
bool handles_each(bool (*see)(const struct handle_seen *seen, void *data), void *data);
struct handles_state {
    uint64_t generation, used;
};
struct handles_state handles_state(void);
/* While a session is rebuilt, objects that the driver finds get no handles of ours, but the one
 * that is expected next, if any. */
void handles_rebuild(bool on, const struct handles_state *state);
void handle_expect(uint64_t id);
bool handle_bind_found(uint64_t id, uint64_t value);
bool handle_set_parent(uint64_t id, uint64_t parent);

/* ---- arena.c ---- */

#define ARENA_PAGE ((uint64_t)2 << 20)
#define ARENA_UNIT ((uint64_t)512)
#define ARENA_UNITS (ARENA_PAGE / ARENA_UNIT)

struct arena_mapping {
    uint64_t base, bytes, context;
    int32_t device;
    uint32_t shared; /* by small allocations */
};
struct arena_allocation {
    uint64_t base, bytes, number;
};
/* Takes the driver's functions of memory over. `seed`, the session's id, says where its addresses
 * begin; NULL: the session is rebuilt. */
void arena_begin(const uint8_t *seed);
void arena_context_gone(uint64_t context);
uint64_t arena_bytes(void);
bool arena_find(uint64_t address, struct arena_allocation *found);
/* Says what of its memory prevents a move. */
bool arena_prevents(char *why);

struct arena_state {
    uint64_t base, bytes, numbers;
    uint32_t mappings, allocations;
};
struct arena_state arena_state(void);
const struct arena_mapping *arena_mapping(uint32_t index);
const struct arena_allocation *arena_allocation(uint32_t index);
/* A copy of all, while the session goes on; NULL: there is no memory. */
struct arena_mapping *arena_mappings(uint32_t *count);
/* At the target, in this order. What was mapped `ahead` is the session's when it is mapped again,
 * and otherwise goes. */
bool arena_reserve(uint64_t base, uint64_t bytes, uint64_t numbers);
CUresult arena_map(const struct arena_mapping *mapping, bool ahead);
void arena_drop_ahead(void);
/* While the mapping is what it was, nothing is mapped and unmapped until arena_give. False: it is
 * another one. */
bool arena_hold(const struct arena_mapping *mapping);
void arena_give(void);
bool arena_allocate(const struct arena_allocation *allocation);
/* Whether the addresses lie in one mapping: which. */
bool arena_covers(uint64_t address, uint64_t bytes, struct arena_mapping *mapping);

/* ---- pointers.c ---- */

void pointers_begin(void);

/* ---- images.c ---- */

void images_prepare(void); /* before the sandbox */
/* Returns why the code of an image may hold on to its place, or NULL: it can be moved. */
const char *image_stays(const uint8_t *bytes, size_t total);
struct image_seer {
    bool (*see)(const char *name, size_t bytes, void *data);
    void *data;
};
/* Names the variables that the code itself writes. False: there was no memory. */
bool image_written(const uint8_t *bytes, size_t total, const struct image_seer *seer);

/* ---- times.c ---- */

/* An event that was recorded before the session came here, so long before it stopped there. */
struct moved_time {
    uint64_t event, context;
    double before_ms;
};
/* When the event was recorded, if it was and keeps the time. `now`: of its context. */
bool times_of(uint64_t event, CUevent value, CUevent now, double *before_ms);
bool times_add(const struct moved_time *time);
/* Before a call: it answers for events from before, in place of the driver. */
bool times_answer(struct task *task, CUresult *result);

/* ---- gate.c ---- */

void gate_enter(void); /* the thread that serves, before it carries frames out */
void gate_look(void);  /* between two frames */
void gate_leave(void); /* before it waits for more */
/* Stops the session: its work is done, no call begins. False: says why not, and it goes on. */
bool gate_close(char *why);
/* Only keeps calls from beginning, for a moment. False: a call runs for longer than so long. */
bool gate_pause(int64_t ms);
void gate_open(void);

/* ---- stream.c ---- */

enum moved_part {
    PART_SESSION = 1,   /* struct moved_session */
    PART_CARDS,         /* the snapshot of WELCOME */
    PART_MAPPING,       /* struct arena_mapping */
    PART_ALLOCATIONS,   /* of struct arena_allocation, as many as there are */
    PART_IMAGE,         /* struct wire_image, then its bytes */
    PART_FRAME,         /* struct moved_frame, then its payload */
    PART_NAMED,         /* struct moved_named, then a name with its NUL */
    PART_HANDLES,       /* of struct moved_handle */
    PART_TIME,          /* struct moved_time */
    PART_REPLY,         /* struct moved_reply, then its results */
    PART_PRINTED,       /* what kernels have printed */
    PART_DATA,          /* struct moved_data, then the memory */
    PART_VARIABLE,      /* struct moved_variable, then its name with its NUL */
    PART_SHARED,        /* beside it the shared memory; then one with the connection */
    PART_HOST,          /* struct moved_host; beside it the memory */
    PART_VARIABLE_DATA, /* struct moved_data, then a piece of the last variable */
    PART_AHEAD,         /* struct moved_ahead: the first of what comes before the session stops */
    PART_LOAD,          /* struct moved_load: of an image that came ahead */
    PART_SAME,          /* struct moved_data alone: the memory is what came ahead */
    PART_END,           /* the digest of all that was before */
};
#define MOVED_VERSION 6
#define MOVED_DATA_BYTES (4u << 20)
#define MOVED_PART_BYTES (MOVED_DATA_BYTES + (64u << 10))

struct moved_session {
    uint64_t version, table; /* EGPU_WIRE_TABLE_HASH */
    uint64_t taken, context, mode, pending_error, callbacks;
    struct handles_state handles;
    struct arena_state arena;
};
struct moved_ahead {
    uint64_t version, table; /* as in the session */
    uint64_t base, bytes;    /* of its range of addresses */
    uint64_t contexts;       /* by card: whether it has the primary one */
};
struct moved_load {
    uint8_t digest[32];
    uint64_t total;
    uint32_t kind, card; /* a module's primary context */
};
struct moved_frame {
    uint64_t subject, context;
    uint32_t op, bytes;
};
struct moved_named {
    uint64_t id, parent, context;
};
struct moved_handle {
    uint64_t id, parent;
};
struct moved_reply {
    uint64_t seq;
    uint32_t result, pending;
};
struct moved_data {
    uint64_t address, bytes; /* of a variable: from its beginning */
};
struct moved_host {
    uint64_t address, bytes, context;
};
struct moved_variable {
    uint64_t object, context, bytes;
};

struct moved_stream {
    int descriptor;
    bool bad;
    uint64_t digest, bytes;
    size_t have; /* in the buffer, when writing */
    uint8_t *buffer;
    int passed; /* when reading: came with the last part; -1: none did */
};
/* The part has a descriptor beside it. */
void moved_put_descriptor(struct moved_stream *to, enum moved_part part, const void *head,
                          size_t head_bytes, int descriptor);
void moved_put(struct moved_stream *to, enum moved_part part, const void *head, size_t head_bytes,
               const void *data, size_t bytes);
/* An image, in parts of at most WIRE_MAX_BULK bytes of it. */
void moved_put_image(struct moved_stream *to, const uint8_t digest[32], const uint8_t *bytes,
                     uint64_t total);
bool moved_flush(struct moved_stream *to);
/* Of memory: one word for each lane of a processor. `count` is a multiple of 32, as the bytes of
 * all mappings are. */
#define MOVED_LANES 4
void moved_digest(const uint8_t *bytes, uint64_t count, uint64_t lanes[MOVED_LANES]);
/* One part, of at most MOVED_PART_BYTES. A descriptor that nobody took from the last is closed. */
bool moved_get(struct moved_stream *from, enum moved_part *part, uint8_t *payload, size_t *bytes);

/* ---- host.c ---- */

struct host_range {
    uint64_t address, bytes, context;
    int kept; /* its descriptor, or -1 */
};
bool host_prevents(char *why);
const struct host_range *host_next(const struct host_range *last); /* NULL: the first; the last */
/* Maps the memory at its address, for the context that is current. Takes the descriptor. */
CUresult host_add(struct host_range range, int descriptor);

/* ---- shared.c ---- */

/* Where the next part is a connection, or memory of the client's. `why`: see variables_take. */
void shared_put(struct moved_stream *to);
bool shared_take(struct moved_stream *from);
bool shared_take_host(struct moved_stream *from, const uint8_t *payload, size_t bytes, char *why);

/* ---- memory.c ---- */

/* Before the session stops: as far as it succeeds, and while the mappings are what they are. What
 * is the same when it has stopped is not sent again. False: its calls take too long. */
bool memory_put_ahead(struct moved_stream *to, const struct arena_mapping *mapping);
bool memory_put(struct moved_stream *to, char *why);
void memory_forget(void); /* what was sent ahead */
/* `payload` stays as it is until memory_room returns it again. */
bool memory_take(const uint8_t *payload, size_t bytes, bool ahead, char *why);
bool memory_take_same(const uint8_t *payload, size_t bytes, char *why);
/* Where the next part is read to: memory that the card reads itself, or `plain`. */
uint8_t *memory_room(uint8_t *plain);
bool memory_taken(char *why); /* all of it is on the card */

/* ---- variables.c ---- */

struct image_hold;
struct variables_of {
    uint64_t object;         /* a module or a library */
    const struct kept *load; /* the frame that loaded it */
    const struct kept *kept; /* all frames of it */
    const uint64_t *contexts;
    uint32_t context_count;
};
bool variables_put(struct moved_stream *to, const struct variables_of *of, char *why);
/* Looks the names up that an image's code writes, before the session stops. */
void variables_look(const struct image_hold *image);
void variables_forget(void);
/* Return false if what came is malformed, or with a reason in `why`. */
bool variables_take(const uint8_t *payload, size_t bytes, char *why);
bool variables_take_data(const uint8_t *payload, size_t bytes);

/* ---- ahead.c; images.c and warm.c beside their own things ---- */

/* Of an image that is known: its bytes stay until it is given back. */
struct image_hold {
    uint8_t digest[32];
    uint64_t total;
    const uint8_t *bytes;
    bool dropped, mapped;
    struct image_hold *next;
};
bool image_hold(struct image_hold *hold);
void image_give(struct image_hold *hold);

void contexts_hold(uint64_t cards); /* as far as it succeeds */
bool contexts_enter(unsigned card); /* one that is held; driver_leave leaves it */
void contexts_give(void);

/* Writes down what the target can have before the session stops. `broke`: see session_write. */
bool ahead_write(int to, char *why, uint64_t *bytes, bool *broke);
bool ahead_has(const struct kept *load); /* the target has the image */
void ahead_forget(void);                 /* what the target was sent: the session goes on */
/* At the target. An image is loaded as far as it succeeds: otherwise its frame loads it. */
bool loads_take(const uint8_t *payload, size_t bytes);
/* As a module or as a library. `logs`: two of so many bytes, and a NUL each. calls/loads.c */
CUresult image_load(const struct image *image, unsigned kind, char *logs, size_t log_bytes,
                    uint64_t *value);
/* Whether it is loaded already, for the context that is current: then it is the caller's. */
bool loads_find(const struct wire_load *ask, unsigned kind, uint64_t *value);
void loads_drop(void); /* what no frame wanted */

/* ---- written.c, rebuilt.c ---- */

bool session_moves(char *why, uint64_t *bytes); /* without stopping anything */
/* `broke`: the connection did; the target may say why. */
bool session_write(int to, char *why, uint64_t *bytes, bool *broke);
bool session_rebuild(int from, bool ahead, char *why);

/* ---- orders.c: what the parent wants of a session, and what it answers ---- */

/* What a session answers to an order. */
struct moves_report {
    uint64_t good, order; /* its number */
    uint64_t bytes;
    uint64_t broke; /* the connection to the target did */
    uint64_t here;  /* of a source: it shares memory with its client, so it stays on this machine.
                       Of a target: descriptors reach it */
    char why[MOVES_WHY_BYTES];
};
enum moves_order {
    ORDER_CONNECTION,
    ORDER_LOOK,
    ORDER_STOP,
    ORDER_WRITE,
    ORDER_GO_ON,
    ORDER_PREPARE,
    ORDER_AHEAD, /* what is written or comes before the session stops */
    ORDER_REBUILD,
    ORDER_BEGIN /* the source has ended */
};
/* In the session's control thread. */
void orders_carry_out(int control, uint32_t order, uint64_t number, int descriptor);
bool orders_report(int control, const struct moves_report *report);

#endif
