/* Facts that follow from a library's own constants: the size of a scalar and where it is. Source:
 * the public headers library_types.h, cublas_api.h, cublasLt.h and nccl.h. */
#ifndef EGPU_WIRE_SCALARS_H
#define EGPU_WIRE_SCALARS_H

#include <stdbool.h>
#include <stddef.h>

/* Return whether a scalar is in host memory. Mode 0: all are; 4 (cuBLASLt): the last one, beta. */
static inline bool scalar_on_host(int mode, bool last) { return mode == 0 || (mode == 4 && last); }

/* Return the bytes of one element of a cudaDataType; 16, the maximum, if it is not listed. */
static inline size_t type_bytes(int type) {
    switch (type) {
    case 3:  /* CUDA_R_8I */
    case 8:  /* CUDA_R_8U */
    case 28: /* CUDA_R_8F_E4M3 */
    case 29: /* CUDA_R_8F_E5M2 */ return 1;
    case 2:  /* CUDA_R_16F */
    case 14: /* CUDA_R_16BF */
    case 7: /* CUDA_C_8I */ return 2;
    case 0:  /* CUDA_R_32F */
    case 10: /* CUDA_R_32I */
    case 12: /* CUDA_R_32U */
    case 6:  /* CUDA_C_16F */
    case 15: /* CUDA_C_16BF */ return 4;
    case 1:  /* CUDA_R_64F */
    case 4:  /* CUDA_C_32F */
    case 11: /* CUDA_C_32I */
    case 24: /* CUDA_R_64I */ return 8;
    default: return 16;
    }
}

/* Return the bytes of one element of an ncclDataType_t; the maximum for an unknown type. */
static inline size_t nccl_bytes(int type) {
    switch (type) {
    case 0:  /* ncclInt8 */
    case 1:  /* ncclUint8 */
    case 10: /* ncclFloat8e4m3 */
    case 11: /* ncclFloat8e5m2 */ return 1;
    case 6: /* ncclFloat16 */
    case 9: /* ncclBfloat16 */ return 2;
    case 2: /* ncclInt32 */
    case 3: /* ncclUint32 */
    case 7: /* ncclFloat32 */ return 4;
    default: return 8;
    }
}

/* Return the bytes of alpha and beta for a product computed as `compute` (cublasComputeType_t) into
 * elements of `type`. */
static inline size_t scale_bytes(int compute, int type) {
    bool complex = type == 4 || type == 5;
    switch (compute) {
    case 64: /* CUBLAS_COMPUTE_16F */
    case 65: return 2;
    case 70: /* CUBLAS_COMPUTE_64F */
    case 71:
    case 79: return complex ? 16 : 8;
    default: return complex ? 8 : 4;
    }
}

#endif
