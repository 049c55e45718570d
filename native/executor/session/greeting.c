#define _GNU_SOURCE
#include "executor/session/greeting.h"

#include <sys/socket.h>
#include <unistd.h>

#include "common/descriptor.h"

bool greeting_pass(int control, const struct greeting *greeting, int connection) {
    struct iovec part = {(void *)(uintptr_t)greeting, sizeof *greeting};
    return descriptor_send_all(control, &part, 1, connection, MSG_DONTWAIT);
}

bool greeting_receive(int control, struct greeting *greeting, int *connection) {
    return descriptor_receive_all(control, greeting, sizeof *greeting, connection,
                                  DESCRIPTOR_NO_DEADLINE);
}

void greeting_refuse(int connection, uint32_t status) {
    struct {
        struct wire_header header;
        struct wire_welcome welcome;
    } out = {.header = {.op = WIRE_WELCOME, .len = sizeof out.welcome},
             .welcome = {.status = status, .version = WIRE_VERSION}};
    send(connection, &out, sizeof out, MSG_NOSIGNAL | MSG_DONTWAIT);
    close(connection);
}

/* Compares all of it, wherever the first difference is. */
static bool same(const uint8_t *a, const char *b, size_t length) {
    uint8_t difference = 0;
    for (size_t i = 0; i < length; i++) difference |= (uint8_t)(a[i] ^ (uint8_t)b[i]);
    return difference == 0;
}

uint32_t greeting_check(const uint8_t *bytes, size_t length, const char *token, size_t token_length,
                        struct wire_hello *hello) {
    struct wire_header header;
    if (length < sizeof header + sizeof *hello) return WIRE_STATUS_VERSION;
    memcpy(&header, bytes, sizeof header);
    memcpy(hello, bytes + sizeof header, sizeof *hello);
    if (header.op != WIRE_HELLO || memcmp(hello->magic, WIRE_MAGIC, 8) != 0 ||
        hello->version != WIRE_VERSION || hello->table != EGPU_WIRE_TABLE_HASH)
        return WIRE_STATUS_VERSION;
    if (hello->token_length > WIRE_MAX_TOKEN || header.len != sizeof *hello + hello->token_length ||
        length != sizeof header + header.len)
        return WIRE_STATUS_VERSION;
    if (token != NULL && (hello->token_length != token_length ||
                          !same(bytes + sizeof header + sizeof *hello, token, token_length)))
        return WIRE_STATUS_TOKEN;
    return WIRE_STATUS_WELCOME;
}
