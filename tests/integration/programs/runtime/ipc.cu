#include "check.h"
#include <sys/wait.h>
#include <unistd.h>
struct shared {
    cudaError_t error;
    cudaIpcMemHandle_t memory;
    cudaIpcEventHandle_t event;
};
static int child(int from) {
    shared got;
    CHECK(read(from, &got, sizeof got) == sizeof got);
    if (got.error == cudaErrorNotSupported) return 0; /* over a network two processes share nothing */
    int *d, h[16];
    cudaEvent_t event;
    OK(cudaIpcOpenMemHandle((void **)&d, got.memory, cudaIpcMemLazyEnablePeerAccess));
    OK(cudaIpcOpenEventHandle(&event, got.event));
    OK(cudaEventSynchronize(event));
    OK(cudaMemcpy(h, d, sizeof h, cudaMemcpyDeviceToHost));
    for (int x : h) CHECK(x == 0x07070707);
    OK(cudaIpcCloseMemHandle(d));
    return 0;
}
int main() {
    int ends[2], status;
    CHECK(pipe(ends) == 0);
    pid_t other = fork(); /* before anything of CUDA: each has its own */
    if (other == 0) _exit(child(ends[0]));
    int *d;
    shared given = {};
    cudaEvent_t event;
    OK(cudaMalloc(&d, 1 << 21));
    OK(cudaMemset(d, 7, 64));
    given.error = cudaIpcGetMemHandle(&given.memory, d);
    if (given.error == cudaSuccess) {
        OK(cudaEventCreateWithFlags(&event, cudaEventInterprocess | cudaEventDisableTiming));
        OK(cudaEventRecord(event));
        OK(cudaIpcGetEventHandle(&given.event, event));
    } else {
        CHECK(given.error == cudaErrorNotSupported);
    }
    CHECK(write(ends[1], &given, sizeof given) == sizeof given);
    CHECK(waitpid(other, &status, 0) == other && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return 0;
}
