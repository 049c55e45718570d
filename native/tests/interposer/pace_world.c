#define _GNU_SOURCE
#include "pace_world.h"

#include "../../turns/turns.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PROCESSES = 32,
    QUEUE = 1024,
    ENTRIES = 4096 /* launches and event records between them */,
    TIMER_LATE_NS = 60000,
    SLEEP_STEP_NS = 10000,
    STEPS = 16384,
};

struct CUevent_st {
    uint64_t at_ns;
    uint32_t records; /* of which the last counts */
    bool reached;
};

/* What a stream still has to do: run for some time, or note that an event is reached. */
struct entry {
    uint64_t left_ns, launched_ns, ready_ns;
    bool copy;
    CUevent event;
    uint32_t record;
};

static struct process {
    pthread_t thread;
    pthread_cond_t turn;
    uint64_t wakes_ns;
    bool alive;
    struct work_spec spec;
    struct entry queue[ENTRIES];
    unsigned head, count, launches, launched;
    bool started; /* the launch at the head */
    uint64_t head_since_ns, ready_ns, random;
    uint64_t steps_ns[STEPS];
    unsigned steps;
} processes[PROCESSES];
static int process_count;
static __thread struct process *self;

/* ---- time ---- */

static pthread_mutex_t baton = PTHREAD_MUTEX_INITIALIZER;
static uint64_t clock_ns, start_ns, end_ns;

static struct process *next_to_wake(void) {
    struct process *next = NULL;
    for (int i = 0; i < process_count; i++)
        if (processes[i].alive && (next == NULL || processes[i].wakes_ns < next->wakes_ns))
            next = &processes[i];
    if (next != NULL && next->wakes_ns > clock_ns) clock_ns = next->wakes_ns;
    return next;
}

static void yield_until(uint64_t wakes_ns) { /* the baton is held */
    self->wakes_ns = wakes_ns;
    struct process *next = next_to_wake();
    if (next == self || next == NULL) return;
    pthread_cond_signal(&next->turn);
    /* It may be its turn again before it sleeps: whoever wakes it has moved the clock to its
     * time. */
    do pthread_cond_wait(&self->turn, &baton);
    while (clock_ns < self->wakes_ns);
}

uint64_t now_ns(void) { return clock_ns; }
uint64_t world_now_ns(void) { return clock_ns; }
uint64_t world_elapsed_ns(void) { return clock_ns - start_ns; }
void sleep_ns(uint64_t duration_ns) { yield_until(clock_ns + duration_ns + TIMER_LATE_NS); }
void lock_wait(egpu_lock *lock) {
    do sleep_ns(10000);
    while (__atomic_exchange_n(&lock->word, 1, __ATOMIC_ACQUIRE) != 0);
}

/* ---- the arbiter of turns ---- */

static struct turn_card card;
static struct process *arbiter;
static uint64_t arbiter_late_ns;
static struct egpu_policy_turn turns[SLICES];
const struct egpu_policy_turn *policy_turns = turns;

void turn_wake(const uint32_t *word) {
    (void)word;
    if (arbiter != NULL && arbiter->wakes_ns > clock_ns + arbiter_late_ns)
        arbiter->wakes_ns = clock_ns + arbiter_late_ns;
}
void turn_spin(uint64_t duration_ns) { yield_until(clock_ns + duration_ns); }
void turn_sleep(const uint32_t *word, uint32_t seen, uint64_t most_ns) {
    uint64_t until = clock_ns + most_ns;
    while (clock_ns < until && *word == seen)
        yield_until(until - clock_ns < SLEEP_STEP_NS ? until : clock_ns + SLEEP_STEP_NS);
    yield_until(clock_ns + TIMER_LATE_NS);
}

/* ---- the slices ---- */

static struct egpu_usage usage;
static struct egpu_usage_slot slots[SLICES];
static uint64_t announced;
struct limits live_limits[EGPU_MAX_DEVICES];
const uint64_t *policy_announced = &announced;
uint64_t policy_seen;
uint32_t policy_unmetered, policy_free_run, context_epoch;
static uint32_t gate = GATE_OPEN;
uint32_t *slice_gate = &gate;
__thread struct recent_context recent_context;
void *real_functions[REAL_COUNT];

struct egpu_usage *slice_usage(void) { return &usage; }
struct egpu_usage_device *world_usage(int slice) { return &usage.devices[slice]; }
struct egpu_usage_ask *world_ask(int slice) { return &usage.asks[slice]; }
struct egpu_usage_slot *slot_of(int device) { return &slots[device]; }
bool slice_open_slow(void) { return true; }
void policy_refresh(void) {}
void *real_function_slow(enum real_id id) {
    (void)id;
    return NULL;
}
int device_current_slow(CUcontext context) {
    recent_context = (struct recent_context){context, self->spec.slice, context_epoch};
    return self->spec.slice;
}

/* ---- the GPU: run up to the clock whenever somebody looks or launches ---- */

static enum arbitration arbitration;
static uint64_t gpu_ns, slice_end_ns, command_ns, notice_ns;
static struct process *running;
static uint64_t busy_ns[SLICES][BUCKETS];

static void note_busy(int slice, uint64_t from_ns, uint64_t to_ns) {
    while (from_ns < to_ns) {
        uint64_t bucket = (from_ns - start_ns) / BUCKET_NS,
                 bucket_end = start_ns + (bucket + 1) * BUCKET_NS;
        uint64_t part = (to_ns < bucket_end ? to_ns : bucket_end) - from_ns;
        if (bucket < BUCKETS) busy_ns[slice][bucket] += part;
        from_ns += part;
    }
}

static struct entry *head_of(struct process *process) {
    return &process->queue[process->head % ENTRIES];
}

static void pop(struct process *process, uint64_t at_ns) {
    process->head++;
    process->count--;
    process->head_since_ns = at_ns;
}

static bool is_ready(struct process *process) {
    return process->count > 0 && head_of(process)->ready_ns <= gpu_ns;
}

static void reach_events(struct process *process) { /* those that nothing is before */
    while (is_ready(process) && head_of(process)->event != NULL) {
        struct entry *entry = head_of(process);
        uint64_t at_ns =
            entry->ready_ns > process->head_since_ns ? entry->ready_ns : process->head_since_ns;
        if (entry->event->records == entry->record) {
            entry->event->at_ns = at_ns;
            entry->event->reached = true;
        }
        pop(process, at_ns);
    }
}

static void reach_all_events(void) {
    for (int i = 0; i < process_count; i++) reach_events(&processes[i]);
}

static struct process *choose(void) {
    struct process *chosen = NULL;
    if (arbitration == TIME_SLICES) {
        if (running != NULL && is_ready(running) && gpu_ns < slice_end_ns) return running;
        int after = running == NULL ? 0 : (int)(running - processes) + 1;
        for (int i = 0; i < process_count && chosen == NULL; i++)
            if (is_ready(&processes[(after + i) % process_count]))
                chosen = &processes[(after + i) % process_count];
        slice_end_ns = gpu_ns + SLICE_NS;
        return chosen;
    }
    if (running != NULL && is_ready(running) && running->started) return running;
    for (int i = 0; i < process_count; i++)
        if (is_ready(&processes[i]) &&
            (chosen == NULL || head_of(&processes[i])->launched_ns < head_of(chosen)->launched_ns))
            chosen = &processes[i];
    return chosen;
}

/* When the next launch or event is there, or now. */
static uint64_t next_ready_ns(void) {
    uint64_t next = clock_ns;
    for (int i = 0; i < process_count; i++)
        if (processes[i].count > 0 && head_of(&processes[i])->ready_ns < next)
            next = head_of(&processes[i])->ready_ns;
    return next;
}

static void run_gpu(void) {
    for (; gpu_ns < clock_ns; reach_all_events()) {
        running = choose();
        if (running == NULL) {
            gpu_ns = next_ready_ns();
            continue;
        }
        struct entry *entry = head_of(running);
        uint64_t until = gpu_ns + entry->left_ns < clock_ns ? gpu_ns + entry->left_ns : clock_ns;
        if (arbitration == TIME_SLICES && slice_end_ns < until) until = slice_end_ns;
        if (!entry->copy) note_busy(running->spec.slice, gpu_ns, until);
        entry->left_ns -= until - gpu_ns;
        gpu_ns = until;
        running->started = entry->left_ns > 0;
        if (entry->left_ns == 0) {
            pop(running, gpu_ns);
            running->launches--;
        }
    }
}

static void enqueue(struct entry entry) {
    run_gpu();
    if (self->count == ENTRIES) abort();
    if (self->count == 0) self->head_since_ns = gpu_ns;
    self->ready_ns = (self->ready_ns > clock_ns ? self->ready_ns : clock_ns) + command_ns;
    entry.ready_ns = self->ready_ns;
    *(&self->queue[(self->head + self->count++) % ENTRIES]) = entry;
    reach_events(self);
}

static CUresult get_current(CUcontext *context) {
    *context = (CUcontext)self;
    return CUDA_SUCCESS;
}
static CUresult event_create(CUevent *event, unsigned flags) {
    (void)flags;
    *event = calloc(1, sizeof **event);
    return CUDA_SUCCESS;
}
static CUresult event_record(CUevent event, CUstream stream) {
    (void)stream;
    event->reached = false;
    enqueue((struct entry){.event = event, .record = ++event->records});
    return CUDA_SUCCESS;
}
static CUresult event_query(CUevent event) {
    run_gpu();
    return event->reached ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
static CUresult event_elapsed(float *ms, CUevent start, CUevent end) {
    if (!start->reached || !end->reached) return CUDA_ERROR_NOT_READY;
    *ms = (float)(((double)end->at_ns - (double)start->at_ns) / 1e6);
    return CUDA_SUCCESS;
}
static CUresult stream_query(CUstream stream) {
    (void)stream;
    run_gpu();
    bool noticed = self->count == 0 && clock_ns >= self->head_since_ns + notice_ns;
    return noticed ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static void launch_work(uint64_t duration_ns, bool copy) {
    /* the queue is full */
    for (run_gpu(); self->launches >= QUEUE; run_gpu())
        yield_until(clock_ns + (duration_ns > 10000 ? duration_ns : 10000));
    enqueue((struct entry){.left_ns = duration_ns, .launched_ns = clock_ns, .copy = copy});
    self->launches++;
}

/* ---- processes ---- */

static void (*the_director)(void);
static uint64_t director_period_ns;

static void direct(void) {
    while (clock_ns < end_ns) {
        run_gpu();
        the_director();
        yield_until(clock_ns + director_period_ns);
    }
}

static bool is_last(void) {
    for (int i = 0; i < process_count; i++)
        if (processes[i].alive && &processes[i] != self) return false;
    return true;
}

static void arbitrate(void) {
    uint32_t seen[SLICES] = {0};
    /* A program that waits for its turn when the time is over ends after that. */
    for (; !is_last(); yield_until(clock_ns < end_ns ? end_ns : clock_ns + 1000000)) {
        for (int i = 0; i < SLICES; i++) {
            card.slices[i].latency = live_limits[i].work == EGPU_WORK_LATENCY;
            card.slices[i].core_ppm = live_limits[i].core_ppm;
            turn_hear(&card.slices[i], &usage.devices[i], &usage.asks[i]);
        }
        for (int i = 0; i < SLICES; i++) {
            if (!card.slices[i].latency || usage.asks[i].serial == seen[i]) continue;
            seen[i] = usage.asks[i].serial;
            turn_answer(&card, &card.slices[i], clock_ns);
        }
        for (int i = 0; i < SLICES; i++) turn_tell(&card, &card.slices[i], &turns[i]);
    }
}

static void launch_one(uint64_t key) {
    struct launch launch;
    if (launch_begin(&launch, key, (CUstream)self) != CUDA_SUCCESS) abort();
    launch_work(self->spec.kernel_ns * self->spec.kernels, false);
    if (self->spec.held_up_every != 0 && ++self->launched % self->spec.held_up_every == 0)
        yield_until(clock_ns + self->spec.held_up_ns);
    launch_end(&launch, CUDA_SUCCESS);
    yield_until(clock_ns + LAUNCH_NS);
}

/* The interposer's own books are all that notices it. */
static void launch_refused(uint64_t key) {
    struct launch launch;
    if (launch_begin(&launch, key, (CUstream)self) != CUDA_SUCCESS) abort();
    if (self->spec.ends_context) compute_forget_context((CUcontext)self);
    launch_end(&launch, CUDA_ERROR_INVALID_VALUE);
    yield_until(clock_ns + LAUNCH_NS);
}

static void wait_for_stream(void) {
    compute_flush();
    for (run_gpu(); self->count > 0; run_gpu()) yield_until(clock_ns + 1000);
    compute_collect();
}

static void program(void) {
    const struct work_spec *spec = &self->spec;
    uint64_t key = (uint64_t)(uintptr_t)self * 2654435761u + spec->kernel_ns + 1;
    uint64_t next_ns = clock_ns;
    while (clock_ns < end_ns) {
        if (spec->period_ns != 0) {
            self->random = self->random * 6364136223846793005u + 1442695040888963407u;
            uint64_t jitter = spec->jitter_ns == 0 ? 0 : (self->random >> 33) % spec->jitter_ns;
            if (next_ns + jitter > clock_ns) yield_until(next_ns + jitter);
            next_ns += spec->period_ns;
        }
        uint64_t began_ns = clock_ns;
        if (clock_ns >= start_ns + spec->pause_from_ns && clock_ns < start_ns + spec->pause_to_ns) {
            yield_until(start_ns + spec->pause_to_ns);
            continue;
        }
        unsigned burst = spec->burst == 0 ? 1 : spec->burst;
        for (unsigned i = 0; i < burst; i++) {
            if (spec->copy_ns != 0) {
                compute_pause((CUstream)self);
                launch_work(spec->copy_ns, true);
            }
            launch_one(key);
            for (unsigned j = 0; j < spec->refused; j++) launch_refused(key);
            if (spec->gap_ns != 0 && !(spec->no_last_gap && i + 1 == burst))
                yield_until(clock_ns + spec->gap_ns);
        }
        if (spec->waits) wait_for_stream();
        if (spec->waits && self->steps < STEPS) self->steps_ns[self->steps++] = clock_ns - began_ns;
        if (spec->rest_ns != 0) yield_until(clock_ns + spec->rest_ns);
    }
}

static void *process_main(void *argument) {
    self = argument;
    pthread_mutex_lock(&baton);
    while (self->wakes_ns > clock_ns) pthread_cond_wait(&self->turn, &baton);
    if (self == arbiter)
        arbitrate();
    else if (self->spec.slice < 0)
        direct();
    else
        program();
    self->alive = false;
    struct process *next = next_to_wake();
    if (next != NULL) pthread_cond_signal(&next->turn);
    pthread_mutex_unlock(&baton);
    return NULL;
}

void world_command(uint64_t ns) { command_ns = ns; }
void world_notice(uint64_t ns) { notice_ns = ns; }

void world_add(struct work_spec spec) {
    if (process_count == PROCESSES) abort();
    struct process *process = &processes[process_count];
    memset(process, 0, sizeof *process);
    process->spec = spec;
    process->alive = true;
    process->wakes_ns = clock_ns + 1000u + 1000u * (unsigned)process_count++;
    pthread_cond_init(&process->turn, NULL);
}

void world_direct(void (*director)(void), uint64_t period_ns) {
    the_director = director;
    director_period_ns = period_ns;
    world_add((struct work_spec){.slice = -1});
}

void world_arbiter(uint64_t late_ns) {
    arbiter_late_ns = late_ns;
    arbiter = &processes[process_count];
    world_add((struct work_spec){.slice = -1});
}

unsigned world_steps(int program, const uint64_t **steps_ns) {
    *steps_ns = processes[program].steps_ns;
    return processes[program].steps;
}

void world_run(uint64_t for_ns) {
    start_ns = clock_ns;
    end_ns = start_ns + for_ns;
    pthread_mutex_lock(&baton);
    for (int i = 0; i < process_count; i++)
        pthread_create(&processes[i].thread, NULL, process_main, &processes[i]);
    pthread_cond_signal(&next_to_wake()->turn);
    pthread_mutex_unlock(&baton);
    for (int i = 0; i < process_count; i++) pthread_join(processes[i].thread, NULL);
}

void world_reset(enum arbitration how) {
    process_count = 0;
    arbitration = how;
    compute_forget();
    memset(&usage, 0, sizeof usage);
    memset(live_limits, 0, sizeof live_limits);
    memset(busy_ns, 0, sizeof busy_ns);
    memset(turns, 0, sizeof turns);
    memset(&card, 0, sizeof card);
    card.count = SLICES;
    arbiter = NULL;
    policy_unmetered = 0;
    command_ns = notice_ns = 0;
    clock_ns += 10000000000u;
    gpu_ns = clock_ns;
    running = NULL;
    context_epoch++;
    real_functions[REAL_cuCtxGetCurrent] = (void *)get_current;
    real_functions[REAL_cuEventCreate] = (void *)event_create;
    real_functions[REAL_cuEventRecord] = (void *)event_record;
    real_functions[REAL_cuEventQuery] = (void *)event_query;
    real_functions[REAL_cuEventElapsedTime] = (void *)event_elapsed;
    real_functions[REAL_cuStreamQuery] = (void *)stream_query;
}

uint64_t world_busy_ns(int slice, unsigned bucket) {
    return bucket < BUCKETS ? busy_ns[slice][bucket] : 0;
}

double world_share(int slice, uint64_t from_ns, uint64_t to_ns) {
    unsigned first = (unsigned)((from_ns + BUCKET_NS / 2) / BUCKET_NS),
             end = (unsigned)((to_ns + BUCKET_NS / 2) / BUCKET_NS);
    double sum = 0;
    for (unsigned bucket = first; bucket < end; bucket++)
        sum += (double)world_busy_ns(slice, bucket);
    return 100 * sum / ((double)(end - first) * BUCKET_NS);
}
