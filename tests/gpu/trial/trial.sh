#!/bin/bash
# On the machine with a GPU, from the repository's root:  bash .gpu/trial.sh [--budget SECONDS] [STEP...]
# Sets up what pack.sh packed (Python packages, native parts; both built for x86-64 Linux), then runs trial.py. Never longer than the budget.
began=$SECONDS budget=385
if [ "$1" = --budget ]; then budget=$2; shift 2; fi
here=$(cd "$(dirname "$0")" && pwd) && repo=${TRIAL_REPO:-$(dirname "$here")} && cd "$repo" || exit 1
export OUT=${OUT:-$(mktemp -d /tmp/egpu-out-XXXX)} TRIAL_REPO=$repo TRIAL_WORK=${TRIAL_WORK:-/tmp/egpu-trial} TRIAL_BIN=$here/bin
export TRIAL_SITE=$TRIAL_WORK/site
mkdir -p "$TRIAL_WORK" "$OUT"
chmod -R a+rX "$here"/native; find "$here"/native "$here"/bin -type f -exec chmod a+x {} + 2> /dev/null
note() { printf '{"step": "%s", "status": "%s", "what": "%s"}\n' "$1" "$2" "$(tr '\n\t' '  ' <<<"$3" | LC_ALL=C tr -cd ' -~' | tr -d '"\\' | cut -c1-900)" | tee -a "$OUT/results.jsonl"; }

python=$(command -v python3)
if [ ! -e $TRIAL_SITE/.made ]; then
    rm -rf $TRIAL_SITE && mkdir -p $TRIAL_SITE
    said=$("$python" - "$here"/whl $TRIAL_SITE 2>&1 << 'U'
import pathlib, sys, zipfile
for wheel in sorted(pathlib.Path(sys.argv[1]).glob("*.whl")):
    zipfile.ZipFile(wheel).extractall(sys.argv[2])
U
    ) && touch $TRIAL_SITE/.made || note packages fail "$said"
fi
# The native parts: build/native leads to what was packed, unless something was built there.
mkdir -p build && { [ -e build/native ] && [ ! -L build/native ] || ln -sfn "$here/native" build/native; }
said=$(build/native/egpu-executor --driver libcuda.so.1 --probe 2>&1); probed=$?
if [ $probed != 0 ]; then # they do not run here: built here, in half of the time that there is
    note natives fail "status $probed: $said"
    rm -f build/native
    PATH=$TRIAL_SITE/bin:$PATH timeout $((budget / 2)) bash -c "cmake -S native -B build/native -G Ninja -DEGPU_CUDA_INCLUDE='$here/include' &&
        ninja -C build/native -k 0 \$(ninja -C build/native -t targets all | sed -nE 's/^((remote|runtime|libraries|samples)\/(lib[^:/]*\.so[.0-9]*|egpu-sample-[a-z]*)|tools\/[a-z-]*|libegpu-[a-z]*\.so|egpu-(enter|executor|relay|link)): .*/\1/p')" > "$OUT/build.txt" 2>&1
    note rebuilt $([ -x build/native/egpu-executor ] && echo ok || echo fail) "$(tail -c 300 "$OUT/build.txt")"
fi
"$TRIAL_BIN/bench" > /dev/null 2>&1
if [ $? != 2 ]; then # how it says that it was told nothing to do
    export TRIAL_BIN=$TRIAL_WORK/bin && mkdir -p $TRIAL_BIN && bash "$here/compile.sh" "$here/programs" "$repo" "$here/include" $TRIAL_BIN > "$OUT/compile.txt" 2>&1 ||
        note programs fail "$(tail -c 300 "$OUT/compile.txt")"
fi
if [ -z "$REHEARSAL" ] && [ ! -x "$TRIAL_BIN/features-shared" ] && nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2> /dev/null); then
    for kind in static shared; do timeout 60 "$nvcc" -O1 -arch=native -cudart $kind "$here/programs/features.cu" -o "$TRIAL_BIN/features-$kind" > "$OUT/nvcc-$kind.txt" 2>&1 & done
fi
said=$(PYTHONPATH=$TRIAL_SITE:$repo/base/src:$repo/simulator/src:$repo/src "$python" -m egpu run --help 2>&1) || note import fail "$(tail -c 900 <<<"$said")"
left=$((budget - SECONDS + began))
timeout -k 3 $left "$python" "$here/trial.py" --budget $((left - 14)) "$@"
note end $([ $? = 0 ] && echo ok || echo fail) "$((SECONDS - began)) s"
rm -f "$OUT"/nvcc-*.txt
