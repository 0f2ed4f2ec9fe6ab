"""codes.py ROOT - every error code that the sources can print is explained in host/src/base/errors.def, in order, and none stands there twice.

Codes of tests and examples are their own and are not looked at.
"""
import re
import sys
from pathlib import Path

root = Path(sys.argv[1])
explained = re.findall(r'^ORDO_ERROR\("(E-[A-Z0-9-]+)"', (root / "host/src/base/errors.def").read_text(), flags=re.M)
findings = []
if explained != sorted(set(explained)):
    findings.append("errors.def is not sorted, or has a code twice")
used = {}
for folder in ("host", "sdk", "plugins", "trainer"):
    for file in sorted((root / folder).rglob("*.[ch]")):
        text = file.read_text()
        # A code is a whole string, or begins one ("error E-INTERNAL: ...").
        for code in re.findall(r'"(?:error )?(E-[A-Z0-9]+(?:-[A-Z0-9]+)*)(?=[":])', text):
            used.setdefault(code, file.relative_to(root))
for code in sorted(set(used) - set(explained)):
    findings.append(f"{used[code]}: {code} is not in errors.def, so `ordo explain {code}` does not know it")
print(f"{len(explained)} codes are explained, {len(used)} are used")
print("\n".join(findings))
sys.exit(1 if findings or not used else 0)
