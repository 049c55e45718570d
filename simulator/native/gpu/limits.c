/* Memory limits of control groups. A directory stands for a group: the link `cgroup` beside the
 * library leads to its process's group. A card's limit is a file there, so it ends with its group.
 *
 * A group's processes are charged for what they hold of a card, their contexts included.
 */
#include "machine_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define GROUP_LINK "cgroup"
#define TEXT_BYTES 64

static void limit_file(const char *group, const struct sim_card *card, char *path, size_t size) {
    char uuid[SIM_UUID_TEXT];
    machine_uuid_text(card, uuid);
    snprintf(path, size, "%s/dmem.%s", group, uuid);
}

int limits_group(const char *path, uint64_t *group) {
    struct stat status;
    if (stat(path, &status) != 0) return errno;
    if (!S_ISDIR(status.st_mode)) return ENOTDIR;
    *group = status.st_ino;
    return 0;
}

int limits_read(const char *group, const struct sim_card *card, struct sim_limits *limits) {
    char path[4096 + TEXT_BYTES], text[TEXT_BYTES] = {0};
    limit_file(group, card, path, sizeof path);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return errno;
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    if (got < 0) return errno;
    return sscanf(text, "%" SCNu64 " %" SCNu64, &limits->soft, &limits->hard) == 2 ? 0 : EPROTO;
}

int limits_write(const char *group, const struct sim_card *card, const struct sim_limits *limits) {
    char path[4096 + TEXT_BYTES], draft[sizeof path + TEXT_BYTES], text[TEXT_BYTES];
    limit_file(group, card, path, sizeof path);
    if (limits->soft == 0 && limits->hard == SIM_NO_LIMIT)
        return unlink(path) == 0 || errno == ENOENT ? 0 : errno;
    snprintf(draft, sizeof draft, "%s.%d", path, getpid());
    int fd = open(draft, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0) return errno;
    int length =
        snprintf(text, sizeof text, "%" PRIu64 " %" PRIu64 "\n", limits->soft, limits->hard);
    bool written = write(fd, text, (size_t)length) == length;
    close(fd);
    if (written && rename(draft, path) == 0) return 0;
    unlink(draft);
    return EIO;
}

uint64_t machine_own_group(const struct machine *machine) {
    char path[sizeof machine->directory + sizeof GROUP_LINK + 1];
    uint64_t group = 0;
    snprintf(path, sizeof path, "%s/" GROUP_LINK, machine->directory);
    return limits_group(path, &group) == 0 ? group : 0;
}

uint32_t machine_group_chunks(struct machine *machine, const struct sim_card *card,
                              uint64_t group) {
    uint32_t chunks = 0;
    for (int slot = 0; slot < SIM_MAX_PROCESSES; slot++) {
        if (atomic_load(&machine->header->process_state[slot]) == SIM_PROCESS_FREE) continue;
        if (machine->processes[slot].group != group) continue;
        struct sim_usage *usage = machine_usage(machine, slot, card);
        if (usage) chunks += atomic_load(&usage->chunks);
    }
    return chunks;
}

uint32_t machine_limit_chunks(const struct machine *machine, const struct sim_card *card) {
    char path[sizeof machine->directory + sizeof GROUP_LINK + 1];
    struct sim_limits limits;
    snprintf(path, sizeof path, "%s/" GROUP_LINK, machine->directory);
    if (limits_read(path, card, &limits) != 0) return card->chunk_count;
    uint64_t chunks = limits.hard >> SIM_CHUNK_SHIFT;
    return chunks < card->chunk_count ? (uint32_t)chunks : card->chunk_count;
}

uint32_t machine_group_room(struct machine *machine, const struct sim_card *card) {
    uint32_t limit = machine_limit_chunks(machine, card);
    if (limit == card->chunk_count) return limit;
    uint32_t used = machine_group_chunks(machine, card, machine_own_group(machine));
    return used < limit ? limit - used : 0;
}
