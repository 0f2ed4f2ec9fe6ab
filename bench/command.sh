#!/bin/bash
# command.sh ORDO PLUGIN PLUGIN_DIRECTORY - how long `ordo list` with 200 plugins and `ordo plan` take, as a ratio to the limit of 50 ms. Medians of 21.
#
# The 200 plugins are copies of one with ids of their own, written into the note (three letters for three), so that none shadows another.
set -eu
ordo=$1 plugin=$2 directory=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for i in $(seq 0 199); do
  id=p$(printf '%02x' "$i")
  LC_ALL=C sed "s/id=ddp/id=$id/" "$plugin" >"$work/$id.so"
done
[ "$("$ordo" --plugin-path "$work" list --json | grep "$work" | grep -c '"state": "usable"')" = 200 ] || { echo "not all 200 plugins are usable"; exit 1; }

median() { # milliseconds of a command
  for _ in $(seq 21); do
    local start=$EPOCHREALTIME
    "$@" >/dev/null
    local end=$EPOCHREALTIME
    echo $((${end/[.,]/} - ${start/[.,]/}))
  done | sort -n | sed -n 11p | awk '{printf "%.1f", $1 / 1000}'
}
report() { awk -v name="$1" -v ms="$2" 'BEGIN {printf "%-28s %6.1f ms   x%.2f of the limit of 50 ms\n", name, ms, ms / 50; exit ms >= 50}'; }

report "list, 200 plugins" "$(median "$ordo" --plugin-path "$work" list)"
report "plan, fsdp1 with apex_amp" "$(median "$ordo" --plugin-path "$directory" plan --strategy fsdp1 --precision apex_amp:O2 --ranks 4)"
