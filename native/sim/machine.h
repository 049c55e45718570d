/* The shared machine: opening it, its process table, who owns which memory, and who had the card's
 * time.
 *
 * Nothing here knows CUDA or NVML. A process that only looks (NVML) opens the machine and never
 * joins it.
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
    int slot;              /* ours in the process table, -1 when not joined */
    pthread_mutex_t table; /* the OFD lock excludes processes, this excludes threads */
    char directory[4096];  /* of the library: machine and dev are looked for here */
    /* what an MPS server has this process do: */
    uint32_t server;            /* its pid; 0: none */
    const uint32_t *own_limits; /* chunks of each card that it may hold; NULL: no limits */
};

/* 0, or an errno: ENOENT no machine beside the library, EPROTO not a machine file of this
 * layout. */
int machine_open(struct machine *machine, const char *directory);
void machine_close(struct machine *machine);

/* The directory of the shared object holding `symbol`, as it was named when loaded (links not
 * followed). */
int machine_library_directory(const void *symbol, char *directory, size_t size);

#define SIM_UUID_TEXT 41
void machine_uuid_text(const struct sim_card *card, char text[SIM_UUID_TEXT]);

/* Does <directory>/dev/nvidia<minor> open, and is it this card? */
bool machine_card_visible(const struct machine *machine, const struct sim_card *card);

/* Take a slot of the process table, to run on a compute instance (NULL: on cards). 0, ENOSPC when
 * SIM_MAX_PROCESSES live processes use the machine, ENOENT: that instance is gone. */
int machine_join(struct machine *machine, const struct sim_card *instance);

/* Is the owner of this slot still there? Cheap enough for process lists. */
bool machine_process_alive(struct machine *machine, int slot);

/* Give back what dead processes held. Returns how many were found. */
int machine_reap(struct machine *machine);

/* ---- memory: a run of chunks of a card's memory ---- */
struct chunk_run {
    uint32_t first;
    uint32_t count;
};

/* `count` chunks in as few runs as there are holes; *runs is malloc'ed. 0, ENOMEM (the card is
 * full; the dead were reaped), or ENOBUFS (no host memory). */
int machine_take_chunks(struct machine *machine, struct sim_card *card, uint32_t count,
                        struct chunk_run **runs, size_t *run_count);
/* Punches the contents out, then gives the chunks back. */
void machine_give_chunks(struct machine *machine, struct sim_card *card,
                         const struct chunk_run *runs, size_t run_count);

uint32_t machine_free_chunks(struct machine *machine, struct sim_card *card);

/* ---- limits of control groups (limits.c): by the path of a group, of a card ---- */
#define SIM_NO_LIMIT UINT64_MAX
struct sim_limits {
    uint64_t soft, hard; /* bytes */
};
/* 0, or an errno: it is no directory. `group` is how processes are told apart by it. */
int limits_group(const char *path, uint64_t *group);
/* 0, ENOENT (none is set), or another errno. */
int limits_read(const char *group, const struct sim_card *card, struct sim_limits *limits);
/* Soft 0 and hard SIM_NO_LIMIT: none any more. */
int limits_write(const char *group, const struct sim_card *card, const struct sim_limits *limits);
/* What the processes of a group hold of a card. */
uint32_t machine_group_chunks(struct machine *machine, const struct sim_card *card, uint64_t group);
/* Of this process's own group: what it may hold in all (chunk_count: no limit), and more. */
uint32_t machine_limit_chunks(const struct machine *machine, const struct sim_card *card);
uint32_t machine_group_room(struct machine *machine, const struct sim_card *card);

/* Managed memory: chunks that whoever needs them takes away. Returns how many of `want` there
 * were. */
uint32_t machine_hold_evictable(struct machine *machine, struct sim_card *card, uint32_t want);
void machine_drop_evictable(struct machine *machine, struct sim_card *card, uint32_t count);

/* ---- what several processes hold: memory and events (shared.c) ---- */
struct shared_ref {
    uint32_t index;
    uint32_t generation;
};

/* Turn chunks of this process into shared ones. 0, or ENOSPC: the table is full. */
int machine_share_chunks(struct machine *machine, struct sim_card *card,
                         const struct chunk_run *runs, size_t run_count, struct shared_ref *ref);
/* Hold what another process shares. 0, ENOENT (gone), ENOBUFS. */
int machine_hold_chunks(struct machine *machine, struct shared_ref ref, struct sim_card **card,
                        struct chunk_run **runs, size_t *run_count);
/* The last to let go gives the chunks back. */
void machine_drop_shared(struct machine *machine, struct shared_ref ref);
int machine_share_event(struct machine *machine, struct sim_card *card, uint32_t flags,
                        struct shared_ref *ref);
int machine_hold_event(struct machine *machine, struct shared_ref ref);
struct sim_shared *machine_shared(struct machine *machine, struct shared_ref ref);

/* Contexts of this process on a card; the first brings the process into NVML's lists. EBUSY: the
 * card is in MIG mode, and can be used only through its instances; or its compute mode lets nobody
 * in beside those who use it. */
int machine_add_context(struct machine *machine, struct sim_card *card);
void machine_remove_context(struct machine *machine, struct sim_card *card);

/* ---- MIG (mig.c): instances of a card, each a record of its own ---- */

/* EBUSY: the card is in use, or has instances; the mode stays what it was, and what was asked for
 * is noted. */
int machine_set_mig_mode(struct machine *machine, struct sim_card *card, bool on);
/* the card that an instance is of */
struct sim_card *machine_board_of(struct machine *machine, struct sim_card *card);
/* The record that has the memory and counts it: of a compute instance, its GPU instance. */
struct sim_card *machine_memory_of(struct machine *machine, struct sim_card *card);
/* The instance at that place (0 … SIM_MAX_INSTANCES - 1) among those of its kind; NULL: none. */
struct sim_card *machine_instance(struct machine *machine, const struct sim_card *board,
                                  enum sim_instance_kind kind, unsigned place);
/* At the last place that is free, or at this memory slice (`first` >= 0). ENODEV: not in MIG mode,
 * EINVAL: no such placement, ENOSPC: no room. */
int machine_create_gpu_instance(struct machine *machine, struct sim_card *board, uint32_t profile,
                                int first, struct sim_card **out);
/* So many of the GPU instance's compute slices, the first ones that are free, or these. ENOENT: it
 * is gone, EINVAL, ENOSPC. */
int machine_create_compute_instance(struct machine *machine, struct sim_card *gpu_instance,
                                    uint32_t slices, int first, struct sim_card **out);
/* EBUSY: it has compute instances, or processes run on it. ENOENT: it is gone. */
int machine_destroy_instance(struct machine *machine, struct sim_card *instance);
/* How many more of a profile there is room for. */
uint32_t machine_room_for(struct machine *machine, const struct sim_card *board, uint32_t profile);
/* Can this process open the device files of a compute instance: its GPU instance's and its own? */
bool machine_instance_visible(const struct machine *machine, const struct sim_card *instance);
/* Can it open the one of whoever makes instances? */
bool machine_may_configure(const struct machine *machine);
/* of a compute instance of that size */
uint32_t machine_mig_sms(const struct sim_card *gpu_instance, uint32_t slices);
/* "1g.5gb", "1c.3g.20gb": `slices` of compute, 0: of the whole GPU instance. */
void machine_mig_name(const struct sim_mig_profile *profile, uint32_t slices, char *text,
                      size_t size);

/* ---- time ---- */

/* Take up to *duration_ns of the card's time, not before `earliest_ns`; returns when it starts,
 * *duration_ns is what was given. Waits while other processes have their time slice. Nobody's death
 * can hold the card, but for what it has taken. */
uint64_t machine_take_time(struct machine *machine, struct sim_card *card, uint64_t earliest_ns,
                           uint64_t *duration_ns);
/* That this process has it in [start, start + duration): not long before it comes to that, for the
 * account goes back only 2 s. */
void machine_charge_time(struct machine *machine, struct sim_card *card, uint64_t start_ns,
                         uint64_t duration_ns);

/* A stream of this process has begun (+1) or ended (-1) to want the card. */
void machine_count_runnable(struct machine *machine, struct sim_card *card, int change);

/* Busy nanoseconds in [from_ns, to_ns), in whole buckets; *window_ns receives the length really
 * covered. */
uint64_t machine_busy_in(const struct sim_busy *busy, uint64_t from_ns, uint64_t to_ns,
                         uint64_t *window_ns);

#endif
