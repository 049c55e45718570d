/* The servers of a program, from cuInit or an earlier query to the program's end. */
#define _GNU_SOURCE
#include "client.h"

#include <dlfcn.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/kernel.h"

struct link *links[MAX_SERVERS];
unsigned link_count;

static _Atomic int opened;      /* the pid, once all servers have been reached */
static _Atomic int initialised; /* the pid, once cuInit has succeeded */
static bool used;               /* cuInit has succeeded, here or before a fork */

CUresult call_ready(void) {
    return atomic_load_explicit(&initialised, memory_order_acquire) ? CUDA_SUCCESS
                                                                    : CUDA_ERROR_NOT_INITIALIZED;
}

void link_die(struct link *link, const char *why) {
    if (atomic_exchange(&link->dead, true)) return;
    fprintf(stderr, "egpu: lost the lease of %s: %s\n", link->path, why);
    if (link->fd >= 0) shutdown(link->fd, SHUT_RDWR);
    pthread_mutex_lock(&link->receive_lock);
    pthread_cond_broadcast(&link->received);
    pthread_mutex_unlock(&link->receive_lock);
}

void link_flush(struct link *link) {
    link_lock(link);
    if (!atomic_load(&link->dead) && !link->transport->flush(link)) connection_recover(link);
    link_unlock(link);
}

void link_serve(struct link *link) {
    pthread_mutex_lock(&link->receive_lock);
    bool broken = atomic_load(&link->broken);
    if (!broken) reading_take_part(link);
    pthread_mutex_unlock(&link->receive_lock);
    connection_mend(link);
}

void link_callback_done(struct link *link, uint64_t number) {
    link_lock(link);
    bool said =
        !atomic_load(&link->dead) && call_control(link, WIRE_CALLBACK_DONE, number, NULL, 0);
    if (said && !link->transport->flush(link)) connection_recover(link);
    link_unlock(link);
}

static void goodbye(void) {
    if (atomic_load(&opened) != getpid()) return;
    for (unsigned i = 0; i < link_count; i++) {
        struct link *link = links[i];
        /* a thread still uses it: the end of the socket tells the executor as well */
        if (pthread_mutex_trylock(&link->send_lock) != 0) continue;
        link->send_locked = true;
        if (!atomic_load(&link->dead) && call_control(link, WIRE_GOODBYE, 0, NULL, 0))
            link->transport->flush(link);
        link_unlock(link);
    }
}

__attribute__((destructor)) static void at_exit(void) { goodbye(); }

/* The child of a fork has no GPU, as with the real driver, and must not use its parent's sockets.
 * If there was no cuInit yet, it may connect itself. */
static void in_child(void) {
    atomic_store(&initialised, 0);
    for (unsigned i = 0; i < link_count; i++) {
        atomic_store(&links[i]->dead, true);
        close(links[i]->fd);
    }
    if (used) return;
    link_count = 0; /* what they hold is leaked: a parent's thread may have held their locks */
    atomic_store(&opened, 0);
}

static struct link *link_new(unsigned index, const char *path) {
    struct link *link = calloc(1, sizeof *link);
    if (link == NULL) return NULL;
    link->index = index;
    link->fd = -1;
    link->next_seq = 1;
    link->owner = pthread_self();
    snprintf(link->path, sizeof link->path, "%s", path);
    size_t length = strlen(path);
    link->direct = length > 5 && strcmp(path + length - 5, ".addr") == 0;
    pthread_mutex_init(&link->send_lock, NULL);
    pthread_mutex_init(&link->stream.feed_lock, NULL);
    pthread_mutex_init(&link->receive_lock, NULL);
    pthread_mutex_init(&link->handle_lock, NULL);
    pthread_mutex_init(&link->shared.slot_lock, NULL);
    pthread_cond_init(&link->received, NULL);
    bool named = kernel_random(link->session, sizeof link->session);
    return named && handles_init(link) ? link : NULL;
}

static CUresult link_open(unsigned index, const char *path) {
    struct link *link = link_new(index, path);
    if (link == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    if (!connection_open(link)) return CUDA_ERROR_DEVICE_UNAVAILABLE;
    if (!link->transport->open(link)) return CUDA_ERROR_OUT_OF_MEMORY;
    links[index] = link;
    link_count = index + 1;
    return CUDA_SUCCESS;
}

/* Find lease0.sock or lease0.addr, and the first server's without the number. */
static bool find_lease(const char *folder, unsigned server, char *path, size_t room) {
    static const char *const endings[] = {"sock", "addr"};
    for (int i = 0; i < 2; i++) {
        snprintf(path, room, "%s/lease%u.%s", folder, server, endings[i]);
        if (access(path, F_OK) == 0) return true;
        snprintf(path, room, "%s/lease.%s", folder, endings[i]);
        if (server == 0 && access(path, F_OK) == 0) return true;
    }
    return false;
}

CUresult links_open(void) {
    static bool watched;
    if (atomic_load(&opened)) return CUDA_SUCCESS;
    Dl_info here;
    char folder[3072], path[4096];
    if (dladdr((const void *)&links, &here) == 0) return CUDA_ERROR_UNKNOWN;
    const char *slash = strrchr(here.dli_fname, '/');
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - here.dli_fname) : 1,
             slash ? here.dli_fname : ".");
    if (!watched) pthread_atfork(NULL, NULL, in_child);
    watched = true;
    /* Servers reached by an earlier attempt stay: it failed at the next one. */
    CUresult result = link_count == 0 ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS;
    for (unsigned server = link_count; server < MAX_SERVERS; server++) {
        if (!find_lease(folder, server, path, sizeof path)) break;
        if ((result = link_open(server, path)) != CUDA_SUCCESS) return result;
    }
    if (result == CUDA_ERROR_NO_DEVICE)
        fprintf(stderr, "egpu: no lease: found no lease.sock beside %s\n", here.dli_fname);
    if (result != CUDA_SUCCESS) return result;
    atomic_store(&opened, getpid());
    return CUDA_SUCCESS;
}

void links_use(void) {
    if (used) return; /* a child does not inherit its parent's state */
    used = true;
    atomic_store_explicit(&initialised, getpid(), memory_order_release);
}
