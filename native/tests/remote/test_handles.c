/* What an executor's table of handles does with many of them, and from two threads. */
#include "../../executor/calls/handles.c"

#include "../check.h"

const struct library_kind library_kinds[KIND_COUNT];
void arena_context_gone(uint64_t context) { (void)context; }

enum { INDEX = 7, MANY = 300000 };

static struct task task;

static void bind(unsigned kind, uint32_t generation, uint64_t value) {
    uint64_t handle = wire_handle(kind, false, generation, INDEX);
    handle_bind(&task, kind, handle, value);
    CHECK(!task.violated);
}

static void unbind(unsigned kind, uint32_t generation) {
    handle_forget(wire_handle(kind, false, generation, INDEX), true);
}

/* One handle is live at a time, as in a program that makes an event for each of its steps. */
static void takes_no_more_room_than_what_lives(void) {
    for (uint32_t i = 0; i < MANY; i++) {
        bind(KIND_event, i, 4096 + i * 16);
        CHECK(handle_is_bound(KIND_event, 4096 + i * 16));
        unbind(KIND_event, i);
        CHECK(!handle_is_bound(KIND_event, 4096 + i * 16));
    }
    CHECK(map_size <= 1024);
    for (uint32_t i = 1; i <= 5000; i++)
        handle_bind(&task, KIND_event, wire_handle(KIND_event, false, 1, i), 4096 + i * 16);
    for (uint32_t i = 1; i <= 5000; i++) {
        CHECK(handle_is_bound(KIND_event, 4096 + i * 16));
        handle_forget(wire_handle(KIND_event, false, 1, i), true);
    }
}

static void keep(uint16_t op, uint64_t bound, const uint64_t words[2]) {
    struct task call = {.header = {.op = op, .len = 16}, .bound = bound};
    kept_add(&call, (const uint8_t *)words);
}

/* A client that changes a setting again and again, and one that makes more than may be kept. */
static void keeps_no_more_than_it_may(void) {
    uint64_t function = wire_handle(KIND_function, false, 1, 1);
    handle_bind(&task, KIND_function, function, 4096);
    for (uint64_t i = 0; i < 2 * KEPT_FRAMES; i++)
        keep(OP_cuFuncSetCacheConfig, 0, (const uint64_t[]){function, i});
    CHECK(!kept_overflowed());
    const struct kept *last = entry_of(function)->kept;
    CHECK(last != NULL && last->next == NULL && last->payload[8] == (uint8_t)(2 * KEPT_FRAMES - 1));
    for (uint32_t i = 2; i <= KEPT_FRAMES + 1; i++) {
        uint64_t event = wire_handle(KIND_event, false, 1, i);
        handle_bind(&task, KIND_event, event, 4096 + i * 16);
        keep(OP_cuEventCreate, event, (const uint64_t[]){1, event});
    }
    CHECK(kept_overflowed());
    handle_forget(function, true);
    for (uint32_t i = 2; i <= KEPT_FRAMES + 1; i++)
        handle_forget(wire_handle(KIND_event, false, 1, i), true);
}

static _Atomic bool over;

/* A stream and an event take turns at one place; their values are odd and even. */
static void *turns(void *unused) {
    for (uint32_t i = 0; i < MANY; i++) {
        unsigned kind = i % 2 ? KIND_stream : KIND_event;
        bind(kind, 1, 4096 + i * 16 + i % 2);
        unbind(kind, 1);
    }
    over = true;
    return unused;
}

static void never_mistakes_one_for_another(void) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, turns, NULL) == 0);
    while (!over) {
        CUresult bad = CUDA_SUCCESS;
        uint64_t value = handle_value(KIND_stream, wire_handle(KIND_stream, false, 1, INDEX), &bad);
        CHECK(bad != CUDA_SUCCESS || value % 2 == 1);
    }
    pthread_join(thread, NULL);
}

int main(void) {
    CHECK(handles_init());
    takes_no_more_room_than_what_lives();
    keeps_no_more_than_it_may();
    never_mistakes_one_for_another();
    return 0;
}
