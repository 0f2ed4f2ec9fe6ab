"""layout_source.py ROOT OUTPUT.c - writes a C program that prints sizes and offsets of every public struct.

The compiler states the numbers; this script only finds the names. ORDO_PIN_LAST names in the headers guard against a member that
the script would not see: the last one it found must be the pinned one.
"""
import re
import sys
from pathlib import Path

import public

root, output = sys.argv[1], Path(sys.argv[2])
includes, prints, problems = [], [], []
for folder, path in public.headers(root):
    if path.name == "mpi.h":
        continue
    includes.append(f"#include <ordo/{path.name}>")
    pins = dict(re.findall(r"ORDO_PIN_LAST\(([\w ]+),\s*(\w+)\)", public.without_directives(public.without_comments(path.read_text()))))
    for name in public.constants(path):
        prints.append(f'  line("constant %s %lld", "{name}", (long long){name});')
    for name, members in public.structs(path):
        if name in pins and pins[name] != members[-1]:
            problems.append(f"{path}: the last member of {name} is {pins[name]}, but {members[-1]} was read")
        if name not in pins and members[0] == "struct_size":
            problems.append(f"{path}: {name} grows but has no ORDO_PIN_LAST")
        prints.append(f'  line("struct %s size %lld", "{name.replace("struct ", "")}", (long long)sizeof({name}));')
        for member in members:
            prints.append(f'  line("  %s offset %lld size %lld", "{member}", (long long)offsetof({name}, {member}), '
                          f"(long long)sizeof((({name} *)0)->{member}));")
if problems:
    sys.exit("\n".join(problems))

PROGRAM = r"""/* Made from the public headers by tests/headers/layout_source.py. */
@INCLUDES@

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static char text[1 << 18];

static void line(const char *format, ...)
{
  size_t used = strlen(text);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text + used, sizeof text - used - 1, format, arguments);
  va_end(arguments);
  strcat(text, "\n");
}

/* FNV-1a, 64 bits: names one state of the layout in CHANGELOG.md. */
static unsigned long long hash(void)
{
  unsigned long long h = 0xcbf29ce484222325u;
  for (const char *c = text; *c != '\0'; c++)
    h = (h ^ (unsigned char)*c) * 0x100000001b3u;
  return h;
}

int main(void)
{
@PRINTS@
  printf("# Sizes and offsets in bytes of every public struct on x86-64, and the values of constants. Remake: ./dev layout\n");
  printf("# The hash must stand in CHANGELOG.md, in the line that says what changed.\n");
  printf("layout %016llx\n%s", hash(), text);
  return strlen(text) + 256 > sizeof text;
}
"""
output.write_text(PROGRAM.replace("@INCLUDES@", "\n".join(includes)).replace("@PRINTS@", "\n".join(prints)))
