"""snippets.py ROOT [--write] - code shown in docs/*.md is code that is built and run.

    <!-- snippet: FILE NAME -->   stands before a fenced block; it must equal the lines of FILE between
    /* snippet: NAME */  and  /* end */
--write puts the lines there.
"""
import re
import sys
from pathlib import Path

root = Path(sys.argv[1])
write = "--write" in sys.argv
BLOCK = re.compile(r"(<!-- snippet: (\S+) (\S+) -->\n```c\n)(.*?)(```\n)", flags=re.S)


def lines_of(file, name):
    match = re.search(r"/\* snippet: " + re.escape(name) + r" \*/\n(.*?)/\* end \*/\n", (root / file).read_text(), flags=re.S)
    if match is None:
        sys.exit(f"{file} has no snippet {name}")
    return match.group(1)


found, stale = 0, []
for page in sorted((root / "docs").glob("*.md")):
    text = page.read_text()
    for _, file, name, shown, _ in BLOCK.findall(text):
        found += 1
        if shown != lines_of(file, name):
            stale.append(f"{page.relative_to(root)}: {name} is not what stands in {file}")
    if write:
        page.write_text(BLOCK.sub(lambda m: m.group(1) + lines_of(m.group(2), m.group(3)) + m.group(5), text))
if write:
    print(f"{found} snippets written")
    sys.exit(0)
print(f"{found} snippets, {len(stale)} stale (remake: tests/headers/snippets.py . --write)")
print("\n".join(stale))
sys.exit(1 if stale or found == 0 else 0)
