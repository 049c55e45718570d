/* account.c, with the usage file of slice.c, and how a fuzzer forgets what an input left in it. */
#define _GNU_SOURCE
#include <fcntl.h>

int open_part(const char *path, int flags);
#define open open_part
#include "../../interposer/account.c"
#undef open

void forget_account(void);
void forget_account(void) {
    account_forget();
    memset(reaped_at_ns, 0, sizeof reaped_at_ns);
}
