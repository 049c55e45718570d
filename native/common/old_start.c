/* Start of our programs that run in containers. The compiler's code before main needs the
 * __libc_start_main of glibc 2.34; linked with --wrap, it calls this one, which calls the version
 * that all have. Older versions run no constructors of a program built like this: it must have
 * none. */
#include "old_glibc.h"

typedef int main_function(int count, char **arguments, char **environment);
typedef int start_function(main_function *run, int count, char **arguments, void (*init)(void),
                           void (*fini)(void), void (*loader_fini)(void), void *stack_end);

start_function old_start, __wrap___libc_start_main;
__asm__(".symver old_start,__libc_start_main@" OLD_GLIBC);

int __wrap___libc_start_main(main_function *run, int count, char **arguments, void (*init)(void),
                             void (*fini)(void), void (*loader_fini)(void), void *stack_end) {
    return old_start(run, count, arguments, init, fini, loader_fini, stack_end);
}
