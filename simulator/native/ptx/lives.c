/* Where the registers of a function live. Compilers number a new register for each value, tens of
 * thousands in unrolled code, so those that live shortly share slots of the frame.
 *
 * A region is the text between two labels. It is entered only at its start. So a register that is
 * written first, and named in one region only, needs its slot from that write to its last name.
 */
#include "parse.h"

#include <string.h>

static bool in_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '$' || c == '%';
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static uint32_t hash_word(const char *word, size_t length) {
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < length; i++) h = (h ^ (unsigned char)word[i]) * 16777619u;
    return h;
}

static struct life *find_life(const struct lives *lives, const char *word, size_t length) {
    uint32_t at = lives->heads[hash_word(word, length) % LIFE_BUCKETS];
    for (; at; at = lives->list.items[at - 1].next) {
        struct life *life = &lives->list.items[at - 1];
        if (life->length == length && memcmp(life->name, word, length) == 0) return life;
    }
    return NULL;
}

static void note(struct parser *p, const char *word, size_t length, uint32_t region) {
    struct lives *lives = &p->build->lives;
    struct life *life = find_life(lives, word, length);
    if (!life) {
        uint32_t *head = &lives->heads[hash_word(word, length) % LIFE_BUCKETS];
        APPEND(p, lives->list,
               (struct life){
                   .name = word, .length = (uint32_t)length, .region = region, .next = *head});
        *head = lives->list.count;
        life = &lives->list.items[lives->list.count - 1];
    }
    life->apart = life->apart || life->region != region;
    life->last = word;
}

/* Return the end of a comment, a string or a number that starts here; or NULL. */
static const char *skipped(const char *at, const char *end) {
    if (*at == '/' && at + 1 < end && (at[1] == '/' || at[1] == '*')) {
        bool line = at[1] == '/';
        for (at += 2; at < end; at++)
            if (line ? *at == '\n' : *at == '/' && at[-1] == '*') return at + 1;
        return end;
    }
    if (*at == '"') {
        for (at++; at < end && *at != '"'; at++) {
        }
        return at < end ? at + 1 : end;
    }
    if (!is_digit(*at)) return NULL;
    while (at < end && in_word(*at)) at++;
    return at;
}

static bool is_label(const char *after, const char *end) {
    while (after < end && (*after == ' ' || *after == '\t')) after++;
    return after < end && *after == ':' && (after + 1 == end || after[1] != ':');
}

void lives_scan(struct parser *p) {
    const char *at = p->cursor, *end = p->end;
    uint32_t region = 0;
    for (unsigned depth = 1; at < end && depth;) {
        const char *next = skipped(at, end);
        if (!next && in_word(*at)) {
            for (next = at; next < end && in_word(*next);) next++;
            bool modifier = at[-1] == '.' || at[-1] == ':';
            if (!modifier && is_label(next, end)) region++;
            if (!modifier && is_digit(next[-1])) note(p, at, (size_t)(next - at), region);
        } else if (!next) {
            depth += *at == '{';
            depth -= *at == '}';
            next = at + 1;
        }
        at = next;
    }
}

const char *last_name(const struct parser *p, const char *name) {
    const struct life *life = find_life(&p->build->lives, name, strlen(name));
    return life && !life->apart ? life->last : NULL;
}
