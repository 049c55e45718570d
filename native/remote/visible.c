/* The program's devices: the cards of its leases, as CUDA_VISIBLE_DEVICES selects and orders them.
 *
 * The rules are libcuda's. Entries are indexes, in the order of the leases, or UUIDs, of which an
 * unambiguous beginning is enough. The first invalid entry ends the list; with a duplicate there is
 * no device. The first cuInit reads the variable.
 */
#define _GNU_SOURCE
#include "client.h"

#include <stdio.h>
#include <strings.h>
#include <unistd.h>

enum { MAX_CARDS = MAX_SERVERS * WIRE_MAX_DEVICES, UUID_TEXT = 41, LONGEST_LIST = 4096 };

static struct {
    int cards[MAX_CARDS]; /* by the program's ordinal: the number of a card */
    unsigned count;
    int chosen_by; /* the pid */
} visible;

unsigned card_count(void) {
    unsigned count = 0;
    for (unsigned i = 0; i < link_count; i++) count += links[i]->device_count;
    return count;
}

struct link *link_of_card(unsigned card, unsigned *local) {
    for (unsigned i = 0; i < link_count; card -= links[i++]->device_count)
        if (card < links[i]->device_count) {
            *local = card;
            return links[i];
        }
    return NULL;
}

/* ---- the list ---- */

/* Both GPU-… and MIG-… name a card by the same bytes. */
static void uuid_text(unsigned card, const char *kind, char text[UUID_TEXT]) {
    unsigned local;
    const uint8_t *bytes = link_of_card(card, &local)->devices[local].is.uuid;
    char *at = text + sprintf(text, "%.4s", kind);
    for (int i = 0; i < 16; i++)
        at += sprintf(at, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", bytes[i]);
}

static int card_by_uuid(const char *entry) {
    int found = -1;
    for (unsigned card = 0; card < card_count(); card++) {
        char text[UUID_TEXT];
        uuid_text(card, entry, text);
        if (strncasecmp(text, entry, strlen(entry)) != 0) continue;
        if (found >= 0) return -1; /* ambiguous */
        found = (int)card;
    }
    return found;
}

/* The number of the card that an entry names, or -1. */
static int card_named(const char *entry) {
    if (strncasecmp(entry, "GPU-", 4) == 0 || strncasecmp(entry, "MIG-", 4) == 0)
        return card_by_uuid(entry);
    char *end;
    long number = strtol(entry, &end, 10);
    bool whole = end != entry && *end == 0;
    return whole && number >= 0 && number < (long)card_count() ? (int)number : -1;
}

static void choose_listed(const char *value) {
    char copy[LONGEST_LIST], *rest = copy;
    snprintf(copy, sizeof copy, "%s", value);
    for (char *entry; (entry = strsep(&rest, ",")) != NULL;) {
        while (*entry == ' ') entry++;
        for (char *end = entry + strlen(entry); end > entry && end[-1] == ' ';) *--end = 0;
        int card = card_named(entry);
        if (card < 0) return;
        for (unsigned i = 0; i < visible.count; i++)
            if (visible.cards[i] == card) {
                visible.count = 0;
                return;
            }
        visible.cards[visible.count++] = card;
    }
}

void visible_choose(void) {
    const char *value = getenv("CUDA_VISIBLE_DEVICES");
    if (visible.count != 0 && visible.chosen_by == getpid()) return;
    visible.chosen_by = getpid();
    visible.count = 0;
    if (value != NULL) {
        choose_listed(value);
        return;
    }
    for (unsigned card = 0; card < card_count(); card++) visible.cards[visible.count++] = (int)card;
}

/* ---- ordinals ---- */

unsigned visible_count(void) { return visible.count; }

struct link *link_of_device(CUdevice ordinal, unsigned *local) {
    return ordinal >= 0 && (unsigned)ordinal < visible.count
               ? link_of_card((unsigned)visible.cards[ordinal], local)
               : NULL;
}

CUdevice ordinal_of(const struct link *link, unsigned local) {
    for (unsigned ordinal = 0; ordinal < visible.count; ordinal++) {
        unsigned at = 0;
        if (link_of_device((CUdevice)ordinal, &at) == link && at == local) return (CUdevice)ordinal;
    }
    return -1;
}
