/* Declarations shared by the modules of the runtime. */
#ifndef EGPU_RUNTIME_H
#define EGPU_RUNTIME_H

#include <cuda_runtime_api.h>

#include "driver.h"

#pragma GCC visibility push(hidden)

/* Maximum devices of a process; more than any machine has. */
enum { RUNTIME_DEVICES = 64 };

/* Return the primary context of a device, retained at the first call. */
cudaError_t runtime_primary(int device, CUcontext *context);
/* Return the context for the thread's calls. */
cudaError_t runtime_current(CUcontext *context);

/* Earlier errors are not reported again: the device was reset. */
void runtime_forget_errors(void);

/* Return the kernel of a host function, loaded at the first call. `entry` may also be a kernel's
 * handle. */
cudaError_t runtime_kernel(const void *entry, CUkernel *kernel);
/* Return the error of the last binary that failed to load. */
cudaError_t runtime_load_failure(void);
/* The same as a function of the thread's context. */
cudaError_t runtime_function(const void *entry, CUfunction *function);
/* Return the address and the size of the device variable behind a host variable. */
cudaError_t runtime_variable(const void *symbol, CUdeviceptr *address, size_t *bytes);
/* Return the address of a part of it. */
cudaError_t runtime_part_of(const void *symbol, size_t offset, size_t bytes, void **address);
/* The same for one copy, after which runtime_variable_end follows if it succeeded. */
cudaError_t runtime_variable_begin(const void *symbol, size_t offset, size_t bytes, void **address);
void runtime_variable_end(const void *symbol);
/* Return the host function of a kernel, given as either; the handle itself if there is none. */
void *runtime_host(CUfunction function, CUkernel kernel);

/* Return the runtime's error for the result of a call with a kernel. It has an error of its own for
 * what is no kernel. */
cudaError_t runtime_used(CUresult result, CUkernel kernel);
/* The same for a launch. It has one more, for a configuration that is impossible on this device. */
cudaError_t runtime_launched(CUresult result, CUkernel kernel, dim3 grid, dim3 block,
                             size_t shared);

/* Translate a copy for the driver. */
int runtime_is_kind(enum cudaMemcpyKind kind);
/* Return whether rows of this width may have this pitch: no device has a larger one than INT_MAX.
 */
int runtime_is_pitch(size_t pitch, size_t width);
CUmemorytype runtime_source_type(enum cudaMemcpyKind kind);
CUmemorytype runtime_target_type(enum cudaMemcpyKind kind);
cudaError_t runtime_volume(const struct cudaMemcpy3DParms *asked, CUDA_MEMCPY3D *copy);
/* And back: as a program would have requested it. */
struct cudaMemcpy3DParms runtime_volume_asked(const CUDA_MEMCPY3D *copy);

#pragma GCC visibility pop

#endif
