/* What is read of a cubin: ELF's own tables, and the attributes of kernels (.nv.info), whose
 * numbers public tools name: parameters, largest block, required block, and stack. */
#include "outline.h"

#include <ctype.h>
#include <elf.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MACHINE_CUDA 190 /* e_machine */
#define ABI_AT 8         /* in e_ident: the version of the ABI, which moved the architecture */
#define ABI_MOVED 8
#define KERNEL 0x10 /* in st_other: the host can launch it */
#define MAX_PARAMETERS 4096
#define MAX_ALIGN 128
#define RESERVED_SHARED_BYTES 1024

enum { PARAMETER = 0x17, LARGEST_BLOCK = 0x05, REQUIRED_BLOCK = 0x10, STACK = 0x12 };
enum { HAS_BYTES = 4 }; /* the form of an attribute that has a number of bytes */

static const char MARK[] = "// Outline of compiled kernels.\n";

struct cubin {
    const char *bytes;
    size_t size;
    Elf64_Ehdr head;
};

static bool within(const struct cubin *cubin, uint64_t from, uint64_t bytes) {
    return from <= cubin->size && bytes <= cubin->size - from;
}

static Elf64_Shdr section(const struct cubin *cubin, unsigned index) {
    Elf64_Shdr found = {0};
    uint64_t at = cubin->head.e_shoff + (uint64_t)index * sizeof found;
    if (index < cubin->head.e_shnum && within(cubin, at, sizeof found))
        memcpy(&found, cubin->bytes + at, sizeof found);
    if (found.sh_type != SHT_NOBITS && !within(cubin, found.sh_offset, found.sh_size))
        found = (Elf64_Shdr){0};
    return found;
}

/* Return the text at `offset` of a string table; "" if it does not end there. */
static const char *text_at(const struct cubin *cubin, unsigned table, uint64_t offset) {
    Elf64_Shdr strings = section(cubin, table);
    if (strings.sh_type != SHT_STRTAB || offset >= strings.sh_size) return "";
    const char *text = cubin->bytes + strings.sh_offset + offset;
    return memchr(text, 0, strings.sh_size - offset) ? text : "";
}

static const char *section_name(const struct cubin *cubin, const Elf64_Shdr *header) {
    return text_at(cubin, cubin->head.e_shstrndx, header->sh_name);
}

/* Find the section `prefix` + `name`; an empty header if there is none. */
static Elf64_Shdr find_section(const struct cubin *cubin, const char *prefix, const char *name) {
    size_t length = strlen(prefix);
    for (unsigned i = 0; i < cubin->head.e_shnum; i++) {
        Elf64_Shdr header = section(cubin, i);
        const char *found = section_name(cubin, &header);
        if (strncmp(found, prefix, length) == 0 && strcmp(found + length, name) == 0) return header;
    }
    return (Elf64_Shdr){0};
}

size_t outline_cubin_bytes(const char *at, size_t left) {
    struct cubin cubin = {.bytes = at, .size = left};
    if (left < sizeof cubin.head) return 0;
    memcpy(&cubin.head, at, sizeof cubin.head);
    const Elf64_Ehdr *head = &cubin.head;
    if (memcmp(head->e_ident, ELFMAG, SELFMAG) != 0 || head->e_ident[EI_CLASS] != ELFCLASS64 ||
        head->e_machine != MACHINE_CUDA || head->e_shentsize != sizeof(Elf64_Shdr))
        return 0;
    if (head->e_phnum && head->e_phentsize != sizeof(Elf64_Phdr)) return 0;
    uint64_t sections = (uint64_t)head->e_shnum * sizeof(Elf64_Shdr);
    uint64_t programs = (uint64_t)head->e_phnum * sizeof(Elf64_Phdr);
    if (!within(&cubin, head->e_shoff, sections) || !within(&cubin, head->e_phoff, programs))
        return 0;
    uint64_t end = sizeof *head;
    if (head->e_shoff + sections > end) end = head->e_shoff + sections;
    if (head->e_phoff + programs > end) end = head->e_phoff + programs;
    for (unsigned i = 0; i < head->e_shnum; i++) {
        Elf64_Shdr header = section(&cubin, i);
        if (header.sh_type != SHT_NOBITS && header.sh_offset + header.sh_size > end)
            end = header.sh_offset + header.sh_size;
    }
    return end;
}

unsigned outline_target(const char *cubin) {
    Elf64_Ehdr head;
    memcpy(&head, cubin, sizeof head);
    return head.e_ident[ABI_AT] < ABI_MOVED ? head.e_flags & 0xff : head.e_flags >> 8 & 0xff;
}

bool outline_fits(const char *cubin, unsigned target) {
    unsigned own = outline_target(cubin);
    return own / 10 == target / 10 && own <= target;
}

/* PTX's names; those of compilers' own objects may have other characters. */
static bool is_name(const char *name) {
    if (!isalpha((unsigned char)*name) && *name != '_' && *name != '$') return false;
    for (; *name; name++)
        if (!isalnum((unsigned char)*name) && *name != '_' && *name != '$') return false;
    return true;
}

/* ---- attributes ---- */

struct kernel_facts {
    struct {
        uint32_t offset, bytes; /* bytes 0: not named */
    } parameters[MAX_PARAMETERS];
    unsigned parameter_count;
    uint32_t block[3];
    bool block_required;
    uint32_t stack_bytes;
};

static void read_parameter(struct kernel_facts *facts, const uint32_t words[3]) {
    unsigned ordinal = words[1] & 0xffff;
    if (ordinal >= MAX_PARAMETERS) return;
    facts->parameters[ordinal].offset = words[1] >> 16;
    facts->parameters[ordinal].bytes = words[2] >> 18;
    if (ordinal >= facts->parameter_count) facts->parameter_count = ordinal + 1;
}

static void read_attribute(struct kernel_facts *facts, unsigned attribute, const char *value,
                           size_t bytes, uint32_t symbol) {
    uint32_t words[3] = {0};
    memcpy(words, value, bytes < sizeof words ? bytes : sizeof words);
    if (attribute == PARAMETER) read_parameter(facts, words);
    if (attribute == STACK && words[0] == symbol) facts->stack_bytes = words[1];
    if (attribute != LARGEST_BLOCK && attribute != REQUIRED_BLOCK) return;
    for (int i = 0; i < 3; i++) facts->block[i] = words[i] ? words[i] : 1;
    facts->block_required = attribute == REQUIRED_BLOCK;
}

/* Attributes of the kernel alone are in a section of its own, its stack is in the common one. */
static void read_attributes(const struct cubin *cubin, const Elf64_Shdr *header, uint32_t symbol,
                            struct kernel_facts *facts) {
    if (header->sh_type == SHT_NOBITS) return;
    const unsigned char *at = (const unsigned char *)cubin->bytes + header->sh_offset;
    for (uint64_t left = header->sh_size; left >= 4;) {
        size_t bytes = at[0] == HAS_BYTES ? at[2] | (size_t)at[3] << 8 : 0;
        if (bytes > left - 4) return;
        if (bytes) read_attribute(facts, at[1], (const char *)at + 4, bytes, symbol);
        at += 4 + bytes;
        left -= 4 + bytes;
    }
}

/* Return the bytes of a kernel's own shared memory. Since sm_90 its section begins with the bytes
 * that the driver reserves in each block. */
static uint64_t shared_bytes(const struct cubin *cubin, const char *name) {
    uint64_t bytes = find_section(cubin, ".nv.shared.", name).sh_size;
    uint64_t reserved = outline_target(cubin->bytes) < 90 ? 0 : RESERVED_SHARED_BYTES;
    return bytes > reserved ? bytes - reserved : 0;
}

/* ---- the text ---- */

/* PTX puts a parameter at the next multiple of its alignment. */
static uint32_t align_of(uint32_t offset) {
    uint32_t align = offset & -offset;
    return align && align < MAX_ALIGN ? align : MAX_ALIGN;
}

static void write_kernel(const struct cubin *cubin, const char *name, uint32_t symbol,
                         struct kernel_facts *facts, FILE *out) {
    memset(facts, 0, sizeof *facts);
    Elf64_Shdr common = find_section(cubin, ".nv.info", ""),
               own = find_section(cubin, ".nv.info.", name);
    uint64_t shared = shared_bytes(cubin, name);
    read_attributes(cubin, &common, symbol, facts);
    read_attributes(cubin, &own, symbol, facts);
    fprintf(out, ".visible .entry %s(", name);
    for (unsigned i = 0; i < facts->parameter_count; i++)
        fprintf(out, "%s.param .align %u .b8 p%u[%u]", i ? ", " : "",
                align_of(facts->parameters[i].offset), i, facts->parameters[i].bytes);
    fputc(')', out);
    if (facts->block[0])
        fprintf(out, " .%s %u, %u, %u", facts->block_required ? "reqntid" : "maxntid",
                facts->block[0], facts->block[1], facts->block[2]);
    fputs(" {\n", out);
    /* Only memory that the code names is counted. */
    fputs(".reg .b64 %used;\n", out);
    if (shared)
        fprintf(out, ".shared .align 16 .b8 s[%llu];\nmov.u64 %%used, s;\n",
                (unsigned long long)shared);
    if (facts->stack_bytes)
        fprintf(out, ".local .align 8 .b8 l[%u];\nmov.u64 %%used, l;\n", facts->stack_bytes);
    fputs("ret;\n}\n", out);
}

static void write_symbols(const struct cubin *cubin, FILE *out) {
    struct kernel_facts *facts = malloc(sizeof *facts);
    Elf64_Shdr symbols = {0};
    for (unsigned i = 0; i < cubin->head.e_shnum && symbols.sh_type != SHT_SYMTAB; i++)
        symbols = section(cubin, i);
    uint64_t count = symbols.sh_type == SHT_SYMTAB ? symbols.sh_size / sizeof(Elf64_Sym) : 0;
    for (uint64_t i = 0; facts && i < count; i++) {
        Elf64_Sym symbol;
        memcpy(&symbol, cubin->bytes + symbols.sh_offset + i * sizeof symbol, sizeof symbol);
        const char *name = text_at(cubin, symbols.sh_link, symbol.st_name);
        if (symbol.st_shndx == SHN_UNDEF || !is_name(name)) continue;
        if (ELF64_ST_TYPE(symbol.st_info) == STT_OBJECT && symbol.st_size)
            fprintf(out, ".visible .global .align 16 .b8 %s[%llu];\n", name,
                    (unsigned long long)symbol.st_size);
        if (ELF64_ST_TYPE(symbol.st_info) == STT_FUNC && symbol.st_other & KERNEL)
            write_kernel(cubin, name, (uint32_t)i, facts, out);
    }
    free(facts);
}

char *outline_of(const char *image, size_t bytes) {
    struct cubin cubin = {.bytes = image, .size = bytes};
    memcpy(&cubin.head, image, sizeof cubin.head);
    char *text = NULL;
    size_t length;
    FILE *out = open_memstream(&text, &length);
    if (!out) return NULL;
    fprintf(out, "%s.version 8.8\n.target sm_%u\n.address_size 64\n", MARK, outline_target(image));
    write_symbols(&cubin, out);
    if (fclose(out) == 0) return text;
    free(text);
    return NULL;
}

bool outline_is(const char *text) { return strncmp(text, MARK, sizeof MARK - 1) == 0; }
