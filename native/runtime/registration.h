/* The functions that nvcc's output calls, as declared in the compiler's crt/host_runtime.h and
 * crt/device_functions.h. */
#ifndef EGPU_RUNTIME_REGISTRATION_H
#define EGPU_RUNTIME_REGISTRATION_H

#include "runtime.h"

API void **__cudaRegisterFatBinary(void *wrapped);
API void __cudaRegisterFatBinaryEnd(void **handle);
API void __cudaUnregisterFatBinary(void **handle);
API char __cudaInitModule(void **handle);
API void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name,
                                int thread_limit, void *thread, void *block, void *block_dim,
                                void *grid_dim, int *warp_size);
API void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int external,
                           size_t bytes, int constant, int global);
API void __cudaRegisterManagedVar(void **handle, void **host, char *device, const char *name,
                                  int external, size_t bytes, int constant, int global);

API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream);
API cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream);
API cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host);
API cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments,
                                   size_t shared, cudaStream_t stream);
API cudaError_t __cudaLaunchKernel_ptsz(cudaKernel_t kernel, dim3 grid, dim3 block,
                                        void **arguments, size_t shared, cudaStream_t stream);

#endif
