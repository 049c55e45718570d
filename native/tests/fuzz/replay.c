/* Runs the fuzzer's function without libFuzzer: over the files of a corpus, then over a bounded
 * number of mutations of them, from a fixed seed. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define LONGEST 65536
#define MOST 1024
static uint8_t corpus[MOST][LONGEST];
static size_t sizes[MOST], count;

static uint64_t state = 88172645463325252u;
static uint64_t chance(void) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}

int main(int argc, char **argv) {
    long mutations = argc > 2 ? atol(argv[2]) : 100000;
    DIR *folder = argc > 1 ? opendir(argv[1]) : NULL;
    for (struct dirent *entry;
         folder != NULL && (entry = readdir(folder)) != NULL && count < MOST;) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", argv[1], entry->d_name);
        FILE *file = entry->d_name[0] == '.' ? NULL : fopen(path, "rb");
        if (file == NULL) continue;
        sizes[count] = fread(corpus[count], 1, LONGEST, file);
        fclose(file);
        LLVMFuzzerTestOneInput(corpus[count], sizes[count]);
        count++;
    }
    if (folder != NULL) closedir(folder);
    if (count == 0) {
        fprintf(stderr, "no corpus\n");
        return 1;
    }
    static uint8_t mutant[LONGEST];
    for (long i = 0; i < mutations; i++) {
        size_t which = chance() % count, size = sizes[which];
        memcpy(mutant, corpus[which], size);
        for (unsigned n = 1 + chance() % 6; n && size; n--) {
            size_t at = chance() % size;
            switch (chance() % 5) {
            case 0: mutant[at] = (uint8_t)chance(); break;
            case 1: mutant[at] ^= (uint8_t)(1u << chance() % 8); break;
            case 2: memset(mutant + at, 0xff, size - at < 8 ? size - at : 8); break;
            case 3: size = at; break;
            default: mutant[at & ~(size_t)7] = (uint8_t)chance();
            }
        }
        LLVMFuzzerTestOneInput(mutant, size);
    }
    printf("%zu inputs and %ld mutations\n", count, mutations);
    return 0;
}
