#define _GNU_SOURCE
#include "tls.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The used part of OpenSSL 3's documented interface. Its types are opaque; these numbers are part
 * of its ABI. */
#define SSL_FILETYPE_PEM 1
#define SSL_VERIFY_PEER 1
#define SSL_VERIFY_FAIL_IF_NO_PEER_CERT 2
#define SSL_CTRL_MODE 33
#define SSL_CTRL_SET_READ_AHEAD 41
#define SSL_CTRL_SET_MIN_PROTO_VERSION 123
#define SSL_MODE_ENABLE_PARTIAL_WRITE 1L
#define SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER 2L
#define TLS1_3_VERSION 0x0304
#define SSL_ERROR_SSL 1
#define SSL_ERROR_WANT_READ 2
#define SSL_ERROR_WANT_WRITE 3
#define SSL_ERROR_SYSCALL 5
#define SSL_ERROR_ZERO_RETURN 6
#define SSL_R_UNEXPECTED_EOF_WHILE_READING 294
#define ERR_REASON_MASK 0x7FFFFFul
#define NID_commonName 13
#define READ_BUFFER (256u << 10)

static struct {
    const void *(*TLS_client_method)(void), *(*TLS_server_method)(void);
    void *(*SSL_CTX_new)(const void *);
    void (*SSL_CTX_free)(void *);
    long (*SSL_CTX_ctrl)(void *, int, long, void *);
    void (*SSL_CTX_set_default_read_buffer_len)(void *, size_t);
    int (*SSL_CTX_set_num_tickets)(void *, size_t);
    int (*SSL_CTX_use_certificate_chain_file)(void *, const char *),
        (*SSL_CTX_use_PrivateKey_file)(void *, const char *, int),
        (*SSL_CTX_check_private_key)(const void *),
        (*SSL_CTX_load_verify_locations)(void *, const char *, const char *);
    void (*SSL_CTX_set_verify)(void *, int, void *);
    void *(*SSL_new)(void *);
    void (*SSL_free)(void *);
    int (*SSL_set_fd)(void *, int), (*SSL_do_handshake)(void *),
        (*SSL_get_error)(const void *, int), (*SSL_shutdown)(void *);
    void (*SSL_set_accept_state)(void *), (*SSL_set_connect_state)(void *);
    int (*SSL_read)(void *, void *, int), (*SSL_write)(void *, const void *, int);
    void *(*SSL_get1_peer_certificate)(const void *);
    void (*X509_free)(void *);
    void *(*X509_get_subject_name)(const void *);
    int (*X509_NAME_get_text_by_NID)(void *, int, char *, int);
    unsigned long (*ERR_get_error)(void), (*ERR_peek_error)(void);
    void (*ERR_clear_error)(void);
    void (*ERR_error_string_n)(unsigned long, char *, size_t);
} openssl;

bool tls_load(const char *library, char *why, size_t room) {
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) {
        snprintf(why, room, "%s", dlerror());
        return false;
    }
#define FIND(name)                                                          \
    do {                                                                    \
        void *symbol = dlsym(handle, #name);                                \
        if (symbol == NULL) {                                               \
            snprintf(why, room, "%s is not OpenSSL 3: no " #name, library); \
            return false;                                                   \
        }                                                                   \
        memcpy(&openssl.name, &symbol, sizeof symbol);                      \
    } while (0)
    FIND(TLS_client_method);
    FIND(TLS_server_method);
    FIND(SSL_CTX_new);
    FIND(SSL_CTX_free);
    FIND(SSL_CTX_ctrl);
    FIND(SSL_CTX_set_default_read_buffer_len);
    FIND(SSL_CTX_set_num_tickets);
    FIND(SSL_CTX_use_certificate_chain_file);
    FIND(SSL_CTX_use_PrivateKey_file);
    FIND(SSL_CTX_check_private_key);
    FIND(SSL_CTX_load_verify_locations);
    FIND(SSL_CTX_set_verify);
    FIND(SSL_new);
    FIND(SSL_free);
    FIND(SSL_set_fd);
    FIND(SSL_do_handshake);
    FIND(SSL_get_error);
    FIND(SSL_shutdown);
    FIND(SSL_set_accept_state);
    FIND(SSL_set_connect_state);
    FIND(SSL_read);
    FIND(SSL_write);
    FIND(SSL_get1_peer_certificate);
    /* in libcrypto, which was loaded with it */
    FIND(X509_free);
    FIND(X509_get_subject_name);
    FIND(X509_NAME_get_text_by_NID);
    FIND(ERR_get_error);
    FIND(ERR_peek_error);
    FIND(ERR_clear_error);
    FIND(ERR_error_string_n);
#undef FIND
    return true;
}

struct tls {
    void *context, *ssl;
    bool broken;
};

static void explain(const char *what, char *why, size_t room) {
    char reason[192] = "no reason given";
    unsigned long error = openssl.ERR_get_error();
    if (error != 0) openssl.ERR_error_string_n(error, reason, sizeof reason);
    snprintf(why, room, "%s: %s", what, reason);
}

void tls_free(struct tls *tls) {
    if (tls == NULL) return;
    if (tls->ssl != NULL && !tls->broken) openssl.SSL_shutdown(tls->ssl);
    if (tls->ssl != NULL) openssl.SSL_free(tls->ssl);
    if (tls->context != NULL) openssl.SSL_CTX_free(tls->context);
    free(tls);
}

struct tls *tls_new(int fd, bool server, const struct tls_files *files, char *why, size_t room) {
    struct tls *tls = calloc(1, sizeof *tls);
    if (tls == NULL) return NULL;
    openssl.ERR_clear_error();
    tls->broken = true; /* until the handshake is done */
    tls->context =
        openssl.SSL_CTX_new(server ? openssl.TLS_server_method() : openssl.TLS_client_method());
    const char *failed = NULL;
    if (tls->context == NULL || openssl.SSL_CTX_ctrl(tls->context, SSL_CTRL_SET_MIN_PROTO_VERSION,
                                                     TLS1_3_VERSION, NULL) != 1)
        failed = "TLS 1.3";
    else if (openssl.SSL_CTX_load_verify_locations(tls->context, files->authority, NULL) != 1)
        failed = files->authority;
    else if (openssl.SSL_CTX_use_certificate_chain_file(tls->context, files->certificate) != 1)
        failed = files->certificate;
    else if (openssl.SSL_CTX_use_PrivateKey_file(tls->context, files->key, SSL_FILETYPE_PEM) != 1 ||
             openssl.SSL_CTX_check_private_key(tls->context) != 1)
        failed = files->key;
    else {
        openssl.SSL_CTX_set_verify(tls->context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT,
                                   NULL);
        openssl.SSL_CTX_ctrl(tls->context, SSL_CTRL_MODE,
                             SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER,
                             NULL);
        openssl.SSL_CTX_ctrl(tls->context, SSL_CTRL_SET_READ_AHEAD, 1, NULL);
        openssl.SSL_CTX_set_default_read_buffer_len(tls->context, READ_BUFFER);
        if (server) openssl.SSL_CTX_set_num_tickets(tls->context, 0); /* no session is resumed */
        tls->ssl = openssl.SSL_new(tls->context);
        if (tls->ssl == NULL || openssl.SSL_set_fd(tls->ssl, fd) != 1) failed = "TLS";
    }
    if (failed != NULL) {
        explain(failed, why, room);
        tls_free(tls);
        return NULL;
    }
    (server ? openssl.SSL_set_accept_state : openssl.SSL_set_connect_state)(tls->ssl);
    return tls;
}

static int said(struct tls *tls, int result) {
    switch (openssl.SSL_get_error(tls->ssl, result)) {
    case SSL_ERROR_WANT_READ: return TLS_WANTS_READ;
    case SSL_ERROR_WANT_WRITE: return TLS_WANTS_WRITE;
    case SSL_ERROR_ZERO_RETURN: return 0;
    default: tls->broken = true; return TLS_FAILED;
    }
}

int tls_handshake(struct tls *tls, char *why, size_t room) {
    openssl.ERR_clear_error();
    int result = openssl.SSL_do_handshake(tls->ssl);
    if (result == 1) {
        tls->broken = false;
        return 0;
    }
    int kind = openssl.SSL_get_error(tls->ssl, result), is = said(tls, result);
    if (is == TLS_WANTS_READ || is == TLS_WANTS_WRITE) return is;
    unsigned long error = openssl.ERR_peek_error();
    if (kind == SSL_ERROR_SYSCALL || kind == SSL_ERROR_ZERO_RETURN ||
        (kind == SSL_ERROR_SSL &&
         (error & ERR_REASON_MASK) == SSL_R_UNEXPECTED_EOF_WHILE_READING)) {
        snprintf(why, room, "the connection ended before TLS was agreed on");
        return TLS_LOST;
    }
    explain("no TLS connection", why, room);
    return TLS_FAILED;
}

bool tls_peer(struct tls *tls, char *name, size_t room) {
    void *certificate = openssl.SSL_get1_peer_certificate(tls->ssl);
    if (certificate == NULL) return false;
    int length = openssl.X509_NAME_get_text_by_NID(openssl.X509_get_subject_name(certificate),
                                                   NID_commonName, name, (int)room);
    openssl.X509_free(certificate);
    /* complete and without a NUL inside */
    return length > 0 && (size_t)length == strlen(name) && (size_t)length + 1 < room;
}

ssize_t tls_read(struct tls *tls, void *to, size_t bytes) {
    openssl.ERR_clear_error();
    int got = openssl.SSL_read(tls->ssl, to, bytes > INT_MAX ? INT_MAX : (int)bytes);
    return got > 0 ? got : said(tls, got);
}

ssize_t tls_write(struct tls *tls, const void *from, size_t bytes) {
    openssl.ERR_clear_error();
    int sent = openssl.SSL_write(tls->ssl, from, bytes > INT_MAX ? INT_MAX : (int)bytes);
    if (sent > 0) return sent;
    int is = said(tls, sent);
    return is == 0 ? TLS_FAILED : is;
}
