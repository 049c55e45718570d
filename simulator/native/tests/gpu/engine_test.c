/* The simulator's engine without its C ABI: the shared machine, device memory, time. ctest and
 * pytest run it. */
#include "clock.h"
#include "machine.h"
#include "memory.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHUNKS 512u
#define CHECK(condition)                                                    \
    do {                                                                    \
        if (!(condition)) {                                                 \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            exit(1);                                                        \
        }                                                                   \
    } while (0)

/* Of a card with CHUNKS chunks. */
#define ONE_SLICE \
    {.slices = 1, .memory_chunks = 60, .sm_count = 10, .size = 1, .starts = 0x7f, .instances = 7}
#define FOUR_SLICES        \
    {.id = 1,              \
     .slices = 4,          \
     .memory_chunks = 250, \
     .sm_count = 40,       \
     .size = 4,            \
     .starts = 0x11,       \
     .instances = 2}
/* The whole card: the largest profile gives the size of a memory slice. */
#define SEVEN_SLICES       \
    {.id = 2,              \
     .slices = 7,          \
     .memory_chunks = 500, \
     .sm_count = 70,       \
     .size = 8,            \
     .starts = 0x01,       \
     .instances = 1}

static char directory[256];
static char state_path[300];

/* Two cards of 1 GiB, in the format of egpu_sim.machines. */
static void make_machine(void) {
    snprintf(directory, sizeof directory, "/dev/shm/egpu-sim-test-XXXXXX");
    CHECK(mkdtemp(directory));
    snprintf(state_path, sizeof state_path, "%s/machine", directory);
    struct sim_header header = {.version = SIM_LAYOUT_VERSION,
                                .header_bytes = sizeof header,
                                .card_count = 2,
                                .max_processes = SIM_MAX_PROCESSES,
                                .cards_offset = sizeof header,
                                .processes_offset =
                                    sizeof header + SIM_MAX_RECORDS * sizeof(struct sim_card)};
    memcpy(header.magic, SIM_MAGIC, sizeof header.magic);
    header.shared_offset = header.processes_offset + SIM_MAX_PROCESSES * sizeof(struct sim_process);
    uint64_t at = header.shared_offset + SIM_MAX_SHARED * sizeof(struct sim_shared);
    int fd = open(state_path, O_RDWR | O_CREAT | O_EXCL, 0600);
    CHECK(fd >= 0);
    for (uint32_t i = 0; i < 2; i++) {
        struct sim_card card = {.index = i,
                                .minor = i,
                                .chunk_count = CHUNKS,
                                .memory_bytes = CHUNKS * SIM_CHUNK_BYTES,
                                .chunk_offset = at + i * CHUNKS * 4,
                                .memory_offset = (i + 1) * (UINT64_C(1) << 30),
                                .timeslice_ns = 2000000,
                                .sm_count = 70,
                                .mig_profiles = {ONE_SLICE, FOUR_SLICES, SEVEN_SLICES}};
        CHECK(pwrite(fd, &card, sizeof card, (off_t)(header.cards_offset + i * sizeof card)) ==
              sizeof card);
    }
    header.file_bytes = UINT64_C(3) << 30;
    CHECK(ftruncate(fd, (off_t)header.file_bytes) == 0);
    CHECK(pwrite(fd, &header, sizeof header, 0) == sizeof header);
    close(fd);
}

static void remove_machine(void) {
    unlink(state_path);
    rmdir(directory);
}

static void join(struct machine *machine) {
    CHECK(machine_open(machine, directory) == 0);
    CHECK(machine_join(machine, NULL) == 0);
}

static uint32_t owned_chunks(struct machine *machine, const struct sim_card *card) {
    const uint32_t *owners = (const uint32_t *)((const char *)machine->header + card->chunk_offset);
    uint32_t count = 0;
    for (uint32_t i = 0; i < card->chunk_count; i++) count += owners[i] != 0;
    return count;
}

/* ---- opening ---- */

static void test_files_that_are_no_machine(void) {
    struct machine machine;
    CHECK(machine_open(&machine, "/nonexistent") == ENOENT);
    make_machine();
    int fd = open(state_path, O_RDWR);
    uint32_t other = 99;
    CHECK(pwrite(fd, &other, sizeof other, offsetof(struct sim_header, version)) == sizeof other);
    CHECK(machine_open(&machine, directory) == EPROTO);
    CHECK(ftruncate(fd, 100) == 0);
    CHECK(machine_open(&machine, directory) == EPROTO);
    close(fd);
    remove_machine();
}

/* ---- chunks ---- */

static void test_chunks_come_and_go(void) {
    struct machine machine;
    make_machine();
    join(&machine);
    struct sim_card *card = &machine.cards[1];
    struct chunk_run *runs[4];
    size_t counts[4];
    for (int i = 0; i < 4; i++)
        CHECK(machine_take_chunks(&machine, card, CHUNKS / 4, &runs[i], &counts[i]) == 0);
    CHECK(machine_free_chunks(&machine, card) == 0);
    struct chunk_run *more;
    size_t more_count;
    CHECK(machine_take_chunks(&machine, card, 1, &more, &more_count) == ENOMEM);
    CHECK(machine_free_chunks(&machine, &machine.cards[0]) == CHUNKS);
    machine_give_chunks(&machine, card, runs[0], counts[0]);
    machine_give_chunks(&machine, card, runs[2], counts[2]);
    CHECK(machine_take_chunks(&machine, card, CHUNKS / 2, &more, &more_count) == 0);
    CHECK(more_count == 2); /* two holes */
    machine_give_chunks(&machine, card, more, more_count);
    CHECK(machine_free_chunks(&machine, card) == CHUNKS / 2);
    free(more);
    for (int i = 0; i < 4; i++) free(runs[i]);
    machine_close(&machine);
    CHECK(machine_open(&machine, directory) == 0);
    CHECK(machine_free_chunks(&machine, &machine.cards[1]) == CHUNKS); /* its holder has ended */
    machine_close(&machine);
    remove_machine();
}

/* Start processes that churn until they are killed, at a moment that varies with the round. */
static void kill_at_any_moment(const struct machine *machine, void (*churn)(unsigned seed),
                               int round, unsigned *seed) {
    enum { CHILDREN = 3 };
    pid_t children[CHILDREN];
    for (int i = 0; i < CHILDREN; i++) {
        children[i] = fork();
        CHECK(children[i] >= 0);
        if (children[i] == 0) {
            close(machine->fd); /* as in the driver's fork handler */
            churn((unsigned)(round * CHILDREN + i));
            _exit(1); /* it must be killed */
        }
    }
    usleep((useconds_t)(rand_r(seed) % 3000));
    for (int i = 0; i < CHILDREN; i++) kill(children[i], SIGKILL);
    for (int i = 0; i < CHILDREN; i++) {
        int status;
        CHECK(waitpid(children[i], &status, 0) == children[i]);
        /* until then it found no error */
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    }
}

/* Take and release as fast as possible until killed. */
static void churn(unsigned seed) {
    struct machine machine;
    join(&machine);
    struct sim_card *card = &machine.cards[0];
    for (;;) {
        struct chunk_run *runs;
        size_t count;
        if (machine_take_chunks(&machine, card, 1 + (uint32_t)rand_r(&seed) % 60, &runs, &count) !=
            0)
            continue;
        if (rand_r(&seed) % 4) machine_give_chunks(&machine, card, runs, count);
        free(runs);
    }
}

static void test_sigkill_at_any_store(void) {
    enum { ROUNDS = 400 };
    struct machine machine;
    make_machine();
    join(&machine);
    struct sim_card *card = &machine.cards[0];
    struct chunk_run *mine;
    size_t mine_count;
    CHECK(machine_take_chunks(&machine, card, 10, &mine, &mine_count) == 0);
    unsigned seed = 42;
    for (int round = 0; round < ROUNDS; round++) {
        kill_at_any_moment(&machine, churn, round, &seed);
        CHECK(machine_free_chunks(&machine, card) == CHUNKS - 10);
        CHECK(owned_chunks(&machine, card) == 10);
        CHECK(atomic_load(&machine.processes[machine.slot].cards[0].chunks) == 10);
    }
    machine_give_chunks(&machine, card, mine, mine_count);
    free(mine);
    CHECK(machine_free_chunks(&machine, card) == CHUNKS);
    machine_close(&machine);
    remove_machine();
}

/* Share, hold and release shared memory as fast as possible until killed. */
static void churn_shared(unsigned seed) {
    struct machine machine;
    join(&machine);
    struct sim_card *card = &machine.cards[0];
    for (;;) {
        struct chunk_run *runs = NULL;
        size_t count = 0;
        struct shared_ref ref = {(uint32_t)rand_r(&seed) % 4, (uint32_t)rand_r(&seed) % 8};
        struct sim_card *of;
        switch (rand_r(&seed) % 4) {
        case 0:
            if (machine_take_chunks(&machine, card, 1 + (uint32_t)rand_r(&seed) % 20, &runs,
                                    &count) != 0)
                break;
            if (machine_share_chunks(&machine, card, runs, count, &ref) == 0 && rand_r(&seed) % 2)
                machine_drop_shared(&machine, ref);
            break;
        case 1:
            if (machine_hold_chunks(&machine, ref, &of, &runs, &count) == 0 && rand_r(&seed) % 2)
                machine_drop_shared(&machine, ref);
            break;
        case 2:
            machine_drop_evictable(&machine, card, machine_hold_evictable(&machine, card, 5) / 2);
            break;
        default:
            if (machine_share_event(&machine, card, 0, &ref) == 0 && rand_r(&seed) % 4)
                machine_drop_shared(&machine, ref);
        }
        free(runs);
    }
}

static void test_sigkill_while_sharing(void) {
    enum { ROUNDS = 200 };
    struct machine machine;
    make_machine();
    join(&machine);
    struct sim_card *card = &machine.cards[0];
    unsigned seed = 7;
    for (int round = 0; round < ROUNDS; round++) {
        kill_at_any_moment(&machine, churn_shared, round, &seed);
        CHECK(machine_free_chunks(&machine, card) == CHUNKS);
        CHECK(owned_chunks(&machine, card) == 0);
        struct sim_shared *table =
            (struct sim_shared *)((char *)machine.header + machine.header->shared_offset);
        for (int i = 0; i < SIM_MAX_SHARED; i++)
            CHECK(atomic_load(&table[i].kind) == SIM_SHARED_FREE);
    }
    machine_close(&machine);
    remove_machine();
}

/* Two holders: the memory is charged once, to its creator, then to the remaining holder, and ends
 * with the last. */
static void test_shared_memory_goes_with_its_last_holder(void) {
    struct machine first, second;
    make_machine();
    join(&first);
    join(&second);
    struct sim_card *card = &first.cards[0];
    struct chunk_run *runs, *held;
    size_t count, held_count;
    struct shared_ref ref;
    struct sim_card *of;
    CHECK(machine_take_chunks(&first, card, 6, &runs, &count) == 0);
    CHECK(machine_share_chunks(&first, card, runs, count, &ref) == 0);
    CHECK(machine_hold_chunks(&second, ref, &of, &held, &held_count) == 0);
    CHECK(of->index == 0 && held_count == count && memcmp(runs, held, count * sizeof *runs) == 0);
    CHECK(machine_free_chunks(&second, &second.cards[0]) == CHUNKS - 6);
    CHECK(atomic_load(&first.processes[first.slot].cards[0].chunks) == 6);
    CHECK(atomic_load(&first.processes[second.slot].cards[0].chunks) == 0);
    machine_close(&first); /* as if it had died */
    CHECK(machine_reap(&second) == 1);
    CHECK(machine_free_chunks(&second, &second.cards[0]) == CHUNKS - 6);
    CHECK(atomic_load(&second.processes[second.slot].cards[0].chunks) == 6);
    machine_drop_shared(&second, ref);
    CHECK(machine_free_chunks(&second, &second.cards[0]) == CHUNKS);
    CHECK(machine_hold_chunks(&second, ref, &of, &held, &held_count) == ENOENT);
    free(runs);
    free(held);
    machine_close(&second);
    remove_machine();
}

/* A process that dies between two stores of an allocation: chunks are its own, the counters do not
 * include them. */
static void test_half_written_record(void) {
    struct machine machine;
    make_machine();
    join(&machine);
    struct sim_card *card = &machine.cards[0];
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        struct machine dying;
        close(machine.fd);
        join(&dying);
        uint32_t *owners = (uint32_t *)((char *)dying.header + dying.cards[0].chunk_offset);
        atomic_store(&dying.header->writer, (uint32_t)dying.slot + 1);
        for (int i = 5; i < 9; i++) owners[i] = (uint32_t)dying.slot + 1;
        atomic_store(&dying.cards[0].used_chunks, 2);
        kill(getpid(), SIGKILL);
    }
    waitpid(child, NULL, 0);
    CHECK(machine_free_chunks(&machine, card) == CHUNKS);
    CHECK(owned_chunks(&machine, card) == 0);
    CHECK(atomic_load(&machine.header->writer) == 0);
    machine_close(&machine);
    remove_machine();
}

static void test_slots_are_reused(void) {
    struct machine machine;
    make_machine();
    join(&machine);
    for (int i = 0; i < SIM_MAX_PROCESSES * 2; i++) {
        struct machine other;
        join(&other);
        machine_close(&other);
    }
    CHECK(machine_reap(&machine) > 0);
    int live = 0;
    for (int slot = 0; slot < SIM_MAX_PROCESSES; slot++)
        live += atomic_load(&machine.header->process_state[slot]);
    CHECK(live == 1);
    machine_close(&machine);
    remove_machine();
}

/* ---- device memory ---- */

static void test_allocations(void) {
    struct machine machine;
    struct memory memory;
    uint64_t small[3000];
    uint64_t large;
    struct extent extent;
    make_machine();
    join(&machine);
    memory_init(&memory, &machine, &machine.cards[0], &memory);
    for (int i = 0; i < 3000; i++) {
        CHECK(memory_alloc(&memory, 700, &small[i]) == 0);
        CHECK(memory_find(small[i] + 699, &extent) && extent.base == small[i] &&
              extent.size == 700);
        CHECK(!memory_find(small[i] + 700, &extent));
        CHECK(memory_populate(&extent, small[i], 700, NULL, NULL) == 0);
        memset((void *)(uintptr_t)small[i], i, 700);
    }
    /* 2,048 slots of 1 KiB in each chunk */
    CHECK(machine_free_chunks(&machine, memory.card) == CHUNKS - 2);
    for (int i = 0; i < 3000; i++)
        CHECK(*(unsigned char *)(uintptr_t)(small[i] + 699) == (i & 0xff));
    CHECK(memory_free(small[0] + 1) == EINVAL);
    for (int i = 0; i < 3000; i++) CHECK(memory_free(small[i]) == 0);
    CHECK(memory_free(small[7]) == EINVAL);
    CHECK(machine_free_chunks(&machine, memory.card) == CHUNKS);

    CHECK(memory_alloc(&memory, CHUNKS * SIM_CHUNK_BYTES + 1, &large) == ENOMEM);
    CHECK(memory_alloc(&memory, CHUNKS * SIM_CHUNK_BYTES, &large) == 0);
    CHECK(memory_alloc(&memory, 1, &small[0]) == ENOMEM);
    CHECK(memory_find(large + 12345678, &extent) && extent.base == large);
    uint64_t base, size;
    CHECK(memory_populate(&extent, large + 12345678, 4, &base, &size) == 0);
    CHECK(base <= large + 12345678 && base + size >= large + 12345682 && size < SIM_CHUNK_BYTES);
    memory_clear(&memory);
    CHECK(!memory_find(large, &extent));
    CHECK(machine_free_chunks(&machine, memory.card) == CHUNKS);
    machine_close(&machine);
    remove_machine();
}

static void test_host_memory(void) {
    int owner;
    void *pages;
    struct extent extent;
    char mine[100];
    CHECK(memory_host_alloc(10000, EXTENT_PINNED, 3, &owner, &pages) == 0);
    CHECK(memory_find((uint64_t)(uintptr_t)pages + 9999, &extent) && extent.kind == EXTENT_PINNED &&
          extent.flags == 3);
    CHECK(memory_host_register(mine, sizeof mine, 0, &owner) == 0);
    CHECK(memory_host_register(mine + 50, 10, 0, &owner) == EEXIST);
    CHECK(memory_host_unregister(pages) == EINVAL);
    memory_host_clear(&owner, NULL);
    CHECK(!memory_find((uint64_t)(uintptr_t)pages, &extent) &&
          !memory_find((uint64_t)(uintptr_t)mine, &extent));
}

/* ---- time ---- */

static uint64_t fake_time;
static uint64_t fake_now(void) { return fake_time; }
static void fake_sleep(uint64_t deadline) {
    fake_time = deadline > fake_time ? deadline : fake_time;
}

static uint64_t take(struct machine *machine, struct sim_card *card, uint64_t earliest,
                     uint64_t duration) {
    uint64_t given = duration;
    uint64_t start = machine_take_time(machine, card, earliest, &given);
    CHECK(given == duration);
    machine_charge_time(machine, card, start, given);
    return start;
}

static void test_time_is_given_once(void) {
    static const struct sim_clock clock = {fake_now, fake_sleep};
    struct machine first, second;
    make_machine();
    join(&first);
    join(&second);
    sim_clock_set(&clock);
    fake_time = UINT64_C(100) << SIM_BUCKET_SHIFT;
    uint64_t start = fake_time;
    struct sim_card *card = &first.cards[0];
    CHECK(take(&first, card, start, 1000) == start);
    /* other processes queue after it */
    CHECK(take(&second, &second.cards[0], start, 500) == start + 1000);
    CHECK(take(&first, card, start + 10000, 500) == start + 10000);
    CHECK(take(&first, &first.cards[1], start, 7) == start); /* other cards do not */
    sim_sleep_until(start + (UINT64_C(10) << SIM_BUCKET_SHIFT));
    uint64_t window;
    CHECK(machine_busy_in(&card->busy, start, sim_now(), &window) == 2000);
    CHECK(window == UINT64_C(10) << SIM_BUCKET_SHIFT);
    CHECK(machine_busy_in(&first.processes[first.slot].cards[0].busy, start, sim_now(), &window) ==
          1500);
    CHECK(machine_busy_in(&first.processes[second.slot].cards[0].busy, start, sim_now(), &window) ==
          500);
    uint64_t later = start + (UINT64_C(1000) << SIM_BUCKET_SHIFT);
    /* old buckets */
    CHECK(machine_busy_in(&card->busy, later - ((uint64_t)SIM_BUCKETS << SIM_BUCKET_SHIFT), later,
                          &window) == 0);
    /* A charge that is too late changes no newer bucket. */
    machine_charge_time(&first, card, later, 1000);
    machine_charge_time(&first, card, later - ((uint64_t)SIM_BUCKETS << SIM_BUCKET_SHIFT), 77);
    CHECK(machine_busy_in(&card->busy, later, later + (UINT64_C(2) << SIM_BUCKET_SHIFT), &window) ==
          1000);
    sim_clock_set(NULL);
    machine_close(&first);
    machine_close(&second);
    remove_machine();
}

/* ---- MIG ---- */

static struct sim_card *whole_instance(struct machine *machine, uint32_t profile) {
    struct sim_card *board = &machine->cards[0], *gpu, *compute;
    CHECK(machine_create_gpu_instance(machine, board, profile, -1, &gpu) == 0);
    CHECK(machine_create_compute_instance(machine, gpu, board->mig_profiles[profile].slices, -1,
                                          &compute) == 0);
    return compute;
}

/* Each has its memory, exactly all of it, and its own time. */
static void test_instances_do_not_feel_each_other(void) {
    static const struct sim_clock clock = {fake_now, fake_sleep};
    struct machine admin, first, second;
    make_machine();
    join(&admin);
    CHECK(machine_set_mig_mode(&admin, &admin.cards[0], true) == 0);
    struct sim_card *small = whole_instance(&admin, 0), *large = whole_instance(&admin, 1);
    CHECK(machine_open(&first, directory) == 0 && machine_join(&first, small) == 0);
    CHECK(machine_open(&second, directory) == 0 && machine_join(&second, large) == 0);
    struct sim_card *one = &first.cards[small->index], *other = &second.cards[large->index];
    struct chunk_run *runs[3];
    size_t counts[3];
    CHECK(machine_take_chunks(&first, one, 60, &runs[0], &counts[0]) == 0);
    CHECK(machine_take_chunks(&first, one, 1, &runs[2], &counts[2]) == ENOMEM);
    CHECK(machine_take_chunks(&second, other, 250, &runs[1], &counts[1]) == 0);
    CHECK(machine_free_chunks(&admin, small) == 0 && machine_free_chunks(&admin, large) == 0);
    CHECK(machine_free_chunks(&admin, &admin.cards[0]) == CHUNKS - 310);
    machine_give_chunks(&first, one, runs[0], counts[0]);
    CHECK(machine_free_chunks(&admin, small) == 60 && machine_free_chunks(&admin, large) == 0);
    sim_clock_set(&clock);
    fake_time = UINT64_C(100) << SIM_BUCKET_SHIFT;
    CHECK(take(&first, one, fake_time, 1000) == fake_time);
    CHECK(take(&second, other, fake_time, 500) == fake_time);
    sim_clock_set(NULL);
    CHECK(machine_destroy_instance(&admin, large) == EBUSY);
    machine_close(&second);
    CHECK(machine_destroy_instance(&admin, large) == 0);
    CHECK(machine_join(&admin, large) == ENOENT);
    CHECK(machine_set_mig_mode(&admin, &admin.cards[0], false) == EBUSY);
    for (int i = 0; i < 2; i++) free(runs[i]);
    machine_close(&first);
    machine_close(&admin);
    remove_machine();
}

/* Divide the card, use the instances and destroy them, as fast as possible until killed. */
static void churn_instances(unsigned seed) {
    struct machine admin;
    join(&admin);
    struct sim_card *board = &admin.cards[0];
    for (;;) {
        struct sim_card *gpu, *compute;
        struct machine user;
        struct chunk_run *runs;
        size_t count;
        uint32_t profile = (uint32_t)rand_r(&seed) % 2;
        if (machine_create_gpu_instance(&admin, board, profile, -1, &gpu) != 0) continue;
        CHECK(machine_create_compute_instance(&admin, gpu, board->mig_profiles[profile].slices, -1,
                                              &compute) == 0);
        CHECK(machine_open(&user, directory) == 0 && machine_join(&user, compute) == 0);
        if (machine_take_chunks(&user, &user.cards[compute->index],
                                1 + (uint32_t)rand_r(&seed) % 60, &runs, &count) == 0) {
            machine_give_chunks(&user, &user.cards[compute->index], runs, count);
            free(runs);
        }
        machine_close(&user);
        CHECK(machine_destroy_instance(&admin, compute) == 0);
        CHECK(machine_destroy_instance(&admin, gpu) == 0);
    }
}

/* Check that instances are complete: no overlaps, no dead processes; then destroy them all. */
static void clear_instances(struct machine *machine) {
    const struct sim_card *board = &machine->cards[0];
    uint32_t slices = 0;
    CHECK(machine_free_chunks(machine, &machine->cards[0]) == CHUNKS);
    CHECK(owned_chunks(machine, board) == 0);
    for (unsigned place = 0; place < SIM_MAX_INSTANCES; place++) {
        struct sim_card *compute = machine_instance(machine, board, SIM_INSTANCE_COMPUTE, place);
        if (!compute) continue;
        CHECK(atomic_load(&machine->cards[compute->memory_record].instance) == SIM_INSTANCE_GPU);
        CHECK(machine_destroy_instance(machine, compute) == 0);
    }
    for (unsigned place = 0; place < SIM_MAX_INSTANCES; place++) {
        struct sim_card *gpu = machine_instance(machine, board, SIM_INSTANCE_GPU, place);
        if (!gpu) continue;
        uint32_t mask = ((1u << gpu->slice_count) - 1) << gpu->first_slice;
        CHECK(!(slices & mask));
        slices |= mask;
        CHECK(machine_destroy_instance(machine, gpu) == 0);
    }
}

static void test_sigkill_while_cutting(void) {
    enum { ROUNDS = 200 };
    struct machine machine;
    make_machine();
    join(&machine);
    CHECK(machine_set_mig_mode(&machine, &machine.cards[0], true) == 0);
    unsigned seed = 11;
    for (int round = 0; round < ROUNDS; round++) {
        kill_at_any_moment(&machine, churn_instances, round, &seed);
        clear_instances(&machine);
    }
    CHECK(machine_set_mig_mode(&machine, &machine.cards[0], false) == 0);
    CHECK(machine_free_chunks(&machine, &machine.cards[0]) == CHUNKS);
    machine_close(&machine);
    remove_machine();
}

int main(void) {
    test_files_that_are_no_machine();
    test_chunks_come_and_go();
    test_half_written_record();
    test_slots_are_reused();
    test_allocations();
    test_host_memory();
    test_time_is_given_once();
    test_shared_memory_goes_with_its_last_holder();
    test_sigkill_at_any_store();
    test_sigkill_while_sharing();
    test_instances_do_not_feel_each_other();
    test_sigkill_while_cutting();
    puts("sim engine: ok");
    return 0;
}
