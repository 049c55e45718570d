/* Every decoder of calls in the executor, on whatever bytes. What is tested is that no length,
 * index or handle leads outside.
 *
 * Input: frames of {op u16, flags u16, length u16, form u16, payload}, all on one set of handles.
 * Form bit 0: the payload is repeated, or cut off, until it has the length that the operation
 * takes, so that arbitrary bytes get past its checks; bit 1: the context is the payload's first
 * word. A first byte of 'G' instead means a greeting.
 *
 * With EGPU_FUZZ_REPORT in the environment it says at its end how many operations were decoded, and
 * how many called the driver.
 */
#include "driver.h"

#include <stdio.h>

#include "executor/moves/moves.h"
#include "executor/session/greeting.h"
#include "ring.h"
#include "executor/images/store.h"

enum { FITTED = 1, IN_CONTEXT = 2, LONGEST_FITTED = 1024 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

driver_pointer driver_replace(egpu_driver_id id, driver_pointer ours) { return (void)id, ours; }
uint64_t driver_context(void) { return 0; }
driver_pointer driver_function(egpu_driver_id id) { return agreeing_driver(id); }
void session_shares_output(void) {}
void session_callback(uint64_t id, CUresult status) { (void)id, (void)status; }
int session_receive_fd(void) { return -1; }
bool session_has_network(void) { return true; }
bool loads_find(const struct wire_load *ask, unsigned kind, uint64_t *value) {
    return (void)ask, (void)kind, (void)value, false;
}
int session_store(void) { return -1; }
int store_find(int channel, const uint8_t digest[32], uint64_t total) {
    return (void)channel, (void)digest, (void)total, -1;
}
int store_keep(int channel, const uint8_t digest[32], const uint8_t *image, uint64_t total) {
    return (void)channel, (void)digest, (void)image, (void)total, -1;
}
CUresult status_read(uint32_t device, struct writer *out) {
    return put_word(out, device), CUDA_SUCCESS;
}
uint8_t *session_reply_take(size_t bytes) { return malloc(bytes); }
void session_reply_give(uint8_t *data, size_t bytes) { (void)bytes, free(data); }
uint8_t *session_bulk(uint64_t offset, size_t bytes) {
    static uint8_t *bulk;
    static _Atomic uint32_t held;
    if (bulk == NULL) bulk_open(bulk = malloc(SHARED_BULK_BYTES), &held);
    return offset > SHARED_BULK_BYTES || bytes > SHARED_BULK_BYTES - offset ? NULL : bulk + offset;
}

static bool decoded[OP_COUNT], carried_out[OP_COUNT];

static void report(void) {
    unsigned all = 0, reached = 0, called = 0;
    for (unsigned op = 64; op < OP_COUNT; op++) {
        if (operation_of((uint16_t)op) == NULL) continue;
        all++;
        reached += decoded[op];
        called += carried_out[op];
    }
    fprintf(stderr, "operations: %u, decoded: %u, carried out: %u\n", all, reached, called);
    for (unsigned op = 64; op < OP_COUNT; op++)
        if (operation_of((uint16_t)op) != NULL && !carried_out[op])
            fprintf(stderr, "op %u never called the driver\n", op);
}

/* False: the payload was too short or too long. */
static bool run(uint16_t op, uint16_t flags, const uint8_t *bytes, size_t length,
                uint64_t context) {
    static uint8_t space[192 << 10];
    uint8_t *payload = malloc(length ? length : 1); /* of its very size: one byte too far is seen */
    if (payload == NULL) return true;
    memcpy(payload, bytes, length);
    struct task task = {.in = {payload, length, false},
                        .out = {space, sizeof space, false},
                        .context = context,
                        .header = {.op = op, .flags = flags, .len = (uint32_t)length}};
    driver_called = false;
    operation_of(op)->run(&task);
    if (task.out.at < space || task.out.at > space + sizeof space) abort();
    decoded[op] = true;
    carried_out[op] |= driver_called || !task.violated;
    session_reply_give(task.large, task.large_bytes);
    free(payload);
    return !task.violated;
}

static void run_fitted(uint16_t op, uint16_t flags, const uint8_t *bytes, size_t length,
                       uint64_t context) {
    uint8_t repeated[LONGEST_FITTED];
    if (length == 0) bytes = (const uint8_t *)"", length = 1;
    for (size_t i = 0; i < sizeof repeated; i++) repeated[i] = bytes[i % length];
    for (size_t fitted = 0; fitted <= sizeof repeated && !run(op, flags, repeated, fitted, context);
         fitted += 8) {
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static bool ready;
    if (!ready && !handles_init()) abort();
    if (!ready && getenv("EGPU_FUZZ_REPORT") != NULL) atexit(report);
    ready = true;
    if (size != 0 && data[0] == 'G') {
        struct wire_hello hello;
        greeting_check(data + 1, size - 1, "token", 5, &hello);
        return 0;
    }
    for (unsigned frames = 0; size >= 8 && frames < 64; frames++) {
        uint16_t words[4];
        memcpy(words, data, sizeof words);
        size_t length = words[2] < size - 8 ? words[2] : size - 8;
        const uint8_t *payload = data + 8;
        data += 8 + length;
        size -= 8 + length;
        uint16_t op = (uint16_t)(64 + words[0] % (OP_COUNT - 64));
        if (operation_of(op) == NULL) continue;
        uint64_t context = 0;
        if (words[3] & IN_CONTEXT && length >= 8) memcpy(&context, payload, sizeof context);
        if (words[3] & FITTED)
            run_fitted(op, words[1], payload, length, context);
        else
            run(op, words[1], payload, length, context);
    }
    forget_handles();
    forget_calls();
    return 0;
}

#ifdef EGPU_LIBFUZZER
/* Handles are 64 bits of which few are free: those that a client would send are tried in place of
 * eight bytes. */
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t room);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t room, unsigned int seed);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t room, unsigned int seed) {
    if (seed % 3 != 0) return LLVMFuzzerMutate(data, size, room);
    seed /= 3;
    uint64_t handle = wire_handle(1 + seed % (KIND_COUNT - 1), seed / 27 % 4 == 0,
                                  1 + seed / 108 % 2, 1 + seed / 216 % 4);
    size_t words = size / 8;
    if (seed / 864 % 2 || words < 2) { /* a call more, of anything that begins with a handle */
        uint16_t frame[8] = {(uint16_t)(seed / 1728), (uint16_t)(seed >> 5), 8,
                             seed / 1728 % 4 != 0};
        memcpy(frame + 4, &handle, sizeof handle);
        if (size + sizeof frame > room) return LLVMFuzzerMutate(data, size, room);
        memcpy(data + size, frame, sizeof frame);
        return size + sizeof frame;
    }
    memcpy(data + 8 * (1 + seed / 1728 % (words - 1)), &handle, sizeof handle);
    return size;
}
#endif
