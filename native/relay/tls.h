/* TLS by OpenSSL 3, which is loaded at run time: every machine with Python's `ssl` has it, and its
 * headers are not needed to build. Only TLS 1.3, and only peers with a certificate of the given
 * authority. Sockets are non-blocking.
 */
#ifndef EGPU_RELAY_TLS_H
#define EGPU_RELAY_TLS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct tls;
struct tls_files {
    const char *authority, *certificate, *key;
};

/* Load the library. False: it is missing or is not OpenSSL 3; `why` has the reason. */
bool tls_load(const char *library, char *why, size_t room);

/* Start a connection over `fd`. NULL: the files cannot be used; `why` has the reason. */
struct tls *tls_new(int fd, bool server, const struct tls_files *files, char *why, size_t room);
/* says goodbye if that is possible at once; leaves the descriptor open */
void tls_free(struct tls *tls);

enum {
    TLS_WANTS_READ = -1,
    TLS_WANTS_WRITE = -2,
    TLS_FAILED = -3,
    TLS_LOST = -4 /* the connection ended without a refusal */
};

int tls_handshake(struct tls *tls, char *why, size_t room); /* 0: done, or one of the above */
/* the common name of the peer's certificate */
bool tls_peer(struct tls *tls, char *name, size_t room);
/* bytes, 0 at the end, or one of the above but LOST */
ssize_t tls_read(struct tls *tls, void *to, size_t bytes);
ssize_t tls_write(struct tls *tls, const void *from, size_t bytes);

#endif
