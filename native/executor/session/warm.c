/* A driver does much once in a process only, at its first context and its first module: it opens
 * sockets and libraries, makes the directory of its code cache. Before the sandbox closes it still
 * may; afterwards it would find out there. One card is enough, for the others have the same driver.
 *
 * A context takes long to make. So this one stays until the program has its own, which is the same
 * one if it is the primary context of the first card. It does not wait for long: a program that
 * never asks for a context does not pay for one.
 */
#define _GNU_SOURCE
#include "executor/moves/moves.h"
#include "executor/session/session.h"

#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

enum { WARM_SECONDS = 5 };

static _Atomic bool warm; /* a reference to the first card's primary context */

static void release(void) {
    if (atomic_exchange(&warm, false)) DRIVER(cuDevicePrimaryCtxRelease_v2, CUdevice)(0);
}

static void *release_later(void *unused) {
    (void)unused;
    sleep(WARM_SECONDS);
    release();
    return NULL;
}

static CUresult load_module(CUcontext context) {
    static const char empty[] = ".version 6.0\n.target sm_50\n.address_size 64\n"
                                ".visible .entry egpu_warm() { ret; }\n";
    CUmodule module;
    CUresult result = DRIVER(cuCtxPushCurrent_v2, CUcontext)(context);
    if (result != CUDA_SUCCESS) return result;
    result = DRIVER(cuModuleLoadDataEx, CUmodule *, const void *, unsigned, CUjit_option *,
                    void **)(&module, empty, 0, NULL, NULL);
    if (result == CUDA_SUCCESS) DRIVER(cuModuleUnload, CUmodule)(module);
    DRIVER(cuCtxPopCurrent_v2, CUcontext *)(&context);
    return result;
}

void driver_warm(void) {
    CUcontext context = NULL;
    CUresult result = DRIVER(cuDevicePrimaryCtxRetain, CUcontext *, CUdevice)(&context, 0);
    if (result == CUDA_SUCCESS) {
        atomic_store(&warm, true);
        result = load_module(context);
        pthread_t later;
        if (result != CUDA_SUCCESS || pthread_create(&later, NULL, release_later, NULL) != 0)
            release();
        else
            pthread_detach(later);
    }
    /* A lease may be full just now: the program is told so when it asks for a context itself. */
    if (result != CUDA_SUCCESS)
        fprintf(stderr, "egpu-executor: the driver is not warm: error %d\n", (int)result);
}

static uint64_t held; /* by card: so that no context is made while a session stands still */

void contexts_hold(uint64_t cards) {
    CUcontext context;
    for (unsigned card = 0; card < WIRE_MAX_DEVICES; card++)
        if (cards >> card & 1 && DRIVER(cuDevicePrimaryCtxRetain, CUcontext *,
                                        CUdevice)(&context, (CUdevice)card) == CUDA_SUCCESS)
            held |= UINT64_C(1) << card;
}

bool contexts_enter(unsigned card) {
    CUcontext context;
    driver_enter(0);
    if (!(held >> card & 1) || DRIVER(cuDevicePrimaryCtxRetain, CUcontext *,
                                      CUdevice)(&context, (CUdevice)card) != CUDA_SUCCESS)
        return false;
    DRIVER(cuDevicePrimaryCtxRelease_v2, CUdevice)((CUdevice)card); /* it is held */
    return DRIVER(cuCtxSetCurrent, CUcontext)(context) == CUDA_SUCCESS;
}

void contexts_give(void) {
    for (unsigned card = 0; card < WIRE_MAX_DEVICES; card++)
        if (held >> card & 1) DRIVER(cuDevicePrimaryCtxRelease_v2, CUdevice)((CUdevice)card);
    held = 0;
}

void driver_cool_before(uint16_t op) {
    switch (op) {
    case OP_cuDevicePrimaryCtxGetState: /* the program has none yet */
    case OP_cuDevicePrimaryCtxReset:
    case OP_cuDevicePrimaryCtxReset_v2:
    case OP_cuDevicePrimaryCtxSetFlags:
    case OP_cuDevicePrimaryCtxSetFlags_v2: release(); break;
    default: break;
    }
}

void driver_cool_after(uint16_t op) {
    switch (op) {
    case OP_cuDevicePrimaryCtxRetain:
    case OP_cuCtxCreate_v2:
    case OP_cuCtxCreate_v3:
    case OP_cuGreenCtxCreate: release(); break;
    default: break;
    }
}
