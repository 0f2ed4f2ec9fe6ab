"""public.py - reads the public headers: which they are, what they declare. Shared by the header tests.

Not a C parser: it knows the shapes that these headers use and stops with an error at anything else, so a declaration cannot
slip past a test unread.
"""
import re
import sys
from pathlib import Path

FOLDERS = {"sdk": "sdk/include/ordo", "host": "host/include/ordo"}
TAG = re.compile(r"\[(main|step|any)\]")
SINCE = re.compile(r"\bsince \d+\.\d+")


def headers(root):
    """[(folder, path)] of all public headers, sdk first, by name."""
    found = [(folder, path) for folder, where in FOLDERS.items() for path in sorted((Path(root) / where).glob("*.h"))]
    if len(found) < 2:
        sys.exit(f"no public headers under {root}")
    return found


def without_comments(text):
    """Comments become spaces, line breaks stay."""
    return re.sub(r"/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m.group()), text, flags=re.S)


def without_directives(text):
    """Preprocessor lines, with their continuations, become empty lines."""
    return re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda m: "\n" * m.group().count("\n"), text, flags=re.M)


def field_name(declaration):
    """Name of one struct member: `ordo_status (*start)(...)`, `uint64_t calls[16]`, `const char *name`."""
    pointer = re.search(r"\(\s*\*\s*(\w+)\s*\)\s*\(", declaration)
    if pointer:
        return pointer.group(1)
    plain = re.search(r"(\w+)\s*(?:\[[^\]]*\]\s*)*$", declaration)
    if plain is None or "," in declaration:
        sys.exit(f"cannot read the member `{declaration.strip()}`; declare one member per line")
    return plain.group(1)


def structs(path):
    """[(C type, [member, ...])] in the order of the header."""
    text = without_directives(without_comments(path.read_text()))
    found = []
    for match in re.finditer(r"\b(typedef\s+)?struct\s+(\w+)\s*\{(.*?)\}\s*(\w*)\s*;", text, flags=re.S):
        members = [field_name(d) for d in match.group(3).split(";") if d.strip()]
        found.append((match.group(4) if match.group(1) else "struct " + match.group(2), members))
    return found


def constants(path):
    """Names of all enumerators, those of X tables included."""
    raw = without_comments(path.read_text())
    names = []
    for body in re.findall(r"\benum\s*\{(.*?)\}", without_directives(raw), flags=re.S):
        names += re.findall(r"(?:^|,)\s*(ORDO_\w+)\s*(?==|,|$)", re.sub(r"ORDO_\w+\(.*?\)", "", body))
    names += re.findall(r"\bX\((ORDO_\w+),", raw)
    return list(dict.fromkeys(names))
