/* Names of nodes by number, and JSON lists of them: what an extender of a scheduler reads and
 * writes with every pod, thousands at a time. Called from Python (egpu.adapters.name_table), which
 * keeps a table to one thread.
 *
 * A list is read here if it is plain: strings that are all known, without escapes, and no space
 * between. Whatever else JSON allows is the caller's to read.
 */
#ifndef EGPU_NAMES_H
#define EGPU_NAMES_H

#include <stddef.h>
#include <stdint.h>

struct egpu_names;

/* An empty table, or NULL where there is no memory. */
struct egpu_names *egpu_names_new(void);
void egpu_names_free(struct egpu_names *names);

/* One more name, as JSON writes it, with its quotes. Its number, which is how many there were; -1:
 * no memory. */
int64_t egpu_names_add(struct egpu_names *names, const char *quoted, size_t size);

/* The numbers of the names of a list, of which there are at most `room`. How many; -1 where it is
 * not plain, names somebody unknown, or is longer. */
int64_t egpu_names_read(const struct egpu_names *names, const char *text, size_t size,
                        int64_t *numbers, size_t room);

/* What stands around a name in a list. With scores each row is before, name, between, score, after;
 * without: before, name, after. Rows have a comma between them. */
struct egpu_names_row {
    const char *before, *between, *after;
    size_t before_size, between_size, after_size;
};

/* A row for each of `count` numbers of names, each with its score, which is not negative, where
 * `scores` is not NULL. The text, of *size bytes, stays until the next one; NULL: no memory, or a
 * number that no name has. */
const char *egpu_names_write(struct egpu_names *names, const int64_t *numbers,
                             const int64_t *scores, size_t count, const struct egpu_names_row *row,
                             size_t *size);

#endif
