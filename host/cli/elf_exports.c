/* elf_exports.c - which functions an executable offers to the libraries it loads.
 *
 * A program linked with -rdynamic (export-dynamic) takes part in symbol lookup before every library, so a function of it can replace a
 * plugin's function of the same name even under RTLD_LOCAL. `ordo doctor` reports it. Reads 64-bit ELF files of this byte order only
 * and checks every offset against the size of the file.
 */
#include "cli.h"

#include <elf.h>
#include <string.h>

static gboolean inside(gsize size, guint64 offset, guint64 length)
{
  return offset <= size && length <= size - offset;
}

static gboolean usable_header(const char *bytes, gsize size, Elf64_Ehdr *header)
{
  if (size < sizeof *header)
    return FALSE;
  memcpy(header, bytes, sizeof *header);
  if (memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 || header->e_ident[EI_CLASS] != ELFCLASS64)
    return FALSE;
  if (header->e_ident[EI_DATA] != (G_BYTE_ORDER == G_LITTLE_ENDIAN ? ELFDATA2LSB : ELFDATA2MSB) ||
      header->e_shentsize != sizeof(Elf64_Shdr))
    return FALSE;
  return inside(size, header->e_shoff, (guint64)header->e_shnum * sizeof(Elf64_Shdr));
}

static int count_functions(const char *bytes, gsize size, const Elf64_Shdr *symbols, const Elf64_Shdr *names, char **example)
{
  int count = 0;
  if (!inside(size, symbols->sh_offset, symbols->sh_size) || !inside(size, names->sh_offset, names->sh_size))
    return -1;
  for (guint64 i = 0; i < symbols->sh_size / sizeof(Elf64_Sym); i++) {
    Elf64_Sym symbol;
    memcpy(&symbol, bytes + symbols->sh_offset + i * sizeof symbol, sizeof symbol);
    if (symbol.st_shndx == SHN_UNDEF || ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || ELF64_ST_BIND(symbol.st_info) == STB_LOCAL)
      continue;
    if (symbol.st_name >= names->sh_size)
      return -1;
    const char *name = bytes + names->sh_offset + symbol.st_name;
    gsize length = strnlen(name, names->sh_size - symbol.st_name);
    if (length == 5 && (!memcmp(name, "_init", 5) || !memcmp(name, "_fini", 5)))
      continue; /* every executable has them */
    if (count++ == 0 && example)
      *example = g_strndup(name, length);
  }
  return count;
}

int cli_elf_exports(const char *path, char **example)
{
  g_autoptr(GMappedFile) file = g_mapped_file_new(path, FALSE, NULL);
  Elf64_Ehdr header;
  if (!file)
    return -1;
  const char *bytes = g_mapped_file_get_contents(file);
  gsize size = g_mapped_file_get_length(file);
  if (!bytes || !usable_header(bytes, size, &header))
    return -1;
  for (int i = 0; i < header.e_shnum; i++) {
    Elf64_Shdr section, names;
    memcpy(&section, bytes + header.e_shoff + (gsize)i * sizeof section, sizeof section);
    if (section.sh_type != SHT_DYNSYM || section.sh_link >= header.e_shnum)
      continue;
    memcpy(&names, bytes + header.e_shoff + section.sh_link * sizeof names, sizeof names);
    return count_functions(bytes, size, &section, &names, example);
  }
  return 0;
}
