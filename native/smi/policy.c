/* compute-policy: how long a process keeps a card while others wait for it. NVML has no public
 * function for it; the simulated one has one of ours. */
#include "smi.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const lengths[] = {"DEFAULT", "SHORT", "MEDIUM", "LONG"};
enum { LENGTHS = sizeof lengths / sizeof *lengths };

static _Noreturn void usage(void) {
    fprintf(stderr, "nvidia-smi: compute-policy takes --set-timeslice=N (0 DEFAULT, 1 SHORT, 2 "
                    "MEDIUM, 3 LONG) or --list, and -i CARD\n");
    exit(EXIT_USAGE);
}

static int failed(const char *what) {
    fprintf(stderr,
            "nvidia-smi: %s; this nvidia-smi supports it on simulated cards, NVIDIA's on real "
            "ones\n",
            what);
    return EXIT_OTHER;
}

static int set(nvmlDevice_t card, unsigned length) {
    char uuid[TEXT];
    if (!nvml.egpuSimSetTimeslice) return failed("this NVML cannot set a time slice");
    if (nvml.egpuSimSetTimeslice(card, length) != NVML_SUCCESS)
        return failed("NVML did not set the time slice");
    field_text(OF_CARDS, "uuid", card, NULL, uuid);
    printf("Timeslice set to %s for GPU %s\n", lengths[length], uuid);
    return 0;
}

static int list(nvmlDevice_t card) {
    char uuid[TEXT];
    unsigned length;
    if (!ASK(egpuSimGetTimeslice, card, &length)) return failed("this NVML has no time slice");
    field_text(OF_CARDS, "uuid", card, NULL, uuid);
    printf("GPU %s: Timeslice %s\n", uuid, lengths[length]);
    return 0;
}

int policy_main(int argc, char **argv) {
    enum { SET = 256 };
    static const struct option names[] = {{"id", required_argument, NULL, 'i'},
                                          {"list", no_argument, NULL, 'l'},
                                          {"set-timeslice", required_argument, NULL, SET},
                                          {NULL, 0, NULL, 0}};
    const char *which = NULL;
    unsigned long length = LENGTHS;
    bool wants_list = false;
    opterr = 0; /* usage() reports it */
    for (int flag; (flag = getopt_long(argc, argv, "i:l", names, NULL)) != -1;) {
        char *end = NULL;
        switch (flag) {
        case 'i': which = optarg; break;
        case 'l': wants_list = true; break;
        case SET:
            length = strtoul(optarg, &end, 10);
            if (!*optarg || *end || length >= LENGTHS) usage();
            break;
        default: usage();
        }
    }
    if (optind < argc || wants_list == (length < LENGTHS)) usage();
    nvml_begin();
    struct cards cards = nvml_cards(which);
    for (unsigned i = 0; i < cards.count; i++) {
        int code = wants_list ? list(cards.list[i]) : set(cards.list[i], (unsigned)length);
        if (code) return code;
    }
    return 0;
}
