/* What the measuring programs have in common. */
#ifndef EGPU_BENCHMARKS_MEASURE_H
#define EGPU_BENCHMARKS_MEASURE_H

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void check(int result, const char *what) {
    if (result == 0) return;
    fprintf(stderr, "%s: error %d\n", what, result);
    exit(1);
}
#define OK(call) check(call, #call)

static void *library; /* the one that was opened last, where functions are found */

static void open_library(const char *name) {
    library = dlopen(name, RTLD_NOW);
    if (library != NULL) return;
    fprintf(stderr, "%s\n", dlerror());
    exit(1);
}

static void find(void *to, const char *name) {
    void *symbol = dlsym(library, name);
    if (symbol == NULL) {
        fprintf(stderr, "there is no %s\n", name);
        exit(1);
    }
    memcpy(to, &symbol, sizeof symbol);
}

/* Bursts that are not measured: they go through new pages of a ring, twice. */
#define FIRST_LAPS 140

static int by_value(const void *a, const void *b) {
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

/* The middle one of `rounds`, in ns. */
static double middle(double *each, int rounds) {
    qsort(each, (size_t)rounds, sizeof *each, by_value);
    return each[rounds / 2] * 1e9;
}

#endif
