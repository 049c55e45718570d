#include "process.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "file.h"

const char *process_stat(uint32_t pid, char *text, size_t room) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    if (file_read(path, text, room) <= 0) return NULL;
    const char *at = strrchr(text, ')'); /* the name before it may contain anything */
    return at == NULL || at[1] == 0 ? NULL : at + 2;
}

uint64_t process_field(const char *stat, int field) {
    for (int at = 3; stat != NULL && at < field; at++) {
        stat = strchr(stat, ' ');
        if (stat != NULL) stat++;
    }
    return stat == NULL ? 0 : strtoull(stat, NULL, 10);
}
