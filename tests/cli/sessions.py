#!/usr/bin/env python3
"""sessions.py [--check PREFIX BUILT | --only WORD] FILE - the sessions of a page, remade from the commands that stand in it.

Between `<!-- run: COMMAND ;; COMMAND -->` and `<!-- end -->` a page holds what the commands print. Without --check the file is rewritten (with
--only, the sessions whose commands contain WORD); with it nothing is written, and a page that is behind the command fails (exit code 1). The check runs the command installed in PREFIX, and is
skipped (77) if that is not there or older than the one just built.
"""
import os
import re
import subprocess
import sys


def session(match):
    output = ""
    for command in (part.strip() for part in match.group(1).split(";;")):
        done = subprocess.run(["bash", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL)
        output += "$ " + command + "\n" + done.stdout.rstrip("\n") + "\n"
    return "<!-- run: " + match.group(1) + " -->\n```\n" + output + "```\n<!-- end -->"


def main(arguments):
    check = len(arguments) == 4 and arguments[0] == "--check"
    only = arguments[1] if len(arguments) == 3 and arguments[0] == "--only" else ""
    path = arguments[-1]
    if check:
        installed = os.path.join(arguments[1], "bin", "ordo")
        if not os.path.exists(installed) or os.path.getmtime(installed) < os.path.getmtime(arguments[2]):
            print("skipped: " + installed + " is missing or older than the build (./dev build)")
            return 77
        os.environ["PATH"] = os.path.dirname(installed) + ":" + os.environ["PATH"]
        os.environ["HOME"] = "/nonexistent"
        os.environ.pop("ORDO_PLUGIN_PATH", None)
        os.environ.pop("ORDO_LIBEXEC", None)
    os.environ["NO_COLOR"] = "1"
    with open(path, encoding="utf-8") as file:
        text = file.read()
    new = re.sub(r"<!-- run: (.*?) -->\n.*?<!-- end -->", lambda match: session(match) if only in match.group(1) else match.group(0), text,
                 flags=re.S)
    if new == text:
        return 0
    if check:
        print(path + " is not what the commands print: run ./dev docs and commit it. They print:\n" + new)
        return 1
    with open(path, "w", encoding="utf-8") as file:
        file.write(new)
    print("rewritten: " + path)
    return 0


sys.exit(main(sys.argv[1:]))
