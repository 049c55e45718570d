/* egpu-turns: the arbiter of turns on the cards of this machine (turns.h, egpu_abi.h). The process
 * that shares the cards' time between slices runs it, and says on standard input which slices share
 * which card. Fields are separated by tabs; the path is that of a slice's policy page, and after
 * that the one of its usage file:
 *
 *     card
 *     slice  latency|batch  CORE_PPM  DEVICE  POLICY  USAGE      of this card; DEVICE: its position
 *     go                                                          from now on these, and no others
 *
 * A thread for each slice of latency work waits for its requests. A usage file may shrink and hold
 * anything: it is mapped only as the address to wait at, and read with pread(2).
 *
 * When standard input closes, nobody gives out turns any more. Then all slices of latency work may
 * launch at any time, and the program ends. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "turns.h"

enum {
    CARDS = 64,
    REQUESTS = 200,         /* of a slice, that are answered at once, */
    REQUESTS_NS = 20000000, /* in this time: a program that asks for nothing but asking waits */
    RETRY_NS = 100000000,   /* where a usage file cannot be waited for */
    LOOK_NS = 500000000,    /* whether a slice has ended, without being woken for it */
    END_NS = 1000000,
};

struct slice {
    struct turn_slice *turn; /* of `card` */
    struct card *card;
    char policy[PATH_MAX], usage[PATH_MAX];
    unsigned device;
    int usage_file;
    struct egpu_policy *page;
    const struct egpu_usage *wait; /* never read here */
    pthread_t thread;
    bool has_thread, ended;
};

struct card {
    struct turn_card turns;
    struct slice slices[TURN_SLICES];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct card *cards[CARDS];
static int card_count;

static void futex_wake(const uint32_t *word) {
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL);
}

static void pause_ns(uint64_t duration_ns) {
    struct timespec duration = {(time_t)(duration_ns / 1000000000u),
                                (long)(duration_ns % 1000000000u)};
    nanosleep(&duration, NULL);
}

/* ---- the files ---- */

/* Return the serial of a slice's latest request. */
static uint32_t hear(struct slice *slice) {
    struct egpu_usage_device totals;
    struct egpu_usage_ask ask;
    off_t at = (off_t)(offsetof(struct egpu_usage, devices) + slice->device * sizeof totals),
          asked = (off_t)(offsetof(struct egpu_usage, asks) + slice->device * sizeof ask);
    if (pread(slice->usage_file, &totals, sizeof totals, at) != sizeof totals ||
        pread(slice->usage_file, &ask, sizeof ask, asked) != sizeof ask) {
        memset(&totals, 0, sizeof totals);
        memset(&ask, 0, sizeof ask);
    }
    turn_hear(slice->turn, &totals, &ask);
    return ask.serial;
}

static void tell(struct slice *slice) {
    struct egpu_policy_turn *turn = &slice->page->turns[slice->device];
    uint32_t before = turn->serial;
    turn_tell(&slice->card->turns, slice->turn, turn);
    if (turn->serial != before) futex_wake(&turn->serial);
}

static void answer(struct slice *slice) {
    struct card *card = slice->card;
    for (int i = 0; i < card->turns.count; i++)
        if (&card->slices[i] != slice) hear(&card->slices[i]);
    turn_answer(&card->turns, slice->turn, clock_now_ns());
    for (int i = 0; i < card->turns.count; i++) tell(&card->slices[i]);
}

static void *follow(void *argument) {
    struct slice *slice = argument;
    const uint32_t *word = &slice->wait->asks[slice->device].serial;
    uint64_t since = 0;
    int requests = 0;
    while (!__atomic_load_n(&slice->ended, __ATOMIC_ACQUIRE)) {
        pthread_mutex_lock(&lock);
        uint32_t seen = hear(slice);
        if (!slice->ended) answer(slice);
        pthread_mutex_unlock(&lock);
        uint64_t now = clock_now_ns();
        if (now - since > REQUESTS_NS) {
            since = now;
            requests = 0;
        } else if (++requests > REQUESTS) {
            pause_ns(REQUESTS_NS);
        }
        /* Not for ever: nothing can be woken at an address that the file no longer has. */
        struct timespec most = {0, LOOK_NS};
        if (syscall(SYS_futex, word, FUTEX_WAIT, seen, &most) != 0 && errno != EAGAIN &&
            errno != EINTR && errno != ETIMEDOUT)
            pause_ns(RETRY_NS);
    }
    return NULL;
}

/* ---- the slices ---- */

static bool open_slice(struct slice *slice) {
    int policy = open(slice->policy, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    slice->usage_file = open(slice->usage, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    void *page = MAP_FAILED, *wait = MAP_FAILED;
    if (policy >= 0 && slice->usage_file >= 0 && slice->device < EGPU_MAX_DEVICES &&
        lseek(policy, 0, SEEK_END) == EGPU_POLICY_SIZE) {
        page = mmap(NULL, EGPU_POLICY_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, policy, 0);
        wait = mmap(NULL, EGPU_USAGE_HEADER_SIZE, PROT_READ, MAP_SHARED, slice->usage_file, 0);
    }
    if (policy >= 0) close(policy);
    slice->page = page == MAP_FAILED ? NULL : page;
    slice->wait = wait == MAP_FAILED ? NULL : wait;
    return slice->page != NULL && slice->wait != NULL;
}

static void close_slice(struct slice *slice) {
    if (slice->usage_file >= 0) close(slice->usage_file);
    if (slice->page != NULL) munmap(slice->page, EGPU_POLICY_SIZE);
    if (slice->wait != NULL) munmap((void *)slice->wait, EGPU_USAGE_HEADER_SIZE);
}

static void end_thread(struct slice *slice) {
    if (!slice->has_thread) return;
    __atomic_store_n(&slice->ended, true, __ATOMIC_RELEASE);
    /* It may be about to wait: wake it again until it is gone. */
    do {
        futex_wake(&slice->wait->asks[slice->device].serial);
        pause_ns(END_NS);
    } while (pthread_tryjoin_np(slice->thread, NULL) == EBUSY);
}

static void drop_cards(struct card **dropped, int count) {
    for (int c = 0; c < count; c++) {
        for (int i = 0; i < dropped[c]->turns.count; i++) {
            end_thread(&dropped[c]->slices[i]);
            close_slice(&dropped[c]->slices[i]);
        }
        free(dropped[c]);
    }
}

/* What a slice that stays has used of its budget stays, too. */
static void inherit(struct slice *slice) {
    for (int c = 0; c < card_count; c++)
        for (int i = 0; i < cards[c]->turns.count; i++) {
            const struct slice *before = &cards[c]->slices[i];
            if (before->device != slice->device || strcmp(before->policy, slice->policy) != 0)
                continue;
            memcpy(slice->turn->parts, before->turn->parts, sizeof slice->turn->parts);
            slice->turn->serial = before->turn->serial;
        }
}

static void begin(struct card **fresh, int count) {
    struct card *before[CARDS];
    int before_count = card_count;
    pthread_mutex_lock(&lock);
    memcpy(before, cards, sizeof before);
    for (int c = 0; c < count; c++)
        for (int i = 0; i < fresh[c]->turns.count; i++) inherit(&fresh[c]->slices[i]);
    for (int c = 0; c < card_count; c++)
        for (int i = 0; i < cards[c]->turns.count; i++) cards[c]->slices[i].ended = true;
    memcpy(cards, fresh, (size_t)count * sizeof *fresh);
    card_count = count;
    pthread_mutex_unlock(&lock);
    drop_cards(before, before_count);
    for (int c = 0; c < count; c++)
        for (int i = 0; i < fresh[c]->turns.count; i++) {
            struct slice *slice = &fresh[c]->slices[i];
            pthread_mutex_lock(&lock);
            tell(slice);
            pthread_mutex_unlock(&lock);
            slice->has_thread =
                slice->turn->latency && pthread_create(&slice->thread, NULL, follow, slice) == 0;
        }
}

/* Adds the slice that a line describes. Return whether the line is one. */
static bool add_slice(struct card *card, char *line) {
    char *kind = strtok(line, "\t"), *core = strtok(NULL, "\t"), *device = strtok(NULL, "\t"),
         *policy = strtok(NULL, "\t"), *usage = strtok(NULL, "\t");
    if (usage == NULL || strlen(policy) >= PATH_MAX || strlen(usage) >= PATH_MAX) return false;
    if (card->turns.count == TURN_SLICES) return true;
    struct slice *slice = &card->slices[card->turns.count];
    *slice = (struct slice){.card = card, .turn = &card->turns.slices[card->turns.count]};
    slice->turn->latency = strcmp(kind, "latency") == 0;
    slice->turn->core_ppm = (uint32_t)strtoul(core, NULL, 10);
    slice->device = (unsigned)strtoul(device, NULL, 10);
    strcpy(slice->policy, policy);
    strcpy(slice->usage, usage);
    if (open_slice(slice))
        card->turns.count++;
    else
        close_slice(slice); /* it has ended meanwhile */
    return true;
}

static void let_go(void) {
    pthread_mutex_lock(&lock);
    for (int c = 0; c < card_count; c++)
        for (int i = 0; i < cards[c]->turns.count; i++) {
            struct slice *slice = &cards[c]->slices[i];
            slice->turn->until_ns = slice->turn->latency ? UINT64_MAX : 0;
            cards[c]->turns.until_ns = 0;
            slice->turn->serial++;
            cards[c]->turns.serial++;
            slice->ended = true;
            tell(slice);
        }
    pthread_mutex_unlock(&lock);
}

int main(void) {
    struct card *fresh[CARDS];
    int count = 0;
    char *line = NULL;
    size_t room = 0;
    signal(SIGINT, SIG_IGN); /* of a terminal: whoever runs us closes standard input */
    while (getline(&line, &room, stdin) > 0) {
        line[strcspn(line, "\n")] = 0;
        bool good = true;
        if (strcmp(line, "card") == 0 && count < CARDS) {
            fresh[count] = calloc(1, sizeof **fresh);
            good = fresh[count++] != NULL;
        } else if (strncmp(line, "slice\t", 6) == 0 && count > 0) {
            good = add_slice(fresh[count - 1], line + 6);
        } else if (strcmp(line, "go") == 0) {
            begin(fresh, count);
            count = 0;
            good = printf("ready\n") > 0 && fflush(stdout) == 0;
        } else {
            good = false;
        }
        if (!good) {
            fprintf(stderr, "egpu-turns: not understood: %s\n", line);
            return 2;
        }
    }
    let_go();
    return 0;
}
