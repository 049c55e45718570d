/* The bytes: test vectors of docs/internals/wire.md, and bounds of readers and writers. */
#undef NDEBUG
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "executor/session/greeting.h"
#include "sha256.h"
#include "special.h"

static void digest(const char *text, const char *expected) {
    uint8_t is[32];
    char hex[65];
    egpu_sha256(text, strlen(text), is);
    for (int i = 0; i < 32; i++) sprintf(hex + 2 * i, "%02x", is[i]);
    assert(strcmp(hex, expected) == 0);
}

static void test_digest(void) {
    digest("", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    digest("abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    digest("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
           "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

static void test_header(void) {
    struct wire_header header = {
        .op = WIRE_SET_CONTEXT, .flags = 0, .len = 8, .seq = 0x0102030405060708};
    static const uint8_t bytes[16] = {10, 0, 0, 0, 8, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1};
    assert(memcmp(&header, bytes, 16) == 0);
}

static void test_handle(void) {
    uint64_t handle = wire_handle(KIND_stream, true, 0xabcdef, 0x12345);
    assert(wire_kind_of(handle) == KIND_stream && wire_is_executors(handle) &&
           wire_index(handle) == 0x12345);
    assert(wire_server(wire_with_server(handle, 7)) == 7 &&
           wire_without_server(wire_with_server(handle, 7)) == handle);
    assert((wire_with_server(handle, 15) >> 57) == 0);
}

static void test_payload(void) {
    uint8_t space[64];
    struct writer out = {space, sizeof space, false};
    put_word(&out, 7);
    put_string(&out, "name");
    put_block(&out, "12345", 5);
    assert(!out.bad && out.left == 64 - 8 - 16 - 16);
    struct reader in = {space, sizeof space - out.left, false};
    size_t bytes;
    assert(get_word(&in) == 7 && strcmp(get_string(&in), "name") == 0 &&
           memcmp(get_span(&in, &bytes), "12345", 5) == 0 && bytes == 5);
    assert(!in.bad && in.left == 0);
    assert(get_word(&in) == 0 && in.bad);
    /* Wrong lengths. */
    for (uint64_t lie = 1; lie != 0; lie <<= 1) {
        uint8_t message[16] = {0};
        memcpy(message, &lie, 8);
        struct reader text = {message, 16, false}, span = {message, 16, false};
        const char *string = get_string(&text);
        assert(lie < 8 ? !text.bad || *string == 0 : text.bad);
        assert((get_span(&span, &bytes) != NULL) == (lie <= 8) && span.bad == (lie > 8));
    }
    struct writer small = {space, 8, false};
    put_word(&small, 1);
    put_word(&small, 2);
    assert(small.bad);
}

static void test_greeting(void) {
    struct {
        struct wire_header header;
        struct wire_hello hello;
        char token[8];
    } out = {.header = {.op = WIRE_HELLO, .len = sizeof out.hello + 5},
             .hello = {.magic = WIRE_MAGIC,
                       .version = WIRE_VERSION,
                       .table = EGPU_WIRE_TABLE_HASH,
                       .token_length = 5},
             .token = "token"};
    struct wire_hello hello;
    const uint8_t *bytes = (const uint8_t *)&out;
    size_t length = sizeof out.header + out.header.len;
    assert(greeting_check(bytes, length, "token", 5, &hello) == WIRE_STATUS_WELCOME);
    assert(greeting_check(bytes, length, NULL, 0, &hello) == WIRE_STATUS_WELCOME);
    assert(greeting_check(bytes, length, "tokem", 5, &hello) == WIRE_STATUS_TOKEN);
    assert(greeting_check(bytes, length, "tok", 3, &hello) == WIRE_STATUS_TOKEN);
    for (size_t less = 0; less < length; less++)
        assert(greeting_check(bytes, less, "token", 5, &hello) != WIRE_STATUS_WELCOME);
    out.hello.table ^= 1;
    assert(greeting_check(bytes, length, "token", 5, &hello) == WIRE_STATUS_VERSION);
}

int main(void) {
    test_digest();
    test_header();
    test_handle();
    test_payload();
    test_greeting();
    puts("wire: all right");
    return 0;
}
