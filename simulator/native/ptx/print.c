/* Output of kernels: vprintf, and the message of a failed assertion. Source: "Formatted Output" and
 * "Assertion" in the CUDA C++ Programming Guide. A call's text is formatted at the call and passed
 * on as a whole. */
#include "exec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_ARGUMENTS = 32,
    MOST_TEXT = 1 << 20, /* bytes per call */
    MOST_WIDTH = 1000,   /* also of precision; larger values are an internal error */
    INTERNAL_ERROR = -2,
    NO_FORMAT = -1
};

struct text {
    char *bytes;
    size_t count, room;
    bool lost; /* too long, or no memory */
};

static void append(struct text *to, const char *bytes, size_t count) {
    if (to->lost || count > MOST_TEXT - to->count) {
        to->lost = true;
        return;
    }
    if (to->room - to->count < count) {
        size_t room = 2 * (to->count + count) + 64;
        char *more = realloc(to->bytes, room);
        if (!more) {
            to->lost = true;
            return;
        }
        to->bytes = more;
        to->room = room;
    }
    if (count) memcpy(to->bytes + to->count, bytes, count);
    to->count += count;
}

static void append_string(struct text *to, const char *text) { append(to, text, strlen(text)); }

/* ---- memory of the card ---- */

/* Append characters up to a NUL, or `most` of them. False: an error of the thread. */
static bool append_from(struct exec *x, struct text *to, uint64_t address, size_t most) {
    for (size_t i = 0; i < most && !to->lost; i++) {
        const char *c = generic_memory(x, address + i, 1, 1, false);
        if (!c) return false;
        if (!*c) break;
        append(to, c, 1);
    }
    return true;
}

/* The arguments: one after the other, each aligned to its size. */
struct list {
    struct exec *x;
    uint64_t at;
    bool failed; /* the thread has */
};

static uint64_t next_argument(struct list *list, uint32_t bytes) {
    uint64_t value = 0;
    list->at = (list->at + bytes - 1) & ~(uint64_t)(bytes - 1);
    const void *from = generic_memory(list->x, list->at, bytes, bytes, false);
    if (from)
        memcpy(&value, from, bytes);
    else
        list->failed = true;
    list->at += bytes;
    return value;
}

/* ---- formats ---- */

struct conversion {
    const char *start, *end; /* of its text */
    char flags[6];
    bool stars;           /* the width is an argument */
    int width, precision; /* precision -1: none */
    int longs, shorts;    /* l and h */
    char type;            /* 0: no valid one */
};

static int number(const char **at) {
    int n = 0;
    for (; **at >= '0' && **at <= '9'; ++*at)
        if (n <= MOST_WIDTH) n = 10 * n + (**at - '0');
    return n;
}

/* Parse %[flags][width][.precision][size]type from its %. */
static struct conversion conversion_at(const char *at) {
    struct conversion c = {.start = at++, .precision = -1};
    for (unsigned count = 0; *at && strchr("#0- +", *at); at++)
        if (!strchr(c.flags, *at)) c.flags[count++] = *at;
    c.stars = *at == '*';
    if (c.stars)
        at++;
    else
        c.width = number(&at);
    if (*at == '.') {
        at++;
        c.precision = number(&at);
    }
    for (; *at == 'l' || *at == 'h'; at++) ++*(*at == 'l' ? &c.longs : &c.shorts);
    if (*at && strchr("cdiouxXpeEfFgGaAs", *at)) c.type = *at++;
    c.end = at;
    return c;
}

static void pad(struct text *to, const struct conversion *c, size_t count) {
    for (size_t i = count; i < (size_t)c->width; i++) append(to, " ", 1);
}

static bool append_padded(struct exec *x, struct text *to, const struct conversion *c,
                          uint64_t address) {
    struct text string = {0};
    size_t most = c->precision < 0 ? MOST_TEXT : (size_t)c->precision;
    bool left = strchr(c->flags, '-') != NULL;
    bool read = true;
    if (address)
        read = append_from(x, &string, address, most);
    else
        append_string(&string, "(null)");
    to->lost = to->lost || string.lost;
    if (!left) pad(to, c, string.count);
    append(to, string.bytes, string.count);
    if (left) pad(to, c, string.count);
    free(string.bytes);
    return read;
}

/* Format as the C library does; the format has only what conversion_at has accepted. */
static void append_number(struct text *to, const struct conversion *c, uint64_t bits) {
    char format[24], digits[2 * MOST_WIDTH + 400];
    int count;
    bool is_float = strchr("eEfFgGaA", c->type) != NULL;
    snprintf(format, sizeof format, "%%%s*.*%s%c", c->flags, is_float || c->type == 'p' ? "" : "ll",
             c->type);
    if (is_float)
        count = snprintf(digits, sizeof digits, format, c->width, c->precision,
                         (union slot){.u64 = bits}.f64);
    else if (c->type == 'p')
        count = snprintf(digits, sizeof digits, format, c->width, c->precision,
                         (void *)(uintptr_t)bits);
    else
        count = snprintf(digits, sizeof digits, format, c->width, c->precision, (long long)bits);
    if (count < 0 || (size_t)count >= sizeof digits)
        to->lost = true;
    else
        append(to, digits, (size_t)count);
}

/* Return an integer of its size and sign. */
static uint64_t integer(const struct conversion *c, uint64_t bits) {
    bool sign = c->type == 'd' || c->type == 'i';
    if (c->longs) return bits;
    if (c->shorts > 1) return sign ? (uint64_t)(int8_t)bits : (uint8_t)bits;
    if (c->shorts) return sign ? (uint64_t)(int16_t)bits : (uint16_t)bits;
    return sign ? (uint64_t)(int32_t)bits : (uint32_t)bits;
}

static void convert(struct text *to, struct conversion *c, struct list *list) {
    if (c->stars) {
        int width = (int)next_argument(list, 4);
        if (width < 0 && !strchr(c->flags, '-')) c->flags[strlen(c->flags)] = '-';
        c->width = width < 0 ? width < -MOST_WIDTH ? MOST_WIDTH + 1 : -width : width;
    }
    bool narrow = c->type == 'c' || (strchr("dioxuX", c->type) && !c->longs);
    uint64_t bits = next_argument(list, narrow ? 4 : 8);
    if (c->width > MOST_WIDTH || c->precision > MOST_WIDTH) to->lost = true;
    if (list->failed || to->lost) return;
    char one = (char)bits;
    bool left = strchr(c->flags, '-') != NULL;
    switch (c->type) {
    case 's':
        if (!append_padded(list->x, to, c, bits)) list->failed = true;
        break;
    case 'c':
        if (!left) pad(to, c, 1);
        append(to, &one, 1);
        if (left) pad(to, c, 1);
        break;
    default: append_number(to, c, strchr("dioxuX", c->type) ? integer(c, bits) : bits);
    }
}

/* Return the number of arguments taken by the format. Text beyond the maximum stays as it is. */
static int expand(struct text *to, const char *format, struct list *list) {
    int arguments = 0;
    while (*format && !to->lost && !list->failed) {
        const char *percent = strchr(format, '%');
        if (!percent) percent = format + strlen(format);
        append(to, format, (size_t)(percent - format));
        format = percent;
        if (!*format) break;
        if (format[1] == '%') {
            append(to, "%", 1);
            format += 2;
            continue;
        }
        struct conversion c = conversion_at(format);
        int takes = c.type ? 1 + c.stars : 0;
        if (takes && arguments + takes <= MOST_ARGUMENTS) {
            convert(to, &c, list);
            arguments += takes;
        } else {
            append(to, c.start, (size_t)(c.end - c.start));
        }
        format = c.end;
    }
    return arguments;
}

/* ---- calls ---- */

static bool say(struct exec *x, const struct text *text, bool error) {
    const egpu_ptx_launch *launch = x->launch;
    return !text->lost &&
           (!launch->print || launch->print(launch->check_ctx, text->bytes, text->count, error));
}

bool print_call(struct exec *x, struct thread *t, const struct ins *at, uint64_t *cost) {
    uint64_t from = actual_value(x, t, at, 0);
    struct list list = {.x = x, .at = actual_value(x, t, at, 1)};
    struct text format = {0}, text = {0};
    int result = NO_FORMAT;
    bool going = true;
    if (from) {
        going = append_from(x, &format, from, MOST_TEXT);
        append(&format, "", 1);
        if (going && !format.lost) result = expand(&text, format.bytes, &list);
        going = going && !list.failed;
        if (format.lost || (going && !say(x, &text, false))) result = INTERNAL_ERROR;
    }
    *cost = format.count + text.count;
    free(format.bytes);
    free(text.bytes);
    if (going) return_value(x, t, at, (uint32_t)result);
    return going;
}

/* __assertfail(message, file, line, function, size of a character) */
void assert_call(struct exec *x, struct thread *t, const struct ins *at) {
    struct text text = {0};
    char part[160];
    bool read = append_from(x, &text, actual_value(x, t, at, 1), MOST_TEXT);
    snprintf(part, sizeof part, ":%u: ", (unsigned)actual_value(x, t, at, 2));
    append_string(&text, part);
    read = read && append_from(x, &text, actual_value(x, t, at, 3), MOST_TEXT);
    uint32_t thread[3];
    for (unsigned i = 0; i < 3; i++) thread[i] = (uint32_t)special_value(x, t->index, SR_TID_X + i);
    snprintf(part, sizeof part, ": block: [%u,%u,%u], thread: [%u,%u,%u] Assertion `", x->block[0],
             x->block[1], x->block[2], thread[0], thread[1], thread[2]);
    append_string(&text, part);
    read = read && append_from(x, &text, actual_value(x, t, at, 0), MOST_TEXT);
    append_string(&text, "` failed.\n");
    if (read) {
        say(x, &text, true);
        x->status = EGPU_PTX_ASSERT;
    }
    free(text.bytes);
}
