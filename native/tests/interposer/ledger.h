/* What all processes of a test really hold, as the driver of the test knows it (fake_libcuda.c). */
#ifndef LEDGER_H
#define LEDGER_H

#include <stdint.h>

enum { LEDGER_ENTRIES = 256 };
struct ledger {
    int64_t limit, over; /* over: the most that the living ever held beyond the limit */
    uint64_t notes;
    struct ledger_entry {
        uint32_t pid;
        int64_t bytes;
    } entries[LEDGER_ENTRIES];
};

#endif
