#!/bin/sh
# Fills the empty directory ROOT with everything that the image holds: build.sh ROOT
#
# Debian's packages for Python are extracted, not installed: no package manager, and busybox as the only shell, for debugging. The
# program's own environment is /opt/elastic-gpu, without the modules that our processes never import. All files have the time
# SOURCE_DATE_EPOCH (now, if it is not set). Runs on Debian 12, with mmdebstrap, python3.11-venv, gcc and libc6-dev. Another user than root
# needs a range of user ids (/etc/subuid, /etc/subgid) and newuidmap: scripts/image.py starts it as root of a user namespace.
#
# The bill of materials is /opt/elastic-gpu/sbom.cdx.json (CycloneDX): Debian's packages as extracted, Python's as installed.
set -eu
export SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-$(date +%s)}" PYTHONHASHSEED=0
began=$(date +%s)
stage() { echo "image: $(($(date +%s) - began)) s: $1" >&2; }
root=$(realpath "$1")
source=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
quiet=--quiet
[ ! -t 2 ] || quiet=  # on a terminal, the tools show their own progress
pip="$work/build/bin/pip --disable-pip-version-check --no-cache-dir $quiet"
home=/opt/elastic-gpu
packages=$root$home/lib/python3.11/site-packages

stage "Debian's packages"
# The hook runs with ROOT as $1, while the packages' files are still there: their names are the bill of materials.
mmdebstrap ${quiet:+"$quiet"} --variant=extract --include=base-files,busybox-static,libssl3,libstdc++6,python3.11 \
    --extract-hook="ls \"\$1/var/cache/apt/archives\" > '$work/debian-packages'" \
    --dpkgopt='path-exclude=/usr/share/*' --dpkgopt='path-exclude=/usr/lib/*/gconv/*' \
    --dpkgopt='path-exclude=/usr/lib/python3.11/lib2to3/*' --dpkgopt='path-exclude=/usr/lib/python3.11/distutils/*' \
    --dpkgopt='path-exclude=/usr/lib/python3.11/pydoc_data/*' bookworm "$root"
rm -rf "$root/var/cache" "$root/var/lib/apt" "$root/var/lib/dpkg" "$root/var/log" "$root/etc/apt"
# The package manager, databases and NIS: with the modules of Python for them, and libraries that nothing else needs.
dynamic=$root/usr/lib/python3.11/lib-dynload
rm -f "$root"/usr/bin/dpkg* "$root"/usr/bin/update-alternatives "$root"/bin/tar \
    "$dynamic"/_dbm.* "$dynamic"/_sqlite3.* "$dynamic"/nis.* "$dynamic"/_*test*.so
for library in acl cap-ng com_err db-5.3 gssapi_krb5 history k5crypto keyutils krb5 krb5support md mvec nsl pcre2-8 selinux sqlite3 tirpc zstd; do
    rm -f "$root"/lib/*/"lib$library".so* "$root"/lib/*/"lib$library"-[0-9]*.so "$root"/usr/lib/*/"lib$library".so* "$root"/usr/lib/*/"lib$library"-[0-9]*.so
done
rm -rf "$root"/usr/lib/*/krb5
mkdir -p "$root/var/log" "$root/tmp" && chmod 1777 "$root/tmp"
chroot "$root" /bin/busybox --install -s /bin
printf 'root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n' > "$root/etc/passwd"
printf 'root:x:0:\nnogroup:x:65534:\n' > "$root/etc/group"

stage "tools to build with"
python3.11 -m venv "$work/build"
$pip install --require-hashes -r "$source/requirements/run.txt"
stage "the native part and the wheels"
PATH=$work/build/bin:$PATH $pip wheel --no-build-isolation --no-deps --wheel-dir "$work/wheels" "$source/base" "$source"
stage "Python packages"
chroot "$root" /usr/bin/python3.11 -m venv --without-pip "$home"
$pip install --no-compile --require-hashes --target "$packages" -r "$source/requirements/image.txt"
$pip install --no-compile --no-index --no-deps --target "$packages" --find-links "$work/wheels" egpu-base elastic-gpu
rm -rf "$packages/bin"
sed -i '/^\.\.\/\.\.\/bin\//d' "$packages"/*.dist-info/RECORD  # these programs name the temporary folder
printf '#!%s/bin/python\nimport sys\n\nfrom egpu.cli import main\n\nsys.exit(main())\n' "$home" > "$root$home/bin/egpu"
chmod 755 "$root$home/bin/egpu"
find "$packages" -type d \( -name tests -o -name f2py -o -name distutils \) -prune -exec rm -r {} +
find "$packages" -name '*.pyi' -delete
# Parts of NumPy that neither it nor we import, and its headers; lexers for other languages than our processes show.
(cd "$packages/numpy" && rm -rf fft ma polynomial testing _core/include _core/lib random/lib _core/_simd.*.so _core/*_tests.*.so)
find "$packages/pygments/lexers" -name '*.py' ! -name '_*' ! -name python.py ! -name data.py -delete
rm -rf "$packages"/pygments/lexers/_*_builtins.py
# Debugging symbols are 18 MiB. Wheels that bring libraries of their own keep theirs: strip breaks what patchelf has changed.
find "$packages"/uvloop "$packages"/httptools "$packages"/yaml "$packages"/cryptography -name '*.so' -exec strip --strip-unneeded {} +
ln -sf "$(basename "$packages"/highspy/libhighs.so.1.*)" "$packages/highspy/libhighs.so.1"  # a wheel holds no links: it is there twice
stage "bill of materials"
"$work/build/bin/python" "$source/deploy/image/sbom.py" "$work/debian-packages" "$packages" > "$root$home/sbom.cdx.json"
stage "bytecode of the modules that our processes import"
find "$root" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
chroot "$root" "$home/bin/python" - <<'END'
import highspy, egpu.cli.app
from egpu.apps import agent, broker, controller, extender, serve, webhook
END
test -z "$(find "$packages" -name 'egpu_sim*')"  # the image simulates nothing
size=$(du -sm "$root" | cut -f1)
test "$size" -le 170 || { echo "the image has $size MiB unpacked; nodes are promised 170" >&2; exit 1; }
stage "done: $size MiB"
