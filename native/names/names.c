/* See names.h. A name is found by a hash of its bytes, in a table at most half full, and compared
 * byte by byte. */
#include "names/names.h"

#include <stdlib.h>
#include <string.h>

#pragma GCC visibility push(default)

enum {
    FIRST_PLACES = 64, /* a power of two, as their number always is */
    MOST_DIGITS = 20,  /* of a score */
    BATCH = 32,        /* names looked up side by side */
};
#define MULTIPLIER \
    UINT64_C(0x9E3779B97F4A7C15) /* odd, without a pattern: 2^64 over the golden ratio */

struct place {
    uint32_t hash, number; /* of a name */
    uint32_t start, size;  /* its bytes in `text`; 0: a free place */
};

struct egpu_names {
    char *text; /* all names, quoted, one after the other */
    size_t *ends;
    struct place *places;
    size_t count, text_room, ends_room, place_count;
    char *answer;
    size_t answer_room;
};

/* ---- memory ---- */

/* Make room in `*at` for `wanted` things of `size` bytes; if it must grow, it doubles. */
static int grow(void **at, size_t *room, size_t wanted, size_t size) {
    if (wanted <= *room) return 1;
    const size_t larger = wanted > 2 * *room ? wanted : 2 * *room;
    void *grown = larger <= SIZE_MAX / 2 / size ? realloc(*at, larger * size) : NULL;
    if (grown == NULL) return 0;
    *at = grown;
    *room = larger;
    return 1;
}

struct egpu_names *egpu_names_new(void) {
    struct egpu_names *names = calloc(1, sizeof *names);
    if (names == NULL) return NULL;
    names->place_count = FIRST_PLACES;
    names->places = calloc(FIRST_PLACES, sizeof *names->places);
    if (names->places == NULL) {
        free(names);
        return NULL;
    }
    return names;
}

void egpu_names_free(struct egpu_names *names) {
    free(names->text);
    free(names->ends);
    free(names->places);
    free(names->answer);
    free(names);
}

/* ---- names ---- */

static size_t begins(const struct egpu_names *names, size_t number) {
    return number == 0 ? 0 : names->ends[number - 1];
}

static uint32_t hash_of(const char *text, size_t size) {
    uint64_t hash = size, word;
    for (; size > 0; text += sizeof word) {
        const size_t part = size < sizeof word ? size : sizeof word;
        word = 0;
        if (part == sizeof word) {
            memcpy(&word, text, sizeof word);
        } else {
            memcpy(&word, text, part);
        }
        hash = (hash ^ word) * MULTIPLIER;
        hash ^= hash >> 32;
        size -= part;
    }
    return (uint32_t)hash;
}

/* Return the first place for a name of this hash. */
static size_t first_place(const struct egpu_names *names, uint32_t hash) {
    return hash & (names->place_count - 1);
}

/* Return the number of a name; -1: unknown. */
static int64_t find(const struct egpu_names *names, const char *quoted, size_t size,
                    uint32_t hash) {
    for (size_t at = first_place(names, hash);; at = (at + 1) & (names->place_count - 1)) {
        const struct place *place = &names->places[at];
        if (place->size == 0) return -1;
        if (place->hash == hash && place->size == size &&
            memcmp(names->text + place->start, quoted, size) == 0) {
            return place->number;
        }
    }
}

static void put(struct place *places, size_t count, struct place what) {
    size_t at = what.hash & (count - 1);
    while (places[at].size != 0) at = (at + 1) & (count - 1);
    places[at] = what;
}

/* Make room for one more place, with half of them free. */
static int more_places(struct egpu_names *names) {
    if (2 * (names->count + 1) <= names->place_count) return 1;
    const size_t count = 2 * names->place_count;
    struct place *places = calloc(count, sizeof *places);
    if (places == NULL) return 0;
    for (size_t at = 0; at < names->place_count; at++) {
        if (names->places[at].size != 0) put(places, count, names->places[at]);
    }
    free(names->places);
    names->places = places;
    names->place_count = count;
    return 1;
}

int64_t egpu_names_add(struct egpu_names *names, const char *quoted, size_t size) {
    const size_t start = begins(names, names->count);
    if (size == 0 || size > UINT32_MAX - start || !more_places(names) ||
        !grow((void **)&names->text, &names->text_room, start + size, 1) ||
        !grow((void **)&names->ends, &names->ends_room, names->count + 1, sizeof *names->ends)) {
        return -1;
    }
    memcpy(names->text + start, quoted, size);
    names->ends[names->count] = start + size;
    const uint32_t number = (uint32_t)names->count++;
    put(names->places, names->place_count,
        (struct place){hash_of(quoted, size), number, (uint32_t)start, (uint32_t)size});
    return number;
}

/* ---- lists ---- */

/* A string of a list, with its quotes. */
struct quoted {
    const char *text;
    uint32_t size, hash;
};

/* Read the next strings of `text` up to `end`, at most a batch; return how many, and their end in
 * `*text`. -1: not plain. */
static int next_strings(const char **text, const char *end, struct quoted *strings) {
    const char *at = *text;
    int count = 0;
    while (at != end && count < BATCH) {
        if (*at != '"') return -1;
        const char *quote = memchr(at + 1, '"', (size_t)(end - at) - 1);
        if (quote == NULL || quote - at >= UINT32_MAX) return -1;
        const size_t size = (size_t)(quote - at) + 1;
        strings[count++] = (struct quoted){at, (uint32_t)size, hash_of(at, size)};
        at = quote + 1;
        if (at != end && (*at != ',' || ++at == end)) return -1;
    }
    *text = at;
    return count;
}

int64_t egpu_names_read(const struct egpu_names *names, const char *text, size_t size,
                        int64_t *numbers, size_t room) {
    if (size < 2 || text[0] != '[' || text[size - 1] != ']' || memchr(text, '\\', size) != NULL)
        return -1;
    const char *at = text + 1, *const end = text + size - 1;
    size_t found = 0;
    while (at != end) {
        struct quoted strings[BATCH];
        const int count = next_strings(&at, end, strings);
        if (count < 0 || (size_t)count > room - found) return -1;
        /* A table of thousands of names is not in a near cache. So a batch is prefetched before any
         * of it is compared. */
        for (int each = 0; each < count; each++) {
            __builtin_prefetch(&names->places[first_place(names, strings[each].hash)]);
        }
        for (int each = 0; each < count; each++) {
            __builtin_prefetch(names->text +
                               names->places[first_place(names, strings[each].hash)].start);
        }
        for (int each = 0; each < count; each++) {
            numbers[found] =
                find(names, strings[each].text, strings[each].size, strings[each].hash);
            if (numbers[found++] < 0) return -1;
        }
    }
    return (int64_t)found;
}

static char *append(char *to, const char *text, size_t size) {
    memcpy(to, text, size);
    return to + size;
}

static char *append_number(char *to, uint64_t number) {
    char digits[MOST_DIGITS];
    size_t first = sizeof digits;
    do {
        digits[--first] = (char)('0' + number % 10);
        number /= 10;
    } while (number > 0);
    return append(to, digits + first, sizeof digits - first);
}

const char *egpu_names_write(struct egpu_names *names, const int64_t *numbers,
                             const int64_t *scores, size_t count, const struct egpu_names_row *row,
                             size_t *size) {
    const size_t around = 1 + row->before_size + row->after_size +
                          (scores != NULL ? row->between_size + MOST_DIGITS : 0);
    size_t wanted = 1 + count * around; /* one: realloc of nothing may return NULL */
    for (size_t at = 0; at < count; at++) {
        const size_t number = (size_t)numbers[at];
        if (number >= names->count) return NULL;
        wanted += names->ends[number] - begins(names, number);
    }
    if (!grow((void **)&names->answer, &names->answer_room, wanted, 1)) return NULL;
    char *to = names->answer;
    for (size_t at = 0; at < count; at++) {
        const size_t number = (size_t)numbers[at], start = begins(names, number);
        if (at > 0) *to++ = ',';
        to = append(to, row->before, row->before_size);
        to = append(to, names->text + start, names->ends[number] - start);
        if (scores != NULL) {
            to = append(to, row->between, row->between_size);
            to = append_number(to, (uint64_t)scores[at]);
        }
        to = append(to, row->after, row->after_size);
    }
    *size = (size_t)(to - names->answer);
    return names->answer;
}
