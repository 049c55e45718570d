/* Whether the code of an image can be moved. What lies in a module is at addresses that the driver
 * chooses: variables, with what kernels have written there, and functions that are called by their
 * address. A kernel may have stored such an address in memory, where nobody finds it. So an image
 * that has any of them stays, and so does one that says too little about itself.
 */
#define _GNU_SOURCE
#include "executor/moves/moves.h"

#include <elf.h>

#include "common/fat_binary.h"

static bool has(const uint8_t *bytes, size_t total, const char *word) {
    return memmem(bytes, total, word, strlen(word)) != NULL;
}

/* ---- PTX ---- */

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

/* Whether the text declares something in this state space: the word stands alone. Behind `.ptr` it
 * says where a parameter points to. */
static bool declares(const char *text, const char *space) {
    size_t length = strlen(space);
    for (const char *at = text; (at = strstr(at, space)) != NULL; at += length) {
        bool begins = at == text || is_space(at[-1]) || strchr(";{}", at[-1]) != NULL;
        bool alone = begins && is_space(at[length]);
        const char *before = at;
        while (before > text && is_space(before[-1])) before--;
        bool points = before - text >= 4 && memcmp(before - 4, ".ptr", 4) == 0;
        if (alone && !points) return true;
    }
    return false;
}

static const char *ptx_stays(const char *text) {
    if (declares(text, ".global") || declares(text, ".const")) return "it has variables";
    if (strstr(text, ".callprototype") != NULL || strstr(text, ".calltargets") != NULL ||
        declares(text, ".alias"))
        return "it calls functions by their address";
    if (strstr(text, "malloc") != NULL) return "it allocates memory on the card";
    if (strstr(text, ".texref") != NULL || strstr(text, ".surfref") != NULL)
        return "it has references to textures";
    return NULL;
}

/* ---- cubins ---- */

static const char *section_stays(const char *name) {
    if (strncmp(name, ".nv.global", 10) == 0 || strncmp(name, ".nv.constant3", 13) == 0)
        return "it has variables";
    if (strncmp(name, ".nv.constant4", 13) == 0 || strncmp(name, ".nv.constant1", 13) == 0 ||
        strncmp(name, ".rel.text", 9) == 0 || strncmp(name, ".rela.text", 10) == 0 ||
        strncmp(name, ".rel.nv.constant0", 17) == 0 || strncmp(name, ".rela.nv.constant0", 18) == 0)
        return "it holds addresses of its own parts";
    return NULL;
}

static const char *cubin_stays(const uint8_t *bytes, size_t total) {
    static const char unknown[] = "its sections are not understood";
    Elf64_Ehdr elf;
    if (total < sizeof elf) return unknown;
    memcpy(&elf, bytes, sizeof elf);
    if (elf.e_ident[EI_CLASS] != ELFCLASS64 || elf.e_shentsize != sizeof(Elf64_Shdr) ||
        elf.e_shnum == 0 || elf.e_shstrndx >= elf.e_shnum || elf.e_shoff > total ||
        (uint64_t)elf.e_shnum * elf.e_shentsize > total - elf.e_shoff)
        return unknown;
    Elf64_Shdr names, header;
    memcpy(&names, bytes + elf.e_shoff + elf.e_shstrndx * sizeof names, sizeof names);
    if (names.sh_offset > total || names.sh_size > total - names.sh_offset || names.sh_size == 0 ||
        bytes[names.sh_offset + names.sh_size - 1] != 0)
        return unknown;
    for (unsigned i = 1; i < elf.e_shnum; i++) {
        memcpy(&header, bytes + elf.e_shoff + i * sizeof header, sizeof header);
        if (header.sh_name >= names.sh_size) return unknown;
        const char *why = section_stays((const char *)bytes + names.sh_offset + header.sh_name);
        if (why != NULL) return why;
    }
    return has(bytes, total, "malloc") ? "it allocates memory on the card" : NULL;
}

const char *image_stays(const uint8_t *bytes, size_t total) {
    if (total >= sizeof(struct fat_binary) && fat_binary_is(bytes))
        return "it is a fat binary, whose parts are not read";
    if (total >= SELFMAG && memcmp(bytes, ELFMAG, SELFMAG) == 0) return cubin_stays(bytes, total);
    bool text =
        has(bytes, total, ".version") && memchr(bytes, 0, total > 0 ? total - 1 : 0) == NULL;
    return text ? ptx_stays((const char *)bytes) : "its form is not known";
}
