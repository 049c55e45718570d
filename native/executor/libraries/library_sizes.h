/* How long an array is whose length is in a descriptor: the library itself is asked, as nothing
 * that a client says of it is believed. What expressions of the tables are made of (library_codec).
 */
#ifndef EGPU_EXECUTOR_LIBRARY_SIZES_H
#define EGPU_EXECUTOR_LIBRARY_SIZES_H

#include "executor/libraries/libraries.h"

/* Of a tensor of probabilities: for how many images they are, 0 where that is not known. */
uint64_t library_batch(const struct task *task, void *tensor);
/* And how many labels these have, by the lengths that came along. */
uint64_t library_labels(const struct task *task, void *tensor, const void *lengths, size_t bytes);

#define cudnn_batch(tensor) library_batch(task, tensor)
#define cudnn_labels(tensor, lengths) library_labels(task, tensor, sent_##lengths, bytes_##lengths)

#endif
