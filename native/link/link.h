/* egpu-link: see main.c. */
#ifndef EGPU_LINK_LINK_H
#define EGPU_LINK_LINK_H

#include <stdbool.h>
#include <stdint.h>

#define LINK_DEVICE "egpu0"
#define LINK_NETWORK 0x0a000000u /* 10.0.0.0/8: where all ends of links are */
#define LINK_MASK 0xff000000u
#define LINK_MTU 16384 /* a record of TLS */

/* ---- device.c ---- */

struct device {
    int tun;
    int connections; /* the kernel's list of the network's TCP connections */
};

/* Enters the network and has its device, which stays when we end, with the address. */
bool device_open(struct device *device, int network, uint32_t address);

/* ---- guard.c ---- */

/* Gives up what is not needed any more: privileges, and all calls but those of main.c's loop. */
bool guard_enter(void);

#endif
