/* The device that connects a network of executors with others: created in it, with its address. */
#define _GNU_SOURCE
#include "link.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/clock.h"

#define BUSY_MS 2000 /* our predecessor may not have ended yet */

static bool failed(const char *what) {
    fprintf(stderr, "egpu-link: %s: %s\n", what, strerror(errno));
    return false;
}

static bool attach(int tun) {
    struct ifreq asked = {.ifr_name = LINK_DEVICE, .ifr_flags = IFF_TUN | IFF_NO_PI};
    int64_t deadline = clock_now_ms() + BUSY_MS;
    while (ioctl(tun, TUNSETIFF, &asked) != 0) {
        if (errno != EBUSY || clock_now_ms() > deadline) return false;
        usleep(5000);
    }
    /* Connections within the network also use this address, and outlive this process. */
    return ioctl(tun, TUNSETPERSIST, 1) == 0;
}

static bool set(int fd, unsigned long what, struct ifreq *asked, uint32_t address) {
    struct sockaddr_in is = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(address)};
    memcpy(&asked->ifr_addr, &is, sizeof is);
    return ioctl(fd, what, asked) == 0;
}

/* Stop the kernel's own IPv6 messages: no one receives them. Without IPv6 this does nothing. */
static void without_ipv6(void) {
    int fd = open("/proc/sys/net/ipv6/conf/" LINK_DEVICE "/disable_ipv6", O_WRONLY | O_CLOEXEC);
    if (fd < 0) return;
    if (write(fd, "1", 1) != 1) fprintf(stderr, "egpu-link: IPv6 stays on\n");
    close(fd);
}

static bool configure(uint32_t address) {
    struct ifreq asked = {.ifr_name = LINK_DEVICE};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool good = fd >= 0 && set(fd, SIOCSIFADDR, &asked, address) &&
                set(fd, SIOCSIFNETMASK, &asked, LINK_MASK);
    asked.ifr_mtu = LINK_MTU;
    good = good && ioctl(fd, SIOCSIFMTU, &asked) == 0 && ioctl(fd, SIOCGIFFLAGS, &asked) == 0;
    asked.ifr_flags |= IFF_UP;
    good = good && ioctl(fd, SIOCSIFFLAGS, &asked) == 0;
    if (fd >= 0) close(fd);
    return good;
}

bool device_open(struct device *device, int network, uint32_t address) {
    if (setns(network, CLONE_NEWNET) != 0) return failed("cannot enter the network");
    device->tun = open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (device->tun < 0) return failed("/dev/net/tun");
    if (!attach(device->tun)) return failed("cannot make " LINK_DEVICE);
    without_ipv6();
    if (!configure(address)) return failed("cannot configure " LINK_DEVICE);
    device->connections = open("/proc/thread-self/net/tcp", O_RDONLY | O_CLOEXEC);
    return device->connections >= 0 || failed("cannot list connections");
}
