/* This process as a client of an MPS server: its share of each card, and the faults that it shares
 * with the other clients.
 *
 * Time stands for multiprocessors: a client with 30 % of them takes the whole card for 0.3 of a
 * kernel's duration and leaves it to others for the rest. So clients whose shares add up to one
 * card do not slow each other down, as on real hardware.
 */
#include "engine.h"

#include "mps/protocol.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static struct {
    int fd;      /* to the server; -1: not a client */
    double part; /* share of each card's multiprocessors, above 0 and at most 1 */
    uint32_t chunks[SIM_MAX_CARDS];
    _Atomic int fault; /* CUresult; never cleared */
    pthread_mutex_t lane;
} client = {.fd = -1, .part = 1, .lane = PTHREAD_MUTEX_INITIALIZER};

/* A client's own settings can only reduce its share. */
static double part_of(float percentage) {
    const char *own = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
    double wanted = own ? strtod(own, NULL) : 0;
    return (wanted > 0 && wanted < (double)percentage ? wanted : (double)percentage) / 100;
}

static void hold_to(const struct mps_message *welcome) {
    const char *own = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
    client.part = part_of(welcome->percentage);
    for (int i = 0; i < SIM_MAX_CARDS; i++) client.chunks[i] = UINT32_MAX;
    for (int i = 0; i < engine.device_count; i++) {
        uint64_t bytes = mps_limit_of(own, i);
        if (bytes > welcome->limit_bytes[i]) bytes = welcome->limit_bytes[i];
        const struct sim_card *board = machine_board_of(&engine.machine, engine.devices[i].card);
        if (bytes >> SIM_CHUNK_SHIFT < UINT32_MAX)
            client.chunks[board->index] = (uint32_t)(bytes >> SIM_CHUNK_SHIFT);
    }
    engine.machine.server = welcome->server;
    engine.machine.own_limits = client.chunks;
}

CUresult mps_join(void) {
    const char *directory = getenv(MPS_PIPE_DIRECTORY);
    struct mps_message message = {.kind = MPS_JOIN};
    if (!directory || !*directory) return CUDA_SUCCESS;
    client.fd = mps_connect(directory, MPS_SOCKET);
    if (client.fd < 0 && errno == ENOENT) {
        if (engine_verbose()) engine_say("no MPS daemon in %s; continues without", directory);
        return CUDA_SUCCESS;
    }
    if (client.fd < 0) return CUDA_ERROR_MPS_CONNECTION_FAILED;
    bool heard = mps_send(client.fd, &message) && mps_receive(client.fd, &message, 0);
    CUresult result = heard ? (CUresult)message.result : CUDA_ERROR_MPS_CONNECTION_FAILED;
    if (result == CUDA_SUCCESS)
        hold_to(&message);
    else
        mps_leave();
    return result;
}

void mps_leave(void) {
    if (client.fd >= 0) close(client.fd);
    client.fd = -1;
}

uint32_t mps_sm_count(const struct sim_card *card) {
    return (uint32_t)ceil(card->sm_count * client.part);
}

static bool is_fault(CUresult error) {
    return error >= CUDA_ERROR_ILLEGAL_ADDRESS && error <= CUDA_ERROR_LAUNCH_FAILED;
}

void mps_report(CUresult error) {
    struct mps_message news = {.kind = MPS_FAULT, .result = error};
    int none = CUDA_SUCCESS;
    if (client.fd >= 0 && is_fault(error) &&
        atomic_compare_exchange_strong(&client.fault, &none, (int)error))
        mps_send(client.fd, &news);
}

CUresult mps_look(void) {
    struct mps_message news;
    int fault = atomic_load_explicit(&client.fault, memory_order_relaxed);
    if (fault != CUDA_SUCCESS || client.fd < 0) return (CUresult)fault;
    if (mps_receive(client.fd, &news, MSG_DONTWAIT))
        fault = news.result;
    else if (errno != EAGAIN)
        fault = CUDA_ERROR_MPS_RPC_FAILURE;
    if (fault != CUDA_SUCCESS) atomic_store(&client.fault, fault);
    return (CUresult)fault;
}

uint64_t mps_of_card(uint64_t ns) {
    uint64_t part = (uint64_t)((double)ns * client.part);
    return part ? part : 1;
}

void mps_begin(void) {
    if (client.fd >= 0) pthread_mutex_lock(&client.lane);
}

uint64_t mps_end(struct sim_card *card, uint64_t start_ns, uint64_t duration_ns) {
    if (client.fd < 0) return start_ns + duration_ns;
    uint64_t end = start_ns + (uint64_t)((double)duration_ns / client.part);
    if (sim_now() < end) {
        machine_count_runnable(&engine.machine, card, -1);
        sim_sleep_until(end);
        machine_count_runnable(&engine.machine, card, 1);
    }
    pthread_mutex_unlock(&client.lane);
    return end;
}
