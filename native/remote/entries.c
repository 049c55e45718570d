/* The addresses of all driver functions of this library, by their number in the driver table. No
 * cuda.h here: what matters is the symbol, not its prototype. */
#include "driver_table.h"

#define EGPU_DRIVER_FUNCTION(symbol, name, version, threads, interposer, remote, result, \
                             parameters, arguments)                                      \
    extern int symbol(void);
#include "driver_table.inc"

typedef int (*entry)(void);

static const entry entries[] = {
#define EGPU_DRIVER_FUNCTION(symbol, name, version, threads, interposer, remote, result, \
                             parameters, arguments)                                      \
    symbol,
#include "driver_table.inc"
};

void *driver_entry(int id);
void *driver_entry(int id) { return (void *)entries[id]; }
