/* Shared by the files of the simulated NVML. */
#ifndef EGPU_SIM_NVML_INTERNAL_H
#define EGPU_SIM_NVML_INTERNAL_H

#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>

#include "machine.h"

#define API __attribute__((visibility("default")))

struct nvml_card {
    struct sim_card *card; /* or a compute instance: a MIG device */
    /* among the visible cards; of a MIG device: among those of its card */
    unsigned index;
};

extern struct machine machine;
extern struct nvml_card cards[SIM_MAX_CARDS];
extern unsigned card_count;
extern int init_count;

const struct nvml_card *find(nvmlDevice_t device);     /* a card; NULL: not our handle */
const struct nvml_card *find_mig(nvmlDevice_t device); /* an existing MIG device */
const struct nvml_card *mig_device(struct sim_card *compute_instance);
nvmlReturn_t mig_by_uuid(const char *uuid, nvmlDevice_t *device);
nvmlReturn_t text_out(char *out, unsigned length, const char *text);

/* Return the error for a handle that is not a card: many queries do not support MIG devices. */
static inline nvmlReturn_t not_a_card(nvmlDevice_t device) {
    return find_mig(device) ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT;
}

#define NEED_INIT()                                           \
    do {                                                      \
        if (init_count == 0) return NVML_ERROR_UNINITIALIZED; \
    } while (0)
#define NEED(pointer)                                       \
    do {                                                    \
        if (!(pointer)) return NVML_ERROR_INVALID_ARGUMENT; \
    } while (0)
#define NEED_CARD(device)                        \
    NEED_INIT();                                 \
    const struct nvml_card *seen = find(device); \
    if (!seen) return not_a_card(device);        \
    struct sim_card *card = seen->card;          \
    if (atomic_load_explicit(&card->lost, memory_order_relaxed) & 1) return NVML_ERROR_GPU_IS_LOST
/* A card or a MIG device. */
#define NEED_DEVICE(device)                                                                      \
    NEED_INIT();                                                                                 \
    const struct nvml_card *seen = find(device);                                                 \
    if (!seen) seen = find_mig(device);                                                          \
    NEED(seen);                                                                                  \
    struct sim_card *card = seen->card;                                                          \
    if (atomic_load_explicit(&machine_board_of(&machine, card)->lost, memory_order_relaxed) & 1) \
    return NVML_ERROR_GPU_IS_LOST

#endif
