/* What an image says of itself: the least that loading it takes of the card.
 *
 * PTX and cubins name their variables with their sizes. Code, constants and what the driver rounds
 * come on top; a fat binary, which may be compressed, says nothing. Whoever made the image can lie
 * in it, but only to his own loss: what a load really takes is measured as well.
 */
#include "interposer.h"

#include <elf.h>
#include <stdlib.h>
#include <string.h>

#include "common/fat_binary.h"
#include "common/file.h"

enum { MAX_FILE_BYTES = 256 << 20 }; /* of an image in a file; a longer one is only measured */

/* ---- PTX ---- */

static const char SPACES[] = " \t\r\n\f\v", SIGNS[] = ";,{}[]()=\"";

struct word {
    const char *at;
    size_t length;
};

static const char *after_spaces(const char *at) {
    for (;;) {
        at += strspn(at, SPACES);
        if (at[0] == '/' && at[1] == '/') {
            at += strcspn(at, "\n");
        } else if (at[0] == '/' && at[1] == '*') {
            const char *end = strstr(at + 2, "*/");
            at = end != NULL ? end + 2 : at + strlen(at);
        } else {
            return at;
        }
    }
}

/* The next sign, string or word; of length 0 at the end. */
static struct word next_word(const char **text) {
    struct word word = {.at = after_spaces(*text)};
    if (*word.at == '"') {
        word.length = 1 + strcspn(word.at + 1, "\"");
        if (word.at[word.length] != 0) word.length++;
    } else if (*word.at != 0 && strchr(SIGNS, *word.at) != NULL) {
        word.length = 1;
    } else {
        while (word.at[word.length] != 0 && strchr(SPACES, word.at[word.length]) == NULL &&
               strchr(SIGNS, word.at[word.length]) == NULL && word.at[word.length] != '/')
            word.length++;
        if (word.length == 0 && *word.at != 0) word.length = 1; /* a lone slash */
    }
    *text = word.at + word.length;
    return word;
}

static bool is(struct word word, const char *text) {
    return word.length == strlen(text) && memcmp(word.at, text, word.length) == 0;
}

/* Bytes of one element, `.b8` to `.f64`, `.f16x2`; 0: not a type. */
static uint64_t type_bytes(struct word word) {
    if (word.length < 3 || word.at[0] != '.' || strchr("busf", word.at[1]) == NULL) return 0;
    char *end;
    uint64_t bytes = strtoull(word.at + 2, &end, 10) / 8;
    return end[0] == 'x' && end[1] == '2' ? 2 * bytes : bytes;
}

/* `name[2][3] = …`: how many elements. One where that takes more than reading numbers. */
static uint64_t elements(const char **text) {
    uint64_t count = 1;
    struct word word = next_word(text); /* the name */
    const char *ahead = *text;
    while (is(word = next_word(&ahead), "[")) {
        struct word number = next_word(&ahead);
        char *end;
        uint64_t size = strtoull(number.at, &end, 0);
        bool plain = number.length > 0 && end == number.at + number.length;
        while (!plain && number.length > 0 && !is(number, "]")) number = next_word(&ahead);
        if (plain) {
            count = multiply_bytes(count, size);
            next_word(&ahead); /* ] */
        }
        *text = ahead;
    }
    return count;
}

/* Up to the comma or semicolon behind a variable, over its first values. */
static struct word after_values(const char **text) {
    unsigned depth = 0;
    for (;;) {
        const char *here = *text;
        struct word word = next_word(text);
        bool ends = is(word, ";") || (depth == 0 && is(word, ","));
        if (is(word, ";")) *text = here; /* the statement's */
        if (word.length == 0 || ends) return word;
        if (is(word, "{")) depth++;
        if (is(word, "}") && depth > 0) depth--;
    }
}

/* What follows `.global`: `.align 8 .v4 .f32 a[10], b;` Managed variables lie with the host. */
static uint64_t declared_bytes(const char **text) {
    uint64_t each = 0, vector = 1, bytes = 0;
    bool managed = false;
    while (each == 0) {
        struct word word = next_word(text);
        if (word.length == 0 || is(word, ";")) return 0;
        if (is(word, ".managed")) managed = true;
        if (is(word, ".v2")) vector = 2;
        if (is(word, ".v4")) vector = 4;
        if (is(word, ".texref") || is(word, ".samplerref") || is(word, ".surfref")) return 0;
        each = type_bytes(word) * vector;
    }
    do bytes = add_bytes(bytes, multiply_bytes(each, elements(text)));
    while (is(after_values(text), ","));
    return managed ? 0 : bytes;
}

static uint64_t ptx_bytes(const char *text) {
    uint64_t bytes = 0;
    bool external = false, parameter = false;
    for (struct word word; (word = next_word(&text)).length > 0; parameter = is(word, ".ptr")) {
        if (is(word, ".extern")) external = true;
        if (is(word, ";") || is(word, "{") || is(word, "}")) external = false;
        /* `.param .u64 .ptr .global` says where a parameter points to */
        if (is(word, ".global") && !external && !parameter)
            bytes = add_bytes(bytes, declared_bytes(&text));
    }
    return bytes;
}

/* ---- cubins ---- */

static Elf64_Shdr section(const char *image, const Elf64_Ehdr *elf, unsigned number) {
    Elf64_Shdr header;
    memcpy(&header, image + elf->e_shoff + number * sizeof header, sizeof header);
    return header;
}

/* `size`: of the image, where that is known; the driver, too, believes the headers otherwise. */
static uint64_t cubin_bytes(const char *image, size_t size) {
    Elf64_Ehdr elf;
    if (size < sizeof elf) return 0;
    memcpy(&elf, image, sizeof elf); /* nothing in it need be aligned */
    if (elf.e_ident[EI_CLASS] != ELFCLASS64 || elf.e_shentsize != sizeof(Elf64_Shdr) ||
        elf.e_shstrndx >= elf.e_shnum || elf.e_shoff > size ||
        (uint64_t)elf.e_shnum * elf.e_shentsize > size - elf.e_shoff)
        return 0;
    uint64_t bytes = 0, names = section(image, &elf, elf.e_shstrndx).sh_offset;
    for (unsigned i = 1; i < elf.e_shnum; i++) {
        Elf64_Shdr header = section(image, &elf, i);
        uint64_t name = add_bytes(names, header.sh_name);
        if (name < size && (strcmp(image + name, ".nv.global") == 0 ||
                            strcmp(image + name, ".nv.global.init") == 0))
            bytes = add_bytes(bytes, header.sh_size);
    }
    return bytes;
}

/* ---- any ---- */

static uint64_t bytes_of(const char *image, size_t size) {
    if (strncmp(image, ELFMAG, SELFMAG) == 0) return cubin_bytes(image, size);
    return fat_binary_is(image) || fat_wrapper_is(image) ? 0 : ptx_bytes(image);
}

uint64_t image_bytes(const void *image) { return image == NULL ? 0 : bytes_of(image, SIZE_MAX); }

uint64_t image_file_bytes(const char *path) {
    size_t size;
    char *image = path == NULL ? NULL : file_load(path, MAX_FILE_BYTES, &size);
    uint64_t bytes = image == NULL ? 0 : bytes_of(image, size);
    free(image);
    return bytes;
}
