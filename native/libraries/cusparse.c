/* Functions of cuSPARSE that the tables cannot express: names of statuses. */
#include "client.h"
#include "cusparse_status.h"

API const char *cusparseGetErrorName(int status);
API const char *cusparseGetErrorString(int status);
const char *cusparseGetErrorName(int status) { return cusparse_status_name(status); }
const char *cusparseGetErrorString(int status) { return cusparse_status_name(status); }
