/* Functions of cuSPARSELt that the tables cannot express: names of statuses. */
#include "client.h"
#include "cusparse_status.h"

API const char *cusparseLtGetErrorName(int status);
API const char *cusparseLtGetErrorString(int status);
const char *cusparseLtGetErrorName(int status) { return cusparse_status_name(status); }
const char *cusparseLtGetErrorString(int status) { return cusparse_status_name(status); }
