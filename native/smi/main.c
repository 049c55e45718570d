#include "smi.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FIELDS = 64 };

struct query {
    enum field_kind kind;
    const struct field *fields[FIELDS];
    size_t count;
    bool header, units;
};

struct options {
    enum { PAGE, LIST, DETAILS, QUERY } what;
    const char *card;
    const char *wanted, *format;
    enum field_kind kind;
    unsigned every_seconds; /* 0: once */
};

static const char HELP[] =
    "Elastic GPU's nvidia-smi, a small one: shows the GPUs of this process.\n\n"
    "  nvidia-smi               cards and the processes on them\n"
    "  nvidia-smi -L            one line per card and MIG instance, with its UUID\n"
    "  nvidia-smi -q            details of each card\n"
    "  nvidia-smi --query-gpu=FIELD,... --format=csv[,noheader][,nounits]\n"
    "  nvidia-smi --query-compute-apps=FIELD,... --format=csv[,noheader][,nounits]\n"
    "  --help-query-gpu, --help-query-compute-apps   list the fields\n"
    "  -i, --id=CARD            one card only, by index, UUID or bus id\n"
    "  -l, --loop=SECONDS       repeat until Ctrl-C\n"
    "  nvidia-smi compute-policy --set-timeslice=N or --list (simulated cards)\n\n"
    "It changes no other setting. NVIDIA's other commands are not supported.\n";

static _Noreturn void refuse(const char *format, const char *what) {
    fprintf(stderr, "nvidia-smi: ");
    fprintf(stderr, format, what);
    fprintf(stderr, "; see nvidia-smi --help\n");
    exit(EXIT_USAGE);
}

static struct options read_options(int argc, char **argv) {
    enum { QUERY_GPU = 256, QUERY_APPS, FORMAT, HELP_GPU, HELP_APPS };
    static const struct option names[] = {
        {"help", no_argument, NULL, 'h'},
        {"list-gpus", no_argument, NULL, 'L'},
        {"query", no_argument, NULL, 'q'},
        {"id", required_argument, NULL, 'i'},
        {"loop", required_argument, NULL, 'l'},
        {"query-gpu", required_argument, NULL, QUERY_GPU},
        {"query-compute-apps", required_argument, NULL, QUERY_APPS},
        {"format", required_argument, NULL, FORMAT},
        {"help-query-gpu", no_argument, NULL, HELP_GPU},
        {"help-query-compute-apps", no_argument, NULL, HELP_APPS},
        {NULL, 0, NULL, 0},
    };
    struct options options = {.what = PAGE};
    opterr = 0; /* refuse() reports it */
    char *end;
    for (int flag; (flag = getopt_long(argc, argv, "+:hLqi:l:", names, NULL)) != -1;) {
        switch (flag) {
        case 'h': fputs(HELP, stdout), exit(0);
        case HELP_GPU: field_list(OF_CARDS), exit(0);
        case HELP_APPS: field_list(OF_PROCESSES), exit(0);
        case 'L': options.what = LIST; break;
        case 'q': options.what = DETAILS; break;
        case 'i': options.card = optarg; break;
        case 'l':
            options.every_seconds = (unsigned)strtoul(optarg, &end, 10);
            if (*end || options.every_seconds == 0)
                refuse("--loop is a number of seconds, not %s", optarg);
            break;
        case QUERY_GPU:
        case QUERY_APPS:
            options.what = QUERY, options.wanted = optarg;
            options.kind = flag == QUERY_GPU ? OF_CARDS : OF_PROCESSES;
            break;
        case FORMAT: options.format = optarg; break;
        case ':': refuse("%s needs a value", argv[optind - 1]);
        default: refuse("option %s is not supported", argv[optind - 1]);
        }
    }
    if (optind < argc) refuse("%s is not supported", argv[optind]);
    return options;
}

static struct query read_query(const struct options *options) {
    struct query query = {.kind = options->kind, .header = true, .units = true};
    bool csv = false;
    char *rest = strdup(options->format ? options->format : ""), *list = strdup(options->wanted);
    for (char *word = strtok(rest, ", "); word; word = strtok(NULL, ", ")) {
        if (strcmp(word, "csv") == 0)
            csv = true;
        else if (strcmp(word, "noheader") == 0)
            query.header = false;
        else if (strcmp(word, "nounits") == 0)
            query.units = false;
        else
            refuse("--format=%s is unknown; use csv, noheader or nounits", word);
    }
    if (!csv) refuse("%s needs --format=csv", "a query");
    for (char *word = strtok(list, ", "); word; word = strtok(NULL, ", ")) {
        const struct field *field = field_find(query.kind, word);
        if (!field) refuse("Field \"%s\" is not a valid field to query", word);
        if (query.count == FIELDS) refuse("%s", "too many fields");
        query.fields[query.count++] = field;
    }
    if (query.count == 0) refuse("%s", "a query needs a field");
    free(rest), free(list);
    return query;
}

static void print_row(const struct query *query, nvmlDevice_t card,
                      const nvmlProcessInfo_t *process) {
    for (size_t n = 0; n < query->count; n++) {
        char text[TEXT];
        const struct field *field = query->fields[n];
        field->read(card, process, text);
        bool unit = query->units && field->unit && strcmp(text, "[N/A]") != 0;
        printf("%s%s%s%s", n ? ", " : "", text, unit ? " " : "", unit ? field->unit : "");
    }
    printf("\n");
}

static void print_query(const struct query *query, const struct cards *cards) {
    static nvmlProcessInfo_t list[PROCESSES];
    if (query->header) {
        for (size_t n = 0; n < query->count; n++) {
            const struct field *field = query->fields[n];
            printf("%s%s", n ? ", " : "", field->name);
            if (field->unit && query->units) printf(" [%s]", field->unit);
        }
        printf("\n");
    }
    for (unsigned i = 0; i < cards->count; i++) {
        unsigned processes = query->kind == OF_PROCESSES ? nvml_processes(cards->list[i], list) : 0;
        if (query->kind == OF_CARDS) print_row(query, cards->list[i], NULL);
        for (unsigned p = 0; p < processes; p++) print_row(query, cards->list[i], &list[p]);
    }
}

/* A card's MIG instances, listed as by NVIDIA's: by the text after "MIG " in the name. */
static void print_instances(nvmlDevice_t card) {
    unsigned most = 0, shown = 0;
    if (!ASK(nvmlDeviceGetMaxMigDeviceCount, card, &most)) return;
    for (unsigned i = 0; i < most; i++) {
        nvmlDevice_t instance;
        char name[TEXT], uuid[TEXT];
        if (!ASK(nvmlDeviceGetMigDeviceHandleByIndex, card, i, &instance)) continue;
        field_text(OF_CARDS, "name", instance, NULL, name);
        field_text(OF_CARDS, "uuid", instance, NULL, uuid);
        const char *profile = strstr(name, "MIG ");
        printf("  MIG %-10s Device %2u: (UUID: %s)\n", profile ? profile + 4 : name, shown++, uuid);
    }
}

static void print_list(const struct cards *cards) {
    for (unsigned i = 0; i < cards->count; i++) {
        char index[TEXT], name[TEXT], uuid[TEXT];
        field_text(OF_CARDS, "index", cards->list[i], NULL, index);
        field_text(OF_CARDS, "name", cards->list[i], NULL, name);
        field_text(OF_CARDS, "uuid", cards->list[i], NULL, uuid);
        printf("GPU %s: %s (UUID: %s)\n", index, name, uuid);
        print_instances(cards->list[i]);
    }
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "compute-policy") == 0) return policy_main(argc - 1, argv + 1);
    struct options options = read_options(argc, argv);
    struct query query = {0};
    if (options.what == QUERY) query = read_query(&options);
    nvml_begin();
    do {
        struct cards cards = nvml_cards(options.card);
        switch (options.what) {
        case PAGE: page_print(&cards); break;
        case LIST: print_list(&cards); break;
        case DETAILS: page_details(&cards); break;
        case QUERY: print_query(&query, &cards); break;
        }
        if (fflush(stdout) != 0) return EXIT_OTHER;
        query.header = false; /* in a loop, only once */
    } while (options.every_seconds && sleep(options.every_seconds) == 0);
    return 0;
}
