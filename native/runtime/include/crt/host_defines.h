/* The part of this file, which NVIDIA ships only with the compiler, that the runtime's public
 * headers need: their annotations, for a C compiler that knows none of them. */
#ifndef EGPU_RUNTIME_HOST_DEFINES_H
#define EGPU_RUNTIME_HOST_DEFINES_H

#define __host__
#define __device__
#define __global__
#define __cudart_builtin__
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define CUDARTAPI
#define CUDARTAPI_CDECL
#define CUDA_CB
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __builtin_align__(bytes) __attribute__((aligned(bytes)))
#define __dv(value)

#endif
