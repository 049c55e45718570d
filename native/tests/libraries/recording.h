/* Libraries that only record their arguments: the functions are generated from the tables
 * (recording_cublas.h and others) and use this file. The including file defines `saw`, which gets
 * the bytes that were read. Bytes that are written are known to the tests. */
#ifndef EGPU_TESTS_RECORDING_H
#define EGPU_TESTS_RECORDING_H

#include <stdlib.h>

#include "libraries_wire.h"

static void saw_begin(const char *symbol);
static void saw(char form, const void *bytes, size_t count);
static void saw_end(void);

/* The client's settings of an object: one object of each kind is enough here. */
static struct {
    int pointer_mode, math_mode, scale_type, data_type, descriptor_type;
} kept, *object = &kept;

/* Hundreds of functions use these: inlining them would take the compiler long. */
#define SHARED static __attribute__((noinline, unused))

#define record_begin(symbol) saw_begin(symbol)
#define record_end() saw_end()

SHARED void record_word(const void *value) { saw('w', &value, sizeof value); }

SHARED void record_bytes(const void *from, size_t bytes) {
    if (from == NULL)
        saw('n', NULL, 0);
    else
        saw('b', from, bytes);
}

SHARED bool on_host(bool last) { return scalar_on_host(object->pointer_mode, last); }

SHARED void record_scalar(const void *at, size_t bytes, bool host) {
    if (host)
        saw('b', at, bytes);
    else
        record_word(at);
}

SHARED void record_place(const void *at, bool host) {
    if (!host) record_word(at);
}

SHARED void record_factor(const void *at) {
    record_bytes(at, cudnn_factor_bytes(object->data_type));
}

SHARED void fill(void *to, size_t bytes) {
    for (size_t i = 0; to != NULL && i < bytes; i++) ((uint8_t *)to)[i] = (uint8_t)(0x5a ^ i);
}

/* Elements that are set, objects to be filled, or room for data. */
SHARED void record_elements(const void *at, struct elements are, int64_t count, bool got) {
    if (!got || are.filled)
        record_bytes(at, (uint64_t)count * are.bytes);
    else
        fill((void *)(uintptr_t)at, (uint64_t)count * are.bytes);
}

/* A tensor query made by a call itself, in all its dimensions: it has four of each. */
enum { recorded_size_of_tensor = 4 };
SHARED bool recorded_sizes(int wanted, void *rank, void *sizes) {
    if (wanted == CUDNN_DIMENSIONS && rank != NULL) *(int *)rank = wanted;
    for (int i = 0; wanted == CUDNN_DIMENSIONS && sizes != NULL && i < wanted; i++)
        ((int *)sizes)[i] = recorded_size_of_tensor;
    return wanted == CUDNN_DIMENSIONS;
}
SHARED uint64_t cudnn_batch(const void *tensor) { return (void)tensor, recorded_size_of_tensor; }
SHARED uint64_t cudnn_labels(const void *tensor, const void *lengths) {
    return cudnn_sum(lengths, cudnn_batch(tensor));
}

/* Room that only the library uses. */
SHARED void touch(void *room, uint64_t bytes) {
    if (bytes > 0) ((uint8_t *)room)[0] = ((uint8_t *)room)[bytes - 1] = 1;
}

SHARED void fill_scalar(void *to, size_t bytes, bool host) {
    if (host) fill(to, bytes);
}

SHARED void *new_object(void) {
    static uintptr_t last;
    return (void *)(last += 0x1000);
}

/* For a matrix product's descriptor: its pointer mode is attribute 2. */
SHARED void note(int attribute, const void *value, uint64_t bytes) {
    if (attribute == 2 && value != NULL && bytes == sizeof(int))
        memcpy(&kept.pointer_mode, value, sizeof(int));
}

enum { recorded_size = 130400 };

/* The executor's own queries of the library. */
SHARED int recorded_mode(void *of, int *mode) {
    (void)of;
    *mode = kept.pointer_mode;
    return 0;
}
SHARED int recorded_attribute(void *of, int attribute, void *value, size_t bytes, size_t *written) {
    (void)of, (void)attribute;
    memcpy(value, &kept.pointer_mode, bytes);
    *written = bytes;
    return 0;
}

#endif
