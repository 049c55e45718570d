/* MIG: a card's mode, its instances, and MIG devices (a compute instance with its GPU instance's
 * memory). mig.c has the instances themselves. Access to the device file for configuration lets a
 * process divide a card; access to an instance's device files lets it see that instance. */
#include "nvml_internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define ANY_PLACE (-1)

static nvmlReturn_t of_error(int error) {
    switch (error) {
    case 0: return NVML_SUCCESS;
    case ENODEV: return NVML_ERROR_NOT_SUPPORTED;
    case ENOSPC: return NVML_ERROR_INSUFFICIENT_RESOURCES;
    case EBUSY: return NVML_ERROR_IN_USE;
    default: return NVML_ERROR_INVALID_ARGUMENT;
    }
}

/* ---- handles: entries here for MIG devices, the records for instances ---- */

static struct nvml_card devices[SIM_MAX_RECORDS];

const struct nvml_card *mig_device(struct sim_card *compute_instance) {
    struct nvml_card *device = &devices[compute_instance->index];
    unsigned first =
        SIM_MAX_CARDS + compute_instance->board * 2 * SIM_MAX_INSTANCES + SIM_MAX_INSTANCES;
    *device = (struct nvml_card){compute_instance, compute_instance->index - first};
    return device;
}

const struct nvml_card *find_mig(nvmlDevice_t handle) {
    for (unsigned i = SIM_MAX_CARDS; i < SIM_MAX_RECORDS; i++)
        if ((const void *)handle == (const void *)&devices[i])
            return devices[i].card &&
                           atomic_load(&devices[i].card->instance) == SIM_INSTANCE_COMPUTE
                       ? &devices[i]
                       : NULL;
    return NULL;
}

static const struct nvml_card *seen_board(struct sim_card *instance) {
    for (unsigned i = 0; i < card_count; i++)
        if (cards[i].card->index == instance->board) return &cards[i];
    return NULL;
}

/* Return an instance of a card that this process sees. */
static struct sim_card *instance_of(const void *handle, enum sim_instance_kind kind) {
    for (unsigned i = 0; i < card_count; i++)
        for (unsigned place = 0; place < SIM_MAX_INSTANCES; place++) {
            struct sim_card *instance = machine_instance(&machine, cards[i].card, kind, place);
            if (instance && instance == handle) return instance;
        }
    return NULL;
}

#define NEED_GPU_INSTANCE(handle)                                      \
    NEED_INIT();                                                       \
    struct sim_card *instance = instance_of(handle, SIM_INSTANCE_GPU); \
    NEED(instance)
#define NEED_COMPUTE_INSTANCE(handle)                                      \
    NEED_INIT();                                                           \
    struct sim_card *instance = instance_of(handle, SIM_INSTANCE_COMPUTE); \
    NEED(instance)
#define NEED_MIG_DEVICE(device)                                                              \
    NEED_INIT();                                                                             \
    const struct nvml_card *seen = find_mig(device);                                         \
    if (!seen) return find(device) ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT; \
    struct sim_card *instance = seen->card
#define NEED_CONFIGURE() \
    if (!machine_may_configure(&machine)) return NVML_ERROR_NO_PERMISSION
#define NEED_MIG_MODE() \
    if (!atomic_load(&card->mig_enabled)) return NVML_ERROR_NOT_SUPPORTED

/* ---- mode ---- */

API nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current,
                                      unsigned int *pending) {
    NEED_CARD(device);
    NEED(current && pending);
    if (!card->mig_capable) return NVML_ERROR_NOT_SUPPORTED;
    *current = atomic_load(&card->mig_enabled);
    *pending = atomic_load(&card->mig_pending);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned int mode,
                                      nvmlReturn_t *activation) {
    NEED_CARD(device);
    NEED(activation && mode <= NVML_DEVICE_MIG_ENABLE);
    if (!card->mig_capable) return NVML_ERROR_NOT_SUPPORTED;
    NEED_CONFIGURE();
    *activation = of_error(machine_set_mig_mode(&machine, card, mode == NVML_DEVICE_MIG_ENABLE));
    return NVML_SUCCESS;
}

/* ---- profiles of GPU instances ---- */

static int profile_index(const struct sim_card *card, bool by_id, unsigned number) {
    for (int i = 0; i < SIM_MAX_MIG_PROFILES && card->mig_profiles[i].slices; i++)
        if ((by_id ? card->mig_profiles[i].id : card->mig_profiles[i].profile) == number) return i;
    return -1;
}

/* Version 3 has the same members except one; the common ones are written through version 2. */
static nvmlReturn_t profile_out(const struct sim_mig_profile *profile,
                                nvmlGpuInstanceProfileInfo_v2_t *info) {
    nvmlGpuInstanceProfileInfo_v2_t said = {
        .version = info->version,
        .id = profile->id,
        .sliceCount = profile->slices,
        .instanceCount = profile->instances,
        .multiprocessorCount = profile->sm_count,
        .copyEngineCount = profile->copy_engines,
        .decoderCount = profile->decoders,
        .jpegCount = profile->jpegs,
        .ofaCount = profile->ofas,
        .memorySizeMB = (unsigned long long)profile->memory_chunks << (SIM_CHUNK_SHIFT - 20),
    };
    char name[32];
    machine_mig_name(profile, 0, name, sizeof name);
    snprintf(said.name, sizeof said.name, "MIG %s", name);
    if (info->version == nvmlGpuInstanceProfileInfo_v2) {
        *info = said;
        return NVML_SUCCESS;
    }
    if (info->version != nvmlGpuInstanceProfileInfo_v3) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlGpuInstanceProfileInfo_v3_t newer = {
        .version = said.version,
        .id = said.id,
        .sliceCount = said.sliceCount,
        .instanceCount = said.instanceCount,
        .multiprocessorCount = said.multiprocessorCount,
        .copyEngineCount = said.copyEngineCount,
        .decoderCount = said.decoderCount,
        .jpegCount = said.jpegCount,
        .ofaCount = said.ofaCount,
        .memorySizeMB = said.memorySizeMB,
    };
    memcpy(newer.name, said.name, sizeof newer.name);
    memcpy((void *)info, &newer, sizeof newer);
    return NVML_SUCCESS;
}

static nvmlReturn_t profile_of(nvmlDevice_t device, bool by_id, unsigned number,
                               nvmlGpuInstanceProfileInfo_v2_t *info) {
    NEED_CARD(device);
    NEED(info && (by_id || number < NVML_GPU_INSTANCE_PROFILE_COUNT));
    int index = profile_index(card, by_id, number);
    return index < 0 ? NVML_ERROR_NOT_SUPPORTED : profile_out(&card->mig_profiles[index], info);
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned int profile,
                                                      nvmlGpuInstanceProfileInfo_v2_t *info) {
    return profile_of(device, false, profile, info);
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoByIdV(nvmlDevice_t device, unsigned int id,
                                                          nvmlGpuInstanceProfileInfo_v2_t *info) {
    return profile_of(device, true, id, info);
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned int profile,
                                                     nvmlGpuInstanceProfileInfo_t *info) {
    nvmlGpuInstanceProfileInfo_v2_t newer = {.version = nvmlGpuInstanceProfileInfo_v2};
    nvmlReturn_t result = profile_of(device, false, profile, info ? &newer : NULL);
    if (result != NVML_SUCCESS) return result;
    *info = (nvmlGpuInstanceProfileInfo_t){newer.id,
                                           newer.isP2pSupported,
                                           newer.sliceCount,
                                           newer.instanceCount,
                                           newer.multiprocessorCount,
                                           newer.copyEngineCount,
                                           newer.decoderCount,
                                           newer.encoderCount,
                                           newer.jpegCount,
                                           newer.ofaCount,
                                           newer.memorySizeMB};
    return NVML_SUCCESS;
}

#define NEED_PROFILE(number)                         \
    int profile = profile_index(card, true, number); \
    if (profile < 0)                                 \
    return card->mig_capable ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_NOT_SUPPORTED

API nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(
    nvmlDevice_t device, unsigned int id, nvmlGpuInstancePlacement_t *placements,
    unsigned int *count) {
    NEED_CARD(device);
    NEED(count);
    NEED_PROFILE(id);
    const struct sim_mig_profile *shape = &card->mig_profiles[profile];
    unsigned found = 0;
    for (unsigned start = 0; start < SIM_MEMORY_SLICES; start++) {
        if (!(shape->starts >> start & 1)) continue;
        if (placements) placements[found] = (nvmlGpuInstancePlacement_t){start, shape->size};
        found++;
    }
    *count = found;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device, unsigned int id,
                                                           unsigned int *count) {
    NEED_CARD(device);
    NEED(count);
    NEED_PROFILE(id);
    NEED_MIG_MODE();
    *count = machine_room_for(&machine, card, (uint32_t)profile);
    return NVML_SUCCESS;
}

/* ---- GPU instances ---- */

static nvmlReturn_t create(nvmlDevice_t device, unsigned id, int first, nvmlGpuInstance_t *out) {
    struct sim_card *made;
    NEED_CARD(device);
    NEED(out);
    NEED_PROFILE(id);
    NEED_CONFIGURE();
    nvmlReturn_t result =
        of_error(machine_create_gpu_instance(&machine, card, (uint32_t)profile, first, &made));
    if (result == NVML_SUCCESS) *out = (nvmlGpuInstance_t)made;
    return result;
}

API nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned int id,
                                             nvmlGpuInstance_t *out) {
    return create(device, id, ANY_PLACE, out);
}

API nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(
    nvmlDevice_t device, unsigned int id, const nvmlGpuInstancePlacement_t *placement,
    nvmlGpuInstance_t *out) {
    NEED(placement && placement->start < SIM_MEMORY_SLICES);
    return create(device, id, (int)placement->start, out);
}

API nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t handle) {
    NEED_GPU_INSTANCE(handle);
    NEED_CONFIGURE();
    return of_error(machine_destroy_instance(&machine, instance));
}

API nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned int id,
                                           nvmlGpuInstance_t *instances, unsigned int *count) {
    NEED_CARD(device);
    NEED(instances && count);
    NEED_PROFILE(id);
    NEED_MIG_MODE();
    *count = 0;
    for (unsigned place = 0; place < SIM_MAX_INSTANCES; place++) {
        struct sim_card *instance = machine_instance(&machine, card, SIM_INSTANCE_GPU, place);
        if (instance && instance->mig_profile == (uint32_t)profile)
            instances[(*count)++] = (nvmlGpuInstance_t)instance;
    }
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id,
                                              nvmlGpuInstance_t *out) {
    NEED_CARD(device);
    NEED(out);
    NEED_MIG_MODE();
    for (unsigned place = 0; place < SIM_MAX_INSTANCES; place++) {
        struct sim_card *instance = machine_instance(&machine, card, SIM_INSTANCE_GPU, place);
        if (!instance || instance->instance_id != id) continue;
        *out = (nvmlGpuInstance_t)instance;
        return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}

API nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t handle, nvmlGpuInstanceInfo_t *info) {
    NEED_GPU_INSTANCE(handle);
    NEED(info);
    *info = (nvmlGpuInstanceInfo_t){.device = (nvmlDevice_t)seen_board(instance),
                                    .id = instance->instance_id,
                                    .profileId = instance->mig_profiles[instance->mig_profile].id,
                                    .placement = {instance->first_slice, instance->slice_count}};
    return NVML_SUCCESS;
}

/* ---- compute instances: a profile is a number of slices; a profile's number is also its id
 * ---- */

static const unsigned slices_of_profile[] = {
    [NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE] = 1, [NVML_COMPUTE_INSTANCE_PROFILE_2_SLICE] = 2,
    [NVML_COMPUTE_INSTANCE_PROFILE_3_SLICE] = 3, [NVML_COMPUTE_INSTANCE_PROFILE_4_SLICE] = 4,
    [NVML_COMPUTE_INSTANCE_PROFILE_7_SLICE] = 7,
};

static const struct sim_mig_profile *shape_of(const struct sim_card *gpu_instance) {
    return &gpu_instance->mig_profiles[gpu_instance->mig_profile];
}

/* 0: the GPU instance has no such profile. */
static unsigned slices_for(const struct sim_card *gpu_instance, unsigned profile) {
    unsigned slices = profile < sizeof slices_of_profile / sizeof *slices_of_profile
                          ? slices_of_profile[profile]
                          : 0;
    return slices <= shape_of(gpu_instance)->slices ? slices : 0;
}

static unsigned profile_of_slices(unsigned slices) {
    unsigned profile = 0;
    while (slices_of_profile[profile] != slices) profile++;
    return profile;
}

static nvmlReturn_t compute_profile(nvmlGpuInstance_t handle, unsigned profile, unsigned engines,
                                    nvmlComputeInstanceProfileInfo_v2_t *info) {
    NEED_GPU_INSTANCE(handle);
    NEED(info && profile < NVML_COMPUTE_INSTANCE_PROFILE_COUNT &&
         engines < NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_COUNT);
    unsigned slices = slices_for(instance, profile);
    const struct sim_mig_profile *shape = shape_of(instance);
    if (slices == 0) return NVML_ERROR_NOT_SUPPORTED;
    nvmlComputeInstanceProfileInfo_v2_t said = {
        .version = info->version,
        .id = profile,
        .sliceCount = slices,
        .instanceCount = shape->slices / slices,
        .multiprocessorCount = machine_mig_sms(instance, slices),
        .sharedCopyEngineCount = shape->copy_engines,
        .sharedDecoderCount = shape->decoders,
        .sharedJpegCount = shape->jpegs,
        .sharedOfaCount = shape->ofas,
    };
    char name[32];
    machine_mig_name(shape, slices, name, sizeof name);
    snprintf(said.name, sizeof said.name, "MIG %s", name);
    if (info->version != nvmlComputeInstanceProfileInfo_v2 &&
        info->version != nvmlComputeInstanceProfileInfo_v3)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    /* Version 3 has one member more, at the end. */
    if (info->version == nvmlComputeInstanceProfileInfo_v3)
        ((nvmlComputeInstanceProfileInfo_v3_t *)(void *)info)->capabilities = 0;
    memcpy(info, &said, sizeof said);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(
    nvmlGpuInstance_t handle, unsigned int profile, unsigned int engines,
    nvmlComputeInstanceProfileInfo_v2_t *info) {
    return compute_profile(handle, profile, engines, info);
}

API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(
    nvmlGpuInstance_t handle, unsigned int profile, unsigned int engines,
    nvmlComputeInstanceProfileInfo_t *info) {
    nvmlComputeInstanceProfileInfo_v2_t newer = {.version = nvmlComputeInstanceProfileInfo_v2};
    nvmlReturn_t result = compute_profile(handle, profile, engines, info ? &newer : NULL);
    /* the same members, between version and name */
    if (result == NVML_SUCCESS) memcpy(info, &newer.id, sizeof *info);
    return result;
}

#define NEED_SLICES(profile)                         \
    unsigned slices = slices_for(instance, profile); \
    if (slices == 0) return NVML_ERROR_NOT_SUPPORTED

/* Return the compute slices of the GPU instance that are taken. */
static uint32_t taken_slices(struct sim_card *gpu_instance) {
    uint32_t taken = 0;
    for (unsigned place = 0; place < SIM_MAX_INSTANCES; place++) {
        const struct sim_card *other = machine_instance(
            &machine, machine_board_of(&machine, gpu_instance), SIM_INSTANCE_COMPUTE, place);
        if (other && other->memory_record == gpu_instance->index)
            taken |= ((1u << other->slice_count) - 1) << other->first_slice;
    }
    return taken;
}

API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceRemainingCapacity(nvmlGpuInstance_t handle,
                                                                    unsigned int profile,
                                                                    unsigned int *count) {
    NEED_GPU_INSTANCE(handle);
    NEED(count);
    NEED_SLICES(profile);
    uint32_t taken = taken_slices(instance);
    *count = 0;
    for (unsigned first = 0; first + slices <= shape_of(instance)->slices; first++)
        if (!(taken >> first & ((1u << slices) - 1))) {
            taken |= ((1u << slices) - 1) << first;
            ++*count;
        }
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlGpuInstanceGetComputeInstancePossiblePlacements(
    nvmlGpuInstance_t handle, unsigned int profile, nvmlComputeInstancePlacement_t *placements,
    unsigned int *count) {
    NEED_GPU_INSTANCE(handle);
    NEED(count);
    NEED_SLICES(profile);
    unsigned found = shape_of(instance)->slices - slices + 1;
    for (unsigned start = 0; placements && start < found; start++)
        placements[start] = (nvmlComputeInstancePlacement_t){start, slices};
    *count = found;
    return NVML_SUCCESS;
}

static nvmlReturn_t create_compute(nvmlGpuInstance_t handle, unsigned profile, int first,
                                   nvmlComputeInstance_t *out) {
    struct sim_card *made;
    NEED_GPU_INSTANCE(handle);
    NEED(out);
    NEED_SLICES(profile);
    NEED_CONFIGURE();
    nvmlReturn_t result =
        of_error(machine_create_compute_instance(&machine, instance, slices, first, &made));
    if (result == NVML_SUCCESS) *out = (nvmlComputeInstance_t)made;
    return result;
}

API nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t handle,
                                                      unsigned int profile,
                                                      nvmlComputeInstance_t *out) {
    return create_compute(handle, profile, ANY_PLACE, out);
}

API nvmlReturn_t nvmlGpuInstanceCreateComputeInstanceWithPlacement(
    nvmlGpuInstance_t handle, unsigned int profile, const nvmlComputeInstancePlacement_t *placement,
    nvmlComputeInstance_t *out) {
    NEED(placement && placement->start < SIM_MAX_INSTANCES);
    return create_compute(handle, profile, (int)placement->start, out);
}

API nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t handle) {
    NEED_COMPUTE_INSTANCE(handle);
    NEED_CONFIGURE();
    return of_error(machine_destroy_instance(&machine, instance));
}

API nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t handle, unsigned int profile,
                                                    nvmlComputeInstance_t *instances,
                                                    unsigned int *count) {
    NEED_GPU_INSTANCE(handle);
    NEED(instances && count);
    NEED_SLICES(profile);
    *count = 0;
    for (unsigned place = 0; place < SIM_MAX_INSTANCES; place++) {
        struct sim_card *other = machine_instance(&machine, machine_board_of(&machine, instance),
                                                  SIM_INSTANCE_COMPUTE, place);
        if (other && other->memory_record == instance->index && other->slice_count == slices)
            instances[(*count)++] = (nvmlComputeInstance_t)other;
    }
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t handle, unsigned int id,
                                                       nvmlComputeInstance_t *out) {
    NEED_GPU_INSTANCE(handle);
    NEED(out);
    for (unsigned place = 0; place < SIM_MAX_INSTANCES; place++) {
        struct sim_card *other = machine_instance(&machine, machine_board_of(&machine, instance),
                                                  SIM_INSTANCE_COMPUTE, place);
        if (!other || other->memory_record != instance->index || other->instance_id != id) continue;
        *out = (nvmlComputeInstance_t)other;
        return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}

API nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t handle,
                                               nvmlComputeInstanceInfo_t *info) {
    NEED_COMPUTE_INSTANCE(handle);
    NEED(info);
    *info = (nvmlComputeInstanceInfo_t){
        .device = (nvmlDevice_t)seen_board(instance),
        .gpuInstance = (nvmlGpuInstance_t)&machine.cards[instance->memory_record],
        .id = instance->instance_id,
        .profileId = profile_of_slices(instance->slice_count),
        .placement = {instance->first_slice, instance->slice_count}};
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlComputeInstanceGetInfo(nvmlComputeInstance_t handle,
                                            nvmlComputeInstanceInfo_t *info) {
    return nvmlComputeInstanceGetInfo_v2(handle, info);
}

/* ---- MIG devices ---- */

nvmlReturn_t mig_by_uuid(const char *uuid, nvmlDevice_t *device) {
    for (unsigned i = 0; i < card_count; i++)
        for (unsigned place = 0; place < SIM_MAX_INSTANCES; place++) {
            char text[SIM_UUID_TEXT];
            struct sim_card *instance =
                machine_instance(&machine, cards[i].card, SIM_INSTANCE_COMPUTE, place);
            if (!instance || !machine_instance_visible(&machine, instance)) continue;
            machine_uuid_text(instance, text);
            if (strcasecmp(text, uuid) != 0) continue;
            *device = (nvmlDevice_t)mig_device(instance);
            return NVML_SUCCESS;
        }
    return NVML_ERROR_NOT_FOUND;
}

API nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *is) {
    NEED_DEVICE(device);
    NEED(is);
    *is = atomic_load(&card->instance) != SIM_INSTANCE_NONE;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count) {
    NEED_CARD(device);
    NEED(count);
    *count = atomic_load(&card->mig_enabled) ? SIM_MAX_INSTANCES : 0;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index,
                                                     nvmlDevice_t *out) {
    NEED_CARD(device);
    NEED(out);
    NEED_MIG_MODE();
    NEED(index < SIM_MAX_INSTANCES);
    struct sim_card *instance = machine_instance(&machine, card, SIM_INSTANCE_COMPUTE, index);
    if (!instance || !machine_instance_visible(&machine, instance)) return NVML_ERROR_NOT_FOUND;
    *out = (nvmlDevice_t)mig_device(instance);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t device,
                                                              nvmlDevice_t *out) {
    NEED_MIG_DEVICE(device);
    NEED(out);
    *out = (nvmlDevice_t)seen_board(instance);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id) {
    NEED_MIG_DEVICE(device);
    NEED(id);
    *id = machine.cards[instance->memory_record].instance_id;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id) {
    NEED_MIG_DEVICE(device);
    NEED(id);
    *id = instance->instance_id;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device,
                                            nvmlDeviceAttributes_t *attributes) {
    NEED_MIG_DEVICE(device);
    NEED(attributes);
    const struct sim_mig_profile *shape = shape_of(instance);
    *attributes = (nvmlDeviceAttributes_t){.multiprocessorCount = instance->sm_count,
                                           .sharedCopyEngineCount = shape->copy_engines,
                                           .sharedDecoderCount = shape->decoders,
                                           .sharedJpegCount = shape->jpegs,
                                           .sharedOfaCount = shape->ofas,
                                           .gpuInstanceSliceCount = shape->slices,
                                           .computeInstanceSliceCount = instance->slice_count,
                                           .memorySizeMB = instance->memory_bytes >> 20};
    return NVML_SUCCESS;
}
