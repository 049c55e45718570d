/* For files that are compiled twice: with CUDA_API_PER_THREAD_DEFAULT_STREAM the header renames the
 * functions, and the default stream is the calling thread's. */
#ifndef EGPU_RUNTIME_DEFAULT_STREAM_H
#define EGPU_RUNTIME_DEFAULT_STREAM_H

#include "runtime.h"

#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
#define STREAM(stream) ((CUstream)stream_of(stream))
/* Waiting for the thread's stream waits for nothing else. */
static inline CUresult waited(CUresult result) {
    return result == CUDA_SUCCESS ? driver.cuStreamSynchronize(CU_STREAM_PER_THREAD) : result;
}
#define SYNCHRONOUS(function, ...) waited(driver.function##Async(__VA_ARGS__, CU_STREAM_PER_THREAD))
#else
#define STREAM(stream) (stream)
#define SYNCHRONOUS(function, ...) driver.function(__VA_ARGS__)
#endif

#endif
