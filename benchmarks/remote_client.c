/* Measures calls of the CUDA driver, and bare rings and sockets to compare them with. Prints one
 * JSON object. See remote.py. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/futex.h>
#include <netinet/tcp.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "measure.h"

typedef unsigned long long pointer;
static int (*init)(unsigned), (*retain)(void **, int), (*set_current)(void *),
    (*load)(void **, const void *), (*get)(void **, void *, const char *),
    (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *,
              void **, void **),
    (*synchronize)(void), (*alloc)(pointer *, size_t), (*in)(pointer, const void *, size_t),
    (*out)(void *, pointer, size_t), (*host_alloc)(void **, size_t),
    (*event_create)(void **, unsigned), (*event_record)(void *, void *), (*query)(void *);

static const char ptx[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry work(.param .u64 at, .param .u32 value)\n{\n.pragma \"egpu.duration_us 200\";\n"
    ".reg .b32 %r<2>;\n.reg .b64 %d<2>;\nld.param.u64 %d1, [at];\nld.param.u32 %r1, [value];\nst.global.u32 [%d1], %r1;\nret;\n}\n";

#define COPY (64u << 20)

static void open_driver(void) {
    void *context;
    open_library("libcuda.so.1");
    find(&init, "cuInit"), find(&retain, "cuDevicePrimaryCtxRetain"),
        find(&set_current, "cuCtxSetCurrent");
    find(&synchronize, "cuCtxSynchronize"), find(&event_create, "cuEventCreate"),
        find(&event_record, "cuEventRecord"), find(&query, "cuStreamQuery");
    OK(init(0)), OK(retain(&context, 0)), OK(set_current(context));
}

/* The thread's time for calls without result, as long as the pipe is not full, and for calls that
 * wait for their answer. */
static void calls(double scale) {
    void *event;
    open_driver();
    OK(event_create(&event, 0));
    int rounds = (int)(200 * scale), count = 500;
    double *each = calloc((size_t)rounds + 1, sizeof *each), t;
    for (int r = -FIRST_LAPS; r < rounds; r++) {
        t = now();
        for (int i = 0; i < count; i++) event_record(event, NULL);
        each[r < 0 ? 0 : r] = (now() - t) / count;
        OK(synchronize());
    }
    double async_ns = middle(each, rounds);
    t = now();
    OK(query(NULL));
    if (now() - t > 5e-6) count = 20; /* over a socket */
    for (int r = 0; r < rounds; r++) {
        t = now();
        for (int i = 0; i < count; i++) query(NULL);
        each[r] = (now() - t) / count;
    }
    printf("{\"async_ns\": %.1f, \"sync_ns\": %.1f}\n", async_ns, middle(each, rounds));
}

/* Calls until the other side is dead, and prints when it knew: seconds of the monotonic clock. */
static void outlive(void) {
    open_driver();
    puts("ready");
    fflush(stdout);
    while (query(NULL) == 0) {
    }
    printf("%.6f\n", now());
}

/* Up to the first kernel of a small program. */
static void start(void) {
    void *module, *function;
    pointer p;
    unsigned value = 1;
    open_driver();
    find(&load, "cuModuleLoadData"), find(&get, "cuModuleGetFunction"),
        find(&launch, "cuLaunchKernel"), find(&alloc, "cuMemAlloc_v2");
    OK(load(&module, ptx)), OK(get(&function, module, "work")), OK(alloc(&p, 4));
    void *arguments[] = {&p, &value};
    OK(launch(function, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL));
    puts("started");
    fflush(stdout);
    getchar();
}

static void client(double scale) {
    void *module, *function, *event;
    pointer p;
    unsigned value = 1;
    double begin = now(), t;
    open_driver();
    find(&load, "cuModuleLoadData"), find(&get, "cuModuleGetFunction"),
        find(&launch, "cuLaunchKernel"), find(&alloc, "cuMemAlloc_v2");
    find(&in, "cuMemcpyHtoD_v2"), find(&out, "cuMemcpyDtoH_v2"),
        find(&host_alloc, "cuMemAllocHost_v2");
    OK(load(&module, ptx)), OK(get(&function, module, "work"));
    double started = now();
    OK(alloc(&p, COPY)), OK(event_create(&event, 0));
    void *arguments[] = {&p, &value};
    OK(launch(function, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL)), OK(synchronize());

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
    printf(
        "{\"in_gbps\": %.3f, \"out_gbps\": %.3f, \"pinned_in_gbps\": %.3f, \"steps_per_second\": %.3f, \"start_ms\": %.2f}\n",
        COPY / best_in / 1e9, COPY / best_out / 1e9, COPY / best_pinned / 1e9, steps_per_second,
        (started - begin) * 1e3);
}

/* ---- bare rings: frames of 32 bytes, in the simplest form: head, tail, a fence before the check
 * for a sleeping reader ---- */

#define RING (1u << 20)
struct bare_ring {
    _Alignas(64) _Atomic uint64_t tail;
    _Alignas(64) _Atomic uint64_t head;
    _Alignas(64) _Atomic uint32_t sleeps;
    _Alignas(64) uint8_t bytes[RING];
};
static struct bare_ring *there, *back;

static void ring_put(struct bare_ring *ring, uint64_t kind) {
    uint64_t frame[4] = {kind, 1, 2, 3},
             tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);
    while (tail + sizeof frame - atomic_load_explicit(&ring->head, memory_order_acquire) > RING) {
    }
    memcpy(ring->bytes + tail % RING, frame, sizeof frame);
    atomic_store_explicit(&ring->tail, tail + sizeof frame, memory_order_release);
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&ring->sleeps, memory_order_relaxed) == 0) return;
    atomic_store(&ring->sleeps, 0);
    syscall(SYS_futex, &ring->sleeps, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static uint64_t ring_take(struct bare_ring *ring) {
    uint64_t frame[4], head = atomic_load_explicit(&ring->head, memory_order_relaxed);
    for (unsigned spins = 1; atomic_load_explicit(&ring->tail, memory_order_acquire) == head;
         spins++) {
        __builtin_ia32_pause();
        if (spins % 1024) continue;
        atomic_store(&ring->sleeps, 1);
        struct timespec second = {1, 0};
        if (atomic_load(&ring->tail) == head)
            syscall(SYS_futex, &ring->sleeps, FUTEX_WAIT, 1, &second, NULL, 0);
        atomic_store(&ring->sleeps, 0);
    }
    memcpy(frame, ring->bytes + head % RING, sizeof frame);
    atomic_store_explicit(&ring->head, head + sizeof frame, memory_order_release);
    return frame[0];
}

static void bare_shm(double scale) {
    there =
        mmap(NULL, 2 * sizeof *there, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    back = there + 1;
    if (there == MAP_FAILED) exit(1);
    pid_t reader = fork();
    if (reader == 0)
        for (uint64_t kind; (kind = ring_take(there)) != 9;)
            if (kind == 1) ring_put(back, 0);
    if (reader == 0) _exit(0);
    int rounds = (int)(200 * scale), calls = 500;
    double *each = calloc((size_t)rounds + 1, sizeof *each), t;
    for (int r = -FIRST_LAPS; r < rounds; r++) {
        t = now();
        for (int i = 0; i < calls; i++) ring_put(there, 0);
        each[r < 0 ? 0 : r] = (now() - t) / calls;
        ring_put(there, 1), ring_take(back);
    }
    double async_ns = middle(each, rounds);
    for (int r = 0; r < rounds; r++) {
        t = now();
        for (int i = 0; i < calls; i++) ring_put(there, 1), ring_take(back);
        each[r] = (now() - t) / calls;
    }
    double sync_ns = middle(each, rounds), best = 1e9;
    char *a = malloc(COPY), *b = malloc(COPY);
    memset(a, 1, COPY), memset(b, 1, COPY);
    for (int i = 0; i < 10; i++) {
        t = now();
        memcpy(b, a, COPY);
        if (now() - t < best) best = now() - t;
    }
    ring_put(there, 9);
    waitpid(reader, NULL, 0);
    printf("{\"async_ns\": %.1f, \"sync_ns\": %.1f, \"copy_gbps\": %.3f}\n", async_ns, sync_ns,
           COPY / best / 1e9);
}

/* ---- bare loopback TCP ---- */

static int listen_on(int *port) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    if (bind(fd, (struct sockaddr *)&at, sizeof at) || listen(fd, 8) ||
        getsockname(fd, (struct sockaddr *)&at, &length))
        exit(1);
    *port = ntohs(at.sin_port);
    return fd;
}

static int connect_to(int port) {
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                             .sin_port = htons((uint16_t)port)};
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
    /* a first byte of 1: answer 32 bytes; 2: take 64 MiB and answer; 0: take a batch of 500 frames
     * of 32 bytes */
    if (reader == 0) {
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
    int fd = connect_to(port), rounds = (int)(200 * scale);
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
    double async_ns = middle(each, rounds);
    for (int r = 0; r < rounds; r++) {
        t = now();
        for (int i = 0; i < 20; i++) all(fd, ping, 32, 1), all(fd, buffer, 32, 0);
        each[r] = (now() - t) / 20;
    }
    double sync_ns = middle(each, rounds);
    for (int i = 0; i < 10; i++) {
        t = now();
        all(fd, bulk, 32, 1), all(fd, data, COPY, 1), all(fd, buffer, 32, 0);
        if (now() - t < best) best = now() - t;
    }
    close(fd);
    waitpid(reader, NULL, 0);
    printf("{\"async_ns\": %.1f, \"sync_ns\": %.1f, \"copy_gbps\": %.3f}\n", async_ns, sync_ns,
           COPY / best / 1e9);
}

/* ---- a proxy that delays each direction by half of the added round trip ---- */

struct piece {
    double due;
    size_t bytes;
    char data[65536];
};
struct way {
    int from, to;
    struct piece *queue;
    unsigned head, tail;
};
#define PIECES 256

/* Spins, because a wake-up takes longer than the delay. So it needs a processor of its own. */
static void delay(int target, double round_trip_us) {
    int port, listener = listen_on(&port), one = 1;
    printf("%d\n", port);
    fflush(stdout);
    int near = accept(listener, NULL, NULL), far = connect_to(target);
    setsockopt(near, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct way ways[2] = {{near, far, NULL, 0, 0}, {far, near, NULL, 0, 0}};
    for (int i = 0; i < 2; i++) ways[i].queue = malloc(PIECES * sizeof(struct piece));
    for (;;)
        for (struct way *way = ways; way < ways + 2; way++) {
            struct piece *first = &way->queue[way->head % PIECES],
                         *next = &way->queue[way->tail % PIECES];
            if (way->head != way->tail && now() >= first->due) {
                all(way->to, first->data, first->bytes, 1);
                way->head++;
            }
            if (way->tail - way->head == PIECES) continue;
            ssize_t n = recv(way->from, next->data, sizeof next->data, MSG_DONTWAIT);
            if (n < 0 && errno == EAGAIN) continue;
            if (n <= 0) _exit(0);
            next->bytes = (size_t)n;
            next->due = now() + round_trip_us / 2e6;
            way->tail++;
        }
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    double scale = argc > 2 ? atof(argv[2]) : 1;
    if (strcmp(what, "client") == 0)
        client(scale);
    else if (strcmp(what, "calls") == 0)
        calls(scale);
    else if (strcmp(what, "outlive") == 0)
        outlive();
    else if (strcmp(what, "start") == 0)
        start();
    else if (strcmp(what, "bare-shm") == 0)
        bare_shm(scale);
    else if (strcmp(what, "bare-tcp") == 0)
        bare_tcp(scale);
    else if (strcmp(what, "delay") == 0 && argc > 3)
        delay(atoi(argv[2]), atof(argv[3]));
    else
        return 2;
    return 0;
}
