#!/bin/sh
# Fills the empty directory ROOT with everything that the image holds: build.sh ROOT
#
# What Python needs of Debian is extracted and nothing of it is installed: no package manager, no shell but busybox, which is there for
# whoever looks into a container. Beside it is the program's own environment, /opt/elastic-gpu, without what no process of ours imports.
# Runs as root on Debian 12, with mmdebstrap, python3.11-venv, gcc and libc6-dev.
set -eu
root=$(realpath "$1")
source=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
pip="$work/build/bin/pip --disable-pip-version-check --no-cache-dir --quiet"
home=/opt/elastic-gpu
packages=$root$home/lib/python3.11/site-packages

mmdebstrap --quiet --variant=extract --include=base-files,busybox-static,libssl3,libstdc++6,python3.11 \
    --dpkgopt='path-exclude=/usr/share/*' --dpkgopt='path-exclude=/usr/lib/*/gconv/*' \
    --dpkgopt='path-exclude=/usr/lib/python3.11/lib2to3/*' --dpkgopt='path-exclude=/usr/lib/python3.11/distutils/*' \
    --dpkgopt='path-exclude=/usr/lib/python3.11/pydoc_data/*' bookworm "$root"
rm -rf "$root/var/cache" "$root/var/lib/apt" "$root/var/lib/dpkg" "$root/var/log" "$root/etc/apt"
mkdir -p "$root/var/log" "$root/tmp" && chmod 1777 "$root/tmp"
chroot "$root" /bin/busybox --install -s /bin
printf 'root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n' > "$root/etc/passwd"
printf 'root:x:0:\nnogroup:x:65534:\n' > "$root/etc/group"

python3.11 -m venv "$work/build"
$pip install --require-hashes -r "$source/requirements/run.txt"
PATH=$work/build/bin:$PATH $pip wheel --no-build-isolation --no-deps --wheel-dir "$work/wheels" "$source"
chroot "$root" /usr/bin/python3.11 -m venv --without-pip "$home"
$pip install --no-compile --require-hashes --target "$packages" -r "$source/requirements/image.txt"
$pip install --no-compile --no-index --no-deps --target "$packages" "$work"/wheels/*.whl
rm -rf "$packages/bin"
printf '#!%s/bin/python\nimport sys\n\nfrom egpu.cli import main\n\nsys.exit(main())\n' "$home" > "$root$home/bin/egpu"
chmod 755 "$root$home/bin/egpu"
find "$packages" -type d \( -name tests -o -name f2py -o -name distutils \) -prune -exec rm -r {} +
find "$packages" -name '*.pyi' -delete
ln -sf "$(basename "$packages"/highspy/libhighs.so.1.*)" "$packages/highspy/libhighs.so.1"  # a wheel holds no links: it is there twice
# Bytecode of what our processes import, the standard library's too, and of nothing else.
chroot "$root" "$home/bin/python" - <<'END'
import highspy, egpu.cli.app
from egpu.apps import agent, broker, controller, extender, serve, webhook
END
