#!/bin/sh
# Runs a long command as one line of progress: stage.sh WHAT COMMAND...
# On a terminal its last line of output is shown meanwhile, elsewhere a line every 15 s. If it fails, all its output is printed.
what=$1
shift
log=$(mktemp)
began=$(date +%s)
seconds() { echo $(($(date +%s) - began)); }
watch() {
    said=0
    while sleep 1 > /dev/null 2>&1; do
        if [ -t 1 ]; then
            printf '\r\033[K%s: %s s: %.60s' "$what" "$(seconds)" "$(tail -n 1 "$log" | tr -cd '[:print:]')"
        elif [ "$(seconds)" -ge $((said + 15)) ]; then
            said=$(seconds)
            echo "$what: $said s"
        fi
    done
}
watch &
watcher=$!
trap 'kill "$watcher" 2> /dev/null; rm -f "$log"' EXIT
trap 'exit 130' INT TERM
"$@" > "$log" 2>&1
status=$?
kill "$watcher" 2> /dev/null
[ ! -t 1 ] || printf '\r\033[K'
[ "$status" = 0 ] || { cat "$log" >&2; echo "$what: failed after $(seconds) s" >&2; exit "$status"; }
echo "$what: done in $(seconds) s"
