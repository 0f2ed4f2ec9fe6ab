"""snippets.py ROOT [--write] - code shown in docs/*.md is code that is built and run.

    <!-- snippet: FILE NAME -->   stands before a fenced block; it must equal the lines of FILE between
    /* snippet: NAME */  and  /* end */
--write puts the lines there. A page whose snippets stand for a whole file is compiled as a reader would copy it: the snippets of its first
file joined in their order, with sdk/include and nothing else.
"""
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

root = Path(sys.argv[1])
write = "--write" in sys.argv
BLOCK = re.compile(r"(<!-- snippet: (\S+) (\S+) -->\n```c\n)(.*?)(```\n)", flags=re.S)


def lines_of(file, name):
    match = re.search(r"/\* snippet: " + re.escape(name) + r" \*/\n(.*?)/\* end \*/\n", (root / file).read_text(), flags=re.S)
    if match is None:
        sys.exit(f"{file} has no snippet {name}")
    return match.group(1)


def compiles(page, code):
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "joined.c"
        source.write_text(code)
        command = shlex.split(os.environ.get("CC", "cc")) + ["-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", f"-I{root / 'sdk/include'}", str(source)]
        done = subprocess.run(command, capture_output=True, text=True)
        return "" if done.returncode == 0 else f"{page}: its snippets, joined, do not compile:\n{done.stderr}"


WHOLE = {"docs/plugin-author.md"}
found, stale = 0, []
for page in sorted((root / "docs").glob("*.md")):
    text = page.read_text()
    for _, file, name, shown, _ in BLOCK.findall(text):
        found += 1
        if shown != lines_of(file, name):
            stale.append(f"{page.relative_to(root)}: {name} is not what stands in {file}")
    name = str(page.relative_to(root))
    blocks = BLOCK.findall(text)
    if name in WHOLE and not write and (broken := compiles(name, "\n".join(b[3] for b in blocks if b[1] == blocks[0][1]))):
        stale.append(broken)
    if write:
        page.write_text(BLOCK.sub(lambda m: m.group(1) + lines_of(m.group(2), m.group(3)) + m.group(5), text))
if write:
    print(f"{found} snippets written")
    sys.exit(0)
print(f"{found} snippets, {len(stale)} stale (remake: tests/headers/snippets.py . --write)")
print("\n".join(stale))
sys.exit(1 if stale or found == 0 else 0)
