"""dependencies.py ROOT [LIBRARY...] - who may include what, and what the built libraries need.

    plugins/X, examples/X   headers of the SDK, the C and POSIX libraries, and their own folder
    plugins/fsdp1, fsdp2, tp  also plugins/sharding, which is linked into each of them
    trainer                 public headers of the host and the SDK, its own folder, BLAS and json-glib
    host                    public headers, its own folder; no BLAS, no json-glib
    sdk                     itself
A LIBRARY is a built shared object: a plugin needs libc and libm only, the host no BLAS and no json-glib.
Nobody includes a private header of another folder, with one exception: the launcher and the trainer must agree on the processor before BLAS
is loaded, so both use cpu_core.h, which needs nothing of either. Tests and benchmarks may look inside what they test.
"""
import re
import subprocess
import sys
from pathlib import Path

import public

root = Path(sys.argv[1]).resolve()
SDK = {"ordo/" + p.name for f, p in public.headers(root) if f == "sdk"}
PUBLIC = {"ordo/" + p.name for _, p in public.headers(root)}
LIBRARIES = re.compile(r"^(cblas|openblas|f77blas|lapacke?|json-glib|dnnl|oneapi)\b")
FOREIGN = re.compile(r"^(glib|gmodule|gio|mpi|cblas|openblas|f77blas|lapacke?|json-glib|dnnl|oneapi|cmocka)\b")
SHARED = {("host/cli/launch.c", "cpu_core.h")}


def unit_of(path):
    """The folder whose private headers a file may use."""
    parts = path.relative_to(root).parts
    return root.joinpath(*parts[:2]) if parts[0] in ("plugins", "examples") else root / parts[0]


def problem(path, bracket, name):
    unit = unit_of(path)
    top = path.relative_to(root).parts[0]
    if (path.relative_to(root).as_posix(), name) in SHARED:
        return None
    if name.startswith("ordo/"):
        allowed = SDK if top in ("plugins", "examples", "sdk") else PUBLIC
        if name not in allowed and name not in PUBLIC:
            return "is no public header"
        return None if name in allowed else "is a header of the host; this folder has the SDK only"
    if bracket == '"':
        local = (path.parent / name).resolve()
        if local.exists() and local.parent == root / "plugins" / "sharding" and top == "plugins":
            return None
        if local.exists():
            return None if unit in local.parents else "is a private header of another folder"
        return None if any(unit.rglob(name)) else "is a private header of another folder (not found in this one)"
    if top in ("plugins", "examples", "sdk") and FOREIGN.match(name):
        return "is not the C or POSIX library"
    if top == "host" and LIBRARIES.match(name):
        return "does not belong into the host"
    return None


def needs(library):
    """What is wrong with the libraries that a built one needs."""
    listed = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    needed = re.findall(r"\(NEEDED\).*\[(.*?)\]", listed)
    needed = [n for n in needed if not re.match(r"lib(a|ub|t|l)san\.so", n)]  # a sanitized build
    if "libordo" in Path(library).name:
        return [f"{library} needs {n}" for n in needed if re.match(r"lib(open|f77|c)?blas|liblapack|libjson-glib|libdnnl", n)]
    return [f"{library} needs {n}" for n in needed if not re.match(r"lib[cm]\.so|ld-linux", n)]


def main():
    failures, checked = [], 0
    for library in sys.argv[2:]:
        failures += needs(library)
    for top in ("sdk", "host", "plugins", "trainer", "examples"):
        for path in sorted((root / top).rglob("*")):
            if path.suffix not in (".c", ".h", ".cc", ".def") or not path.is_file():
                continue
            for number, line in enumerate(path.read_text(errors="replace").split("\n"), 1):
                match = re.match(r"\s*#\s*include\s*([<\"])([^>\"]+)[>\"]", line)
                if match is None:
                    continue
                checked += 1
                what = problem(path, *match.groups())
                # An embedder's example may use the host's public headers: it says so by living in examples/embed*.
                if what and "SDK only" in what and path.relative_to(root).parts[1].startswith("embed"):
                    what = None
                if what:
                    failures.append(f"{path.relative_to(root)}:{number}: {match.group(2)} {what}")
    assert problem(root / "plugins/ddp/x.c", "<", "ordo/session.h"), "a breach goes unseen"
    assert problem(root / "plugins/ddp/x.c", "<", "mpi.h") and problem(root / "host/src/x.c", "<", "cblas.h")
    print(f"{checked} includes, {len(failures)} failures")
    print("\n".join(failures))
    return 1 if failures or checked < 50 else 0


sys.exit(main())
