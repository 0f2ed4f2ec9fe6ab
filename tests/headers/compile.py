"""compile.py ROOT - each public header compiles alone and pulls in nothing but the C standard library.

For C11, C17 (gcc, clang) and C++17 (g++, clang++), with warnings as errors. A header of the SDK sees the SDK's include folder
only. What it pulls in is checked twice: the names it includes, and the files that the compiler reports.
"""
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import public

COMPILERS = [("gcc", "c", ["c11", "c17"]), ("clang", "c", ["c11", "c17"]), ("g++", "c++", ["c++17"]), ("clang++", "c++", ["c++17"])]
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror"]
STANDARD = {"assert", "complex", "ctype", "errno", "fenv", "float", "inttypes", "iso646", "limits", "locale", "math", "setjmp", "signal",
            "stdalign", "stdarg", "stdatomic", "stdbool", "stddef", "stdint", "stdio", "stdlib", "stdnoreturn", "string", "tgmath",
            "threads", "time", "uchar", "wchar", "wctype"}
OUTSIDE = {"mpi.h"}  # names a foreign type on purpose

# The macros that a plugin uses, in every language.
PLUGIN = r"""
#include <ordo/manifest.h>
#include <ordo/plugin.h>
#include <ordo/strategy.h>

ORDO_MANIFEST("id=x\nkind=strategy\nversion=1.0.0\nsummary=x\n");
static const void *get_extension(const char *id) { (void)id; return 0; }
ORDO_PLUGIN_ENTRY("x", "1.0.0", 0, 0, get_extension);
"""


def compile_plugin(root):
    """A plugin's macros in every language and standard; the object must have the note. Returns failures."""
    failures = []
    for compiler, language, standards in COMPILERS:
        for standard in standards if shutil.which(compiler) else []:
            with tempfile.TemporaryDirectory() as work:
                unit, out = Path(work) / ("unit.c" if language == "c" else "unit.cc"), Path(work) / "unit.o"
                unit.write_text(PLUGIN)
                command = [compiler, f"-std={standard}", *WARNINGS, "-fvisibility=hidden", "-I", str(root / "sdk/include"), "-c", str(unit), "-o", str(out)]
                result = subprocess.run(command, capture_output=True, text=True)
                if result.returncode != 0:
                    failures.append(f"{shlex.join(command)}\n{result.stderr}")
                    continue
                note = subprocess.run(["readelf", "-p", ".note.ordo", str(out)], capture_output=True, text=True).stdout
                if "id=x" not in note or "abi=" not in note:
                    failures.append(f"{compiler} -std={standard}: the object has no note with the manifest")
    return failures


def foreign_flags():
    """Where mpi.h lies, as a system header: its warnings are not ours."""
    wrapper = shutil.which("mpicc")
    if wrapper is None:
        return []
    said = subprocess.run([wrapper, "--showme:compile"], capture_output=True, text=True, check=True).stdout
    return [flag.replace("-I", "-isystem", 1) for flag in shlex.split(said) if flag.startswith("-I")]


def main():
    root = Path(sys.argv[1]).resolve()
    mpi_flags = foreign_flags()
    failures, compiled = compile_plugin(root), 0
    for folder, path in public.headers(root):
        flags = ["-I", str(root / "sdk/include")] + (["-I", str(root / "host/include")] if folder == "host" else [])
        exempt = path.name in OUTSIDE
        allowed = {h.name for f, h in public.headers(root) if f == "sdk" or folder == "host"}
        for name in re.findall(r"^\s*#\s*include\s*[<\"]([^>\"]+)[>\"]", path.read_text(), flags=re.M):
            standard = name.endswith(".h") and name[:-2] in STANDARD
            ours = name.startswith("ordo/") and name[5:] in allowed
            if not (standard or ours or (exempt and name == "mpi.h")):
                failures.append(f"{path}: includes <{name}>")
        for compiler, language, standards in COMPILERS:
            if shutil.which(compiler) is None:
                print(f"{compiler} is not installed: skipped")
                continue
            for standard in standards:
                for twice in (False, True) if standard == standards[0] else (False,):
                    with tempfile.TemporaryDirectory() as work:
                        unit = Path(work) / ("unit.c" if language == "c" else "unit.cc")
                        unit.write_text(f"#include <ordo/{path.name}>\n" * (2 if twice else 1) + "extern int not_empty;\n")
                        command = [compiler, f"-std={standard}", *WARNINGS, *flags, *(mpi_flags if exempt else []), "-fsyntax-only", str(unit)]
                        result = subprocess.run(command, capture_output=True, text=True)
                        compiled += 1
                        if result.returncode != 0:
                            failures.append(f"{shlex.join(command)}\n{result.stderr}")
                        if exempt or language != "c":
                            continue
                        listed = subprocess.run([compiler, f"-std={standard}", *flags, "-M", str(unit)], capture_output=True, text=True)
                        for used in listed.stdout.replace("\\\n", " ").split()[2:]:
                            system = used.startswith("/usr/") and not re.search(r"/(glib|mpi|openmpi|json-glib|openblas|dnnl)", used)
                            if not (used.startswith(str(root)) or system):
                                failures.append(f"{path}: {compiler} reads {used}")
    print(f"{compiled} compilations, {len(failures)} failures")
    print("\n".join(failures))
    return 1 if failures or compiled == 0 else 0


sys.exit(main())
