#!/bin/bash
# compile.sh PROGRAMS REPOSITORY CUDA_INCLUDE OUTPUT: compiles the trial's own programs in C. It needs gcc, and no CUDA.
set -e
programs=$1 repo=$2 include=$3 out=$4 spare=$(mktemp -d)
trap 'rm -rf "$spare"' EXIT
gcc -O2 -o "$out/bench" "$programs/bench.c" -ldl -pthread
gcc -O2 -o "$out/reload" "$programs/reload.c" -ldl
gcc -O2 -o "$out/session_calls" "$programs/session_calls.c" -I "$repo/native" -I "$repo/native/executor" -I "$repo/native/wire" \
    -I "$repo/native/driver" -I "$repo/native/include" -I "$include" -ldl -pthread
# linked.so needs libcuda.so.1 by name, so link it with a library that has only the names.
for name in cuInit cuDeviceGet cuDeviceTotalMem_v2 cuDevicePrimaryCtxRetain cuCtxSetCurrent cuMemAlloc_v2; do
    echo "int $name(void) { return 999; }"
done > "$spare/names.c"
gcc -shared -fPIC -Wl,-soname,libcuda.so.1 -o "$spare/libcuda.so.1" "$spare/names.c"
gcc -O2 -shared -fPIC -o "$out/linked.so" "$programs/linked.c" -L "$spare" -l:libcuda.so.1
