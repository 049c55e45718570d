/* The interposer's compute control (bucket.c, compute.c) on a GPU and a clock that exist only here: shares are exact or
 * not, whatever else the computer does. Threads stand for processes; one runs at a time, and time passes when all sleep.
 *
 *   pace_test [alone|contended|change|seen]    a table on stdout; exit status 1 when a share is out of bounds
 *
 * A slice is a device index of one usage file. The GPU runs kernels one after the other in the order of their launches,
 * whoever they are of. */
#define _GNU_SOURCE
#include "../../interposer/interposer.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SLICES = 4, THREADS = 16, LAUNCH_NS = 3000, QUEUE = 1024 };

/* ---- virtual time ---- */

static pthread_mutex_t baton = PTHREAD_MUTEX_INITIALIZER;
static uint64_t clock_ns, end_ns;
static struct process {
    pthread_t thread;
    pthread_cond_t turn;
    uint64_t wakes_ns;
    bool alive;
    int slice, number;
    uint64_t kernel_ns;
    unsigned kernels; /* per launch: more than one is a graph */
    uint64_t rest_ns; /* between two launches, beyond what launching takes */
    uint64_t stream_end_ns;
    uint64_t busy_ns; /* GPU time that it really got */
} processes[THREADS];
static int process_count;
static __thread struct process *self;

static void yield_until(uint64_t wakes_ns) { /* the baton is held */
    self->wakes_ns = wakes_ns;
    struct process *next = NULL;
    for (int i = 0; i < process_count; i++)
        if (processes[i].alive && (next == NULL || processes[i].wakes_ns < next->wakes_ns)) next = &processes[i];
    if (next == NULL || next == self) {
        if (next != NULL && next->wakes_ns > clock_ns) clock_ns = next->wakes_ns;
        return;
    }
    if (next->wakes_ns > clock_ns) clock_ns = next->wakes_ns;
    pthread_cond_signal(&next->turn);
    if (self->alive) pthread_cond_wait(&self->turn, &baton);
}

uint64_t now_ns(void) { return clock_ns; }
void sleep_ns(uint64_t duration_ns) { yield_until(clock_ns + duration_ns + 60000); } /* late, as timers are */
void lock_wait(egpu_lock *lock) {
    do sleep_ns(10000);
    while (__atomic_exchange_n(&lock->word, 1, __ATOMIC_ACQUIRE) != 0);
}

/* ---- the slice ---- */

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
struct egpu_usage_slot *slot_of(int device) { return &slots[device]; }
bool slice_open_slow(void) { return true; }
void policy_refresh(void) {}
void *real_function_slow(enum real_id id) { (void)id; return NULL; }
int device_current_slow(CUcontext context) {
    recent_context = (struct recent_context){context, self->slice, context_epoch};
    return self->slice;
}

/* ---- the GPU ---- */

static uint64_t gpu_free_ns;
struct CUevent_st { uint64_t at_ns; };

static CUresult get_current(CUcontext *context) { *context = (CUcontext)self; return CUDA_SUCCESS; }
static CUresult event_create(CUevent *event, unsigned flags) { (void)flags; *event = calloc(1, sizeof **event); return CUDA_SUCCESS; }
static CUresult event_record(CUevent event, CUstream stream) {
    (void)stream;
    event->at_ns = clock_ns > self->stream_end_ns ? clock_ns : self->stream_end_ns;
    return CUDA_SUCCESS;
}
static CUresult event_query(CUevent event) { return clock_ns >= event->at_ns ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY; }
static CUresult event_elapsed(float *ms, CUevent start, CUevent end) {
    *ms = (float)(((double)end->at_ns - (double)start->at_ns) / 1e6);
    return CUDA_SUCCESS;
}
static CUresult stream_query(CUstream stream) { (void)stream; return clock_ns >= self->stream_end_ns ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY; }

static void run_kernels(uint64_t duration_ns) {
    uint64_t start = clock_ns > gpu_free_ns ? clock_ns : gpu_free_ns;
    if (self->stream_end_ns > start) start = self->stream_end_ns;
    gpu_free_ns = self->stream_end_ns = start + duration_ns;
    if (self->stream_end_ns <= end_ns) self->busy_ns += duration_ns;
    while (self->stream_end_ns > clock_ns + QUEUE * duration_ns) yield_until(clock_ns + duration_ns); /* the queue is full */
}

/* ---- programs ---- */

static void (*director)(void); /* runs now and then, as an agent would */
static uint64_t measured_from_ns;

static void *program(void *argument) {
    self = argument;
    pthread_mutex_lock(&baton);
    while (self->wakes_ns > clock_ns || !self->alive) pthread_cond_wait(&self->turn, &baton);
    bool counted = false;
    while (clock_ns < end_ns) {
        struct launch launch;
        if (!counted && clock_ns >= measured_from_ns) {
            counted = true;
            self->busy_ns = 0;
        }
        uint64_t key = (uint64_t)(uintptr_t)self * 2654435761u + self->kernel_ns + 1;
        if (launch_begin(&launch, key, (CUstream)self) != CUDA_SUCCESS) abort();
        run_kernels(self->kernel_ns * self->kernels);
        launch_end(&launch, CUDA_SUCCESS);
        if (director != NULL) director();
        yield_until(clock_ns + LAUNCH_NS + self->rest_ns);
    }
    self->alive = false;
    self->wakes_ns = UINT64_MAX;
    struct process *next = NULL;
    for (int i = 0; i < process_count; i++)
        if (processes[i].alive && (next == NULL || processes[i].wakes_ns < next->wakes_ns)) next = &processes[i];
    if (next != NULL) {
        if (next->wakes_ns > clock_ns) clock_ns = next->wakes_ns;
        pthread_cond_signal(&next->turn);
    }
    pthread_mutex_unlock(&baton);
    return NULL;
}

static void add(int slice, uint64_t kernel_ns, unsigned kernels) {
    processes[process_count] = (struct process){.slice = slice, .number = process_count, .kernel_ns = kernel_ns, .kernels = kernels, .alive = true,
                                                .wakes_ns = clock_ns + 1000u * (unsigned)process_count};
    pthread_cond_init(&processes[process_count].turn, NULL);
    process_count++;
}

static void set_limit(int slice, uint32_t core_ppm) {
    live_limits[slice] = (struct limits){.memory_bytes = 1, .mode = EGPU_MODE_CAP, .core_ppm = core_ppm, .grant_ppm = core_ppm, .contention_ppm = EGPU_PPM};
}

/* Windows of one period, as an agent publishes them for a contended card. */
static void set_windows(const uint32_t *shares_ppm, int count, uint32_t period_us) {
    uint32_t start = 0;
    for (int i = 0; i < count; i++) {
        live_limits[i].window_epoch_ns = 1000;
        live_limits[i].window_period_us = period_us;
        live_limits[i].window_start_us = start;
        live_limits[i].window_length_us = (uint32_t)((uint64_t)shares_ppm[i] * period_us / EGPU_PPM);
        start += live_limits[i].window_length_us;
    }
}

static void simulate(uint64_t warm_ns, uint64_t for_ns) {
    measured_from_ns = clock_ns + warm_ns;
    end_ns = measured_from_ns + for_ns;
    pthread_mutex_lock(&baton);
    for (int i = 0; i < process_count; i++) pthread_create(&processes[i].thread, NULL, program, &processes[i]);
    clock_ns = processes[0].wakes_ns;
    pthread_cond_signal(&processes[0].turn);
    pthread_mutex_unlock(&baton);
    for (int i = 0; i < process_count; i++) pthread_join(processes[i].thread, NULL);
}

static double share_of_slice(int slice, uint64_t for_ns) {
    double busy = 0;
    for (int i = 0; i < process_count; i++)
        if (processes[i].slice == slice) busy += (double)processes[i].busy_ns;
    return 100 * busy / (double)for_ns;
}

static void reset(void) {
    process_count = 0;
    director = NULL;
    compute_forget();
    memset(&usage, 0, sizeof usage);
    memset(live_limits, 0, sizeof live_limits);
    clock_ns += 10000000000u;
    gpu_free_ns = clock_ns;
    context_epoch++;
}

static int failures;
static void judge(const char *what, double wanted, double got, double bound) {
    double error = got - wanted;
    bool bad = fabs(error) > bound;
    printf("%-58s %6.1f %7.2f %+7.2f%s\n", what, wanted, got, error, bad ? "  OUT OF BOUNDS" : "");
    failures += bad;
}

static const uint32_t caps[] = {10, 30, 50, 70, 90};
static const uint64_t kernels_us[] = {20, 100, 500, 5000};

static void alone(void) {
    const uint64_t for_ns = 8000000000u;
    for (int graph = 0; graph < 2; graph++)
        for (int parts = 1; parts <= 4; parts += 3)
            for (unsigned k = 0; k < 4; k++)
                for (unsigned c = 0; c < 5; c++) {
                    char what[80];
                    if (graph && kernels_us[k] == 5000) continue; /* ten of them are one launch of 50 ms */
                    reset();
                    set_limit(0, caps[c] * 10000);
                    for (int i = 0; i < parts; i++) add(0, kernels_us[k] * 1000, graph ? 10 : 1);
                    simulate(500000000, for_ns);
                    snprintf(what, sizeof what, "alone, %d process%s, %s of %llu us", parts, parts > 1 ? "es" : "", graph ? "graphs of 10 kernels" : "kernels",
                             (unsigned long long)kernels_us[k]);
                    judge(what, caps[c], share_of_slice(0, for_ns), 1.0);
                }
}

static void contended(void) {
    static const uint32_t mixes[][SLICES] = {{30, 70}, {10, 90}, {50, 50}, {25, 25, 25, 25}, {20, 30, 50}};
    const uint64_t for_ns = 4000000000u;
    for (unsigned m = 0; m < 5; m++)
        for (unsigned k = 0; k < 4; k++) {
            uint32_t ppm[SLICES] = {0};
            int count = 0;
            reset();
            for (; count < SLICES && mixes[m][count] != 0; count++) {
                ppm[count] = mixes[m][count] * 10000;
                set_limit(count, ppm[count]);
                add(count, kernels_us[k] * 1000, 1);
            }
            set_windows(ppm, count, kernels_us[k] > 2000 ? 100000 : 20000); /* several kernels fit into a window */
            simulate(500000000, for_ns);
            for (int i = 0; i < count; i++) {
                char what[80];
                snprintf(what, sizeof what, "contended, slice %d of %d, kernels of %llu us", i + 1, count, (unsigned long long)kernels_us[k]);
                judge(what, mixes[m][i], share_of_slice(i, for_ns), 3.0);
            }
        }
}

static uint64_t change_at_ns;
static uint32_t change_to;
static void change_limit(void) {
    if (clock_ns >= change_at_ns && live_limits[0].core_ppm != change_to) set_limit(0, change_to);
}

static void change(void) {
    static const uint32_t steps[][2] = {{20, 60}, {80, 20}, {10, 90}};
    for (unsigned s = 0; s < 3; s++)
        for (unsigned k = 0; k < 4; k++) {
            char what[80];
            reset();
            set_limit(0, steps[s][0] * 10000);
            add(0, kernels_us[k] * 1000, 1);
            change_at_ns = clock_ns + 1000000000u;
            change_to = steps[s][1] * 10000;
            director = change_limit;
            simulate(1200000000, 1000000000); /* measured from 200 ms after the change */
            snprintf(what, sizeof what, "200 ms after a change from %u %%, kernels of %llu us", steps[s][0], (unsigned long long)kernels_us[k]);
            judge(what, steps[s][1], share_of_slice(0, 1000000000), 2.0);
        }
}

/* What NVML readers in the slice are shown is made of this. */
static double seen_ppm, seen_times;
static uint64_t seen_at_ns;
static void look_on(void) {
    if (clock_ns < measured_from_ns || clock_ns < seen_at_ns + 37000000) return;
    seen_at_ns = clock_ns;
    seen_ppm += (double)rate_ppm(&usage.devices[0].rate, usage.devices[0].gpu_ns, clock_ns);
    seen_times++;
}

static void seen(void) {
    static const uint64_t programs_us[][2] = {{20, 0}, {100, 0}, {500, 0}, {5000, 0}, {100, 900}, {500, 1500}, {2000, 18000}};
    const uint64_t for_ns = 4000000000u;
    for (unsigned p = 0; p < 7; p++)
        for (unsigned c = 0; c < 5; c += 2) {
            char what[80];
            reset();
            set_limit(0, caps[c] * 10000);
            add(0, programs_us[p][0] * 1000, 1);
            processes[0].rest_ns = programs_us[p][1] * 1000;
            seen_ppm = seen_times = 0;
            seen_at_ns = 0;
            director = look_on;
            simulate(500000000, for_ns);
            snprintf(what, sizeof what, "seen at %u %%, kernels of %llu us, resting %llu us", caps[c], (unsigned long long)programs_us[p][0],
                     (unsigned long long)programs_us[p][1]);
            judge(what, share_of_slice(0, for_ns), seen_ppm / seen_times / 10000, 2.0);
            double asked = 100.0 * (double)programs_us[p][0] / (double)(programs_us[p][1] + LAUNCH_NS / 1000); /* it does not wait for them */
            if (programs_us[p][1] != 0) judge("  who rests is not charged for resting", fmin(asked, caps[c]), share_of_slice(0, for_ns), 1.0);
        }
}

int main(int count, char **arguments) {
    const char *only = count > 1 ? arguments[1] : "";
    real_functions[REAL_cuCtxGetCurrent] = (void *)get_current;
    real_functions[REAL_cuEventCreate] = (void *)event_create;
    real_functions[REAL_cuEventRecord] = (void *)event_record;
    real_functions[REAL_cuEventQuery] = (void *)event_query;
    real_functions[REAL_cuEventElapsedTime] = (void *)event_elapsed;
    real_functions[REAL_cuStreamQuery] = (void *)stream_query;
    printf("%-58s %6s %7s %7s\n", "percent of the GPU's time", "limit", "got", "error");
    if (*only == 0 || strcmp(only, "alone") == 0) alone();
    if (*only == 0 || strcmp(only, "contended") == 0) contended();
    if (*only == 0 || strcmp(only, "change") == 0) change();
    if (*only == 0 || strcmp(only, "seen") == 0) seen();
    return failures == 0 ? 0 : 1;
}
