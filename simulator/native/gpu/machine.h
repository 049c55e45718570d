/* The shared machine: opening it, its process table, the owners of its memory, and its cards' time.
 *
 * It does not know CUDA or NVML. A process that only reads (NVML) opens the machine and never joins
 * it.
 */
#ifndef EGPU_SIM_MACHINE_API_H
#define EGPU_SIM_MACHINE_API_H

#include "sim_machine.h"

#include <pthread.h>
#include <stdbool.h>
#include <sys/types.h>

struct machine {
    int fd; /* -1: closed, or inherited through fork */
    struct sim_header *header;
    struct sim_card *cards;
    struct sim_process *processes;
    size_t mapped_bytes;
    uint64_t pid_namespace;
    int slot;              /* of this process; -1: not joined */
    pthread_mutex_t table; /* excludes threads; the OFD lock excludes processes */
    char directory[4096];  /* the library's: machine and dev are looked up here */
    /* set by an MPS server: */
    uint32_t server;            /* its pid; 0: none */
    const uint32_t *own_limits; /* chunks that it may hold of each card; NULL: no limits */
};

/* Return 0 or an errno. ENOENT: no machine beside the library; EPROTO: not a file of this
 * layout. */
int machine_open(struct machine *machine, const char *directory);
void machine_close(struct machine *machine);

/* Return the directory of the shared object that holds `symbol`, as named when loaded (links not
 * followed). */
int machine_library_directory(const void *symbol, char *directory, size_t size);

#define SIM_UUID_TEXT 41
void machine_uuid_text(const struct sim_card *card, char text[SIM_UUID_TEXT]);

/* Return whether <directory>/dev/nvidia<minor> opens and is this card. */
bool machine_card_visible(const struct machine *machine, const struct sim_card *card);

/* Take a slot of the process table, to run on a compute instance (NULL: on cards). 0, ENOSPC:
 * SIM_MAX_PROCESSES live processes use the machine, ENOENT: that instance has been destroyed. */
int machine_join(struct machine *machine, const struct sim_card *instance);

/* Return whether the slot's owner is alive. Cheap enough for process lists. */
bool machine_process_alive(struct machine *machine, int slot);

/* Release what dead processes held. Return how many were found. */
int machine_reap(struct machine *machine);

/* ---- memory: a run of chunks of a card's memory ---- */
struct chunk_run {
    uint32_t first;
    uint32_t count;
};

/* Take `count` chunks in as few runs as possible; *runs is malloc'ed. 0, ENOMEM (the card is full,
 * also after reaping), or ENOBUFS (no host memory). */
int machine_take_chunks(struct machine *machine, struct sim_card *card, uint32_t count,
                        struct chunk_run **runs, size_t *run_count);
/* Punch the contents out, then release the chunks. */
void machine_give_chunks(struct machine *machine, struct sim_card *card,
                         const struct chunk_run *runs, size_t run_count);

uint32_t machine_free_chunks(struct machine *machine, struct sim_card *card);

/* ---- limits of control groups (limits.c), by the path of a group and by card ---- */
#define SIM_NO_LIMIT UINT64_MAX
struct sim_limits {
    uint64_t soft, hard; /* bytes */
};
/* Return 0, or an errno: not a directory. `group` identifies the group of a process. */
int limits_group(const char *path, uint64_t *group);
/* Return 0, ENOENT (no limit), or another errno. */
int limits_read(const char *group, const struct sim_card *card, struct sim_limits *limits);
/* Soft 0 and hard SIM_NO_LIMIT remove the limit. */
int limits_write(const char *group, const struct sim_card *card, const struct sim_limits *limits);
/* Return the chunks that a group's processes hold of a card. */
uint32_t machine_group_chunks(struct machine *machine, const struct sim_card *card, uint64_t group);
/* Limit of this process's own group (chunk_count: no limit), and what it may still take. */
uint32_t machine_limit_chunks(const struct machine *machine, const struct sim_card *card);
uint32_t machine_group_room(struct machine *machine, const struct sim_card *card);

/* Managed memory: chunks that another allocation may take away. Return how many of `want` were
 * free. */
uint32_t machine_hold_evictable(struct machine *machine, struct sim_card *card, uint32_t want);
void machine_drop_evictable(struct machine *machine, struct sim_card *card, uint32_t count);

/* ---- memory and events held by several processes (shared.c) ---- */
struct shared_ref {
    uint32_t index;
    uint32_t generation;
};

/* Turn chunks of this process into shared ones. 0, or ENOSPC: the table is full. */
int machine_share_chunks(struct machine *machine, struct sim_card *card,
                         const struct chunk_run *runs, size_t run_count, struct shared_ref *ref);
/* Hold what another process shares. 0, ENOENT (it ended), ENOBUFS. */
int machine_hold_chunks(struct machine *machine, struct shared_ref ref, struct sim_card **card,
                        struct chunk_run **runs, size_t *run_count);
/* The last holder releases the chunks. */
void machine_drop_shared(struct machine *machine, struct shared_ref ref);
int machine_share_event(struct machine *machine, struct sim_card *card, uint32_t flags,
                        struct shared_ref *ref);
int machine_hold_event(struct machine *machine, struct shared_ref ref);
struct sim_shared *machine_shared(struct machine *machine, struct shared_ref ref);

/* Count this process's contexts on a card; the first brings the process into NVML's lists. EBUSY:
 * the card is in MIG mode and usable only through its instances, or its compute mode refuses more
 * processes. */
int machine_add_context(struct machine *machine, struct sim_card *card);
void machine_remove_context(struct machine *machine, struct sim_card *card);

/* ---- MIG (mig.c): instances of a card, each a record of its own ---- */

/* EBUSY: the card is in use or has instances. The mode stays, and the request is noted. */
int machine_set_mig_mode(struct machine *machine, struct sim_card *card, bool on);
/* return the card of an instance */
struct sim_card *machine_board_of(struct machine *machine, struct sim_card *card);
/* Return the record that has and counts the memory: for a compute instance, its GPU instance. */
struct sim_card *machine_memory_of(struct machine *machine, struct sim_card *card);
/* Return the instance at this place (0 … SIM_MAX_INSTANCES - 1) of its kind; NULL: none. */
struct sim_card *machine_instance(struct machine *machine, const struct sim_card *board,
                                  enum sim_instance_kind kind, unsigned place);
/* Use the last free place, or this memory slice (`first` >= 0). ENODEV: not in MIG mode, EINVAL: no
 * such placement, ENOSPC: no room. */
int machine_create_gpu_instance(struct machine *machine, struct sim_card *board, uint32_t profile,
                                int first, struct sim_card **out);
/* Use that many of the GPU instance's compute slices: the first free ones, or those at `first`.
 * ENOENT: it was destroyed, EINVAL, ENOSPC. */
int machine_create_compute_instance(struct machine *machine, struct sim_card *gpu_instance,
                                    uint32_t slices, int first, struct sim_card **out);
/* EBUSY: it has compute instances or running processes. ENOENT: it was destroyed. */
int machine_destroy_instance(struct machine *machine, struct sim_card *instance);
/* Return how many more of a profile fit. */
uint32_t machine_room_for(struct machine *machine, const struct sim_card *board, uint32_t profile);
/* Return whether this process can open the device files of a compute and its GPU instance. */
bool machine_instance_visible(const struct machine *machine, const struct sim_card *instance);
/* Return whether it can open the device file for making instances. */
bool machine_may_configure(const struct machine *machine);
/* for a compute instance of that size */
uint32_t machine_mig_sms(const struct sim_card *gpu_instance, uint32_t slices);
/* "1g.5gb", "1c.3g.20gb": `slices` of compute; 0: the whole GPU instance's. */
void machine_mig_name(const struct sim_mig_profile *profile, uint32_t slices, char *text,
                      size_t size);

/* ---- time ---- */

/* Take up to *duration_ns of the card's time, not before `earliest_ns`. Return its start;
 * *duration_ns is the granted time. Waits during other processes' slices. A process that dies
 * blocks the card only for the time it has taken. */
uint64_t machine_take_time(struct machine *machine, struct sim_card *card, uint64_t earliest_ns,
                           uint64_t *duration_ns);
/* Charge this process for [start, start + duration). Call it shortly before that time: the account
 * goes back only 2 s. */
void machine_charge_time(struct machine *machine, struct sim_card *card, uint64_t start_ns,
                         uint64_t duration_ns);

/* A stream of this process began (+1) or ceased (-1) to want the card. */
void machine_count_runnable(struct machine *machine, struct sim_card *card, int change);

/* Return the busy nanoseconds in [from_ns, to_ns), in whole buckets. *window_ns: the length
 * covered. */
uint64_t machine_busy_in(const struct sim_busy *busy, uint64_t from_ns, uint64_t to_ns,
                         uint64_t *window_ns);

#endif
