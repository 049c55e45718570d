/* Functions of cuBLASLt that the tables cannot express. Numbers: cublasLt.h. */
#include "client.h"
#include "cublas_status.h"

enum { DESC_SCALE_TYPE = 1, DESC_POINTER_MODE = 2 };

/* An attribute of its descriptor sets the type of a matrix product's scalars. */
void cublasLtMatmulDescSetAttribute_noted(struct library_object *object, int attribute,
                                          const void *value, uint64_t bytes) {
    if (value == NULL || bytes != sizeof(int)) return;
    if (attribute == DESC_SCALE_TYPE) memcpy(&object->scale_type, value, sizeof(int));
    if (attribute == DESC_POINTER_MODE) memcpy(&object->pointer_mode, value, sizeof(int));
}

API const char *cublasLtGetStatusName(int status);
API const char *cublasLtGetStatusString(int status);
const char *cublasLtGetStatusName(int status) { return cublas_status_name(status); }
const char *cublasLtGetStatusString(int status) { return cublas_status_name(status); }
