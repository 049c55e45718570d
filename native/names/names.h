/* Names of nodes by number, and JSON lists of them, which a scheduler extender reads and writes
 * with every pod, thousands at a time. Called from Python (egpu.adapters.name_table), which uses a
 * table in one thread only.
 *
 * A list is read here if it is plain: only known strings, without escapes, and no spaces between.
 * The caller reads all other JSON.
 */
#ifndef EGPU_NAMES_H
#define EGPU_NAMES_H

#include <stddef.h>
#include <stdint.h>

struct egpu_names;

/* Return an empty table, or NULL without memory. */
struct egpu_names *egpu_names_new(void);
void egpu_names_free(struct egpu_names *names);

/* Add a name as JSON writes it, with its quotes. Return its number, the previous number of names;
 * -1: no memory. */
int64_t egpu_names_add(struct egpu_names *names, const char *quoted, size_t size);

/* Read the numbers of a list's names, at most `room`. Return how many; -1: it is not plain, has an
 * unknown name, or is longer. */
int64_t egpu_names_read(const struct egpu_names *names, const char *text, size_t size,
                        int64_t *numbers, size_t room);

/* The text around a name in a list. With scores each row is before, name, between, score, after;
 * without: before, name, after. Rows are separated by commas. */
struct egpu_names_row {
    const char *before, *between, *after;
    size_t before_size, between_size, after_size;
};

/* Write a row for each of `count` numbers of names, with its non-negative score if `scores` is not
 * NULL. The text of *size bytes is valid until the next call; NULL: no memory, or an unknown
 * number. */
const char *egpu_names_write(struct egpu_names *names, const int64_t *numbers,
                             const int64_t *scores, size_t count, const struct egpu_names_row *row,
                             size_t *size);

#endif
