/* egpu-link: see main.c. */
#ifndef EGPU_LINK_LINK_H
#define EGPU_LINK_LINK_H

#include <stdbool.h>
#include <stdint.h>

#define LINK_DEVICE "egpu0"
#define LINK_NETWORK 0x0a000000u /* 10.0.0.0/8: addresses of all ends of links */
#define LINK_MASK 0xff000000u
#define LINK_MTU 16384 /* one TLS record */

/* ---- device.c ---- */

struct device {
    int tun;
    int connections; /* the kernel's list of the network's TCP connections */
};

/* Enter the network and open its device with the address; the device stays when we end. */
bool device_open(struct device *device, int network, uint32_t address);

/* ---- guard.c ---- */

/* Give up everything not needed any more: privileges, and all calls but those of main.c's loop. */
bool guard_enter(void);

#endif
