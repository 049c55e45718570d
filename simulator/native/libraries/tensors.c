/* Strided arrays of up to five dimensions. */
#include "dnn.h"

/* Map a cudnnDataType_t to a cudaDataType; -1: none. */
static int type_of_elements(int data_type) {
    switch (data_type) {
    case 0: return R_32F;
    case 1: return R_64F;
    case 2: return R_16F;
    case 3: return R_8I;
    case 4: return R_32I;
    case 6: /* CUDNN_DATA_UINT8 */
    case 11: /* CUDNN_DATA_BOOLEAN */ return R_8U;
    case 9: return R_16BF;
    case 10: return R_64I;
    default: return -1;
    }
}

int tensor_set(struct tensor *tensor, int data_type, int rank, const int64_t *size,
               const int64_t *stride) {
    int type = type_of_elements(data_type);
    if (size == NULL || rank < 1) return BAD_PARAM;
    if (rank > DIMENSIONS) return NOT_SUPPORTED;
    if (type < 0) return BAD_TYPE;
    *tensor = (struct tensor){data_type, type, rank, {1, 1, 1, 1, 1}, {0}};
    int64_t dense = 1;
    for (int i = rank - 1; i >= 0; i--) {
        if (size[i] < 1 || size[i] > INT32_MAX || (stride != NULL && stride[i] < 0))
            return BAD_PARAM;
        tensor->size[i] = size[i];
        tensor->stride[i] = stride == NULL ? dense : stride[i];
        if (__builtin_mul_overflow(dense, size[i], &dense)) return BAD_PARAM;
    }
    return OK;
}

int64_t tensor_count(const struct tensor *tensor) {
    int64_t count = 1;
    for (int i = 0; i < DIMENSIONS; i++) count *= tensor->size[i];
    return count;
}

bool same_size(const struct tensor *one, const struct tensor *other) {
    return memcmp(one->size, other->size, sizeof one->size) == 0;
}

int64_t element_bytes(int type) {
    if (type == R_64F || type == R_64I) return 8;
    if (type == R_8I || type == R_8U) return 1;
    return type == R_32F || type == R_32I ? 4 : 2;
}

int64_t tensor_reach(const struct tensor *tensor) {
    int64_t last = 0, far;
    for (int i = 0; i < DIMENSIONS; i++)
        if (__builtin_mul_overflow(tensor->size[i] - 1, tensor->stride[i], &far) ||
            __builtin_add_overflow(last, far, &last) || last > INT64_MAX / 16)
            return INT64_MAX / 16;
    return last + 1;
}

bool stands(const struct array *array) {
    return on_card(array->at, tensor_reach(&array->is) * element_bytes(array->is.type));
}

bool step(const int64_t *size, int64_t *at, int count) {
    for (int i = count - 1; i >= 0; i--) {
        if (++at[i] < size[i]) return true;
        at[i] = 0;
    }
    return false;
}

static int64_t place(const struct tensor *tensor, const int64_t *at) {
    int64_t place = 0;
    for (int i = 0; i < DIMENSIONS; i++) place += at[i] * tensor->stride[i];
    return place;
}

double get(const struct array *array, const int64_t *at) {
    return element(array->is.type, array->at, place(&array->is, at));
}

void put(const struct array *array, const int64_t *at, double value) {
    set_element(array->is.type, array->at, place(&array->is, at), value);
}

double factor(const struct tensor *tensor, const void *at) {
    return element(tensor->type == R_64F ? R_64F : R_32F, at, 0);
}

void blend(const struct array *array, const int64_t *at, double alpha, double value, double beta) {
    value *= alpha;
    if (beta != 0) value += beta * get(array, at);
    put(array, at, value);
}
