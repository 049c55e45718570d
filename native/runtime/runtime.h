/* What the modules of the runtime know of each other. */
#ifndef EGPU_RUNTIME_H
#define EGPU_RUNTIME_H

#include <cuda_runtime_api.h>

#include "driver.h"

#pragma GCC visibility push(hidden)

/* Devices that one process can have; more than any machine. */
enum { RUNTIME_DEVICES = 64 };

/* The primary context of a device, retained at the first call. */
cudaError_t runtime_primary(int device, CUcontext *context);
/* The context that the thread's calls are made in. */
cudaError_t runtime_current(CUcontext *context);

/* Nothing that went wrong before is reported again: the device was reset. */
void runtime_forget_errors(void);

/* The kernel that a host function stands for, loaded at the first call. `entry` may be a kernel's
 * handle itself. */
cudaError_t runtime_kernel(const void *entry, CUkernel *kernel);
/* Why the last binary that could not be loaded could not. */
cudaError_t runtime_load_failure(void);
/* The same as a function of the thread's context. */
cudaError_t runtime_function(const void *entry, CUfunction *function);
/* Where the variable that a host variable stands for is, and how many bytes it has. */
cudaError_t runtime_variable(const void *symbol, CUdeviceptr *address, size_t *bytes);
/* The address of a part of it. */
cudaError_t runtime_part_of(const void *symbol, size_t offset, size_t bytes, void **address);
/* The host function that stands for a kernel, given as either; the handle itself if none does. */
void *runtime_host(CUfunction function, CUkernel kernel);

/* What a copy is to the driver. */
int runtime_is_kind(enum cudaMemcpyKind kind);
CUmemorytype runtime_source_type(enum cudaMemcpyKind kind);
CUmemorytype runtime_target_type(enum cudaMemcpyKind kind);
cudaError_t runtime_volume(const struct cudaMemcpy3DParms *asked, CUDA_MEMCPY3D *copy);
/* The other way: as a program would have asked for it. */
struct cudaMemcpy3DParms runtime_volume_asked(const CUDA_MEMCPY3D *copy);

#pragma GCC visibility pop

#endif
