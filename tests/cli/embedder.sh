#!/bin/bash
# embedder.sh BUILD_DIRECTORY SOURCE_DIRECTORY PREFIX - builds examples/embed-minimal in an empty directory against an installed copy of the
# library only, and compares one rank with two: the losses must be the same to the digits printed but the last.
set -eu
build=$1 source=$2 prefix=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

meson install -C "$build" --no-rebuild --quiet --destdir "$work/root" >/dev/null
cp "$source/examples/embed-minimal/main.c" "$source/examples/embed-minimal/build" "$work/"
export PKG_CONFIG_PATH=$work/root$prefix/lib/pkgconfig
# Only Ordo's own file is moved: its prefix becomes the copy's.
sed -i "s|^prefix=.*|prefix=$work/root$prefix|" "$PKG_CONFIG_PATH"/ordo*.pc
# A library with a sanitizer runs only in a program that has its runtime too.
if readelf -d "$work/root$prefix/lib/libordo.so" | grep -q libasan; then export CC="${CC:-cc} -fsanitize=address,undefined"; fi
"$work/build" "$work/linear"
export LD_LIBRARY_PATH=$work/root$prefix/lib ORDO_PLUGIN_PATH=$work/root$prefix/lib/ordo/plugins
one=$("$work/linear")
echo "$one"
two=$(mpirun --allow-run-as-root --oversubscribe --bind-to none --mca pml ob1 -n 2 "$work/linear" ddp)
echo "$two"

# The loss has fallen by a factor of 100 at least, and both runs print the same three lines within 1e-5.
paste <(echo "$one") <(echo "$two") | awk '
  function close_to(a, b) { return (a - b < 1e-5) && (b - a < 1e-5) }
  { lines++; if (!close_to($4, $11) || !close_to($7, $14)) bad = 1; if (NR == 1) first = $4; last = $4 }
  END { if (lines < 3 || bad || last * 100 > first) { print "wrong numbers"; exit 1 } }' | tee "$work/verdict"
[ ! -s "$work/verdict" ]

# An unknown strategy is an error with the nearest name, and exit code 1.
if "$work/linear" ddq 2>"$work/errors"; then echo "an unknown strategy was accepted"; exit 1; fi
grep -q ddp "$work/errors"
