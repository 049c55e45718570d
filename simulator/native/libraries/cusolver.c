/* The interface of cuSOLVER: its handles and other objects. */
#include "cusolver.h"
#include "handles.h"

/* ---- problems ---- */

/* In a capture queued work may outlive the program's memory. */
static bool is_capturing(CUstream stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    return cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS &&
           status != CU_STREAM_CAPTURE_STATUS_NONE;
}

int solve(struct handle *handle, struct lent lent, struct problem problem) {
    if (handle == NULL) return NOT_INITIALIZED;
    int64_t m = most(problem.m, problem.a.rows), n = most(problem.n, problem.a.columns);
    int64_t bytes = to_lend(m, n) * (int64_t)type_bytes(problem.a.type);
    if (lent.needed && m > 0 && n > 0 && problem.method != NULL) {
        if (lent.measured && lent.bytes < bytes) return INVALID;
        if (!on_card(lent.at, bytes)) return FAILED;
    }
    if (problem.tells != NULL && is_capturing(handle->stream)) problem.tells = NULL;
    switch (queue_problem(handle->stream, &problem)) {
    case QUEUED: return OK;
    case BAD_VALUE: return INVALID;
    case NO_ROOM: return NO_MEMORY;
    default: return FAILED;
    }
}

int tell_room(struct handle *handle, int64_t m, int64_t n, int64_t pitch, int *elements) {
    if (handle == NULL) return NOT_INITIALIZED;
    if (m < 0 || n < 0 || pitch < most(m, 1) || elements == NULL || to_lend(m, n) > INT32_MAX)
        return INVALID;
    *elements = (int)to_lend(m, n);
    return OK;
}

/* ---- handles ---- */

API int cusolverDnCreate(struct handle **out) {
    if (out == NULL) return INVALID;
    if (!open_context()) return NOT_INITIALIZED;
    *out = calloc(1, sizeof **out);
    return *out == NULL ? NO_MEMORY : OK;
}

API int cusolverDnDestroy(struct handle *handle) {
    if (handle == NULL) return NOT_INITIALIZED;
    free(handle);
    return OK;
}

SETS(cusolverDnSetStream, CUstream, stream)
GETS(cusolverDnGetStream, CUstream, stream)
SETS(cusolverDnSetDeterministicMode, int, deterministic) /* results always are */
GETS(cusolverDnGetDeterministicMode, int, deterministic)
SETS(cusolverDnSetMathMode, int, math_mode)
GETS(cusolverDnGetMathMode, int, math_mode)

API int cusolverGetVersion(int *version) {
    if (version == NULL) return INVALID;
    static const int parts[] = {VERSION};
    *version = parts[0] * 1000 + parts[1] * 100 + parts[2];
    return OK;
}

/* ---- parameters ---- */

struct params {
    int algorithms[2]; /* by cusolverDnFunction_t; each has one algorithm here */
};

API int cusolverDnCreateParams(struct params **out) {
    if (out == NULL) return INVALID;
    *out = calloc(1, sizeof **out);
    return *out == NULL ? NO_MEMORY : OK;
}

API int cusolverDnDestroyParams(struct params *params) {
    free(params);
    return OK;
}

API int cusolverDnSetAdvOptions(struct params *params, int function, int algorithm) {
    if (params == NULL || function < 0 || function > 1 || algorithm < 0 || algorithm > 2)
        return INVALID;
    params->algorithms[function] = algorithm;
    return OK;
}

/* ---- parameters of Jacobi's methods ---- */

static int create_jacobi(struct jacobi **out) {
    if (out == NULL) return INVALID;
    *out = calloc(1, sizeof **out);
    if (*out == NULL) return NO_MEMORY;
    (*out)->most_sweeps = JACOBI_SWEEPS;
    return OK;
}

/* Queued work may still write into it. */
static int destroy_jacobi(struct jacobi *jacobi) {
    if (jacobi == NULL) return INVALID;
    cuCtxSynchronize();
    free(jacobi);
    return OK;
}

/* Return whether the last problem's result can be queried, after it is solved. */
static int ask_of(struct handle *handle, const struct jacobi *jacobi, const void *out) {
    if (handle == NULL) return NOT_INITIALIZED;
    if (jacobi == NULL || out == NULL) return INVALID;
    if (jacobi->batch) return NOT_SUPPORTED;
    return cuStreamSynchronize(handle->stream) == CUDA_SUCCESS ? OK : FAILED;
}

#define JACOBI(method, Method)                                                                    \
    API int cusolverDnCreate##Method##Info(struct jacobi **out) { return create_jacobi(out); }    \
    API int cusolverDnDestroy##Method##Info(struct jacobi *info) { return destroy_jacobi(info); } \
    API int cusolverDnX##method##SetTolerance(struct jacobi *info, double tolerance) {            \
        if (info == NULL) return INVALID;                                                         \
        info->tolerance = tolerance;                                                              \
        return OK;                                                                                \
    }                                                                                             \
    API int cusolverDnX##method##SetMaxSweeps(struct jacobi *info, int sweeps) {                  \
        if (info == NULL || sweeps < 0) return INVALID;                                           \
        info->most_sweeps = sweeps;                                                               \
        return OK;                                                                                \
    }                                                                                             \
    /* Values are always sorted, which also suits callers that do not ask for it. */              \
    API int cusolverDnX##method##SetSortEig(struct jacobi *info, int sorted) {                    \
        return info == NULL || sorted < 0 || sorted > 1 ? INVALID : OK;                           \
    }                                                                                             \
    API int cusolverDnX##method##GetResidual(struct handle *handle, const struct jacobi *info,    \
                                             double *residual) {                                  \
        int status = ask_of(handle, info, residual);                                              \
        if (status == OK) *residual = info->residual;                                             \
        return status;                                                                            \
    }                                                                                             \
    API int cusolverDnX##method##GetSweeps(struct handle *handle, const struct jacobi *info,      \
                                           int *sweeps) {                                         \
        int status = ask_of(handle, info, sweeps);                                                \
        if (status == OK) *sweeps = info->sweeps;                                                 \
        return status;                                                                            \
    }
JACOBI(syevj, Syevj)
JACOBI(gesvdj, Gesvdj)
