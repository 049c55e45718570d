/* Pages for people: the one without arguments, and -q. At most 79 columns. */
#include "smi.h"

#include <stdio.h>
#include <string.h>

static const char *of_card(const char *name, nvmlDevice_t card, char text[TEXT]) {
    field_text(OF_CARDS, name, card, NULL, text);
    return strcmp(text, "[N/A]") == 0 ? "N/A" : text;
}

static void heading(void) {
    char driver[80] = "N/A";
    int cuda = 0;
    (void)ASK(nvmlSystemGetDriverVersion, driver, sizeof driver);
    (void)ASK(nvmlSystemGetCudaDriverVersion_v2, &cuda);
    printf("Elastic GPU's nvidia-smi: the GPUs of this process\n");
    printf("Driver Version: %s    CUDA Version: %d.%d\n\n", driver, cuda / 1000, cuda % 1000 / 10);
}

static void print_card(nvmlDevice_t card) {
    char index[TEXT], name[TEXT], temperature[TEXT], state[TEXT], power[TEXT], used[TEXT],
        total[TEXT], busy[TEXT];
    char memory[64];
    of_card("index", card, index);
    of_card("name", card, name);
    snprintf(memory, sizeof memory, "%.20sMiB / %.20sMiB", of_card("memory.used", card, used),
             of_card("memory.total", card, total));
    printf("%3.3s  %-24.24s  %4.4s  %4.4s  %7.7s  %21.21s  %4.4s\n", index, name,
           of_card("temperature.gpu", card, temperature), of_card("pstate", card, state),
           of_card("power.draw", card, power), memory, of_card("utilization.gpu", card, busy));
}

/* The end of a path is more useful than its start. */
static void print_process(const char *index, unsigned pid, const char *name, const char *memory) {
    enum { WIDTH = 41 };
    size_t length = strlen(name);
    const char *cut = length > WIDTH ? "..." : "";
    const char *end = length > WIDTH ? name + length - (WIDTH - 3) : name;
    printf("%3.3s  %10u  %s%-*s  %12.12sMiB\n", index, pid, cut, (int)(WIDTH - strlen(cut)), end,
           memory);
}

static unsigned print_processes(nvmlDevice_t card) {
    static nvmlProcessInfo_t list[PROCESSES];
    char index[TEXT], name[TEXT], memory[TEXT];
    unsigned count = nvml_processes(card, list);
    of_card("index", card, index);
    for (unsigned i = 0; i < count; i++) {
        field_text(OF_PROCESSES, "process_name", card, &list[i], name);
        field_text(OF_PROCESSES, "used_gpu_memory", card, &list[i], memory);
        print_process(index, list[i].pid, name, memory);
    }
    return count;
}

void page_print(const struct cards *cards) {
    unsigned processes = 0;
    heading();
    printf("%3s  %-24s  %4s  %4s  %7s  %21s  %4s\n", "GPU", "Name", "Temp", "Perf", "Power W",
           "Memory-Usage", "Util");
    for (unsigned i = 0; i < cards->count; i++) print_card(cards->list[i]);
    printf("\n%3s  %10s  %-41s  %15s\n", "GPU", "PID", "Process name", "GPU Memory");
    for (unsigned i = 0; i < cards->count; i++) processes += print_processes(cards->list[i]);
    if (processes == 0) printf("No running processes found\n");
}

void page_details(const struct cards *cards) {
    static const struct {
        const char *label, *field;
    } lines[] = {
        {"Product Name", "name"},
        {"GPU UUID", "uuid"},
        {"Serial Number", "serial"},
        {"Bus Id", "pci.bus_id"},
        {"Compute Capability", "compute_cap"},
        {"Persistence Mode", "persistence_mode"},
        {"Compute Mode", "compute_mode"},
        {"MIG Mode", "mig.mode.current"},
        {"ECC Mode", "ecc.mode.current"},
        {"Performance State", "pstate"},
        {"FB Memory Total", "memory.total"},
        {"FB Memory Reserved", "memory.reserved"},
        {"FB Memory Used", "memory.used"},
        {"FB Memory Free", "memory.free"},
        {"Utilization Gpu", "utilization.gpu"},
        {"Utilization Memory", "utilization.memory"},
        {"GPU Current Temp", "temperature.gpu"},
        {"Power Draw", "power.draw"},
        {"Power Limit", "power.limit"},
        {"SM Clock", "clocks.current.sm"},
        {"Memory Clock", "clocks.current.memory"},
        {"Max SM Clock", "clocks.max.sm"},
    };
    char text[TEXT];
    heading();
    for (unsigned i = 0; i < cards->count; i++) {
        printf("GPU %s\n", of_card("pci.bus_id", cards->list[i], text));
        for (size_t n = 0; n < sizeof lines / sizeof *lines; n++) {
            const char *unit = field_find(OF_CARDS, lines[n].field)->unit;
            const char *value = of_card(lines[n].field, cards->list[i], text);
            bool known = strcmp(value, "N/A") != 0;
            printf("    %-26s : %s%s%s\n", lines[n].label, value, unit && known ? " " : "",
                   unit && known ? unit : "");
        }
        printf("\n");
    }
}
