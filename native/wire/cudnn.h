/* Sizes that follow from cuDNN's own constants: bytes of elements and factors, and the contents of
 * an attribute's value in its backend. Source: the public headers cudnn_graph.h and cudnn_ops.h of
 * cuDNN 9.26. */
#ifndef EGPU_WIRE_CUDNN_H
#define EGPU_WIRE_CUDNN_H

#include "generated/ops.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { CUDNN_DOUBLE = 1, CUDNN_VARIANT_PACK = 16, CUDNN_FIRST_TYPES = 33 /* in version 9.0 */ };

/* Return the bytes of one element of a cudnnDataType_t whose elements take whole bytes. */
static inline size_t cudnn_type_bytes(int type) {
    switch (type) {
    case 2: /* CUDNN_DATA_HALF */
    case 9: /* CUDNN_DATA_BFLOAT16 */ return 2;
    case 0: /* CUDNN_DATA_FLOAT */
    case 4: /* CUDNN_DATA_INT32 */
    case 19: /* CUDNN_DATA_UINT32 */ return 4;
    case 1:  /* CUDNN_DATA_DOUBLE */
    case 10: /* CUDNN_DATA_INT64 */
    case 20: /* CUDNN_DATA_COMPLEX_FP32 */ return 8;
    case 21: /* CUDNN_DATA_COMPLEX_FP64 */ return 16;
    default: return 1;
    }
}

/* Return the bytes of alpha and beta for a tensor of this type. */
static inline size_t cudnn_factor_bytes(int type) { return type == CUDNN_DOUBLE ? 8 : 4; }

enum { CUDNN_DIMENSIONS = 8, CUDNN_BATCH = 1 /* dimension of the batch in probabilities */ };

/* Return the length of the labels of all images, which follow each other. */
static inline uint64_t cudnn_sum(const void *lengths, uint64_t count) {
    uint64_t sum = 0;
    for (uint64_t i = 0; lengths != NULL && i < count; i++) {
        int32_t length;
        memcpy(&length, (const uint8_t *)lengths + i * sizeof length, sizeof length);
        sum += length < 0 ? UINT32_MAX : (uint64_t)length;
    }
    return sum;
}

/* What an array's elements are: their size in bytes, and the kind if they are objects. */
struct elements {
    unsigned bytes; /* 0: refused */
    unsigned kind;  /* 0: data or device addresses */
    bool filled;    /* the program made the object that is queried, and the call fills it */
    bool only_read; /* can be read but not set */
    int attribute, type;
};

static inline bool cudnn_in(int number, int first, int last) {
    return number >= first && number <= last;
}

/* Return whether a number is an attribute's (cudnnBackendAttributeName_t): first and last ones. A
 * variant pack's override shapes are left out: the headers do not explain them. */
static inline bool cudnn_knows(int attribute) {
    static const uint16_t known[][2] = {
        {0, 9},       {100, 106},   {200, 204},   {300, 304},   {400, 407},   {500, 503},
        {600, 601},   {700, 717},   {750, 758},   {770, 774},   {780, 796},   {800, 806},
        {900, 910},   {913, 914},   {1000, 1003}, {1100, 1101}, {1200, 1203}, {1300, 1308},
        {1500, 1500}, {1503, 1503}, {1520, 1527}, {1600, 1602}, {1610, 1613}, {1620, 1630},
        {1700, 1708}, {1710, 1714}, {1716, 1716}, {1720, 1727}, {1800, 1803}, {1900, 1904},
        {1950, 1953}, {2000, 2014}, {2100, 2110}, {2200, 2202}, {2250, 2257}, {2270, 2276},
        {2300, 2305}, {2310, 2313}, {2400, 2402}, {2500, 2504}, {2600, 2605}, {2700, 2702},
        {2800, 2829}, {2851, 2869}, {2900, 2908}, {2951, 2955}, {3000, 3009}, {3100, 3105},
        {3200, 3202}, {3300, 3304}, {3400, 3404}, {3410, 3414}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (cudnn_in(attribute, known[i][0], known[i][1])) return true;
    return false;
}

/* Return the elements for a cudnnBackendAttributeType_t. */
static inline struct elements cudnn_elements_of(int type) {
    switch (type) {
    case 0: /* CUDNN_TYPE_HANDLE */ return (struct elements){.bytes = 8, .kind = KIND_cudnn};
    case 15: /* CUDNN_TYPE_BACKEND_DESCRIPTOR */
        return (struct elements){.bytes = 8, .kind = KIND_cudnn_backend, .filled = true};
    case 2: /* CUDNN_TYPE_BOOLEAN */
    case 24: /* CUDNN_TYPE_CHAR */ return (struct elements){.bytes = 1};
    case 3: /* CUDNN_TYPE_INT64 */
    case 5: /* CUDNN_TYPE_DOUBLE */
    case 6: /* CUDNN_TYPE_VOID_PTR */ return (struct elements){.bytes = 8};
    case 26: /* CUDNN_TYPE_FRACTION */ return (struct elements){.bytes = 16};
    default: /* 32-bit numbers, up to CUDNN_TYPE_OPERATIONGRAPH_MODE */
        return (struct elements){.bytes = cudnn_in(type, 1, 32) ? 4 : 0};
    }
}

/* Return the elements of this type in this attribute. A variant pack has device addresses, except
 * for tensors by value (described.h). A plan as text is refused: its addresses cannot be told
 * apart. Addresses that cuDNN may take elsewhere are not known here. */
static inline struct elements cudnn_elements(int attribute, int type) {
    enum { VOID_PTR = 6, PLAN_JSON = 405, CACHE_JSON = 2402 };
    struct elements found = cudnn_elements_of(type);
    bool addresses = cudnn_in(attribute, 1001, 1003); /* pointers of a variant pack */
    if (!cudnn_knows(attribute) || (type == VOID_PTR) != addresses) found.bytes = 0;
    found.attribute = attribute;
    found.type = type;
    found.only_read = attribute == PLAN_JSON || attribute == CACHE_JSON;
    return found;
}

#endif
