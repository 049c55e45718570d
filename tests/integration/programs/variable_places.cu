// This program maps memory where the card has a variable, whose address only a kernel has told, and copies by name.
#include <cstdio>
#include <sys/mman.h>

__device__ unsigned initial = 41;
__global__ void tell(unsigned **where, unsigned *value) { *where = &initial, *value = initial; }

int main() {
    unsigned **where, *value, *there, seen = 0, five = 5, now = 0;
    cudaMalloc(&where, 1 << 20); // these share no step of 2 MiB with the variable
    cudaMalloc(&value, 1 << 20);
    tell<<<1, 1>>>(where, value);
    cudaMemcpy(&there, where, sizeof there, cudaMemcpyDeviceToHost);
    char *page = (char *)((unsigned long)there & ~4095ul);
    if (mmap(page, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != page)
        return puts("this program has no memory there"), 1;
    *there = 7;
    cudaMemcpyFromSymbol(&seen, initial, sizeof seen);
    cudaMemcpyToSymbol(initial, &five, sizeof five);
    tell<<<1, 1>>>(where, value);
    cudaMemcpy(&now, value, sizeof now, cudaMemcpyDeviceToHost);
    printf("%u %u %u\n", seen, now, *there);
    return 0;
}
