/* The devices of a process: those whose device files it can open, as selected by
 * CUDA_VISIBLE_DEVICES.
 *
 * CUDA gives a process at most one MIG instance, and then no cards. A card in MIG mode is not a
 * device itself: its name means its first instance.
 */
#include "engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* All devices that this process can open. */
struct seen {
    struct machine *machine;
    struct sim_card *boards[SIM_MAX_CARDS];
    int board_count;
    struct sim_card *instances[SIM_MAX_CARDS * SIM_MAX_INSTANCES];
    int instance_count;
};

static void look(struct machine *machine, struct seen *seen) {
    *seen = (struct seen){.machine = machine};
    for (uint32_t i = 0; i < machine->header->card_count; i++) {
        struct sim_card *card = &machine->cards[i];
        if (atomic_load(&card->lost) & 1 || !machine_card_visible(machine, card)) continue;
        seen->boards[seen->board_count++] = card;
        for (unsigned place = 0; place < SIM_MAX_INSTANCES; place++) {
            struct sim_card *instance =
                machine_instance(machine, card, SIM_INSTANCE_COMPUTE, place);
            if (instance && machine_instance_visible(machine, instance))
                seen->instances[seen->instance_count++] = instance;
        }
    }
}

/* The devices without CUDA_VISIBLE_DEVICES. */
static int by_default(const struct seen *seen, struct sim_card *list[SIM_MAX_CARDS]) {
    int count = 0;
    if (seen->instance_count)
        list[count++] = seen->instances[0];
    else
        for (int i = 0; i < seen->board_count; i++)
            if (!atomic_load(&seen->boards[i]->mig_enabled)) list[count++] = seen->boards[i];
    return count;
}

/* An unambiguous prefix is enough. */
static struct sim_card *by_uuid(struct sim_card *const *list, int count, const char *text) {
    struct sim_card *found = NULL;
    for (int i = 0; i < count; i++) {
        char uuid[SIM_UUID_TEXT];
        machine_uuid_text(list[i], uuid);
        if (strncasecmp(uuid, text, strlen(text)) != 0) continue;
        if (found) return NULL;
        found = list[i];
    }
    return found;
}

static struct sim_card *instance_of(const struct seen *seen, const struct sim_card *board) {
    for (int i = 0; i < seen->instance_count; i++)
        if (seen->instances[i]->board == board->index) return seen->instances[i];
    return NULL;
}

/* MIG-GPU-<uuid of the card>/<GPU instance>/<compute instance>: names in older drivers. */
static struct sim_card *by_path(const struct seen *seen, const char *text) {
    char uuid[SIM_UUID_TEXT];
    unsigned gpu_instance, compute_instance;
    int end = 0;
    if (sscanf(text, "%40[^/]/%u/%u%n", uuid, &gpu_instance, &compute_instance, &end) != 3 ||
        text[end])
        return NULL;
    const struct sim_card *board = by_uuid(seen->boards, seen->board_count, uuid);
    for (int i = 0; board && i < seen->instance_count; i++) {
        struct sim_card *instance = seen->instances[i];
        if (instance->board == board->index && instance->instance_id == compute_instance &&
            seen->machine->cards[instance->memory_record].instance_id == gpu_instance)
            return instance;
    }
    return NULL;
}

static struct sim_card *named(const struct seen *seen, const char *item) {
    if (strncasecmp(item, "MIG-GPU-", 8) == 0) return by_path(seen, item + 4);
    if (strncasecmp(item, "MIG-", 4) == 0)
        return by_uuid(seen->instances, seen->instance_count, item);
    if (strncasecmp(item, "GPU-", 4) == 0) {
        struct sim_card *board = by_uuid(seen->boards, seen->board_count, item);
        return board && atomic_load(&board->mig_enabled) ? instance_of(seen, board) : board;
    }
    struct sim_card *list[SIM_MAX_CARDS];
    int count = by_default(seen, list);
    char *end;
    long number = strtol(item, &end, 10);
    return end != item && *end == '\0' && number >= 0 && number < count ? list[number] : NULL;
}

/* The first invalid entry ends the list; a duplicate makes the whole list invalid. */
static int as_listed(const struct seen *seen, const char *value,
                     struct sim_card *chosen[SIM_MAX_CARDS]) {
    char copy[4096];
    snprintf(copy, sizeof copy, "%s", value);
    int count = 0;
    char *rest = copy;
    for (char *item; (item = strsep(&rest, ",")) != NULL && count < SIM_MAX_CARDS;) {
        while (*item == ' ') item++;
        for (char *end = item + strlen(item); end > item && end[-1] == ' ';) *--end = '\0';
        struct sim_card *card = named(seen, item);
        if (!card) break;
        for (int i = 0; i < count; i++)
            if (chosen[i] == card) return 0;
        chosen[count++] = card;
    }
    return count;
}

int visible_devices(struct machine *machine, struct sim_card *chosen[SIM_MAX_CARDS]) {
    struct seen seen;
    look(machine, &seen);
    const char *value = getenv("CUDA_VISIBLE_DEVICES");
    int count = value ? as_listed(&seen, value, chosen) : by_default(&seen, chosen);
    for (int i = 0; i < count; i++)
        if (atomic_load(&chosen[i]->instance)) {
            chosen[0] = chosen[i];
            return 1;
        }
    return count;
}
