"""layout.py PROGRAM ROOT - the layout of public structs is the one checked in, and CHANGELOG.md knows about it.

Until 1.0 the ABI may change, but never by accident: a change must be made twice, in sdk/layout/x86_64.txt (./dev layout) and in a
line of CHANGELOG.md that carries its hash.
"""
import difflib
import platform
import re
import subprocess
import sys
from pathlib import Path

program, root = sys.argv[1], Path(sys.argv[2])
golden, changelog = root / "sdk/layout/x86_64.txt", root / "CHANGELOG.md"
if platform.machine() != "x86_64":
    print(f"no layout file for {platform.machine()}: skipped")
    sys.exit(77)
now = subprocess.run([program], capture_output=True, text=True, check=True).stdout
then = golden.read_text()
if now != then:
    sys.stdout.writelines(difflib.unified_diff(then.splitlines(True), now.splitlines(True), str(golden), "the headers as they are"))
    print("\nThe layout of public structs changed. If that is meant: ./dev layout, and a line in CHANGELOG.md with the new hash.")
    sys.exit(1)
digest = re.search(r"^layout ([0-9a-f]{16})$", now, flags=re.M).group(1)
if not changelog.exists():
    print(f"{changelog} does not exist yet: its line about layout {digest} is not checked")
    sys.exit(77)
if digest not in changelog.read_text():
    print(f"CHANGELOG.md has no line with `ABI layout {digest}`. Add one that says what changed.")
    sys.exit(1)
print(f"layout {digest}: as checked in, and in CHANGELOG.md")
