/* Whether the code of an image can be moved. What lies in a module is at addresses that the driver
 * chooses: variables, and functions that are called by their address. A kernel may have stored such
 * an address in memory, where nobody finds it. So an image moves if its code keeps them to itself,
 * and one that says too little about itself stays.
 *
 * PTX says all about its variables (ptx.c). Compiled code reaches constants directly, and all else
 * by addresses in tables, which nobody can follow.
 */
#define _GNU_SOURCE
#include "executor/moves/images.h"

#include <elf.h>

#include "common/fat_binary.h"

static bool has(const uint8_t *bytes, size_t total, const char *word) {
    return memmem(bytes, total, word, strlen(word)) != NULL;
}

static const char *section_stays(const char *name) {
    static const char *const reaches[] = {
        ".nv.constant4",     ".nv.constant1",      ".rel.text",         ".rela.text",
        ".rel.nv.constant0", ".rela.nv.constant0", ".rel.nv.constant3", ".rela.nv.constant3"};
    for (size_t i = 0; i < sizeof reaches / sizeof *reaches; i++)
        if (strncmp(name, reaches[i], strlen(reaches[i])) == 0)
            return "its compiled code holds addresses of its own parts";
    if (strncmp(name, ".rel.nv.global", 14) == 0 || strncmp(name, ".rela.nv.global", 15) == 0)
        return "its variables hold addresses";
    return NULL;
}

const char *cubin_stays(const uint8_t *bytes, size_t total) {
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

bool image_fits(bool compiled, unsigned architecture) {
    int count = 0, major, minor;
    if (DRIVER(cuDeviceGetCount, int *)(&count) != CUDA_SUCCESS) return true;
    for (int card = 0; card < count; card++) {
        CUresult (*attribute)(int *, CUdevice_attribute, CUdevice) =
            DRIVER(cuDeviceGetAttribute, int *, CUdevice_attribute, CUdevice);
        if (attribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, card) != CUDA_SUCCESS ||
            attribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, card) != CUDA_SUCCESS)
            return true;
        unsigned has = (unsigned)(major * 10 + minor);
        if (architecture <= has && (!compiled || architecture / 10 == has / 10)) return true;
    }
    return false;
}

const char *image_code_stays(const uint8_t *bytes, size_t total, const struct image_seer *seer) {
    if (total >= SELFMAG && memcmp(bytes, ELFMAG, SELFMAG) == 0) return cubin_stays(bytes, total);
    bool text =
        has(bytes, total, ".version") && memchr(bytes, 0, total > 0 ? total - 1 : 0) == NULL;
    return text ? ptx_stays((const char *)bytes, seer) : "its form is not known";
}

static const char *whole_stays(const uint8_t *bytes, size_t total, const struct image_seer *seer) {
    bool fat = total >= sizeof(struct fat_binary) && fat_binary_is(bytes);
    return fat ? fat_stays(bytes, total, seer) : image_code_stays(bytes, total, seer);
}

static bool see_nothing(const char *name, size_t bytes, void *data) {
    (void)name, (void)bytes, (void)data;
    return true;
}

const char *image_stays(const uint8_t *bytes, size_t total) {
    const struct image_seer seer = {see_nothing, NULL};
    return whole_stays(bytes, total, &seer);
}

bool image_written(const uint8_t *bytes, size_t total, const struct image_seer *seer) {
    return whole_stays(bytes, total, seer) == NULL;
}
