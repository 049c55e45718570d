#!/bin/sh
# Make a virtual environment: make_venv.sh PYTHON DIRECTORY
# Debian packages venv apart from Python. As root it is installed, otherwise an error names the command.
set -e
python=$1
directory=$2
[ ! -x "$directory/bin/pip" ] || exit 0
if ! "$python" -c 'import ensurepip' 2> /dev/null; then
    package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
    if [ "$(id -u)" != 0 ] || ! command -v apt-get > /dev/null; then
        echo "$python cannot make virtual environments. Install its package first: sudo apt-get install $package" >&2
        exit 1
    fi
    echo "installing $package"
    apt-get update -qq
    apt-get install --yes -qq --no-install-recommends "$package" > /dev/null
fi
"$python" -m venv "$directory"
