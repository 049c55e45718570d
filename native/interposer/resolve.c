/* How calls get here, and how we reach the real functions.
 *
 * Programs find the driver in three ways: linked by name (our exported wrappers come first), dlsym
 * (hooked below), and cuGetProcAddress. For the last, the real one is asked first and the pointer
 * it answers with is mapped to its wrapper: version, flags and status stay the driver's own, and
 * functions that we do not know pass untouched.
 */
#define _GNU_SOURCE
#include "interposer.h"

#include <dlfcn.h>
#include <elf.h>
#include <limits.h>
#include <link.h>
#include <string.h>

#include "driver_table.h"
#include "parking/parking.h"

typedef void *dlsym_function(void *handle, const char *name);

dlsym_function *egpu_real_dlsym __attribute__((visibility("hidden")));

static const char *const names[REAL_COUNT] = {
#define DRIVER(symbol) [REAL_##symbol] = #symbol,
#define NEEDED(symbol) [REAL_##symbol] = #symbol,
#define NVML(symbol) [REAL_##symbol] = #symbol,
#define NEEDED_NVML(symbol) [REAL_##symbol] = #symbol,
#include "hooks.def"
};

/* What programs call. */
#define DRIVER(symbol) extern const char exported_##symbol[] __asm__(#symbol);
#define NVML(symbol) DRIVER(symbol)
#include "hooks.def"

static void *const wrappers[REAL_COUNT] = {
#define DRIVER(symbol) [REAL_##symbol] = (void *)exported_##symbol,
#define NVML(symbol) [REAL_##symbol] = (void *)exported_##symbol,
#include "hooks.def"
};

void *real_functions[REAL_COUNT];
/* what cuGetProcAddress answers with for it, where that differs */
static void *answered[REAL_COUNT];
static uint32_t resolved[2]; /* driver, NVML */

/* dlsym is called before libraries that replace functions of libc (sanitizers, profilers) are
 * ready: none are used here. */
static bool is_same(const char *a, const char *b) {
    while (*a != 0 && *a == *b) a++, b++;
    return *a == *b;
}

static bool begins(const char *text, const char *with) {
    while (*with != 0 && *text == *with) text++, with++;
    return *with == 0;
}

static const char *last_part(const char *path) {
    const char *part = path;
    for (; *path != 0; path++)
        if (*path == '/') part = path + 1;
    return part;
}

/* glibc's own dlsym, found in the symbol tables of what is loaded: dlsym itself is us, and dlvsym
 * would tie this library to the versions of the glibc that it was built with. */
static void *symbol_in(const struct dl_phdr_info *info, const char *wanted) {
    const ElfW(Dyn) *dynamic = NULL;
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
            dynamic = (const void *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
    const ElfW(Sym) *symbols = NULL;
    const char *strings = NULL;
    const uint32_t *table = NULL;
    for (; dynamic != NULL && dynamic->d_tag != DT_NULL; dynamic++) {
        const void *address = (const void *)dynamic->d_un.d_ptr;
        if (dynamic->d_tag == DT_SYMTAB) symbols = address;
        if (dynamic->d_tag == DT_STRTAB) strings = address;
        if (dynamic->d_tag == DT_GNU_HASH) table = address;
    }
    if (symbols == NULL || strings == NULL || table == NULL) return NULL;
    uint32_t hash = 5381;
    for (const char *c = wanted; *c != 0; c++) hash = hash * 33 + (unsigned char)*c;
    const uint32_t *buckets = table + 4 + table[2] * (sizeof(ElfW(Addr)) / 4),
                   *chain = buckets + table[0];
    uint32_t index = buckets[hash % table[0]];
    if (index < table[1]) return NULL;
    for (;; index++) {
        uint32_t entry = chain[index - table[1]];
        if ((entry | 1) == (hash | 1) && symbols[index].st_shndx != SHN_UNDEF &&
            is_same(strings + symbols[index].st_name, wanted))
            return (void *)(info->dlpi_addr + symbols[index].st_value);
        if (entry & 1) return NULL;
    }
}

static __attribute__((unused)) int find_dlsym(struct dl_phdr_info *info, size_t size, void *found) {
    (void)size;
    const char *name = info->dlpi_name == NULL ? "" : last_part(info->dlpi_name);
    if (!begins(name, "libc.so") && !begins(name, "libdl.so")) return 0;
    void *symbol = symbol_in(info, "dlsym");
    if (symbol == NULL) return 0;
    *(void **)found = symbol;
    return 1;
}

static dlsym_function *real_dlsym(void) {
    dlsym_function *real = __atomic_load_n(&egpu_real_dlsym, __ATOMIC_ACQUIRE);
    if (real == NULL) {
        void *found = NULL;
/* where even dl_iterate_phdr is not ready so early: under ThreadSanitizer */
#ifdef EGPU_DLSYM_VERSION
        found = dlvsym(RTLD_NEXT, "dlsym", EGPU_DLSYM_VERSION);
#else
        dl_iterate_phdr(find_dlsym, &found);
#endif
        real = (dlsym_function *)found;
        __atomic_store_n(&egpu_real_dlsym, real, __ATOMIC_RELEASE);
    }
    return real;
}

/* Something that is loaded: the library that has this address in it, or one of that name. */
struct loaded {
    const char *address, *name;
    char path[PATH_MAX];
};

static int find_loaded(struct dl_phdr_info *info, size_t size, void *data) {
    (void)size;
    struct loaded *wanted = data;
    const char *path = info->dlpi_name == NULL ? "" : info->dlpi_name;
    bool found = wanted->address == NULL && begins(last_part(path), wanted->name);
    for (int i = 0; wanted->address != NULL && i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[i];
        const char *start = (const char *)info->dlpi_addr + header->p_vaddr;
        found = found || (header->p_type == PT_LOAD && wanted->address >= start &&
                          wanted->address < start + header->p_memsz);
    }
    if (!found) return 0;
    size_t length = 0;
    while (path[length] != 0) length++;
    if (length < sizeof wanted->path) memcpy(wanted->path, path, length + 1);
    return 1;
}

/* A handle of it, with which it stays where it is to the end of the process: what we remember are
 * addresses in it, and a program may close the driver and open it again elsewhere. */
static void *hold(const char *address, const char *name) {
    struct loaded wanted = {.address = address, .name = name};
    /* looked up, as dlsym is: where it lives depends on the version of glibc */
    void *(*open)(const char *, int) = (__typeof__(open))real_dlsym()(RTLD_DEFAULT, "dlopen");
    if (open == NULL || !dl_iterate_phdr(find_loaded, &wanted) || wanted.path[0] == 0) return NULL;
    return open(wanted.path, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
}

static void look_up(int first, int end, void *handle) {
    for (int id = first; id < end; id++) {
        void *symbol = real_dlsym()(handle, names[id]);
        /* Through the global scope our own wrapper is found first: the real one comes after it. */
        if (symbol != NULL && symbol == wrappers[id]) symbol = real_dlsym()(RTLD_NEXT, names[id]);
        __atomic_store_n(&real_functions[id], symbol, __ATOMIC_RELEASE);
    }
}

/* Finds all functions of one library; `handle` is one through which the caller reaches it. */
static void resolve(int library, void *handle) {
    if (real_dlsym() == NULL || __atomic_load_n(&resolved[library], __ATOMIC_ACQUIRE)) return;
    int first = library == 0 ? 0 : DRIVER_COUNT, end = library == 0 ? DRIVER_COUNT : REAL_COUNT;
    enum real_id one = library == 0 ? REAL_cuInit : REAL_nvmlDeviceGetUUID;
    look_up(first, end, handle);
    if (real_functions[one] == NULL) {
        /* A library that needs the driver was loaded for itself alone (RTLD_LOCAL), as Python loads
         * its extensions: in the scope that we can see there is none. */
        void *found = hold(NULL, library == 0 ? "libcuda.so" : "libnvidia-ml.so");
        if (found != NULL) look_up(first, end, found);
    }
    if (real_functions[one] != NULL) hold(real_functions[one], NULL);
    CUresult (*ask)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *) =
        (__typeof__(ask))real_functions[REAL_cuGetProcAddress_v2];
    for (int id = first; library == 0 && ask != NULL && id < end; id++) {
        const egpu_driver_fn *function =
            wrappers[id] == NULL ? NULL : egpu_driver_symbol(names[id]);
        void *pointer = NULL;
        cuuint64_t flags = function == NULL ? 0
                           : function->threads == EGPU_THREADS_PER_THREAD
                               ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
                               : CU_GET_PROC_ADDRESS_LEGACY_STREAM;
        if (function != NULL &&
            ask(function->name, &pointer, function->version, flags, NULL) == CUDA_SUCCESS)
            answered[id] = pointer;
    }
    /* Before the library is loaded nothing is found: then look again next time. */
    if (real_functions[one] != NULL) __atomic_store_n(&resolved[library], 1, __ATOMIC_RELEASE);
}

void *real_function_slow(enum real_id id) {
    int library = (int)id >= DRIVER_COUNT;
    if (!__atomic_load_n(&resolved[library], __ATOMIC_ACQUIRE)) resolve(library, RTLD_NEXT);
    return real_functions[id];
}

void *process_symbol(const char *symbol) { return real_dlsym()(RTLD_DEFAULT, symbol); }

bool nvml_load(void) {
    if (REAL(nvmlDeviceGetMemoryInfo) != NULL) return true;
    void *(*open)(const char *, int) = (__typeof__(open))real_dlsym()(RTLD_DEFAULT, "dlopen");
    return open != NULL && open("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL) != NULL &&
           REAL(nvmlDeviceGetMemoryInfo) != NULL;
}

static int hook_named(const char *name) {
    for (int id = 0; id < REAL_COUNT; id++)
        if (wrappers[id] != NULL && is_same(names[id], name)) return id;
    return -1;
}

#define NO_SUCH_SYMBOL ((void *)-1)

/* What the dlsym hook answers with; NULL: let the real dlsym answer, as if called by our caller. */
void *egpu_dlsym_wrapper(void *handle, const char *name) __attribute__((visibility("hidden")));
void *egpu_dlsym_wrapper(void *handle, const char *name) {
    dlsym_function *real = real_dlsym();
    if (real == NULL || name == NULL || handle == RTLD_NEXT) return NULL;
    if (!begins(name, "cu") && !begins(name, "nvml")) return NULL;
    int id = hook_named(name);
    if (id < 0) return NULL;
    void *symbol = real(handle, name);
    if (symbol == NULL) return NULL; /* no such function, and dlerror is to say so */
    /* only we have it */
    if (symbol == wrappers[id] && real(RTLD_NEXT, name) == NULL) return NO_SUCH_SYMBOL;
    resolve(id >= DRIVER_COUNT, handle);
    return wrappers[id];
}

#if defined(__x86_64__)
__asm__(
    ".text\n.globl dlsym\n.type dlsym, @function\ndlsym:\n"
    "  pushq %rdi\n  pushq %rsi\n  subq $8, %rsp\n"
    "  call egpu_dlsym_wrapper\n"
    "  addq $8, %rsp\n  popq %rsi\n  popq %rdi\n"
    "  cmpq $-1, %rax\n  je 2f\n  testq %rax, %rax\n  jne 1f\n"
    /* a jump, not a call: RTLD_NEXT means "after whoever called", which it reads off the stack */
    "  movq egpu_real_dlsym(%rip), %rax\n  testq %rax, %rax\n  je 1f\n  jmp *%rax\n"
    "1: ret\n2: xorl %eax, %eax\n  ret\n.size dlsym, .-dlsym\n");
#elif defined(__aarch64__)
__asm__(
    ".text\n.globl dlsym\n.type dlsym, %function\ndlsym:\n"
    "  stp x29, x30, [sp, #-32]!\n  mov x29, sp\n  stp x0, x1, [sp, #16]\n"
    "  bl egpu_dlsym_wrapper\n"
    "  mov x2, x0\n  ldp x0, x1, [sp, #16]\n  ldp x29, x30, [sp], #32\n"
    "  cmn x2, #1\n  csel x2, xzr, x2, eq\n  b.eq 1f\n  cbnz x2, 1f\n"
    "  adrp x2, egpu_real_dlsym\n  ldr x2, [x2, #:lo12:egpu_real_dlsym]\n  cbz x2, 1f\n  br x2\n"
    "1: mov x0, x2\n  ret\n.size dlsym, .-dlsym\n");
#else
#error "the dlsym hook is written for x86-64 and AArch64"
#endif

static void *wrapper_of(void *pointer) {
    /* the exported name is the surer match: the ABI is certain */
    void *const *const known[] = {real_functions, answered};
    for (int pass = 0; pointer != NULL && pass < 2; pass++)
        for (int id = 0; id < DRIVER_COUNT; id++)
            if (wrappers[id] != NULL && pointer == known[pass][id]) return wrappers[id];
    return pointer;
}

EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **pointer, int version,
                                    cuuint64_t flags, CUdriverProcAddressQueryResult *status) {
    if (REAL(cuGetProcAddress_v2) == NULL) return CUDA_ERROR_NOT_FOUND;
    CUresult result = REAL(cuGetProcAddress_v2)(symbol, pointer, version, flags, status);
    if (result == CUDA_SUCCESS && pointer != NULL) *pointer = wrapper_of(*pointer);
    return result;
}

EXPORT CUresult cuGetProcAddress(const char *symbol, void **pointer, int version,
                                 cuuint64_t flags) {
    if (REAL(cuGetProcAddress) == NULL) return CUDA_ERROR_NOT_FOUND;
    CUresult result = REAL(cuGetProcAddress)(symbol, pointer, version, flags);
    if (result == CUDA_SUCCESS && pointer != NULL) *pointer = wrapper_of(*pointer);
    return result;
}
