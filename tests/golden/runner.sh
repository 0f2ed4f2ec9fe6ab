#!/bin/sh
# runner.sh GOLDEN ORDO - the runner of golden numbers as a person meets it, without any golden numbers: where it looks for them, its help, and a
# choice that no case can run.
set -u
golden=$1 ordo=$2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
failed=0
# WHAT CODE WORD COMMAND...: exit code and a word of the output
expect() {
  what=$1 code=$2 word=$3
  shift 3
  "$@" >"$dir/out" 2>&1
  got=$?
  if [ "$got" = "$code" ] && grep -q -- "$word" "$dir/out"; then
    echo "ok   $what"
  else
    echo "FAIL $what: exit $got (wanted $code), without '$word':"
    cat "$dir/out"
    failed=1
  fi
}

unset ORDO_GOLDEN_DIR
mkdir -p "$dir/empty" "$dir/case/training"
expect "the default" 77 "numbers at $dir/default" "$golden" --default-dir "$dir/default" --skip-missing
expect "ORDO_GOLDEN_DIR when it runs" 77 "numbers at $dir/none" env ORDO_GOLDEN_DIR="$dir/none" "$golden" --default-dir "$dir/empty" --skip-missing
expect "a directory that is named" 1 "has no cases" env ORDO_GOLDEN_DIR="$dir/none" "$golden" "$dir/empty"
expect "no directory" 2 "usage: ordo-golden DIR" "$golden"
expect "help" 0 "ordo-golden \[OPTION\]... DIR - runs every" env LC_ALL=C "$golden" --help
expect "help of --case" 0 "--case=WORD" "$golden" --help

# A wrong strategy: one error, no line a case.
echo '{}' >"$dir/case/training/alpha.json"
expect "a strategy that does not exist" 2 "E-PLUGIN-UNKNOWN" "$golden" "$dir/case" --ordo "$ordo" --ranks 2 --strategy ddq
[ "$(grep -c E-PLUGIN-UNKNOWN "$dir/out")" = 1 ] && ! grep -q "alpha\|worst deviation" "$dir/out" || { echo "FAIL it is said more than once:"; cat "$dir/out"; failed=1; }
mkdir -p "$dir/broken/training"
echo '{' >"$dir/broken/training/alpha.json"
expect "a case that cannot be compared" 1 "1 cases on 1 rank, 1 failed; nothing was compared" "$golden" "$dir/broken" --ordo "$ordo"
exit $failed
