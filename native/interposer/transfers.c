/* What is put on streams beside launches.
 *
 * Fills and copies within the card use it as kernels do: they wait for the slice's turn and are
 * timed with the launches around them. Copies between host and card run beside kernels, on engines
 * of their own, and waits and host functions use nothing: they are not charged, and the batch that
 * is open on their stream ends before them, or their time would be taken for that of its kernels.
 */
#include "interposer.h"

enum transfer { FILL = 1, COPY };

/* Transfers of about the same size are the same work: by the highest three bits of its bytes. */
static uint64_t transfer_key(enum transfer kind, uint64_t bytes) {
    int low = bytes < 8 ? 0 : 61 - __builtin_clzll(bytes);
    return ((uint64_t)kind << 56 | (uint64_t)low << 48 | bytes >> low) * 0xBF58476D1CE4E5B9ull | 1;
}

/* Of the slice's time. */
#define CHARGED(KIND, BYTES, STREAM, CALL)                                            \
    do {                                                                              \
        struct launch launch;                                                         \
        if (launch_is_free()) return CALL;                                            \
        CUresult result =                                                             \
            launch_begin(&launch, transfer_key((KIND), (uint64_t)(BYTES)), (STREAM)); \
        if (result != CUDA_SUCCESS) return result;                                    \
        result = (CALL);                                                              \
        launch_end(&launch, result);                                                  \
        return result;                                                                \
    } while (0)

/* Not of the slice's time. */
#define PASSES(STREAM, CALL)                                          \
    do {                                                              \
        if (!launch_is_free() && slice_open()) compute_pause(STREAM); \
        return CALL;                                                  \
    } while (0)

/* Which end of a copy is on a card can be the copy's own business. */
#define EITHER(WITHIN, BYTES, STREAM, CALL)                                          \
    do {                                                                             \
        if (!launch_is_free() && (WITHIN)) CHARGED(COPY, (BYTES), (STREAM), (CALL)); \
        PASSES((STREAM), (CALL));                                                    \
    } while (0)

static bool on_card(CUdeviceptr pointer) {
    unsigned type = 0;
    return REAL(cuPointerGetAttribute) != NULL &&
           REAL(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer) ==
               CUDA_SUCCESS &&
           type == CU_MEMORYTYPE_DEVICE;
}

static bool end_on_card(CUmemorytype type, CUdeviceptr pointer) {
    return type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_ARRAY ||
           (type == CU_MEMORYTYPE_UNIFIED && on_card(pointer));
}

static bool plane_within(const CUDA_MEMCPY2D *copy) {
    return copy != NULL && end_on_card(copy->srcMemoryType, copy->srcDevice) &&
           end_on_card(copy->dstMemoryType, copy->dstDevice);
}

static bool volume_within(const CUDA_MEMCPY3D *copy) {
    return copy != NULL && end_on_card(copy->srcMemoryType, copy->srcDevice) &&
           end_on_card(copy->dstMemoryType, copy->dstDevice);
}

static bool peers_within(const CUDA_MEMCPY3D_PEER *copy) {
    return copy != NULL && end_on_card(copy->srcMemoryType, copy->srcDevice) &&
           end_on_card(copy->dstMemoryType, copy->dstDevice);
}

/* Bytes of a batch's copies within the card. */
static uint64_t batch_within(const CUdeviceptr *to, const CUdeviceptr *from, const size_t *bytes,
                             size_t count) {
    uint64_t within = 0;
    if (launch_is_free() || to == NULL || from == NULL || bytes == NULL) return 0;
    for (size_t i = 0; i < count; i++)
        if (on_card(to[i]) && on_card(from[i])) within += bytes[i];
    return within;
}

static bool operand_on_card(const CUmemcpy3DOperand *operand) {
    return operand->type == CU_MEMCPY_OPERAND_TYPE_ARRAY ||
           (operand->type == CU_MEMCPY_OPERAND_TYPE_POINTER && on_card(operand->op.ptr.ptr));
}

static uint64_t volumes_within(const CUDA_MEMCPY3D_BATCH_OP *list, size_t count) {
    uint64_t within = 0;
    if (launch_is_free() || list == NULL) return 0;
    for (size_t i = 0; i < count; i++)
        if (operand_on_card(&list[i].src) && operand_on_card(&list[i].dst))
            within += list[i].extent.width * list[i].extent.height * list[i].extent.depth;
    return within;
}

/* The NULL stream of a function: the legacy one, or the calling thread's own. */
#define OWN_legacy(stream) (stream)
#define OWN_thread(stream) ((stream) == NULL ? CU_STREAM_PER_THREAD : (stream))

#define FILLS(BITS, TYPE, NOW, LATER, OWN)                                                        \
    EXPORT CUresult cuMemsetD##BITS##_v2##NOW(CUdeviceptr to, TYPE value, size_t count) {         \
        CHARGED(FILL, count * (BITS / 8), OWN(NULL),                                              \
                REAL(cuMemsetD##BITS##_v2##NOW)(to, value, count));                               \
    }                                                                                             \
    EXPORT CUresult cuMemsetD2D##BITS##_v2##NOW(CUdeviceptr to, size_t pitch, TYPE value,         \
                                                size_t width, size_t height) {                    \
        CHARGED(FILL, width * height * (BITS / 8), OWN(NULL),                                     \
                REAL(cuMemsetD2D##BITS##_v2##NOW)(to, pitch, value, width, height));              \
    }                                                                                             \
    EXPORT CUresult cuMemsetD##BITS##Async##LATER(CUdeviceptr to, TYPE value, size_t count,       \
                                                  CUstream stream) {                              \
        CHARGED(FILL, count * (BITS / 8), OWN(stream),                                            \
                REAL(cuMemsetD##BITS##Async##LATER)(to, value, count, stream));                   \
    }                                                                                             \
    EXPORT CUresult cuMemsetD2D##BITS##Async##LATER(                                              \
        CUdeviceptr to, size_t pitch, TYPE value, size_t width, size_t height, CUstream stream) { \
        CHARGED(FILL, width * height * (BITS / 8), OWN(stream),                                   \
                REAL(cuMemsetD2D##BITS##Async##LATER)(to, pitch, value, width, height, stream));  \
    }
FILLS(8, unsigned char, , , OWN_legacy)
FILLS(8, unsigned char, _ptds, _ptsz, OWN_thread)
FILLS(16, unsigned short, , , OWN_legacy)
FILLS(16, unsigned short, _ptds, _ptsz, OWN_thread)
FILLS(32, unsigned, , , OWN_legacy)
FILLS(32, unsigned, _ptds, _ptsz, OWN_thread)

#define COPIES_NOW(SUFFIX, OWN)                                                                    \
    EXPORT CUresult cuMemcpyDtoD_v2##SUFFIX(CUdeviceptr to, CUdeviceptr from, size_t bytes) {      \
        CHARGED(COPY, bytes, OWN(NULL), REAL(cuMemcpyDtoD_v2##SUFFIX)(to, from, bytes));           \
    }                                                                                              \
    EXPORT CUresult cuMemcpyPeer##SUFFIX(CUdeviceptr to, CUcontext there, CUdeviceptr from,        \
                                         CUcontext here, size_t bytes) {                           \
        CHARGED(COPY, bytes, OWN(NULL), REAL(cuMemcpyPeer##SUFFIX)(to, there, from, here, bytes)); \
    }                                                                                              \
    EXPORT CUresult cuMemcpy##SUFFIX(CUdeviceptr to, CUdeviceptr from, size_t bytes) {             \
        EITHER(on_card(to) && on_card(from), bytes, OWN(NULL),                                     \
               REAL(cuMemcpy##SUFFIX)(to, from, bytes));                                           \
    }                                                                                              \
    EXPORT CUresult cuMemcpy2D_v2##SUFFIX(const CUDA_MEMCPY2D *copy) {                             \
        EITHER(plane_within(copy), copy->WidthInBytes * copy->Height, OWN(NULL),                   \
               REAL(cuMemcpy2D_v2##SUFFIX)(copy));                                                 \
    }                                                                                              \
    EXPORT CUresult cuMemcpy2DUnaligned_v2##SUFFIX(const CUDA_MEMCPY2D *copy) {                    \
        EITHER(plane_within(copy), copy->WidthInBytes * copy->Height, OWN(NULL),                   \
               REAL(cuMemcpy2DUnaligned_v2##SUFFIX)(copy));                                        \
    }                                                                                              \
    EXPORT CUresult cuMemcpy3D_v2##SUFFIX(const CUDA_MEMCPY3D *copy) {                             \
        EITHER(volume_within(copy), copy->WidthInBytes * copy->Height * copy->Depth, OWN(NULL),    \
               REAL(cuMemcpy3D_v2##SUFFIX)(copy));                                                 \
    }                                                                                              \
    EXPORT CUresult cuMemcpyHtoD_v2##SUFFIX(CUdeviceptr to, const void *from, size_t bytes) {      \
        PASSES(OWN(NULL), REAL(cuMemcpyHtoD_v2##SUFFIX)(to, from, bytes));                         \
    }                                                                                              \
    EXPORT CUresult cuMemcpyDtoH_v2##SUFFIX(void *to, CUdeviceptr from, size_t bytes) {            \
        PASSES(OWN(NULL), REAL(cuMemcpyDtoH_v2##SUFFIX)(to, from, bytes));                         \
    }
COPIES_NOW(, OWN_legacy)
COPIES_NOW(_ptds, OWN_thread)

#define COPIES_LATER(SUFFIX, OWN)                                                                 \
    EXPORT CUresult cuMemcpyDtoDAsync_v2##SUFFIX(CUdeviceptr to, CUdeviceptr from, size_t bytes,  \
                                                 CUstream stream) {                               \
        CHARGED(COPY, bytes, OWN(stream),                                                         \
                REAL(cuMemcpyDtoDAsync_v2##SUFFIX)(to, from, bytes, stream));                     \
    }                                                                                             \
    EXPORT CUresult cuMemcpyPeerAsync##SUFFIX(CUdeviceptr to, CUcontext there, CUdeviceptr from,  \
                                              CUcontext here, size_t bytes, CUstream stream) {    \
        CHARGED(COPY, bytes, OWN(stream),                                                         \
                REAL(cuMemcpyPeerAsync##SUFFIX)(to, there, from, here, bytes, stream));           \
    }                                                                                             \
    EXPORT CUresult cuMemcpyAsync##SUFFIX(CUdeviceptr to, CUdeviceptr from, size_t bytes,         \
                                          CUstream stream) {                                      \
        EITHER(on_card(to) && on_card(from), bytes, OWN(stream),                                  \
               REAL(cuMemcpyAsync##SUFFIX)(to, from, bytes, stream));                             \
    }                                                                                             \
    EXPORT CUresult cuMemcpy2DAsync_v2##SUFFIX(const CUDA_MEMCPY2D *copy, CUstream stream) {      \
        EITHER(plane_within(copy), copy->WidthInBytes * copy->Height, OWN(stream),                \
               REAL(cuMemcpy2DAsync_v2##SUFFIX)(copy, stream));                                   \
    }                                                                                             \
    EXPORT CUresult cuMemcpy3DAsync_v2##SUFFIX(const CUDA_MEMCPY3D *copy, CUstream stream) {      \
        EITHER(volume_within(copy), copy->WidthInBytes * copy->Height * copy->Depth, OWN(stream), \
               REAL(cuMemcpy3DAsync_v2##SUFFIX)(copy, stream));                                   \
    }                                                                                             \
    EXPORT CUresult cuMemcpyHtoDAsync_v2##SUFFIX(CUdeviceptr to, const void *from, size_t bytes,  \
                                                 CUstream stream) {                               \
        PASSES(OWN(stream), REAL(cuMemcpyHtoDAsync_v2##SUFFIX)(to, from, bytes, stream));         \
    }                                                                                             \
    EXPORT CUresult cuMemcpyDtoHAsync_v2##SUFFIX(void *to, CUdeviceptr from, size_t bytes,        \
                                                 CUstream stream) {                               \
        PASSES(OWN(stream), REAL(cuMemcpyDtoHAsync_v2##SUFFIX)(to, from, bytes, stream));         \
    }                                                                                             \
    EXPORT CUresult cuStreamWaitEvent##SUFFIX(CUstream stream, CUevent event, unsigned flags) {   \
        PASSES(OWN(stream), REAL(cuStreamWaitEvent##SUFFIX)(stream, event, flags));               \
    }                                                                                             \
    EXPORT CUresult cuStreamWaitValue32_v2##SUFFIX(CUstream stream, CUdeviceptr at,               \
                                                   cuuint32_t value, unsigned flags) {            \
        PASSES(OWN(stream), REAL(cuStreamWaitValue32_v2##SUFFIX)(stream, at, value, flags));      \
    }                                                                                             \
    EXPORT CUresult cuStreamWaitValue64_v2##SUFFIX(CUstream stream, CUdeviceptr at,               \
                                                   cuuint64_t value, unsigned flags) {            \
        PASSES(OWN(stream), REAL(cuStreamWaitValue64_v2##SUFFIX)(stream, at, value, flags));      \
    }                                                                                             \
    EXPORT CUresult cuLaunchHostFunc##SUFFIX(CUstream stream, CUhostFn function, void *data) {    \
        PASSES(OWN(stream), REAL(cuLaunchHostFunc##SUFFIX)(stream, function, data));              \
    }                                                                                             \
    EXPORT CUresult cuLaunchHostFunc_v2##SUFFIX(CUstream stream, CUhostFn function, void *data,   \
                                                unsigned mode) {                                  \
        PASSES(OWN(stream), REAL(cuLaunchHostFunc_v2##SUFFIX)(stream, function, data, mode));     \
    }                                                                                             \
    EXPORT CUresult cuStreamAddCallback##SUFFIX(CUstream stream, CUstreamCallback function,       \
                                                void *data, unsigned flags) {                     \
        PASSES(OWN(stream), REAL(cuStreamAddCallback##SUFFIX)(stream, function, data, flags));    \
    }
COPIES_LATER(, OWN_legacy)
COPIES_LATER(_ptsz, OWN_thread)

#define PEERS(NOW, LATER, OWN)                                                                    \
    EXPORT CUresult cuMemcpy3DPeer##NOW(const CUDA_MEMCPY3D_PEER *copy) {                         \
        EITHER(peers_within(copy), copy->WidthInBytes * copy->Height * copy->Depth, OWN(NULL),    \
               REAL(cuMemcpy3DPeer##NOW)(copy));                                                  \
    }                                                                                             \
    EXPORT CUresult cuMemcpy3DPeerAsync##LATER(const CUDA_MEMCPY3D_PEER *copy, CUstream stream) { \
        EITHER(peers_within(copy), copy->WidthInBytes * copy->Height * copy->Depth, OWN(stream),  \
               REAL(cuMemcpy3DPeerAsync##LATER)(copy, stream));                                   \
    }
PEERS(, , OWN_legacy)
PEERS(_ptds, _ptsz, OWN_thread)

/* Batches, of CUDA 13 and as they were in CUDA 12. */
#define BATCHES(SUFFIX, OWN)                                                                       \
    EXPORT CUresult cuMemcpyBatchAsync_v2##SUFFIX(                                                 \
        CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count, CUmemcpyAttributes *how,  \
        size_t *starts, size_t hows, CUstream stream) {                                            \
        uint64_t within = batch_within(to, from, bytes, count);                                    \
        EITHER(within != 0, within, OWN(stream),                                                   \
               REAL(cuMemcpyBatchAsync_v2##SUFFIX)(to, from, bytes, count, how, starts, hows,      \
                                                   stream));                                       \
    }                                                                                              \
    EXPORT CUresult cuMemcpyBatchAsync##SUFFIX(                                                    \
        CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count, CUmemcpyAttributes *how,  \
        size_t *starts, size_t hows, size_t *failed, CUstream stream) {                            \
        uint64_t within = batch_within(to, from, bytes, count);                                    \
        EITHER(within != 0, within, OWN(stream),                                                   \
               REAL(cuMemcpyBatchAsync##SUFFIX)(to, from, bytes, count, how, starts, hows, failed, \
                                                stream));                                          \
    }                                                                                              \
    EXPORT CUresult cuMemcpy3DBatchAsync_v2##SUFFIX(size_t count, CUDA_MEMCPY3D_BATCH_OP *list,    \
                                                    unsigned long long flags, CUstream stream) {   \
        uint64_t within = volumes_within(list, count);                                             \
        EITHER(within != 0, within, OWN(stream),                                                   \
               REAL(cuMemcpy3DBatchAsync_v2##SUFFIX)(count, list, flags, stream));                 \
    }                                                                                              \
    EXPORT CUresult cuMemcpy3DBatchAsync##SUFFIX(size_t count, CUDA_MEMCPY3D_BATCH_OP *list,       \
                                                 size_t *failed, unsigned long long flags,         \
                                                 CUstream stream) {                                \
        uint64_t within = volumes_within(list, count);                                             \
        EITHER(within != 0, within, OWN(stream),                                                   \
               REAL(cuMemcpy3DBatchAsync##SUFFIX)(count, list, failed, flags, stream));            \
    }
BATCHES(, OWN_legacy)
BATCHES(_ptsz, OWN_thread)

#define WITH_ATTRIBUTES(SUFFIX, OWN)                                                           \
    EXPORT CUresult cuMemcpyWithAttributesAsync##SUFFIX(CUdeviceptr to, CUdeviceptr from,      \
                                                        size_t bytes, CUmemcpyAttributes *how, \
                                                        CUstream stream) {                     \
        EITHER(on_card(to) && on_card(from), bytes, OWN(stream),                               \
               REAL(cuMemcpyWithAttributesAsync##SUFFIX)(to, from, bytes, how, stream));       \
    }                                                                                          \
    EXPORT CUresult cuMemcpy3DWithAttributesAsync##SUFFIX(                                     \
        CUDA_MEMCPY3D_BATCH_OP *copy, unsigned long long flags, CUstream stream) {             \
        uint64_t within = volumes_within(copy, 1);                                             \
        EITHER(within != 0, within, OWN(stream),                                               \
               REAL(cuMemcpy3DWithAttributesAsync##SUFFIX)(copy, flags, stream));              \
    }
WITH_ATTRIBUTES(, OWN_legacy)
WITH_ATTRIBUTES(_ptsz, OWN_thread)
