/* What kernels print is what the host's printf makes of it, and is there when the host synchronises. */
#include "check.h"
#include <string>
#include <sys/mman.h>
#include <unistd.h>

/* Standard output goes to a file from here on, until it is read. */
struct Caught {
    int file = memfd_create("stdout", 0), before = dup(1);
    Caught() {
        std::fflush(stdout);
        dup2(file, 1);
    }
    ~Caught() {
        std::fflush(stdout);
        dup2(before, 1);
        close(before);
        close(file);
    }
    std::string text() const {
        std::string all(64 << 10, 0);
        const ssize_t got = pread(file, &all[0], all.size(), 0);
        all.resize(got < 0 ? 0 : (size_t)got);
        return all;
    }
};

__global__ void hello(int *returned) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    returned[2 * i] = printf("thread %d of block %d\n", threadIdx.x, blockIdx.x);
    returned[2 * i + 1] = printf("%d%% done, %s\n", 100 * i, i ? "more" : "first");
}
#define ALL(print)                                                                                       \
    print("%d|%i|%u|%x|%X|%o|%c|%s|%5d|%-5d|%05d|%+d|% d|%#x\n", -1, 2, 3u, 255, 255, 8, 'q', "text", 42, 42, 42, \
          42, 42, 255);                                                                                  \
    print("%f|%e|%g|%.2f|%10.3f|%-10.1e|%a|%G|%E\n", 1.5, -2.5e10, 0.1, 3.14159, 2.5, 7.25, 1.0, 1e-9, 2.0);    \
    print("%ld|%lld|%lu|%llx|%hd|%hhu|%*d|%-*d|%.3s|%8s|%-8s|%p\n", -1l, -5000000000ll, 7ul, 1ull << 40,  \
          70000, 300, 6, 9, 6, 9, "abcdef", "ab", "ab", (void *)0x1234)
__global__ void all_kinds() { ALL(printf); }
__global__ void many(int n) {
    for (int i = 0; i < n; i++) printf("line %04d %s\n", i, "of many, which are more than there is room for");
}
__global__ void say(const char *what) { printf("%s\n", what); }

static std::string on_the_host() {
    Caught caught;
    ALL(std::printf);
    std::fflush(stdout);
    return caught.text();
}

static size_t lines(const std::string &text, const char *with) {
    size_t count = 0;
    for (size_t at = 0; (at = text.find(with, at)) != std::string::npos; at++) count++;
    return count;
}

template <typename Until> static void shown(const char *what, Until until) {
    char *word;
    OK(cudaMalloc(&word, 64));
    OK(cudaMemcpy(word, what, std::strlen(what) + 1, cudaMemcpyHostToDevice));
    Caught caught;
    say<<<1, 1>>>(word);
    until();
    CHECK(caught.text() == what + std::string("\n"));
}

int main() {
    size_t room = 0;
    OK(cudaDeviceGetLimit(&room, cudaLimitPrintfFifoSize));
    CHECK(room == 1 << 20);
    OK(cudaDeviceSetLimit(cudaLimitPrintfFifoSize, 16384));
    int *returned, host[16];
    OK(cudaMalloc(&returned, sizeof host));
    {
        Caught caught;
        std::printf("before\n");
        hello<<<2, 4>>>(returned);
        OK(cudaDeviceSynchronize());
        std::printf("after\n");
        std::fflush(stdout);
        const std::string text = caught.text();
        CHECK(text.find("before\n") == 0 && text.rfind("after\n") == text.size() - 6);
        CHECK(lines(text, "\n") == 18);
        CHECK(lines(text, "thread 3 of block 1\n") == 1 && lines(text, "700% done, more\n") == 1);
        CHECK(text.find("thread 0 of block 0\n") < text.find("0% done, first\n")); /* a thread's own order */
    }
    OK(cudaMemcpy(host, returned, sizeof host, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 8; i++) CHECK(host[2 * i] == 2 && host[2 * i + 1] == 2);
    FAILS(cudaErrorInvalidValue, cudaDeviceSetLimit(cudaLimitPrintfFifoSize, 1 << 20)); /* it is in use */
    {
        Caught caught;
        all_kinds<<<1, 1>>>();
        OK(cudaDeviceSynchronize());
        CHECK(caught.text() == on_the_host());
    }
    {
        Caught caught; /* the oldest are lost, and what is there begins with a whole line */
        many<<<1, 1>>>(1000);
        OK(cudaDeviceSynchronize());
        const std::string text = caught.text();
        CHECK(text.size() > 8192 && text.size() <= 16384);
        CHECK(text.find("line ") == 0 && lines(text, "line 0999 ") == 1 && lines(text, "line 0000 ") == 0);
    }
    cudaStream_t stream;
    cudaEvent_t event;
    OK(cudaStreamCreate(&stream));
    OK(cudaEventCreate(&event));
    shown("stream", [=] { OK(cudaStreamSynchronize(nullptr)); });
    shown("event", [=] {
        OK(cudaEventRecord(event));
        OK(cudaEventSynchronize(event));
    });
    shown("copy", [=] { OK(cudaMemcpy(const_cast<int *>(host), returned, 4, cudaMemcpyDeviceToHost)); });
    shown("reset", [] { OK(cudaDeviceReset()); });
    return 0;
}
