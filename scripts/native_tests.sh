#!/bin/sh
# Builds a native part and runs its tests: native_tests.sh BIN SOURCE BUILD [CMAKE_OPTION ...]. The folder BIN has cmake and ninja.
set -eu
PATH=$1:$PATH
source=$2
build=$3
shift 3
"$(dirname "$0")/stage.sh" "cmake of $source" cmake -S "$source" -B "$build" -G Ninja "$@"
cmake --build "$build"
ctest --test-dir "$build" --output-on-failure --parallel "$(nproc)"
