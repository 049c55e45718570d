/* Between the files that make up the simulated NVML. */
#ifndef EGPU_SIM_NVML_INTERNAL_H
#define EGPU_SIM_NVML_INTERNAL_H

#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>

#include "machine.h"

#define API __attribute__((visibility("default")))

struct nvml_card {
  struct sim_card *card;
  unsigned index; /* among those this process sees */
};

extern struct machine machine;
extern struct nvml_card cards[SIM_MAX_CARDS];
extern unsigned card_count;
extern int init_count;

const struct nvml_card *find(nvmlDevice_t device); /* NULL: no handle of ours */

#define NEED_INIT() \
  do { \
    if (init_count == 0) return NVML_ERROR_UNINITIALIZED; \
  } while (0)
#define NEED(pointer) \
  do { \
    if (!(pointer)) return NVML_ERROR_INVALID_ARGUMENT; \
  } while (0)
#define NEED_CARD(device) \
  NEED_INIT(); \
  const struct nvml_card *seen = find(device); \
  if (!seen) return NVML_ERROR_INVALID_ARGUMENT; \
  struct sim_card *card = seen->card; \
  if (atomic_load_explicit(&card->lost, memory_order_relaxed) & 1) return NVML_ERROR_GPU_IS_LOST

#endif
