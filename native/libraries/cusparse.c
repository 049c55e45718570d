/* What no table can say of cuSPARSE: the names of statuses. */
#include "client.h"
#include "cusparse_status.h"

API const char *cusparseGetErrorName(int status);
API const char *cusparseGetErrorString(int status);
const char *cusparseGetErrorName(int status) { return cusparse_status_name(status); }
const char *cusparseGetErrorString(int status) { return cusparse_status_name(status); }
