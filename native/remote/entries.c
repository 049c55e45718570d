/* The addresses of this library's driver functions, by their number in the driver table. This file
 * does not include cuda.h: it needs the symbols, not their prototypes. */
#include "driver_table.h"

#define EGPU_DRIVER_FUNCTION(symbol, name, version, threads, interposer, remote, result, \
                             parameters, arguments)                                      \
    extern int symbol(void);
#include "driver/generated/driver_table.inc"

typedef int (*entry)(void);

static const entry entries[] = {
#define EGPU_DRIVER_FUNCTION(symbol, name, version, threads, interposer, remote, result, \
                             parameters, arguments)                                      \
    symbol,
#include "driver/generated/driver_table.inc"
};

void *driver_entry(int id);
void *driver_entry(int id) { return (void *)entries[id]; }
