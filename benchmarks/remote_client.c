/* Measures calls of the CUDA driver, and bare rings and sockets to compare them with. Prints one JSON object. See remote.py. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "ring.h"

typedef unsigned long long pointer;
static void *library;
static int (*init)(unsigned), (*retain)(void **, int), (*set_current)(void *), (*load)(void **, const void *), (*get)(void **, void *, const char *),
    (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **), (*synchronize)(void),
    (*alloc)(pointer *, size_t), (*in)(pointer, const void *, size_t), (*out)(void *, pointer, size_t), (*memory_info)(size_t *, size_t *),
    (*host_alloc)(void **, size_t), (*event_create)(void **, unsigned), (*event_record)(void *, void *), (*query)(void *);

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void check(int result, const char *what) {
    if (result == 0) return;
    fprintf(stderr, "%s: error %d\n", what, result);
    exit(1);
}
#define OK(call) check(call, #call)

static const char ptx[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry work(.param .u64 at, .param .u32 value)\n{\n.pragma \"egpu.duration_us 200\";\n"
    ".reg .b32 %r<2>;\n.reg .b64 %d<2>;\nld.param.u64 %d1, [at];\nld.param.u32 %r1, [value];\nst.global.u32 [%d1], %r1;\nret;\n}\n";

static void find(void *to, const char *name) {
    void *symbol = dlsym(library, name);
    if (symbol == NULL) exit(1);
    memcpy(to, &symbol, sizeof symbol);
}

#define COPY (64u << 20)

static int by_value(const void *a, const void *b) { return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b); }

static void client(double scale) {
    double begin = now();
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    find(&init, "cuInit"), find(&retain, "cuDevicePrimaryCtxRetain"), find(&set_current, "cuCtxSetCurrent"), find(&load, "cuModuleLoadData");
    find(&get, "cuModuleGetFunction"), find(&launch, "cuLaunchKernel"), find(&synchronize, "cuCtxSynchronize"), find(&alloc, "cuMemAlloc_v2");
    find(&in, "cuMemcpyHtoD_v2"), find(&out, "cuMemcpyDtoH_v2"), find(&memory_info, "cuMemGetInfo_v2"), find(&host_alloc, "cuMemAllocHost_v2");
    find(&event_create, "cuEventCreate"), find(&event_record, "cuEventRecord"), find(&query, "cuStreamQuery");
    void *context, *module, *function, *event;
    pointer p;
    unsigned value = 1;
    OK(init(0)), OK(retain(&context, 0)), OK(set_current(context)), OK(load(&module, ptx)), OK(get(&function, module, "work"));
    double started = now();
    OK(alloc(&p, COPY));
    void *arguments[] = {&p, &value};
    OK(launch(function, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL)), OK(synchronize());

    /* An asynchronous call: what the program's thread pays, as long as the pipe is not full. */
    OK(event_create(&event, 0));
    int rounds = (int)(200 * scale), calls = 500;
    double *each = calloc((size_t)rounds + 1, sizeof *each);
    for (int r = 0; r < rounds; r++) {
        double t = now();
        for (int i = 0; i < calls; i++) event_record(event, NULL);
        each[r] = (now() - t) / calls;
        OK(synchronize());
    }
    qsort(each, (size_t)rounds, sizeof *each, by_value);
    double async_ns = each[rounds / 2] * 1e9;
    int syncs = (int)(20000 * scale);
    double t = now();
    for (int i = 0; i < syncs; i++) query(NULL);
    double sync_ns = (now() - t) / syncs * 1e9;

    char *pageable = malloc(COPY);
    memset(pageable, 1, COPY);
    OK(in(p, pageable, COPY)), OK(out(pageable, p, COPY));
    int copies = scale < 1 ? 3 : 10;
    double best_in = 1e9, best_out = 1e9, best_pinned = 1e9;
    void *pinned;
    OK(host_alloc(&pinned, COPY));
    memset(pinned, 1, COPY);
    for (int i = 0; i < copies; i++) {
        t = now();
        OK(in(p, pageable, COPY));
        if (now() - t < best_in) best_in = now() - t;
        t = now();
        OK(out(pageable, p, COPY));
        if (now() - t < best_out) best_out = now() - t;
        t = now();
        OK(in(p, pinned, COPY));
        if (now() - t < best_pinned) best_pinned = now() - t;
    }
    /* Steps of 40 kernels of 200 us, a few small calls between, and one synchronisation. */
    int steps = (int)(100 * scale);
    t = now();
    for (int s = 0; s < steps; s++) {
        for (int k = 0; k < 40; k++) {
            OK(launch(function, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL));
            if (k % 10 == 0) OK(event_record(event, NULL));
        }
        OK(synchronize());
    }
    double steps_per_second = steps / (now() - t);
    printf("{\"async_ns\": %.1f, \"sync_ns\": %.1f, \"in_gbps\": %.3f, \"out_gbps\": %.3f, \"pinned_in_gbps\": %.3f, \"steps_per_second\": %.3f, "
           "\"start_ms\": %.2f}\n",
           async_ns, sync_ns, COPY / best_in / 1e9, COPY / best_out / 1e9, COPY / best_pinned / 1e9, steps_per_second, (started - begin) * 1e3);
}

/* ---- bare rings: a frame of 32 bytes is written and taken; a byte goes there and back ---------------------------------------------- */

static struct shared shared;

static void *ring_reader(void *nothing) {
    (void)nothing;
    uint64_t head = 0;
    struct shared_control *c = shared.control;
    for (;;) {
        uint64_t tail = atomic_load_explicit(&c->request_tail, memory_order_acquire);
        if (tail == head) {
            shared_wait(&c->request_tail, head, &c->executor_sleeps, 1000);
            continue;
        }
        uint64_t frame[4];
        memcpy(frame, shared.requests + head % SHARED_RING_BYTES, sizeof frame);
        head += sizeof frame;
        atomic_store_explicit(&c->request_head, head, memory_order_release);
        if (frame[0] == 9) _exit(0);
        if (frame[0] == 1) {
            atomic_store_explicit(&c->reply_tail, atomic_load(&c->reply_tail) + 32, memory_order_release);
            shared_wake(&c->client_sleeps);
        }
    }
    return NULL;
}

static uint64_t ring_tail;
static void ring_put(uint64_t kind) {
    struct shared_control *c = shared.control;
    while (ring_tail + 32 - atomic_load_explicit(&c->request_head, memory_order_acquire) > SHARED_RING_BYTES) {
    }
    uint64_t frame[4] = {kind, 1, 2, 3};
    memcpy(shared.requests + ring_tail % SHARED_RING_BYTES, frame, sizeof frame);
    ring_tail += sizeof frame;
    atomic_store_explicit(&c->request_tail, ring_tail, memory_order_release);
    shared_wake(&c->executor_sleeps);
}

static void ring_round(void) {
    struct shared_control *c = shared.control;
    uint64_t seen = atomic_load(&c->reply_tail);
    ring_put(1);
    while (!shared_wait(&c->reply_tail, seen, &c->client_sleeps, 1000)) {
    }
}

static void bare_shm(double scale) {
    int fd = shared_create();
    if (fd < 0 || !shared_map(&shared, fd)) exit(1);
    pid_t reader = fork();
    if (reader == 0) ring_reader(NULL);
    int rounds = (int)(200 * scale), calls = 500, syncs = (int)(20000 * scale);
    double *each = calloc((size_t)rounds + 1, sizeof *each);
    for (int r = 0; r < rounds; r++) {
        double t = now();
        for (int i = 0; i < calls; i++) ring_put(0);
        each[r] = (now() - t) / calls;
        ring_round();
    }
    qsort(each, (size_t)rounds, sizeof *each, by_value);
    double t = now();
    for (int i = 0; i < syncs; i++) ring_round();
    double sync_ns = (now() - t) / syncs * 1e9, best = 1e9;
    char *a = malloc(COPY), *b = malloc(COPY);
    memset(a, 1, COPY), memset(b, 1, COPY);
    for (int i = 0; i < 10; i++) {
        t = now();
        memcpy(b, a, COPY);
        if (now() - t < best) best = now() - t;
    }
    ring_put(9);
    waitpid(reader, NULL, 0);
    printf("{\"async_ns\": %.1f, \"sync_ns\": %.1f, \"copy_gbps\": %.3f}\n", each[rounds / 2] * 1e9, sync_ns, COPY / best / 1e9);
}

/* ---- bare loopback TCP ----------------------------------------------------------------------------------------------------------------- */

static int listen_on(int *port) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    if (bind(fd, (struct sockaddr *)&at, sizeof at) || listen(fd, 8) || getsockname(fd, (struct sockaddr *)&at, &length)) exit(1);
    *port = ntohs(at.sin_port);
    return fd;
}

static int connect_to(int port) {
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons((uint16_t)port)};
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(fd, (struct sockaddr *)&to, sizeof to)) exit(1);
    return fd;
}

static void all(int fd, char *data, size_t bytes, int sending) {
    while (bytes) {
        ssize_t n = sending ? send(fd, data, bytes, MSG_NOSIGNAL) : recv(fd, data, bytes, 0);
        if (n <= 0) _exit(0);
        data += n;
        bytes -= (size_t)n;
    }
}

static void bare_tcp(double scale) {
    int port, listener = listen_on(&port), one = 1;
    static char buffer[4u << 20];
    pid_t reader = fork();
    if (reader == 0) { /* a first byte of 1: answer 32 bytes; 2: take 64 MiB and answer; 0: take a batch of 500 frames of 32 bytes */
        int fd = accept(listener, NULL, NULL);
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        for (;;) {
            all(fd, buffer, 32, 0);
            if (buffer[0] == 0) all(fd, buffer, 499 * 32, 0);
            for (size_t left = buffer[0] == 2 ? COPY : 0; left;) {
                size_t piece = left < (1u << 20) ? left : 1u << 20;
                all(fd, buffer + 32, piece, 0);
                left -= piece;
            }
            if (buffer[0]) all(fd, buffer, 32, 1);
        }
    }
    int fd = connect_to(port), rounds = (int)(200 * scale), syncs = (int)(20000 * scale);
    double *each = calloc((size_t)rounds + 1, sizeof *each), t, best = 1e9;
    char frame[32] = {0}, ping[32] = {1}, bulk[32] = {2}, *data = malloc(COPY);
    memset(data, 1, COPY);
    for (int r = 0; r < rounds; r++) { /* batched send: frames are gathered, and sent together */
        t = now();
        for (int i = 0; i < 500; i++) memcpy(buffer + 32 * i, frame, 32);
        all(fd, buffer, 500 * 32, 1);
        each[r] = (now() - t) / 500;
        all(fd, ping, 32, 1), all(fd, buffer, 32, 0);
    }
    qsort(each, (size_t)rounds, sizeof *each, by_value);
    t = now();
    for (int i = 0; i < syncs; i++) all(fd, ping, 32, 1), all(fd, buffer, 32, 0);
    double sync_ns = (now() - t) / syncs * 1e9;
    for (int i = 0; i < 10; i++) {
        t = now();
        all(fd, bulk, 32, 1), all(fd, data, COPY, 1), all(fd, buffer, 32, 0);
        if (now() - t < best) best = now() - t;
    }
    close(fd);
    waitpid(reader, NULL, 0);
    printf("{\"async_ns\": %.1f, \"sync_ns\": %.1f, \"copy_gbps\": %.3f}\n", each[rounds / 2] * 1e9, sync_ns, COPY / best / 1e9);
}

/* ---- a proxy that delays each direction by half of the added round trip ------------------------------------------------------------------- */

struct piece {
    double due;
    size_t bytes;
    char data[65536];
};
struct way {
    int from, to;
    double delay;
    struct piece *queue;
    _Atomic unsigned head, tail;
};
#define PIECES 256

static void *delay_read(void *argument) {
    struct way *way = argument;
    for (;;) {
        while (atomic_load(&way->tail) - atomic_load(&way->head) == PIECES) usleep(10);
        struct piece *piece = &way->queue[atomic_load(&way->tail) % PIECES];
        ssize_t n = recv(way->from, piece->data, sizeof piece->data, 0);
        if (n <= 0) _exit(0);
        piece->bytes = (size_t)n;
        piece->due = now() + way->delay;
        atomic_fetch_add(&way->tail, 1);
    }
}

static void *delay_write(void *argument) {
    struct way *way = argument;
    for (;;) {
        while (atomic_load(&way->tail) == atomic_load(&way->head)) {
            struct timespec little = {0, 5000};
            nanosleep(&little, NULL);
        }
        struct piece *piece = &way->queue[atomic_load(&way->head) % PIECES];
        while (now() < piece->due) {
        }
        all(way->to, piece->data, piece->bytes, 1);
        atomic_fetch_add(&way->head, 1);
    }
}

static void delay(int target, double round_trip_us) {
    int port, listener = listen_on(&port), one = 1;
    printf("%d\n", port);
    fflush(stdout);
    int near = accept(listener, NULL, NULL), far = connect_to(target);
    setsockopt(near, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct way ways[2] = {{near, far, round_trip_us / 2e6, NULL, 0, 0}, {far, near, round_trip_us / 2e6, NULL, 0, 0}};
    pthread_t thread;
    for (int i = 0; i < 2; i++) {
        ways[i].queue = malloc(PIECES * sizeof(struct piece));
        pthread_create(&thread, NULL, delay_read, &ways[i]);
        pthread_create(&thread, NULL, delay_write, &ways[i]);
    }
    pthread_join(thread, NULL);
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    double scale = argc > 2 ? atof(argv[2]) : 1;
    if (strcmp(what, "client") == 0) client(scale);
    else if (strcmp(what, "bare-shm") == 0) bare_shm(scale);
    else if (strcmp(what, "bare-tcp") == 0) bare_tcp(scale);
    else if (strcmp(what, "delay") == 0 && argc > 3) delay(atoi(argv[2]), atof(argv[3]));
    else return 2;
    return 0;
}
