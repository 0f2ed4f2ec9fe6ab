"""bugs.py ROOT BUILD - every test that docs/known-bugs.md names stands in the file that it names, and the suite of this build runs it.

A test of a header belongs to the programs that include the header. A script is run when a test of the suite calls it.
"""
import json
import re
import sys
from pathlib import Path

root, build = Path(sys.argv[1]), Path(sys.argv[2])
targets = json.loads((build / "meson-info/intro-targets.json").read_text())
tests = json.loads((build / "meson-info/intro-tests.json").read_text())
if not any(test["name"].startswith("sharded-order") for test in tests):
    print("this build has no tests with MPI")
    sys.exit(77)

# Words of all commands, and the sources of the programs among them; a command may name a program relative to the build.
words = {str((build / word).resolve()) for test in tests for word in test["cmd"]}
run = {source for target in targets if words & {str(Path(name).resolve()) for name in target["filename"]}
       for group in target["target_sources"] for source in group.get("sources", [])} | words


def is_run(file, text):
    if file.suffix != ".h":
        return str(file) in run
    return any(re.search(rf'#include "[^"]*{file.name}"', Path(source).read_text()) and "SHARED_CASES" in Path(source).read_text()
               for source in run if source.endswith(".c") and "/tests/" in source) and "SHARED_CASES" in text


page = (root / "docs/known-bugs.md").read_text()
rows = re.findall(r"\| (tests/\S+): (\w[\w+=-]*) \|$", page, flags=re.M)
findings = [f"docs/known-bugs.md: no test is named in: {line}" for line in page.splitlines()
            if line.startswith("|") and not re.search(r"\| (tests/\S+: \w[\w+=-]*|test) \|$|^\|[-|]*$", line)]
for name, test in rows:
    file = root / name
    text = file.read_text() if file.exists() else ""
    if file.suffix in (".c", ".h") and f"cmocka_unit_test({test})" not in text:
        findings.append(f"docs/known-bugs.md: {name} has no test {test}")
    elif test not in text:
        findings.append(f"docs/known-bugs.md: {name} does not say {test}")
    elif not is_run(file.resolve(), text):
        findings.append(f"docs/known-bugs.md: no test of the suite runs {name}")
print(f"{len(rows)} tests are named")
print("\n".join(findings))
sys.exit(1 if findings or len(rows) < 30 else 0)
