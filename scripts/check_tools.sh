#!/bin/sh
# Check for a C compiler and Python before anything is fetched or built: check_tools.sh [PYTHON]
missing=""
if [ -z "$1" ] || ! "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null; then
    missing="$missing python3.11"
fi
found=""
for compiler in "${CC:-cc}" gcc clang; do
    command -v "$compiler" > /dev/null && found=yes
done
[ -n "$found" ] || missing="$missing gcc"
[ -z "$missing" ] && exit 0
echo "missing:$missing. Install it first (Debian 12: sudo apt-get install$missing), or name another: make PYTHON=… CC=…" >&2
exit 1
