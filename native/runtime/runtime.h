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

#pragma GCC visibility pop

#endif
