/* The frames that a session keeps to be rebuilt from: of each object the one that made it and those
 * that changed it. They go with the object. */
#include "executor/moves/moves.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

bool moves_on;

static _Atomic uint64_t bytes, frames, last_order;
static _Atomic bool overflowed;
static struct kept *of_session;
static pthread_mutex_t session_lock = PTHREAD_MUTEX_INITIALIZER;

bool kept_overflowed(void) { return atomic_load(&overflowed); }
const struct kept *kept_of_session(void) { return of_session; }

bool kept_session_prevents(char *why) {
    pthread_mutex_lock(&session_lock);
    bool prevents = kept_prevents(of_session, why);
    pthread_mutex_unlock(&session_lock);
    return prevents;
}

static size_t size_of(const struct kept *kept) { return sizeof *kept + kept->bytes; }

void kept_drop(struct kept *list) {
    while (list != NULL) {
        struct kept *one = list;
        list = one->next;
        atomic_fetch_sub(&bytes, size_of(one));
        atomic_fetch_sub(&frames, 1);
        free(one);
    }
}

bool kept_replaces(const struct kept *later, const struct kept *earlier) {
    size_t key = later->rule->key_bytes;
    if (later->op != earlier->op || later->rule->class == MOVES_CREATES) return false;
    if (later->rule->class == MOVES_PREVENTS || later->rule->class == MOVES_TELLS)
        return true; /* one is enough */
    if (later->rule->class == MOVES_USES) key = later->bytes;
    return later->bytes >= key && earlier->bytes >= key &&
           memcmp(later->payload, earlier->payload, key) == 0;
}

/* The object whose end is the end of the frame; 0: the session's. False: there is nothing to keep,
 * because the call made and found nothing new. */
static bool subject_of(const struct task *task, const uint8_t *payload, uint64_t *subject) {
    const struct moves_rule *rule = &moves_rules[task->header.op];
    *subject = 0;
    switch (rule->class) {
    case MOVES_CREATES: *subject = task->bound; return *subject != 0;
    case MOVES_FINDS: *subject = task->found; return *subject != 0;
    case MOVES_PREVENTS: *subject = task->bound != 0 ? task->bound : task->found; return true;
    case MOVES_CHANGES:
    case MOVES_USES: break;
    case MOVES_TELLS: /* the first bit: it was asked for the address */
        if (task->header.len == 0 || (payload[0] & 1) == 0) return false;
        break;
    default: return false;
    }
    if (rule->subject_at == MOVES_OF_CONTEXT)
        *subject = task->context;
    else if (rule->subject_at != MOVES_OF_SESSION &&
             rule->subject_at + sizeof *subject <= task->header.len)
        memcpy(subject, payload + rule->subject_at, sizeof *subject);
    return true;
}

static void keep_for_session(struct kept *kept) {
    pthread_mutex_lock(&session_lock);
    struct kept **at = &of_session;
    while (*at != NULL && !kept_replaces(kept, *at)) at = &(*at)->next;
    struct kept *replaced = *at;
    if (replaced != NULL) *at = replaced->next;
    kept->next = of_session;
    of_session = kept;
    if (replaced != NULL) replaced->next = NULL;
    kept_drop(replaced);
    pthread_mutex_unlock(&session_lock);
}

void kept_add(const struct task *task, const uint8_t *payload) {
    uint64_t subject;
    if (atomic_load_explicit(&overflowed, memory_order_relaxed) ||
        !subject_of(task, payload, &subject))
        return;
    const struct moves_rule *rule = &moves_rules[task->header.op];
    uint32_t length = rule->class == MOVES_PREVENTS ? 0 : task->header.len;
    struct kept *kept = malloc(sizeof *kept + length);
    uint64_t all = atomic_fetch_add(&bytes, sizeof *kept + length) + sizeof *kept + length;
    if (atomic_fetch_add(&frames, 1) >= KEPT_FRAMES || all > KEPT_BYTES || kept == NULL) {
        atomic_store(&overflowed, true); /* what is kept from now on would not be all */
        free(kept);
        return;
    }
    *kept = (struct kept){.order = atomic_fetch_add(&last_order, 1) + 1,
                          .subject = subject,
                          .context = task->context,
                          .rule = rule,
                          .stays = task->stays,
                          .bytes = length,
                          .op = task->header.op};
    memcpy(kept->payload, payload, length);
    if (subject == 0)
        keep_for_session(kept);
    else if (!handle_keep(kept))
        kept_drop(kept); /* gone meanwhile */
}

const char *variable_name(const struct kept *kept) {
    size_t before = kept->rule->subject_at + sizeof(uint64_t);
    struct reader in = {kept->payload + before, kept->bytes - before, false};
    const char *name = get_string(&in);
    return in.bad ? NULL : name;
}

bool kept_prevents(const struct kept *list, char *why) {
    for (; list != NULL; list = list->next)
        if (list->rule->class == MOVES_PREVENTS) {
            snprintf(why, MOVES_WHY_BYTES, "%s: not carried", list->rule->name);
            return true;
        } else if (list->rule->class == MOVES_TELLS) {
            const char *name = variable_name(list);
            snprintf(why, MOVES_WHY_BYTES, "%s: the program has the address of %.400s",
                     list->rule->name, name != NULL ? name : "a variable");
            return true;
        }
    return false;
}
