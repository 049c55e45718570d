/* The remote client against a hostile executor. No length, count or handle of a reply may lead
 * outside of memory, and no call may run forever.
 *
 * Input: a byte that selects the call ('S': only a snapshot is read, 'W': a welcome, with
 * descriptors if the next byte says so), then the executor's output before it hangs up: frames of
 * {op u16, flags u16, length u16, seq u16 (after the last call), payload}. Flag 32768 makes the
 * length wrong. From 128 on it sends through shared memory, where flag 16384 writes the payload
 * over the control page; from 192 on the call is NVML's.
 */
#define _GNU_SOURCE
#include <poll.h>
#include <time.h>
#include <unistd.h>

#include "descriptors.h"
#include "ring.h"

/* Time passes for threads that wait. */
static int passing_time(clockid_t clock, struct timespec *now) {
    static int64_t ns = 1000000000;
    (void)clock;
    ns += 5000000;
    *now = (struct timespec){ns / 1000000000, ns % 1000000000};
    return 0;
}
static bool look_once(struct shared_tail *tail, uint64_t seen) {
    return atomic_load(&tail->at) != seen;
}

#define clock_gettime passing_time
#define usleep(microseconds) ((void)0)
#define shared_wait(tail, seen, reader, milliseconds) look_once(tail, seen)
#include "../../common/descriptor.c"
#include "../../remote/link.c"
#include "../../remote/connection.c"
#include "../../remote/call.c"
#include "../../remote/transport_stream.c"
#include "../../remote/transport_shared.c"
#include "../../remote/bulk.c"

/* An executor may return any address; none is reserved here, but some are reported as occupied. */
enum addresses addresses_take(unsigned server, uint64_t base, uint64_t bytes) {
    (void)server, (void)bytes;
    return base & 64 ? ADDRESSES_OF_OTHERS : ADDRESSES_UNKNOWN;
}
void addresses_give(uint64_t base, uint64_t bytes) { (void)base, (void)bytes; }
bool addresses_of_program(uint64_t pointer) { return (pointer & 64) != 0; }
#undef shared_wait

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
CUresult egpuDeviceStatus(CUdevice ordinal, struct wire_device_status *status,
                          struct wire_process *processes, uint32_t room);
void ask_nvml(unsigned which); /* client_nvml.c */

static struct link *lease;
static struct shared executors; /* the same memory in the executor's mapping */
static CUcontext context;
static uint8_t *stream_ring;

/* Open a transport as usual, but without threads. */
static void travel_over(const struct transport *transport) {
    lease->transport = transport;
    if (transport == &transport_shared) {
        shared_open(lease);
        return;
    }
    lease->ring = stream_ring;
    lease->ring_mask = RING_BYTES - 1;
    lease->limit = 0;
}

/* A server with one card, and its primary context current. */
static void set_up(void) {
    uint8_t bytes[512] = {0};
    struct writer out = {bytes, sizeof bytes, false};
    struct wire_snapshot snapshot = {13000, 1};
    struct wire_device device = {.total_bytes = 1 << 30,
                                 .name = "card",
                                 .pci = "0000:01:00.0",
                                 .major = 8,
                                 .attribute_count = 32};
    int32_t attributes[32];
    for (int i = 0; i < 32; i++) attributes[i] = 1024;
    put_bytes(&out, &snapshot, sizeof snapshot);
    put_bytes(&out, &device, sizeof device);
    put_bytes(&out, attributes, sizeof attributes);
    lease = link_new(0, "/nowhere/lease.addr");
    if (lease == NULL || !read_snapshot(lease, bytes, sizeof bytes - out.left)) abort();
    stream_ring = doubled(RING_BYTES);
    lease->stream.input = doubled(INPUT_BYTES);
    lease->connected_once = true;
    int memory = shared_create();
    if (memory < 0 || !shared_map(&lease->shared.memory, memory) || !shared_map(&executors, memory))
        abort();
    close(memory);
    links[0] = lease;
    link_count = 1;
    atomic_store(&opened, getpid());
    links_use();
    visible_choose();
    if (links_open() != CUDA_SUCCESS || call_ready() != CUDA_SUCCESS) abort();
    FILE *nowhere = fopen("/dev/null", "w"); /* every input loses a lease */
    if (nowhere != NULL) stderr = stdout = nowhere;
}

/* Set the lease to its state after a welcome, on a new socket; return the socket's other end. */
static int connect_lease(void) {
    int pair[2], room = 4 << 20;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) abort();
    for (int i = 0; i < 2; i++) setsockopt(pair[i], SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    use_socket(lease, pair[0]);
    struct stream_state *stream = &lease->stream;
    lease->tail = stream->sent = stream->acknowledged = stream->arrived_told = lease->arrived =
        lease->outstanding = lease->last_reply = lease->wire_context = 0;
    lease->next_seq = 1;
    lease->taken = 0;
    lease->pending_error = 0;
    lease->printed = false;
    stream->external_first = 0;
    stream->external_sent = stream->external_end = 0;
    stream->external_offset = 0;
    stream->input_head = stream->input_tail = stream->skip = 0;
    travel_over(&transport_stream);
    memset(lease->shared.slot_seq, 0, sizeof lease->shared.slot_seq);
    lease->broken = lease->dead = false;
    return pair[1];
}

static void say(int executor, const uint8_t *data, size_t size, uint64_t last) {
    while (size >= 8) {
        uint16_t words[4];
        memcpy(words, data, sizeof words);
        data += 8, size -= 8;
        size_t length = words[2] < size ? words[2] : size;
        struct wire_header header = {.op = words[0],
                                     .flags = words[1],
                                     .len =
                                         (uint32_t)(words[1] & 32768 ? words[2] * 40503u : length),
                                     .seq = last + words[3]};
        if (send(executor, &header, sizeof header, MSG_DONTWAIT) < 0 ||
            send(executor, data, length, MSG_DONTWAIT) < 0)
            break;
        data += length, size -= length;
    }
    shutdown(executor, SHUT_WR);
}

/* The same through shared memory, all of it at once. */
static void say_shared(const uint8_t *data, size_t size, uint64_t last) {
    struct shared_control *control = executors.control;
    memset(control, 0, sizeof *control);
    uint64_t tail = 0;
    while (size >= 8) {
        uint16_t words[4];
        memcpy(words, data, sizeof words);
        data += 8, size -= 8;
        size_t length = words[2] < size ? words[2] : size;
        struct wire_header header = {.op = words[0],
                                     .flags = words[1],
                                     .len =
                                         (uint32_t)(words[1] & 32768 ? words[2] * 40503u : length),
                                     .seq = last + words[3]};
        if (words[1] & 16384) {
            size_t where = words[0] % sizeof *control,
                   bytes = sizeof *control - where < length ? sizeof *control - where : length;
            memcpy((uint8_t *)control + where, data, bytes);
        } else if (tail + sizeof header + length + 16 <= SHARED_RING_BYTES) {
            memcpy(executors.replies + tail, &header, sizeof header);
            memcpy(executors.replies + tail + sizeof header, data, length);
            /* beside the tail as well: the latest frame is read there */
            if (shared_frame(length) <= SHARED_SHORT_BYTES) {
                memcpy((void *)control->replies.frame, executors.replies + tail,
                       shared_frame(length));
                control->replies.beside = tail + shared_frame(length);
            }
            tail += shared_frame(length);
        }
        data += length, size -= length;
    }
    if (control->replies.at == 0) control->replies.at = tail;
}

static void call_one(unsigned which) {
    static uint8_t space[400000];
    static const char image[] = ".version 8.0\n.target sm_80\n.address_size 64\n";
    size_t a, b;
    int value;
    CUdeviceptr pointer;
    CUmodule module;
    CUlibrary library;
    CUfunction function;
    CUfunction functions[4];
    CUstreamCaptureStatus capturing;
    struct wire_device_status status;
    struct wire_process processes[4];
    switch (which % 16) {
    case 0: cuMemGetInfo_v2(&a, &b); break;
    case 1:
        if (cuModuleLoadData(&module, image) == CUDA_SUCCESS)
            handle_drop((uint64_t)(uintptr_t)module);
        break;
    case 2: cuMemAlloc_v2(&pointer, 4096); break;
    case 3: cuMemcpyDtoH_v2(space, 4096, sizeof space); break;
    case 4: cuMemcpyHtoD_v2(4096, space, sizeof space); break;
    case 5: cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, space); break;
    case 6: egpuDeviceStatus(0, &status, processes, 4); break;
    case 7: cuPointerGetAttribute(space, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 4096); break;
    case 8: {
        CUDA_MEMCPY2D plane = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                               .srcDevice = 4096,
                               .srcPitch = 1024,
                               .dstMemoryType = CU_MEMORYTYPE_HOST,
                               .dstHost = space,
                               .dstPitch = 500,
                               .WidthInBytes = 400,
                               .Height = 300};
        cuMemcpy2D_v2(&plane);
        break;
    }
    case 9:
        if (cuLibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0) == CUDA_SUCCESS)
            handle_drop((uint64_t)(uintptr_t)library);
        break;
    case 10: cuStreamIsCapturing(NULL, &capturing); break;
    case 11: cuCtxSynchronize(); break;
    case 12: cuDeviceGetMemPool((CUmemoryPool *)space, 0); break;
    case 13: cuMemGetAddressRange_v2(&pointer, &a, 4096); break;
    case 14:
        /* a module and queries of it: the second reply finds the first one's handle */
        if (cuModuleLoadData(&module, image) == CUDA_SUCCESS) {
            if (cuModuleGetFunction(&function, module, "f") == CUDA_SUCCESS) {
                void *arguments[64];
                for (int i = 0; i < 64; i++) arguments[i] = space;
                cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, function);
                cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL);
            }
            cuModuleEnumerateFunctions(functions, 4, module);
            handle_drop((uint64_t)(uintptr_t)module);
        }
        break;
    default: cuStreamSynchronize(NULL); break;
    }
}

/* The first byte's bits select how many descriptors are sent, and whether of a sealed memory of the
 * right size or of a file. */
static void send_welcome(int fd, const uint8_t *data, size_t size) {
    struct wire_header header;
    /* in the header's flags, which a welcome does not use */
    size_t count = size >= sizeof header ? data[2] & 3 : 0;
    if (count == 0) {
        if (send(fd, data, size, MSG_DONTWAIT) < 0) abort();
        return;
    }
    int descriptors[3];
    for (size_t i = 0; i < count; i++) {
        descriptors[i] =
            data[2] & 4 ? shared_create() : open("/var/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
        if (descriptors[i] < 0 || ftruncate(descriptors[i], SHARED_BYTES) != 0) abort();
    }
    union {
        char space[CMSG_SPACE(3 * sizeof(int))];
        struct cmsghdr header;
    } control = {0};
    struct iovec part = {(void *)(uintptr_t)data, size};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = CMSG_SPACE(count * sizeof(int))};
    control.header = (struct cmsghdr){.cmsg_level = SOL_SOCKET,
                                      .cmsg_type = SCM_RIGHTS,
                                      .cmsg_len = CMSG_LEN(count * sizeof(int))};
    memcpy(CMSG_DATA(&control.header), descriptors, count * sizeof(int));
    if (sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) abort();
    for (size_t i = 0; i < count; i++) close(descriptors[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (lease == NULL) set_up();
    if (size == 0) return 0;
    if (data[0] == 'S') {
        struct link other = {0};
        read_snapshot(&other, data + 1, size - 1);
        free(other.devices);
        return 0;
    }
    int executor = connect_lease();
    if (data[0] == 'W') {
        unsigned before = open_descriptors();
        struct shared mapped = lease->shared.memory;
        struct device *devices = lease->devices;
        unsigned count = lease->device_count;
        lease->connected_once = false;
        send_welcome(executor, data + 1, size - 1);
        shutdown(executor, SHUT_WR);
        greet(lease, lease->fd);
        if (lease->devices != devices) free(lease->devices);
        lease->devices = devices, lease->device_count = count, lease->connected_once = true;
        /* memory that the executor can truncate at any time */
        bool shared = lease->transport == &transport_shared;
        if (shared && !(size > 3 && data[3] & 4)) abort();
        if (shared) shared_unmap(&lease->shared.memory);
        lease->shared.memory = mapped;
        lease->transport = &transport_stream;
        lease->direct = true;
        if (open_descriptors() != before) abort(); /* a received one was not closed */
    } else {
        lease->direct = true; /* a lost connection is a lost lease */
        if (context == NULL) {
            struct {
                uint16_t frame[4];
                struct wire_reply reply;
            } good = {{WIRE_REPLY, WIRE_IS_REPLY, sizeof good.reply, 1}, {0, 0}};
            say(executor, (const uint8_t *)&good, sizeof good, 0);
            if (cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS ||
                cuCtxSetCurrent(context) != CUDA_SUCCESS)
                abort();
            close(executor);
            executor = connect_lease();
        }
        lease->wire_context = wire_without_server((uint64_t)(uintptr_t)context);
        atomic_store(
            &((struct shadow_context *)handle_entry((uint64_t)(uintptr_t)context)->info)->error, 0);
        if (data[0] >= 128) {
            travel_over(&transport_shared);
            say_shared(data + 1, size - 1, 0);
            shutdown(executor, SHUT_WR);
        } else {
            say(executor, data + 1, size - 1, 0);
        }
        if (data[0] >= 192)
            ask_nvml(data[0]);
        else
            call_one(data[0]);
    }
    close(executor);
    return 0;
}
