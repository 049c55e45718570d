/* Sockets: whole messages, with descriptors. Everything received closes on exec. */
#ifndef EGPU_COMMON_DESCRIPTOR_H
#define EGPU_COMMON_DESCRIPTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#pragma GCC visibility push(hidden)

#define DESCRIPTOR_MAX 16 /* per message */
#define DESCRIPTOR_NO_DEADLINE INT64_MAX

/* One sendmsg, with `count` descriptors beside its first byte. */
ssize_t descriptor_send(int socket, const struct iovec *parts, size_t part_count,
                        const int *descriptors, size_t count, int flags);

/* One recvmsg. `*count` descriptors came with it; those that do not fit are closed. */
ssize_t descriptor_receive(int socket, void *data, size_t bytes, int *descriptors, size_t room,
                           size_t *count, int flags);

/* Send all the parts, which are used up, and `passed` beside the first byte unless it is -1. False:
 * the connection ended, or with MSG_DONTWAIT in `flags` there was no room. */
bool descriptor_send_all(int socket, struct iovec *parts, size_t part_count, int passed, int flags);

/* Receive exactly `bytes` before `deadline_ms` (clock_now_ms). `passed`, if given, gets at most one
 * descriptor, or -1. False: the connection ended or it took too long; then no descriptor is left
 * open. */
bool descriptor_receive_all(int socket, void *data, size_t bytes, int *passed, int64_t deadline_ms);

#pragma GCC visibility pop

#endif
