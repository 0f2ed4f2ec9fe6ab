"""comments.py ROOT - every function of the public headers says on which thread it may be called and since when.

A function is a function pointer in a struct, or a declaration with ORDO_EXPORT or ORDO_INLINE. Its comment stands before it or
behind it on the same line; functions that follow each other without a blank line or a comment between them share one. A header
may end its opening comment with a line "All functions: [any] since 0.1".
"""
import re
import sys

import public

FUNCTION = re.compile(r"\(\s*\*\s*(\w+)\s*\)\s*\(|^ORDO_(?:EXPORT|INLINE)\b[^(;]*?\b(\w+)\s*\(")



def check(path, text):
    failures, functions = [], 0
    comment, inside = "", False
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        stripped = line.strip()
        if inside:
            comment += " " + stripped
            inside = "*/" not in stripped
            continue
        if not stripped:
            comment = ""
            continue
        match = None if stripped.startswith("#") or line.rstrip().endswith("\\") else FUNCTION.search(line)
        if stripped.startswith("/*"):
            comment, inside = stripped, "*/" not in stripped
            continue
        if match is None:
            continue
        functions += 1
        name = match.group(1) or match.group(2)
        trailing = line[line.index("/*"):] if "/*" in line else ""
        for follower in lines[number:number + 3]:  # a declaration over several lines
            if ";" in line or "{" in follower or trailing:
                break
            trailing = follower[follower.index("/*"):] if "/*" in follower else ""
        said = comment + " " + trailing
        for wanted, what in ((public.TAG, "thread tag"), (public.SINCE, "since-version")):
            if not wanted.search(said):
                failures.append(f"{path}:{number}: {name} has no {what}")
    return functions, failures


def main():
    functions, failures = 0, []
    for _, path in public.headers(sys.argv[1]):
        n, bad = check(path, path.read_text())
        functions += n
        failures += bad
    # The checker itself must be able to fail.
    assert check("x", "/* Does it. */\nORDO_EXPORT int f(void);\n")[1], "a missing tag goes unseen"
    assert not check("x", "/* Does it. [any] since 0.1 */\nORDO_EXPORT int f(void);\n")[1]
    print(f"{functions} functions, {len(failures)} failures")
    print("\n".join(failures))
    return 1 if failures or functions < 50 else 0


sys.exit(main())
