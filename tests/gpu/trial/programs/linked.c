/* A library that names the driver as one it needs, as PyCUDA's extension module does; loaded with
 * RTLD_LOCAL by linked.py. */
extern int cuInit(unsigned);
extern int cuDeviceGet(int *, int);
extern int cuDeviceTotalMem_v2(unsigned long *, int);
extern int cuDevicePrimaryCtxRetain(void **, int);
extern int cuCtxSetCurrent(void *);
extern int cuMemAlloc_v2(unsigned long long *, unsigned long);

/* 0, or 1000 times the number of the call that failed, plus its error. */
int linked_go(unsigned long *total) {
    int device, result;
    void *context;
    unsigned long long pointer;
    if ((result = cuInit(0)) != 0) return 1000 + result;
    if ((result = cuDeviceGet(&device, 0)) != 0) return 2000 + result;
    if ((result = cuDeviceTotalMem_v2(total, device)) != 0) return 3000 + result;
    if ((result = cuDevicePrimaryCtxRetain(&context, device)) != 0) return 4000 + result;
    if ((result = cuCtxSetCurrent(context)) != 0) return 5000 + result;
    return (result = cuMemAlloc_v2(&pointer, 1 << 20)) != 0 ? 6000 + result : 0;
}
