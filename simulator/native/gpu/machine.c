#include "machine_internal.h"

#include "clock.h"
#include "common/process.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- opening ---- */

int machine_library_directory(const void *symbol, char *directory, size_t size) {
    Dl_info info;
    if (!dladdr(symbol, &info) || !info.dli_fname) return ENOENT;
    const char *slash = strrchr(info.dli_fname, '/');
    size_t length = slash ? (size_t)(slash - info.dli_fname) : 1;
    if (length >= size) return ENAMETOOLONG;
    memcpy(directory, slash ? info.dli_fname : ".", length);
    directory[length] = '\0';
    return 0;
}

static bool layout_is_ours(const struct sim_header *header, uint64_t file_bytes) {
    return memcmp(header->magic, SIM_MAGIC, sizeof header->magic) == 0 &&
           header->version == SIM_LAYOUT_VERSION && header->header_bytes == sizeof *header &&
           header->card_count <= SIM_MAX_CARDS && header->max_processes == SIM_MAX_PROCESSES &&
           header->file_bytes <= file_bytes && header->cards_offset == sizeof *header &&
           header->processes_offset ==
               header->cards_offset + SIM_MAX_RECORDS * sizeof(struct sim_card) &&
           header->shared_offset ==
               header->processes_offset + SIM_MAX_PROCESSES * sizeof(struct sim_process);
}

static uint64_t own_pid_namespace(void) {
    struct stat status;
    return stat("/proc/self/ns/pid", &status) == 0 ? (uint64_t)status.st_ino : 0;
}

/* Open the file behind the link at `path`, if the link's owner also made the file: in shared memory
 * anyone may take the name of a machine that has ended. Otherwise -1 and errno. */
static int open_state(const char *path) {
    struct stat link, state;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 ||
        (lstat(path, &link) == 0 && fstat(fd, &state) == 0 && link.st_uid == state.st_uid))
        return fd;
    close(fd);
    errno = EACCES;
    return -1;
}

int machine_open(struct machine *machine, const char *directory) {
    char path[sizeof machine->directory + 16];
    memset(machine, 0, sizeof *machine);
    machine->fd = -1;
    machine->slot = -1;
    machine->pid_namespace = own_pid_namespace();
    pthread_mutex_init(&machine->table, NULL);
    snprintf(machine->directory, sizeof machine->directory, "%s", directory);
    snprintf(path, sizeof path, "%s/machine", directory);
    int fd = open_state(path);
    if (fd < 0) return errno;

    struct sim_header header;
    struct stat status;
    if (pread(fd, &header, sizeof header, 0) != (ssize_t)sizeof header || fstat(fd, &status) != 0 ||
        !layout_is_ours(&header, (uint64_t)status.st_size)) {
        close(fd);
        return EPROTO;
    }
    /* The tables of chunks are between the shared entries and the first card's memory. */
    uint64_t end = header.shared_offset + SIM_MAX_SHARED * sizeof(struct sim_shared);
    for (uint32_t i = 0; i < header.card_count; i++) {
        struct sim_card card;
        off_t at = (off_t)(header.cards_offset + i * sizeof card);
        if (pread(fd, &card, sizeof card, at) != (ssize_t)sizeof card) {
            close(fd);
            return EPROTO;
        }
        uint64_t all = card.memory_bytes + card.driver_bytes; /* instances take parts of this */
        uint64_t table_end = card.chunk_offset + (all >> SIM_CHUNK_SHIFT) * sizeof(uint32_t);
        if (card.index != i || card.memory_offset + all > header.file_bytes ||
            table_end > card.memory_offset) {
            close(fd);
            return EPROTO;
        }
        if (table_end > end) end = table_end;
    }
    void *base = mmap(NULL, end, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) {
        int error = errno;
        close(fd);
        return error;
    }
    machine->fd = fd;
    machine->mapped_bytes = end;
    machine->header = base;
    machine->cards = (struct sim_card *)((char *)base + header.cards_offset);
    machine->processes = (struct sim_process *)((char *)base + header.processes_offset);
    if (header.flags & SIM_FLAG_MANUAL_CLOCK) sim_clock_manual(machine->header);
    return 0;
}

void machine_close(struct machine *machine) {
    sim_clock_manual_end(machine->header);
    if (machine->header) munmap(machine->header, machine->mapped_bytes);
    if (machine->fd >= 0) close(machine->fd);
    machine->header = NULL;
    machine->fd = -1;
    machine->slot = -1;
}

void machine_uuid_text(const struct sim_card *card, char text[SIM_UUID_TEXT]) {
    const uint8_t *u = card->uuid;
    const char *what = atomic_load(&card->instance) ? "MIG" : "GPU";
    snprintf(text, SIM_UUID_TEXT,
             "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", what, u[0],
             u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13],
             u[14], u[15]);
}

bool machine_card_visible(const struct machine *machine, const struct sim_card *card) {
    char path[sizeof machine->directory + 48];
    char want[9 + SIM_UUID_TEXT] = "EGPUSIM1 ";
    char found[sizeof want] = {0};
    snprintf(path, sizeof path, "%s/dev/nvidia%u", machine->directory, card->minor);
    machine_uuid_text(card, want + 9);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) return false;
    ssize_t got = read(fd, found, sizeof found - 1);
    close(fd);
    return got == (ssize_t)strlen(want) && memcmp(found, want, strlen(want)) == 0;
}

/* ---- the table lock ---- */

_Atomic uint32_t *machine_chunk_table(struct machine *machine, const struct sim_card *card) {
    return (_Atomic uint32_t *)((char *)machine->header + card->chunk_offset);
}

int machine_ofd_lock(int fd, int command, short type, int64_t at) {
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
    int rc;
    do rc = fcntl(fd, command, &lock);
    while (rc < 0 && errno == EINTR);
    return rc < 0 ? errno : 0;
}

struct sim_usage *machine_usage(struct machine *machine, int slot, const struct sim_card *card) {
    struct sim_process *process = &machine->processes[slot];
    if (card->index < SIM_MAX_CARDS) return &process->cards[card->index];
    if (process->instance == 0) return NULL;
    bool on = process->instance == card->index ||
              machine->cards[process->instance].memory_record == card->index;
    return on ? &process->cards[SIM_MAX_CARDS] : NULL;
}

/* The counters follow from the chunk tables. After a death inside the lock they are counted
 * again. */
void machine_recount(struct machine *machine) {
    for (struct sim_card *card = machine_next_memory(machine, NULL); card;
         card = machine_next_memory(machine, card)) {
        const _Atomic uint32_t *owners = machine_chunk_table(machine, card);
        uint32_t used = 0;
        for (int slot = 0; slot < SIM_MAX_PROCESSES; slot++) {
            if (atomic_load(&machine->header->process_state[slot]) == SIM_PROCESS_FREE) continue;
            struct sim_usage *usage = machine_usage(machine, slot, card);
            if (usage) usage->chunks = 0;
        }
        for (uint32_t i = 0; i < card->chunk_count; i++) {
            uint32_t owner = atomic_load_explicit(&owners[i], memory_order_relaxed);
            if (owner == 0) continue;
            used++;
            int slot = machine_charged_slot(machine, owner);
            struct sim_usage *usage = slot >= 0 ? machine_usage(machine, slot, card) : NULL;
            if (usage) atomic_fetch_add(&usage->chunks, 1);
        }
        atomic_store(&card->used_chunks, used);
    }
}

void machine_table_lock(struct machine *machine) {
    pthread_mutex_lock(&machine->table);
    machine_ofd_lock(machine->fd, F_OFD_SETLKW, F_WRLCK, SIM_LOCK_TABLE);
    bool interrupted = atomic_load(&machine->header->writer) != 0;
    atomic_store(&machine->header->writer,
                 machine->slot >= 0 ? (uint32_t)machine->slot + 1 : UINT32_MAX);
    if (interrupted) machine_recount(machine);
}

void machine_table_unlock(struct machine *machine) {
    atomic_store(&machine->header->writer, 0);
    machine_ofd_lock(machine->fd, F_OFD_SETLK, F_UNLCK, SIM_LOCK_TABLE);
    pthread_mutex_unlock(&machine->table);
}

/* ---- processes ---- */

/* Return 0 if there is no such process. */
static uint64_t start_ticks_of(uint32_t pid) {
    char text[1024];
    return process_field(process_stat(pid, text, sizeof text), PROCESS_START_TIME);
}

static bool alive(struct machine *machine, int slot) {
    struct sim_process *process = &machine->processes[slot];
    if (slot == machine->slot) return true;
    if (atomic_load(&machine->header->process_state[slot]) == SIM_PROCESS_FREE) return false;
    struct flock lock = {
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = SIM_LOCK_PROCESS + slot, .l_len = 1};
    if (fcntl(machine->fd, F_OFD_GETLK, &lock) != 0) return true; /* not known to be dead */
    if (lock.l_type == F_UNLCK) return false;
    /* A forked child may keep the parent's open file, and so the lock, a moment longer: also ask
     * /proc. */
    if (process->pid_namespace != machine->pid_namespace) return true;
    return start_ticks_of(process->pid) == process->start_ticks;
}

bool machine_process_alive(struct machine *machine, int slot) { return alive(machine, slot); }

void machine_punch(struct machine *machine, const struct sim_card *card, uint32_t first,
                   uint32_t count) {
    fallocate(machine->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
              (off_t)(card->memory_offset + (uint64_t)first * SIM_CHUNK_BYTES),
              (off_t)((uint64_t)count * SIM_CHUNK_BYTES));
}

/* Word by word: arbiters in other threads and processes read it meanwhile. */
static void clear_usage(struct sim_usage *usage) {
    atomic_store(&usage->runnable, 0);
    atomic_store(&usage->contexts, 0);
    atomic_store(&usage->chunks, 0);
    atomic_store_explicit(&usage->busy.total_ns, 0, memory_order_relaxed);
    for (int i = 0; i < SIM_BUCKETS; i++)
        atomic_store_explicit(&usage->busy.buckets[i], 0, memory_order_relaxed);
}

static void bury(struct machine *machine, int slot) {
    for (struct sim_card *card = machine_next_memory(machine, NULL); card;
         card = machine_next_memory(machine, card)) {
        _Atomic uint32_t *owners = machine_chunk_table(machine, card);
        for (uint32_t i = 0; i < card->chunk_count;) {
            uint32_t owner = atomic_load_explicit(&owners[i], memory_order_relaxed);
            if ((owner & ~SIM_OWNER_EVICTABLE) != (uint32_t)slot + 1) {
                i++;
                continue;
            }
            uint32_t end = i;
            while (end < card->chunk_count &&
                   atomic_load_explicit(&owners[end], memory_order_relaxed) == owner)
                end++;
            machine_punch(machine, card, i, end - i);
            for (; i < end; i++) {
                atomic_store(&owners[i], 0);
                atomic_fetch_sub(&card->used_chunks, 1);
            }
        }
    }
    for (uint32_t c = 0; c < machine->header->card_count; c++)
        clear_usage(&machine->processes[slot].cards[c]);
    machine_bury_shared(machine, slot);
    atomic_store(&machine->header->process_state[slot], SIM_PROCESS_FREE);
}

static int reap_locked(struct machine *machine) {
    int found = 0;
    for (int slot = 0; slot < SIM_MAX_PROCESSES; slot++) {
        if (atomic_load(&machine->header->process_state[slot]) == SIM_PROCESS_FREE ||
            alive(machine, slot))
            continue;
        bury(machine, slot);
        found++;
    }
    return found;
}

void machine_reap_locked(struct machine *machine) { reap_locked(machine); }

int machine_reap(struct machine *machine) {
    bool any_dead = false;
    for (int slot = 0; slot < SIM_MAX_PROCESSES && !any_dead; slot++)
        any_dead = atomic_load(&machine->header->process_state[slot]) != SIM_PROCESS_FREE &&
                   !alive(machine, slot);
    if (!any_dead && atomic_load(&machine->header->writer) == 0) return 0;
    machine_table_lock(machine);
    int found = reap_locked(machine);
    machine_table_unlock(machine);
    return found;
}

int machine_join(struct machine *machine, const struct sim_card *instance) {
    int chosen = -1;
    machine_table_lock(machine);
    if (instance && atomic_load(&instance->instance) != SIM_INSTANCE_COMPUTE) {
        machine_table_unlock(machine);
        return ENOENT;
    }
    for (int attempt = 0; attempt < 2 && chosen < 0; attempt++) {
        for (int slot = 0; slot < SIM_MAX_PROCESSES && chosen < 0; slot++)
            if (atomic_load(&machine->header->process_state[slot]) == SIM_PROCESS_FREE &&
                machine_ofd_lock(machine->fd, F_OFD_SETLK, F_WRLCK, SIM_LOCK_PROCESS + slot) == 0)
                chosen = slot;
        if (chosen < 0 && reap_locked(machine) == 0) break;
    }
    if (chosen >= 0) {
        struct sim_process *process = &machine->processes[chosen];
        memset(process, 0, sizeof *process);
        process->instance = instance ? instance->index : 0;
        process->pid = (uint32_t)getpid();
        process->start_ticks = start_ticks_of(process->pid);
        process->pid_namespace = machine->pid_namespace;
        process->group = machine_own_group(machine);
        ssize_t got = readlink("/proc/self/exe", process->name, sizeof process->name - 1);
        if (got < 0) process->name[0] = '\0';
        atomic_store(&machine->header->process_state[chosen], SIM_PROCESS_LIVE);
        machine->slot = chosen;
    }
    machine_table_unlock(machine);
    return chosen >= 0 ? 0 : ENOSPC;
}

/* Return whether others use the card. Clients of one MPS server do not count. */
static bool used_by_others(struct machine *machine, const struct sim_card *card) {
    for (int slot = 0; slot < SIM_MAX_PROCESSES; slot++) {
        if (atomic_load(&machine->header->process_state[slot]) == SIM_PROCESS_FREE) continue;
        struct sim_usage *usage = machine_usage(machine, slot, card);
        if (slot == machine->slot || !usage || !atomic_load(&usage->contexts)) continue;
        if (!machine->server || !usage->server) return true;
    }
    return false;
}

/* Apply nvmlComputeMode_t: 2 no process, 3 one process. With the table locked. */
static bool mode_forbids(struct machine *machine, const struct sim_card *card) {
    uint32_t mode = atomic_load(&machine_board_of(machine, (struct sim_card *)card)->compute_mode);
    if (mode != 3 || !used_by_others(machine, card)) return mode == 2;
    reap_locked(machine);
    return used_by_others(machine, card);
}

int machine_add_context(struct machine *machine, struct sim_card *card) {
    machine_table_lock(machine);
    int error = atomic_load(&card->mig_enabled) || mode_forbids(machine, card) ? EBUSY : 0;
    struct sim_usage *usage = machine_usage(machine, machine->slot, card);
    if (!error) {
        usage->server = machine->server;
        atomic_fetch_add(&usage->contexts, 1);
    }
    machine_table_unlock(machine);
    return error;
}

void machine_remove_context(struct machine *machine, struct sim_card *card) {
    atomic_fetch_sub(&machine_usage(machine, machine->slot, card)->contexts, 1);
}

/* ---- memory ---- */

static uint32_t count_free(struct sim_card *card) {
    uint32_t used = atomic_load(&card->used_chunks);
    return used < card->chunk_count ? card->chunk_count - used : 0;
}

uint32_t machine_free_chunks(struct machine *machine, struct sim_card *card) {
    machine_reap(machine);
    if (!atomic_load(&card->mig_enabled)) {
        uint32_t room = machine_group_room(machine, card);
        uint32_t all = count_free(machine_memory_of(machine, card));
        return room < all ? room : all;
    }
    uint32_t used = 0; /* a card in MIG mode: the sum of its instances */
    for (unsigned place = 0; place < SIM_MAX_INSTANCES; place++) {
        const struct sim_card *instance = machine_instance(machine, card, SIM_INSTANCE_GPU, place);
        if (instance) used += atomic_load(&instance->used_chunks);
    }
    return used < card->chunk_count ? card->chunk_count - used : 0;
}

static bool add_run(struct chunk_run **runs, size_t *used, size_t *room, uint32_t at) {
    if (*used && (*runs)[*used - 1].first + (*runs)[*used - 1].count == at) {
        (*runs)[*used - 1].count++;
        return true;
    }
    if (*used == *room) {
        size_t bigger = *room ? *room * 2 : 4;
        struct chunk_run *grown = realloc(*runs, bigger * sizeof **runs);
        if (!grown) return false;
        *runs = grown;
        *room = bigger;
    }
    (*runs)[(*used)++] = (struct chunk_run){.first = at, .count = 1};
    return true;
}

/* First fit of one run; otherwise any free chunks from the front (a GPU pages its memory, so holes
 * do not matter). */
static uint32_t first_fit(const _Atomic uint32_t *owners, uint32_t chunk_count, uint32_t count) {
    uint32_t length = 0;
    for (uint32_t i = 0; i < chunk_count; i++) {
        length = atomic_load_explicit(&owners[i], memory_order_relaxed) == 0 ? length + 1 : 0;
        if (length == count) return i + 1 - count;
    }
    return 0;
}

/* Managed memory leaves the card when another allocation needs its place. */
static void evict(struct machine *machine, struct sim_card *card, uint32_t count) {
    _Atomic uint32_t *owners = machine_chunk_table(machine, card);
    for (uint32_t i = 0; i < card->chunk_count && count; i++) {
        uint32_t owner = atomic_load_explicit(&owners[i], memory_order_relaxed);
        if (owner & SIM_OWNER_SHARED || !(owner & SIM_OWNER_EVICTABLE)) continue;
        atomic_store(&owners[i], 0);
        atomic_fetch_sub(&card->used_chunks, 1);
        struct sim_usage *usage =
            machine_usage(machine, (int)(owner & ~SIM_OWNER_EVICTABLE) - 1, card);
        if (usage) atomic_fetch_sub(&usage->chunks, 1);
        count--;
    }
}

uint32_t machine_hold_evictable(struct machine *machine, struct sim_card *card, uint32_t want) {
    card = machine_memory_of(machine, card);
    _Atomic uint32_t *owners = machine_chunk_table(machine, card);
    uint32_t mine = ((uint32_t)machine->slot + 1) | SIM_OWNER_EVICTABLE;
    uint32_t taken = 0;
    machine_table_lock(machine);
    if (count_free(card) < want) reap_locked(machine);
    for (uint32_t i = 0; i < card->chunk_count && taken < want; i++) {
        if (atomic_load_explicit(&owners[i], memory_order_relaxed) != 0) continue;
        atomic_store(&owners[i], mine);
        taken++;
    }
    atomic_fetch_add(&card->used_chunks, taken);
    atomic_fetch_add(&machine_usage(machine, machine->slot, card)->chunks, taken);
    machine_table_unlock(machine);
    return taken;
}

void machine_drop_evictable(struct machine *machine, struct sim_card *card, uint32_t count) {
    card = machine_memory_of(machine, card);
    _Atomic uint32_t *owners = machine_chunk_table(machine, card);
    uint32_t mine = ((uint32_t)machine->slot + 1) | SIM_OWNER_EVICTABLE;
    uint32_t given = 0;
    machine_table_lock(machine);
    for (uint32_t i = 0; i < card->chunk_count && given < count; i++) {
        if (atomic_load_explicit(&owners[i], memory_order_relaxed) != mine) continue;
        atomic_store(&owners[i], 0);
        given++;
    }
    atomic_fetch_sub(&card->used_chunks, given);
    atomic_fetch_sub(&machine_usage(machine, machine->slot, card)->chunks, given);
    machine_table_unlock(machine);
}

/* With the table locked. A group's dead processes are buried before a refusal. */
static bool has_room(struct machine *machine, struct sim_card *card, uint32_t count) {
    if (machine->own_limits) {
        uint32_t limit = machine->own_limits[machine_board_of(machine, card)->index];
        uint32_t held = atomic_load(&machine_usage(machine, machine->slot, card)->chunks);
        if (held > limit || limit - held < count) return false;
    }
    if (machine_group_room(machine, card) >= count) return true;
    reap_locked(machine);
    return machine_group_room(machine, card) >= count;
}

int machine_take_chunks(struct machine *machine, struct sim_card *card, uint32_t count,
                        struct chunk_run **runs, size_t *run_count) {
    card = machine_memory_of(machine, card);
    _Atomic uint32_t *owners = machine_chunk_table(machine, card);
    uint32_t mine = (uint32_t)machine->slot + 1;
    uint32_t taken = 0;
    size_t used = 0;
    size_t room = 0;
    int error = 0;
    *runs = NULL;
    machine_table_lock(machine);
    if (count_free(card) < count) reap_locked(machine);
    if (count_free(card) < count) evict(machine, card, count - count_free(card));
    if (count_free(card) < count || !has_room(machine, card, count)) error = ENOMEM;
    for (uint32_t i = error ? card->chunk_count : first_fit(owners, card->chunk_count, count);
         i < card->chunk_count && taken < count; i++) {
        if (atomic_load_explicit(&owners[i], memory_order_relaxed) != 0) continue;
        if (!add_run(runs, &used, &room, i)) {
            error = ENOBUFS;
            break;
        }
        atomic_store(&owners[i], mine);
        taken++;
    }
    atomic_fetch_add(&card->used_chunks, taken);
    atomic_fetch_add(&machine_usage(machine, machine->slot, card)->chunks, taken);
    machine_table_unlock(machine);
    *run_count = used;
    if (error == 0 && taken < count) error = ENOMEM;
    if (error) {
        machine_give_chunks(machine, card, *runs, used);
        free(*runs);
        *runs = NULL;
        *run_count = 0;
    }
    return error;
}

void machine_give_chunks(struct machine *machine, struct sim_card *card,
                         const struct chunk_run *runs, size_t run_count) {
    card = machine_memory_of(machine, card);
    _Atomic uint32_t *owners = machine_chunk_table(machine, card);
    uint32_t given = 0;
    if (run_count == 0) return;
    for (size_t r = 0; r < run_count; r++)
        machine_punch(machine, card, runs[r].first, runs[r].count);
    machine_table_lock(machine);
    for (size_t r = 0; r < run_count; r++)
        for (uint32_t i = 0; i < runs[r].count; i++) {
            atomic_store(&owners[runs[r].first + i], 0);
            given++;
        }
    atomic_fetch_sub(&card->used_chunks, given);
    atomic_fetch_sub(&machine_usage(machine, machine->slot, card)->chunks, given);
    machine_table_unlock(machine);
}
