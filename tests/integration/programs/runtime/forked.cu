#include "check.h"
#include <sys/wait.h>
#include <unistd.h>
int main() {
    int *d, status;
    OK(cudaMalloc(&d, 64));
    pid_t child = fork();
    if (child == 0) _exit(cudaMalloc(&d, 64) == cudaErrorInitializationError ? 0 : 1);
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    OK(cudaFree(d));
    return 0;
}
