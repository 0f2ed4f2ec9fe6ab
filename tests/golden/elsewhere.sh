#!/bin/bash
# elsewhere.sh PROGRAM DIR - ORDO_GOLDEN_DIR goes before the directory that meson passes: the program must look there, and say so.
set -u
empty=$(mktemp -d)
trap 'rmdir "$empty"' EXIT
text=$(ORDO_GOLDEN_DIR=$empty "$1" "$2" 2>&1) && code=0 || code=$?
case $code:$text in
  77:*"no golden numbers at $empty"*) echo "ok: looked in ORDO_GOLDEN_DIR" ;;
  *) echo "FAIL: exit code $code (wanted 77), and it said: $text"; exit 1 ;;
esac
