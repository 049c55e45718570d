/* Which system calls the driver and NVIDIA's libraries make that an executor's session does not
 * allow (native/executor/confinement/sandbox.c).
 *
 *   session_calls [LIBCUBLAS [LIBCUDNN]]
 *
 * A driver that is warm, as a session's is, and then the same filter; but what it refuses is first
 * noted by another process, and then refused with the same error, so driver and libraries go on as
 * they would in an executor. One JSON line: what was refused, by number and how often, at which
 * call of ours, and what that call returned.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <unistd.h>

static int listener = -1;
static long install(long call, long operation, long flags, void *filter) {
    listener = (int)syscall(
        call, operation, flags | SECCOMP_FILTER_FLAG_NEW_LISTENER | SECCOMP_FILTER_FLAG_TSYNC_ESRCH,
        filter);
    return listener < 0 ? -1 : 0;
}
#undef SECCOMP_RET_ERRNO
#define SECCOMP_RET_ERRNO SECCOMP_RET_USER_NOTIF
#define syscall(call, operation, flags, filter) install(call, operation, flags, filter)
#include "executor/confinement/sandbox.c"
#undef syscall

#include <dlfcn.h>
#include <poll.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>

bool session_has_network(void) { return false; }

enum { STEPS = 48, CALLS = 512 };
static struct seen {
    int step, refused[STEPS][CALLS];
} *seen; /* shared with the other process */
static const char *step_names[STEPS];
static int step_results[STEPS];

/* The other process: it answers every refused call, and ends with whoever is asked about. */
static void answer_calls(int connection) {
    char byte;
    struct iovec part = {&byte, 1};
    union {
        char space[CMSG_SPACE(sizeof(int))];
        struct cmsghdr header;
    } control;
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control};
    if (recvmsg(connection, &message, 0) != 1 || CMSG_FIRSTHDR(&message) == NULL) _exit(1);
    int notify;
    memcpy(&notify, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof notify);
    for (;;) {
        struct pollfd ready = {.fd = notify, .events = POLLIN};
        struct seccomp_notif asked = {0};
        if (poll(&ready, 1, -1) <= 0 || !(ready.revents & POLLIN)) _exit(0);
        if (ioctl(notify, SECCOMP_IOCTL_NOTIF_RECV, &asked) != 0) continue;
        if (asked.data.nr >= 0 && asked.data.nr < CALLS) seen->refused[seen->step][asked.data.nr]++;
        struct seccomp_notif_resp said = {.id = asked.id,
                                          .error = asked.data.nr == SYS_clone3 ? -ENOSYS : -EPERM};
        ioctl(notify, SECCOMP_IOCTL_NOTIF_SEND, &said);
    }
}

static void pass_listener(int connection) {
    char byte = 0;
    struct iovec part = {&byte, 1};
    union {
        char space[CMSG_SPACE(sizeof(int))];
        struct cmsghdr header;
    } control = {0};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control};
    struct cmsghdr *beside = CMSG_FIRSTHDR(&message);
    beside->cmsg_level = SOL_SOCKET;
    beside->cmsg_type = SCM_RIGHTS;
    beside->cmsg_len = CMSG_LEN(sizeof listener);
    memcpy(CMSG_DATA(beside), &listener, sizeof listener);
    if (sendmsg(connection, &message, 0) != 1) _exit(1);
}

#define DO(NAME, CALL)                     \
    do {                                   \
        step_names[seen->step] = NAME;     \
        step_results[seen->step] = (CALL); \
        seen->step++;                      \
    } while (0)
#define F(name, ...) ((int (*)(__VA_ARGS__))dlsym(library, #name))

static void *loaded(const char *path) {
    void *found = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (found == NULL) fprintf(stderr, "%s\n", dlerror());
    return found;
}

/* As a session does before its filter (driver_warm). */
static void warm(void *library) {
    static const char empty[] =
        ".version 6.0\n.target sm_50\n.address_size 64\n.visible .entry egpu_warm() { ret; }\n";
    void *context = NULL, *module = NULL;
    if (F(cuDevicePrimaryCtxRetain, void **, int)(&context, 0) != 0) return;
    F(cuCtxPushCurrent_v2, void *)(context);
    if (F(cuModuleLoadData, void **, const void *)(&module, empty) == 0)
        F(cuModuleUnload, void *)(module);
    F(cuCtxPopCurrent_v2, void **)(&context);
    F(cuDevicePrimaryCtxRelease_v2, int)(0);
}

int main(int count_arguments, char **arguments) {
    typedef unsigned long long P;
    void *library, *context = NULL, *module = NULL, *function = NULL, *stream = NULL, *host = NULL;
    struct rlimit files = {65536, 65536};
    int pair[2];
    seen = mmap(NULL, sizeof *seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (seen == MAP_FAILED || socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) return 1;
    if (fork() == 0) answer_calls(pair[1]); /* before there is anything of CUDA */
    library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (library == NULL) return printf("{\"ok\": false, \"error\": \"%s\"}\n", dlerror()), 1;
    setrlimit(RLIMIT_NOFILE, &files);
    int result = F(cuInit, unsigned)(0), count = 0;
    if (result != 0)
        return printf("{\"ok\": false, \"call\": \"cuInit\", \"error\": %d}\n", result), 1;
    F(cuDeviceGetCount, int *)(&count);
    warm(library);
    if (!sandbox_enter())
        return printf("{\"ok\": false, \"call\": \"seccomp\", \"error\": \"%s\"}\n",
                      strerror(errno)),
               1;
    pass_listener(pair[0]);
    static char bytes[1 << 20];
    P a = 0, b = 0, c = 0;
    size_t mib = 1 << 20;
    const char *ptx =
        ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry k(.param .u64 out)\n{\n"
        ".reg .b64 %p; .reg .b32 %v;\nld.param.u64 %p, [out]; mov.u32 %v, 42;\n"
        "st.global.u32 [%p], %v;\nret;\n}\n";
    DO("cuDevicePrimaryCtxRetain", F(cuDevicePrimaryCtxRetain, void **, int)(&context, 0));
    DO("cuCtxSetCurrent", F(cuCtxSetCurrent, void *)(context));
    DO("cuMemAlloc 1 MiB", F(cuMemAlloc_v2, P *, size_t)(&a, mib));
    DO("cuMemAlloc 1 GiB", F(cuMemAlloc_v2, P *, size_t)(&b, 1024 * mib));
    DO("cuModuleLoadData of PTX", F(cuModuleLoadData, void **, const void *)(&module, ptx));
    DO("cuModuleGetFunction", module == NULL ? 1
                                             : F(cuModuleGetFunction, void **, void *,
                                                 const char *)(&function, module, "k"));
    DO("cuStreamCreate", F(cuStreamCreate, void **, unsigned)(&stream, 1));
    void *parameters[] = {&a};
    DO("cuLaunchKernel", function == NULL
                             ? 1
                             : F(cuLaunchKernel, void *, unsigned, unsigned, unsigned, unsigned,
                                 unsigned, unsigned, unsigned, void *, void **,
                                 void **)(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
    DO("cuStreamSynchronize", F(cuStreamSynchronize, void *)(stream));
    uint32_t value = 0;
    DO("cuMemcpyDtoH", F(cuMemcpyDtoH_v2, void *, P, size_t)(&value, a, 4));
    DO("cuMemcpyHtoD pageable", F(cuMemcpyHtoD_v2, P, const void *, size_t)(a, bytes, mib));
    DO("cuMemHostAlloc", F(cuMemHostAlloc, void **, size_t, unsigned)(&host, 64 * mib, 0));
    DO("cuMemHostRegister", F(cuMemHostRegister_v2, void *, size_t, unsigned)(bytes, mib, 3));
    DO("cuMemAllocAsync", F(cuMemAllocAsync, P *, size_t, void *)(&c, mib, stream));
    DO("cuMemFreeAsync", F(cuMemFreeAsync, P, void *)(c, stream));
    DO("cuMemHostUnregister", F(cuMemHostUnregister, void *)(bytes));
    DO("cuMemFreeHost", F(cuMemFreeHost, void *)(host));
    if (count_arguments > 1) {
        void *driver = library, *handle = NULL, *again = NULL;
        DO("dlopen cuBLAS", (again = loaded(arguments[1])) == NULL);
        if (again != NULL) {
            library = again;
            float one = 1, nought = 0;
            DO("cublasCreate", F(cublasCreate_v2, void **)(&handle));
            DO("cublasSgemm", handle == NULL ? 1
                                             : F(cublasSgemm_v2, void *, int, int, int, int, int,
                                                 const float *, P, int, P, int, const float *, P,
                                                 int)(handle, 0, 0, 256, 256, 256, &one, b, 256,
                                                      b + mib, 256, &nought, b + 2 * mib, 256));
            library = driver;
            DO("cuCtxSynchronize", F(cuCtxSynchronize, void)());
        }
        if (count_arguments > 2) {
            void *dnn = NULL;
            DO("dlopen cuDNN", (again = loaded(arguments[2])) == NULL);
            if (again != NULL) {
                library = again;
                DO("cudnnCreate", F(cudnnCreate, void **)(&dnn));
                void *x = NULL, *w = NULL, *k = NULL, *y = NULL;
                float one = 1, nought = 0;
                int failed = dnn == NULL || F(cudnnCreateTensorDescriptor, void **)(&x) ||
                             F(cudnnCreateTensorDescriptor, void **)(&y) ||
                             F(cudnnCreateFilterDescriptor, void **)(&w) ||
                             F(cudnnCreateConvolutionDescriptor, void **)(&k) ||
                             F(cudnnSetTensor4dDescriptor, void *, int, int, int, int, int,
                               int)(x, 0, 0, 1, 8, 32, 32) ||
                             F(cudnnSetTensor4dDescriptor, void *, int, int, int, int, int,
                               int)(y, 0, 0, 1, 8, 32, 32) ||
                             F(cudnnSetFilter4dDescriptor, void *, int, int, int, int, int,
                               int)(w, 0, 0, 8, 8, 3, 3) ||
                             F(cudnnSetConvolution2dDescriptor, void *, int, int, int, int, int,
                               int, int, int)(k, 1, 1, 1, 1, 1, 1, 1, 0);
                DO("cuDNN descriptors", failed);
                if (!failed)
                    DO("cudnnConvolutionForward",
                       F(cudnnConvolutionForward, void *, const float *, void *, P, void *, P,
                         void *, int, P, size_t, const float *, void *,
                         P)(dnn, &one, x, b, w, b + mib, k, 1 /* implicit, precomputed */,
                            b + 64 * mib, 64 * mib, &nought, y, b + 2 * mib));
                library = driver;
                DO("cuCtxSynchronize after cuDNN", F(cuCtxSynchronize, void)());
            }
        }
        library = driver;
    }
    DO("cuModuleUnload", module == NULL ? 1 : F(cuModuleUnload, void *)(module));
    DO("cuMemFree", F(cuMemFree_v2, P)(b));
    DO("cuDevicePrimaryCtxRelease", F(cuDevicePrimaryCtxRelease_v2, int)(0));
    int steps = seen->step, good = value == 42;
    printf("{\"devices\": %d, \"answer\": %u, \"steps\": [", count, value);
    for (int i = 0; i < steps; i++) {
        good &= step_results[i] == 0;
        printf("%s{\"call\": \"%s\", \"result\": %d, \"refused\": {", i ? ", " : "", step_names[i],
               step_results[i]);
        for (int j = 0, first = 1; j < CALLS; j++)
            if (seen->refused[i][j])
                first = (printf("%s\"%d\": %d", first ? "" : ", ", j, seen->refused[i][j]), 0);
        printf("}}");
    }
    printf("], \"ok\": %s}\n", good ? "true" : "false");
    fflush(stdout);
    _exit(0);
}
