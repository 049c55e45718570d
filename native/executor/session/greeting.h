/* HELLO, as the parent reads it and passes it on with the connection. */
#ifndef EGPU_EXECUTOR_GREETING_H
#define EGPU_EXECUTOR_GREETING_H

#include "wire.h"

struct greeting {
    struct wire_hello hello;
    uint32_t over_unix;
    uint32_t order; /* an enum moves_order: what else the parent wants */
};

/* `connection`: or what the order needs, or -1. */
bool greeting_pass(int control, const struct greeting *greeting, int connection);
/* False: the parent is gone, or wants us to go. */
bool greeting_receive(int control, struct greeting *greeting, int *connection);
/* WELCOME with a status, and closes */
void greeting_refuse(int connection, uint32_t status);

/* What is wrong with a HELLO; WIRE_STATUS_WELCOME: nothing. `bytes` holds the header and what
 * follows it, all of it. */
uint32_t greeting_check(const uint8_t *bytes, size_t length, const char *token, size_t token_length,
                        struct wire_hello *hello);

#endif
