/* Variables that a client names in its copies. It has their addresses only from VARIABLE to
 * VARIABLE_DONE, so a session does not move in between. */
#include "executor/executor.h"

#include <stdatomic.h>

static _Atomic unsigned in_use;

bool variables_are_used(void) { return atomic_load(&in_use) != 0; }

CUresult variable(struct task *task) {
    struct wire_variable ask;
    get_bytes(&task->in, &ask, sizeof ask);
    CUlibrary library = (CUlibrary)(uintptr_t)handle_value(KIND_library, ask.library, &task->bad);
    const char *name = get_string(&task->in);
    CUresult result = task_refused(task, driver_function(EGPU_FN_cuLibraryGetGlobal) != NULL);
    CUdeviceptr address = 0;
    size_t bytes = 0;
    if (result == CUDA_SUCCESS)
        result = DRIVER(cuLibraryGetGlobal, CUdeviceptr *, size_t *, CUlibrary,
                        const char *)(&address, &bytes, library, name);
    if (result != CUDA_SUCCESS) return result;
    atomic_fetch_add(&in_use, 1);
    put_word(&task->out, address);
    put_word(&task->out, bytes);
    return CUDA_SUCCESS;
}

CUresult variable_done(struct task *task) {
    if (task->in.left != 0 || atomic_load(&in_use) == 0) return violation(task);
    atomic_fetch_sub(&in_use, 1);
    return CUDA_SUCCESS;
}
