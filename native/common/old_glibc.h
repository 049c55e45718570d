/* Included first in everything that is loaded in containers, whose glibc may be as old as 2.17.
 *
 * glibc 2.34 moved these into libc.so.6, with a new version beside the old one, and a linker
 * chooses the new one by default. Older versions have them in libpthread and libdl, so users of
 * this file link those by name (target egpu_old_glibc).
 */
#ifndef EGPU_COMMON_OLD_GLIBC_H
#define EGPU_COMMON_OLD_GLIBC_H

#if defined(__x86_64__)
#define OLD_GLIBC "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define OLD_GLIBC "GLIBC_2.17"
#endif
#define FROM_OLD_GLIBC(function) __asm__(".symver " #function "," #function "@" OLD_GLIBC)

FROM_OLD_GLIBC(dladdr);
FROM_OLD_GLIBC(dlerror);
FROM_OLD_GLIBC(dlopen);
FROM_OLD_GLIBC(dlsym);
FROM_OLD_GLIBC(pthread_create);
FROM_OLD_GLIBC(pthread_detach);
FROM_OLD_GLIBC(pthread_key_create);
FROM_OLD_GLIBC(pthread_mutex_trylock);
FROM_OLD_GLIBC(pthread_once);
FROM_OLD_GLIBC(pthread_rwlock_rdlock);
FROM_OLD_GLIBC(pthread_rwlock_unlock);
FROM_OLD_GLIBC(pthread_rwlock_wrlock);
FROM_OLD_GLIBC(pthread_setspecific);

#endif
