/* The place where other ranks find this process: a socket on its network's own address, and a
 * thread that accepts connections. Ranks of a clique wait here until all have come. */
#include "exchange.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#define DEVICE "egpu0" /* of a network linked with others (native/link) */
#define MOST_MEETINGS 64
#define GREETING_SECONDS 2

/* Ranks that wait for the others of their clique. */
struct waiting {
    uint64_t words[2];
    uint32_t ranks; /* 0: unused */
    int sockets[MOST_RANKS];
    struct place places[MOST_RANKS];
};

static struct {
    pthread_mutex_t lock;
    pid_t owner; /* a forked process has none */
    int listener;
    struct place place;
    struct waiting meetings[MOST_MEETINGS]; /* used only by the thread */
} station = {.lock = PTHREAD_MUTEX_INITIALIZER};

bool send_all(int fd, const void *data, size_t bytes) {
    const uint8_t *at = data;
    while (bytes > 0) {
        ssize_t sent = send(fd, at, bytes, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) return false;
        at += sent;
        bytes -= (size_t)sent;
    }
    return true;
}

bool receive_all(int fd, void *data, size_t bytes) {
    uint8_t *at = data;
    while (bytes > 0) {
        ssize_t got = recv(fd, at, bytes, MSG_WAITALL);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        at += got;
        bytes -= (size_t)got;
    }
    return true;
}

static struct sockaddr_in address_of(struct place place) {
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = place.port, .sin_addr.s_addr = place.address};
}

int station_connect(struct place place) {
    struct sockaddr_in to = address_of(place);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), on = 1;
    if (fd < 0) return -1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(fd, (struct sockaddr *)&to, sizeof to) == 0 || errno == EINPROGRESS) return fd;
    close(fd);
    return -1;
}

/* ---- meetings ---- */

static void part(struct waiting *meeting) {
    for (unsigned rank = 0; rank < meeting->ranks; rank++)
        if (meeting->sockets[rank] >= 0) close(meeting->sockets[rank]);
    meeting->ranks = 0;
}

static struct waiting *meeting_of(const struct greeting *greeting) {
    struct waiting *unused = NULL;
    for (struct waiting *meeting = station.meetings; meeting < station.meetings + MOST_MEETINGS;
         meeting++) {
        if (meeting->ranks == 0)
            unused = meeting;
        else if (memcmp(meeting->words, greeting->words, sizeof meeting->words) == 0)
            return meeting;
    }
    if (unused == NULL) return NULL;
    *unused = (struct waiting){.words = {greeting->words[0], greeting->words[1]},
                               .ranks = greeting->ranks};
    for (unsigned rank = 0; rank < MOST_RANKS; rank++) unused->sockets[rank] = -1;
    return unused;
}

/* The last rank to come sends all of them the others' places. */
static void introduce(struct waiting *meeting) {
    struct meeting said = {.result = OK};
    memcpy(said.places, meeting->places, sizeof said.places);
    for (unsigned rank = 0; rank < meeting->ranks; rank++) {
        if (meeting->sockets[rank] < 0) return;
    }
    for (unsigned rank = 0; rank < meeting->ranks; rank++)
        send_all(meeting->sockets[rank], &said, sizeof said);
    part(meeting);
}

static void come(const struct greeting *greeting, int fd) {
    struct waiting *meeting = meeting_of(greeting);
    if (meeting == NULL || meeting->ranks != greeting->ranks || greeting->rank >= meeting->ranks ||
        meeting->sockets[greeting->rank] >= 0) {
        struct meeting said = {.result = meeting == NULL ? SYSTEM : INVALID_USAGE};
        send_all(fd, &said, sizeof said);
        close(fd);
        return;
    }
    meeting->sockets[greeting->rank] = fd;
    meeting->places[greeting->rank] = greeting->from;
    introduce(meeting);
}

static void greet(int fd) {
    struct greeting greeting;
    struct timeval most = {.tv_sec = GREETING_SECONDS}, none = {0};
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
    bool good = receive_all(fd, &greeting, sizeof greeting) && greeting.ranks >= 1 &&
                greeting.ranks <= MOST_RANKS && greeting.rank < greeting.ranks;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none);
    if (good && greeting.kind == COMES)
        come(&greeting, fd);
    else if (!good || greeting.kind != LINKS || !clique_link(&greeting, fd))
        close(fd);
}

/* One of the waiting ranks was lost, so none needs to wait any more. */
static void look_after(void) {
    for (struct waiting *meeting = station.meetings; meeting < station.meetings + MOST_MEETINGS;
         meeting++) {
        bool lost = false;
        for (unsigned rank = 0; rank < meeting->ranks; rank++) {
            uint8_t byte;
            int fd = meeting->sockets[rank];
            ssize_t got = fd < 0 ? -1 : recv(fd, &byte, 1, MSG_DONTWAIT);
            lost |= fd >= 0 && (got >= 0 || (errno != EAGAIN && errno != EINTR));
        }
        if (lost) part(meeting);
    }
}

static void *serve(void *nothing) {
    enum { MOST = 1 + MOST_MEETINGS * MOST_RANKS };
    struct pollfd ready[MOST];
    (void)nothing;
    for (;;) {
        unsigned count = 0;
        ready[count++] = (struct pollfd){.fd = station.listener, .events = POLLIN};
        for (struct waiting *meeting = station.meetings; meeting < station.meetings + MOST_MEETINGS;
             meeting++)
            for (unsigned rank = 0; rank < meeting->ranks; rank++)
                ready[count++] = (struct pollfd){.fd = meeting->sockets[rank], .events = POLLIN};
        if (poll(ready, count, -1) < 0) continue;
        if (ready[0].revents != 0) {
            int fd = accept4(station.listener, NULL, NULL, SOCK_CLOEXEC);
            if (fd >= 0) greet(fd);
        } else {
            look_after();
        }
    }
    return NULL;
}

/* ---- this process ---- */

static uint32_t own_address(int fd) {
    struct ifreq asked = {.ifr_name = DEVICE};
    struct sockaddr_in is;
    if (ioctl(fd, SIOCGIFADDR, &asked) != 0) return htonl(INADDR_LOOPBACK);
    memcpy(&is, &asked.ifr_addr, sizeof is);
    return is.sin_addr.s_addr;
}

static bool start(void) {
    pthread_t thread;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr.s_addr = fd < 0 ? 0 : own_address(fd)};
    socklen_t length = sizeof at;
    bool good = fd >= 0 && bind(fd, (struct sockaddr *)&at, sizeof at) == 0 &&
                listen(fd, 4 * MOST_RANKS) == 0 &&
                getsockname(fd, (struct sockaddr *)&at, &length) == 0;
    station.listener = fd;
    station.place = (struct place){at.sin_addr.s_addr, at.sin_port, 0};
    memset(station.meetings, 0, sizeof station.meetings);
    good = good && pthread_create(&thread, NULL, serve, NULL) == 0;
    if (good) pthread_detach(thread);
    if (!good && fd >= 0) close(fd);
    return good;
}

bool station_place(struct place *place) {
    pthread_mutex_lock(&station.lock);
    if (station.owner != getpid() && start()) station.owner = getpid();
    bool good = station.owner == getpid();
    *place = station.place;
    pthread_mutex_unlock(&station.lock);
    return good;
}
