/* Address ranges that a program maps memory into. They are reserved in this process as those of
 * allocations are, and found in the same way when they are freed. */
#include "client.h"

#define ATTEMPTS 16
#define STEP ((size_t)2 << 20)

struct range {
    struct range *next;
    struct link *link;
    uint64_t base, bytes;
    bool taken;
};

static struct range *ranges;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static bool keep(struct link *link, uint64_t base, uint64_t bytes, bool taken) {
    struct range *range = malloc(sizeof *range);
    if (range == NULL) return false;
    pthread_mutex_lock(&lock);
    *range = (struct range){ranges, link, base, bytes, taken};
    ranges = range;
    pthread_mutex_unlock(&lock);
    return true;
}

static void forget(const struct link *link, uint64_t base) {
    pthread_mutex_lock(&lock);
    struct range **at = &ranges;
    while (*at != NULL && ((*at)->base != base || (*at)->link != link)) at = &(*at)->next;
    struct range *gone = *at;
    if (gone != NULL) *at = gone->next;
    pthread_mutex_unlock(&lock);
    if (gone != NULL && gone->taken) addresses_give(gone->base, gone->bytes);
    free(gone);
}

/* If the addresses are occupied here, the server reserves more, to get to another place. This costs
 * no memory, so each reservation is twice as large. The last one is returned if none is free. */
API CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t bytes, size_t alignment,
                                 CUdeviceptr wish, unsigned long long flags) {
    struct {
        CUdeviceptr base;
        size_t bytes;
    } refused[2 * ATTEMPTS];
    unsigned count = 0;
    enum addresses where = ADDRESSES_UNKNOWN;
    struct link *link;
    CUresult result = context_needed(&link);
    if (result != CUDA_SUCCESS) return result;
    for (unsigned attempt = 0; attempt < ATTEMPTS; attempt++) {
        result = forward_cuMemAddressReserve(pointer, bytes, alignment, wish, flags);
        if (result != CUDA_SUCCESS || pointer == NULL) break;
        where = addresses_take(link->index, *pointer, bytes);
        if (where != ADDRESSES_OF_OTHERS || attempt + 1 == ATTEMPTS) break;
        refused[count].base = *pointer;
        refused[count++].bytes = bytes;
        refused[count].bytes = STEP << attempt;
        if (forward_cuMemAddressReserve(&refused[count].base, refused[count].bytes, 0, 0, 0) ==
            CUDA_SUCCESS)
            count++;
        wish = 0;
    }
    while (count-- != 0) forward_cuMemAddressFree(refused[count].base, refused[count].bytes);
    if (result != CUDA_SUCCESS || pointer == NULL) return result;
    if (!keep(link, *pointer, bytes, where == ADDRESSES_TAKEN)) {
        if (where == ADDRESSES_TAKEN) addresses_give(*pointer, bytes);
        forward_cuMemAddressFree(*pointer, bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_SUCCESS;
}

API CUresult cuMemAddressFree(CUdeviceptr pointer, size_t bytes) {
    struct link *link;
    CUresult result = context_needed(&link);
    if (result == CUDA_SUCCESS) result = forward_cuMemAddressFree(pointer, bytes);
    if (result == CUDA_SUCCESS) forget(link, pointer);
    return result;
}
