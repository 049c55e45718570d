/* Functions that set and get one field of a handle. `struct handle`, OK, NOT_INITIALIZED and
 * INVALID are the library's. */
#ifndef EGPU_SIM_HANDLES_H
#define EGPU_SIM_HANDLES_H

#define SETS(symbol, type, field)                       \
    API int symbol(struct handle *handle, type value) { \
        if (handle == NULL) return NOT_INITIALIZED;     \
        handle->field = value;                          \
        return OK;                                      \
    }
#define GETS(symbol, type, field)                        \
    API int symbol(struct handle *handle, type *value) { \
        if (handle == NULL) return NOT_INITIALIZED;      \
        if (value == NULL) return INVALID;               \
        *value = handle->field;                          \
        return OK;                                       \
    }

#endif
