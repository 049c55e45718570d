#!/bin/bash
# pack.sh: packs the trial for a machine with a GPU into .gpu/ of the repository. `make gpu-trial` runs it.
# .gpu/ gets the trial, the native parts as built here, and the Python packages that egpu needs, as wheels for Python 3.12.
# Pack again after each change of native code. Python sources travel as they are.
#
# PYTHON312: a Python 3.12 with NumPy. The packed commands are started with it. MOST_MIB: the largest size of .gpu/ and the sources together.
# PACKED: another folder than .gpu. REHEARSAL=1: for this machine, which has the Python packages; without them and programs of nvcc.
set -e -o pipefail
source=$(cd "$(dirname "$0")" && pwd)
cd "$source/../../.."
stop() { echo "$1" >&2; exit 1; }
[ "$(uname -m)" = x86_64 ] || stop "The trial needs native parts for x86-64, and this machine builds for $(uname -m). Pack it on an x86-64 machine."
sources=base/src:simulator/src:src
gpu=${PACKED:-.gpu}

rm -rf "$gpu" && mkdir -p "$gpu"/native "$gpu"/bin "$gpu"/include "$gpu"/whl
cp "$source"/{trial.sh,trial.py,compile.sh} "$gpu"/
cp -r "$source"/programs "$gpu"/programs && rm -rf "$gpu"/programs/__pycache__

# All programs and libraries of the product, so that a new part needs no line here. Tests stay at home.
built=$(.venv/bin/python -c 'from egpu.adapters import native; print(native.path("libegpu-interposer.so").parent)')
(cd "$built" && find . \( -type l -o -type f \( -name '*.so' -o -name '*.so.*' -o -perm -u+x \) \) ! -path '*/tests/*' ! -path '*CMake*' -print0) |
    while IFS= read -r -d '' part; do
        [ -L "$built/$part" ] || head -c 4 "$built/$part" | grep -q ELF || continue
        mkdir -p "$gpu/native/$(dirname "$part")" && cp -P "$built/$part" "$gpu/native/$part"
    done
parts="libegpu-interposer.so egpu-enter egpu-executor egpu-relay egpu-link remote/libcuda.so.1 remote/libnvidia-ml.so.1
    runtime/libcudart.so.13 libraries/libcublas.so.13 libraries/libcudnn.so.9 samples/egpu-sample-info tools/nvidia-smi"
for part in $parts; do
    [ -e "$gpu/native/$part" ] || stop "$built/$part was not found. Run \`make gpu-trial\`, or correct the list in $0."
done
find "$gpu"/native -type f -exec strip --strip-debug {} + 2> /dev/null || true
chmod -R a+rX "$gpu"/native && find "$gpu"/native -type f ! -name '*.so*' -exec chmod a+x {} +
# Ubuntu 24.04 has glibc 2.39. Parts that need a newer one would have to be built again there, which takes minutes.
newest=$(find "$gpu"/native -type f -exec objdump -T {} + 2> /dev/null | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -1)
[ "$(printf '%s\n' "$newest" GLIBC_2.39 | sort -V | tail -1)" = GLIBC_2.39 ] ||
    stop "The native parts need $newest, and Ubuntu 24.04 has 2.39. Build them on an older system."

cuda=$(.venv/bin/python -c 'import glob, sys
print(next(p for e in sys.path for p in glob.glob(e + "/nvidia/*/include") if glob.glob(p + "/cuda.h") and glob.glob(p + "/nvml.h")))')
cp "$cuda"/cuda.h "$cuda"/nvml.h "$gpu"/include/
bash "$gpu"/compile.sh "$gpu"/programs . "$cuda" "$gpu"/bin
compile_with_nvcc() {
    if nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2> /dev/null); then
        flags="-O1 -gencode arch=compute_90,code=[sm_90,compute_90] -gencode arch=compute_75,code=compute_75"
        "$nvcc" $flags -cudart static "$gpu"/programs/features.cu -o "$gpu"/bin/features-static &&
            "$nvcc" $flags -cudart shared --default-stream per-thread "$gpu"/programs/features.cu -o "$gpu"/bin/features-shared ||
            echo "features.cu does not compile here. The other machine compiles it." >&2
    else
        echo "There is no nvcc here. The other machine compiles features.cu." >&2
    fi
}

pack_packages() {
    # The locked packages that run, serve, broker, get and selftest import. The machine has NumPy.
    skip='^(cmake|contourpy|cycler|fonttools|grpcio|highspy|kiwisolver|matplotlib|ninja|numpy|nvidia-cuda-runtime|nvidia-nvml-dev|packaging|pathspec'
    skip="$skip|pillow|protobuf|pyparsing|python-dateutil|scikit-build-core|tzdata)\$"
    awk -v skip="$skip" '/^[a-zA-Z0-9]/ { split($1, part, "=="); keep = part[1] !~ skip } keep' requirements/run.txt > "$gpu"/requirements.txt
    platforms=
    for glibc in _2_39 _2_35 _2_34 _2_31 _2_28 _2_27 _2_24 _2_17 2014 _2_12 2010 _2_5 1; do
        platforms="$platforms --platform manylinux${glibc}_x86_64"
    done
    .venv/bin/pip --disable-pip-version-check -q download --no-deps --only-binary=:all: --require-hashes --python-version 3.12 --implementation cp \
        --abi cp312 --abi abi3 --abi none $platforms -d "$gpu"/whl -r "$gpu"/requirements.txt 2> >(grep -v "is ignored: it is neither" >&2)

    # Start the packed commands with these wheels alone.
    for candidate in "$PYTHON312" .venv/bin/python "$(command -v python3.12 || true)"; do
        [ -x "$candidate" ] && "$candidate" -c 'import numpy, sys; sys.exit(sys.version_info[:2] != (3, 12))' 2> /dev/null &&
            python312=$candidate && break
    done
    if [ -n "$python312" ]; then
        site=$(mktemp -d) && trap 'rm -rf "$site"' EXIT
        for wheel in "$gpu"/whl/*.whl; do "$python312" -m zipfile -e "$wheel" "$site"; done
        packages=$(dirname "$("$python312" -c 'import numpy; print(numpy.__file__)')")
        for one in "$packages" "$(dirname "$packages")/numpy.libs"; do [ ! -d "$one" ] || ln -s "$one" "$site/$(basename "$one")"; done
        for command in run serve broker selftest "get servers"; do
            PYTHONPATH=$site:$sources "$python312" -S -m egpu $command --help > /dev/null ||
                stop "egpu $command does not start with the packed wheels. See skip in $0."
        done
        # Modules that these commands import only while they run.
        PYTHONPATH=$site:$sources "$python312" -S -c 'import egpu.cli.selfchecks, egpu.apps.serve.app, egpu.apps.broker.service, egpu.adapters.pool.programs
import egpu.adapters.local.run, egpu.adapters.local.guard, egpu.adapters.local.sharing, egpu.laptop.machines'
    else
        echo "The packed wheels were not tried: that needs a Python 3.12 with NumPy. PYTHON312 names one." >&2
    fi
}

if [ -z "$REHEARSAL" ]; then
    compile_with_nvcc
    pack_packages
fi

tree=$(git ls-files -z --cached --others --exclude-standard | xargs -0 du -cb 2> /dev/null | awk '/total$/ { sum += $1 } END { print sum }')
size() { du -sb "$1" | cut -f1; }
all=$(((tree + $(size "$gpu")) / 1048576 + 1))
printf 'sources %d MiB, .gpu %d MiB (native %d, whl %d, bin %d), together %d MiB; glibc needed: %s\n' \
    $((tree >> 20)) $(($(size "$gpu") >> 20)) $(($(size "$gpu"/native) >> 20)) $(($(size "$gpu"/whl) >> 20)) $(($(size "$gpu"/bin) >> 20)) $all "$newest"
[ $all -lt "${MOST_MIB:-60}" ] || stop "$all MiB are more than MOST_MIB (${MOST_MIB:-60})."
cat << 'T'

Ready. Copy the repository with .gpu/ to the machine with the GPU. Run there, in the repository (at most six and a half minutes):

  bash .gpu/trial.sh

To run some steps again (at most four minutes):

  bash .gpu/trial.sh --budget 225 pool-torch pool-samples

All steps:  python3 .gpu/trial.py --list
T
