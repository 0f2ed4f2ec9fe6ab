#!/bin/sh
# outsider.sh - a stranger's plugin: built from an empty directory against the installed package only, then planned and trained.
#
#   outsider.sh SOURCE BUILD PREFIX      the source tree, its build directory and its prefix (the package is installed from BUILD)
#
# Guards the promise that the SDK is complete: a header that is not installed, a wrong pkg-config variable or a second exported
# symbol fails here and nowhere else. Nothing is written outside a temporary directory. Planning and training are skipped with a
# reason while the command, or its verb, is not built.
set -eu
source=$1 build=$2 prefix=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
die() { printf 'outsider: %s\n' "$*" >&2; exit 1; }

DESTDIR=$work/root meson install -C "$build" --no-rebuild --quiet >"$work/install.log" 2>&1 || { cat "$work/install.log"; die "the package does not install"; }
installed=$work/root$prefix
# The package was staged, so its pkg-config files are moved to where it lies.
sed -i "s|$prefix|$installed|g" "$installed"/lib/pkgconfig/ordo*.pc

mkdir "$work/empty"
cp "$source"/examples/naive-allreduce/* "$work/empty"
cd "$work/empty"
PKG_CONFIG_PATH=$installed/lib/pkgconfig
export PKG_CONFIG_PATH
meson setup out >"$work/setup.log" 2>&1 || { cat "$work/setup.log"; die "the example does not configure"; }
meson compile -C out >"$work/compile.log" 2>&1 || { cat "$work/compile.log"; die "the example does not compile"; }
grep -q "$source/sdk" out/compile_commands.json && die "the example was compiled against the source tree"

plugin=$work/empty/out/naive_allreduce.so
symbols=$(nm -D --defined-only "$plugin" | awk '{ print $3 }')
[ "$symbols" = ordo_plugin_entry ] || die "exports '$symbols' instead of ordo_plugin_entry alone"
needed=$(readelf -d "$plugin" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p')
for library in $needed; do
  case $library in libc.so.*|libm.so.*) ;; *) die "needs $library" ;; esac
done
# The one command of docs/plugin-author.md, for people without meson.
cc -std=c11 -shared -fPIC -fvisibility=hidden $(pkg-config --cflags ordo-sdk) \
  -Wl,--version-script="$(pkg-config --variable=version_script ordo-sdk)" -Wl,-z,defs naive_allreduce.c -o by_hand.so ||
  die "the command of docs/plugin-author.md fails"
[ "$(nm -D --defined-only by_hand.so | awk '{ print $3 }')" = ordo_plugin_entry ] || die "built by hand it exports more than ordo_plugin_entry"
meson install -C out --no-rebuild >/dev/null 2>&1 || die "the example does not install"
[ -f "$installed/lib/ordo/plugins/naive_allreduce.so" ] || die "not installed into the plugin directory"
rm "$installed/lib/ordo/plugins/naive_allreduce.so"
echo "built against the installed package; exports ordo_plugin_entry only"

ordo=$build/host/cli/ordo
if ! [ -x "$ordo" ]; then
  echo "planning and training skipped: $ordo is not built"
  exit 0
fi
# Owned by us and not writable by others, which the loader insists on.
chmod go-w "$work" "$work/empty" "$work/empty/out" "$plugin"
paths=$work/empty/out:$build/plugins/ddp
"$ordo" list --plugin-path "$paths" | grep -q naive_allreduce || die "ordo list does not show it"
steps=$("$ordo" plan --plugin-path "$paths" --strategy naive_allreduce --ranks 2 --steps) || die "ordo plan refuses it"
ddp_steps=$("$ordo" plan --plugin-path "$paths" --strategy ddp --ranks 2 --steps)
[ "$(echo "$steps" | sed 's/naive_allreduce/ddp/g')" = "$ddp_steps" ] || die "its plan differs from ddp's: $steps"
echo "planned: $(echo "$steps" | tr '\n' ' ')"

# The command looks for its verbs as git does: in its libexec directory, which is the trainer's place in the build tree.
if [ -x "$build/trainer/ordo-train" ]; then
  ORDO_LIBEXEC=${ORDO_LIBEXEC:-$build/trainer} "$source/tests/outsider-train.sh" "$ordo" "$paths" "$work" "$source" ||
    die "its numbers differ from ddp's"
else
  echo "training skipped: $build/trainer/ordo-train is not built"
fi
