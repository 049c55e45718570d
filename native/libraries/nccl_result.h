/* Texts for NCCL's results. Source: nccl.h. */
#ifndef EGPU_LIBRARIES_NCCL_RESULT_H
#define EGPU_LIBRARIES_NCCL_RESULT_H

static inline const char *nccl_result_text(int result) {
    switch (result) {
    case 0: return "no error";
    case 1: return "a CUDA call failed";
    case 2: return "a system call failed, or the library is missing";
    case 3: return "internal error";
    case 4: return "invalid argument";
    case 5: return "invalid usage, or not supported";
    case 6: return "another rank was lost, or failed";
    case 7: return "in progress";
    case 8: return "other ranks did not join in time";
    default: return "unknown result";
    }
}

#endif
