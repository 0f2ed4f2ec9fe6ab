/* elf.c - pre-flight of a shared object: is it safe to hand this file to the dynamic loader?
 *
 * It is no loader and no proof against malice (whoever can write a trusted file can run code anyway). It turns the accidents that end
 * a process, or leave only "cannot open shared object file", into a sentence: a file cut short by a full disk or an interrupted copy
 * (SIGBUS inside dlopen), a FIFO with the name of a plugin (dlopen hangs), a file of another machine, an executable stack.
 *
 * The idea: everything that the dynamic loader will touch by offset or address must lie inside the bytes that the file has.
 */
#include "elf.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#if defined(__x86_64__)
#define HOST_MACHINE EM_X86_64
#elif defined(__aarch64__)
#define HOST_MACHINE EM_AARCH64
#elif defined(__riscv) && __riscv_xlen == 64
#define HOST_MACHINE EM_RISCV
#elif defined(__powerpc64__) && defined(__LITTLE_ENDIAN__)
#define HOST_MACHINE EM_PPC64
#else
#error "add the ELF machine number of this 64-bit little-endian processor"
#endif

#define SEGMENTS_MAX 128u
#define SECTIONS_MAX 4096u
#define DYNAMIC_MAX 4096u
#define NEEDED_MAX 256u
#define NAME_MAX_BYTES 256u

typedef struct ordo_image {
  const ordo_file_view *file;
  Elf64_Ehdr header;
  Elf64_Phdr segments[SEGMENTS_MAX];
  guint n_segments;
  const Elf64_Phdr *dynamic;
} ordo_image;

static gboolean refuse(char **reason, const char *format, ...) G_GNUC_PRINTF(2, 3);

static gboolean refuse(char **reason, const char *format, ...)
{
  va_list args;
  va_start(args, format);
  *reason = g_strdup_vprintf(format, args);
  va_end(args);
  return FALSE;
}

static const char *machine_name(guint machine)
{
  switch (machine) {
  case EM_386:
    return "i386";
  case EM_ARM:
    return "arm";
  case EM_X86_64:
    return "x86-64";
  case EM_AARCH64:
    return "aarch64";
  case EM_RISCV:
    return "riscv";
  case EM_PPC64:
    return "powerpc64";
  case EM_S390:
    return "s390";
  default:
    return "unknown machine";
  }
}

static gboolean read_header(ordo_image *image, char **reason)
{
  Elf64_Ehdr *header = &image->header;
  const ordo_file_view *file = image->file;
  guint8 start[EI_NIDENT] = {0};
  if (!ordo_file_read(file, 0, start, MIN((gsize)file->size, sizeof start)))
    return refuse(reason, "it could not be read: %s", errno ? g_strerror(errno) : "it became shorter");
  if (memcmp(start, ELFMAG, MIN((gsize)file->size, (gsize)SELFMAG)) != 0)
    return refuse(reason, "it is no shared object: it does not begin with the ELF signature");
  if (file->size < sizeof *header)
    return refuse(reason, "it is cut short: %" G_GUINT64_FORMAT " bytes are less than an ELF header", file->size);
  if (start[EI_CLASS] != ELFCLASS64)
    return refuse(reason, "it is a %s file, this host is 64-bit", start[EI_CLASS] == ELFCLASS32 ? "32-bit" : "damaged");
  if (start[EI_DATA] != ELFDATA2LSB)
    return refuse(reason, "it is a %s file, this host is little-endian", start[EI_DATA] == ELFDATA2MSB ? "big-endian" : "damaged");
  if (!ordo_file_read(file, 0, header, sizeof *header))
    return refuse(reason, "it could not be read to the end of its header");
  if (header->e_machine != HOST_MACHINE)
    return refuse(reason, "it was built for %s (ELF machine %u), this host is %s", machine_name(header->e_machine), header->e_machine,
                  machine_name(HOST_MACHINE));
  if (header->e_type != ET_DYN)
    return refuse(reason, "it is no shared object (ELF type %u, not %u); link it with -shared", header->e_type, ET_DYN);
  if (start[EI_VERSION] != EV_CURRENT || header->e_version != EV_CURRENT)
    return refuse(reason, "its ELF version is %u, not %u", header->e_version, EV_CURRENT);
  if (header->e_phentsize != sizeof(Elf64_Phdr) || header->e_phnum == 0 || header->e_phnum > SEGMENTS_MAX)
    return refuse(reason, "its program header table is damaged (%u entries of %u bytes)", header->e_phnum, header->e_phentsize);
  image->n_segments = header->e_phnum;
  if (!ordo_file_read(file, header->e_phoff, image->segments, image->n_segments * sizeof(Elf64_Phdr)))
    return refuse(reason, "it is cut short: its program headers end after its %" G_GUINT64_FORMAT " bytes", file->size);
  return TRUE;
}

/* The loader maps these, in rising order of address. */
static gboolean check_load(const ordo_image *image, const Elf64_Phdr *segment, guint64 *mapped_to, char **reason)
{
  guint64 size = image->file->size;
  if (segment->p_offset > size || segment->p_filesz > size - segment->p_offset)
    return refuse(reason,
                  "it is cut short: a segment needs bytes %" G_GUINT64_FORMAT " to %" G_GUINT64_FORMAT ", the file has %" G_GUINT64_FORMAT,
                  (guint64)segment->p_offset, (guint64)segment->p_offset + segment->p_filesz, size);
  if (segment->p_memsz < segment->p_filesz || segment->p_vaddr + segment->p_memsz < segment->p_vaddr || segment->p_vaddr < *mapped_to)
    return refuse(reason, "a segment that is loaded has a damaged address or size");
  guint64 align = segment->p_align;
  if (align > 1 && ((align & (align - 1)) != 0 || ((segment->p_vaddr - segment->p_offset) & (align - 1)) != 0))
    return refuse(reason, "a segment that is loaded is not aligned as it says");
  *mapped_to = segment->p_vaddr + segment->p_memsz;
  return TRUE;
}

static gboolean check_segments(ordo_image *image, char **reason)
{
  guint64 mapped_to = 0;
  guint n_loaded = 0;
  const Elf64_Phdr *stack = NULL;
  for (guint i = 0; i < image->n_segments; i++) {
    const Elf64_Phdr *segment = &image->segments[i];
    if (segment->p_type == PT_LOAD && !check_load(image, segment, &mapped_to, reason))
      return FALSE;
    n_loaded += segment->p_type == PT_LOAD;
    if (segment->p_type == PT_DYNAMIC)
      image->dynamic = segment;
    if (segment->p_type == PT_GNU_STACK)
      stack = segment;
  }
  if (n_loaded == 0 || !image->dynamic)
    return refuse(reason, "it is no shared object that can be loaded: it has no %s", n_loaded ? "dynamic section" : "segment to load");
  if (!stack || (stack->p_flags & PF_X))
    return refuse(reason, "it asks for an executable stack, which would weaken the whole process; link it with -Wl,-z,noexecstack");
  return TRUE;
}

/* File offset of `length` bytes at an address of the image, if the file holds them all. */
static gboolean address_to_offset(const ordo_image *image, guint64 address, guint64 length, guint64 *offset)
{
  for (guint i = 0; i < image->n_segments; i++) {
    const Elf64_Phdr *segment = &image->segments[i];
    if (segment->p_type != PT_LOAD || address < segment->p_vaddr || address - segment->p_vaddr > segment->p_filesz)
      continue;
    guint64 inside = address - segment->p_vaddr;
    if (length > segment->p_filesz - inside)
      continue;
    *offset = segment->p_offset + inside;
    return TRUE;
  }
  return FALSE;
}

/* Tables that the loader reads before it can report anything: where each lies, and by which entry its size is given. */
static const struct {
  Elf64_Sxword table, size;
  const char *name;
  guint64 at_least;
} loader_tables[] = {
    {DT_STRTAB, DT_STRSZ, "string table", 1},
    {DT_SYMTAB, 0, "symbol table", sizeof(Elf64_Sym)},
    {DT_RELA, DT_RELASZ, "relocation table", 0},
    {DT_JMPREL, DT_PLTRELSZ, "table of function relocations", 0},
    {DT_INIT_ARRAY, DT_INIT_ARRAYSZ, "constructor table", 0},
    {DT_FINI_ARRAY, DT_FINI_ARRAYSZ, "destructor table", 0},
    {DT_HASH, 0, "symbol hash", 8},
    {DT_GNU_HASH, 0, "symbol hash", 16},
    {DT_VERSYM, 0, "version table", 2},
    {DT_VERNEED, 0, "version table", sizeof(Elf64_Verneed)},
    {DT_VERDEF, 0, "version table", sizeof(Elf64_Verdef)},
};

static const Elf64_Dyn *dynamic_entry(const Elf64_Dyn *entries, guint n, Elf64_Sxword tag)
{
  for (guint i = 0; i < n; i++)
    if (entries[i].d_tag == tag)
      return &entries[i];
  return NULL;
}

static gboolean check_tables(const ordo_image *image, const Elf64_Dyn *entries, guint n, char **reason)
{
  guint64 offset;
  if (!dynamic_entry(entries, n, DT_STRTAB) || !dynamic_entry(entries, n, DT_STRSZ) || !dynamic_entry(entries, n, DT_SYMTAB))
    return refuse(reason, "its dynamic section is damaged: it names no symbol table");
  for (gsize i = 0; i < G_N_ELEMENTS(loader_tables); i++) {
    const Elf64_Dyn *table = dynamic_entry(entries, n, loader_tables[i].table);
    const Elf64_Dyn *size = loader_tables[i].size ? dynamic_entry(entries, n, loader_tables[i].size) : NULL;
    if (!table)
      continue;
    guint64 length = MAX(loader_tables[i].at_least, size ? size->d_un.d_val : 0);
    if (!address_to_offset(image, table->d_un.d_ptr, length, &offset))
      return refuse(reason, "it is damaged: its %s lies outside the file", loader_tables[i].name);
  }
  return TRUE;
}

static gboolean read_needed(const ordo_image *image, const Elf64_Dyn *entries, guint n, ordo_elf *elf, char **reason)
{
  guint64 table_size = dynamic_entry(entries, n, DT_STRSZ)->d_un.d_val, table;
  if (!address_to_offset(image, dynamic_entry(entries, n, DT_STRTAB)->d_un.d_ptr, table_size, &table))
    return refuse(reason, "it is damaged: its string table lies outside the file");
  for (guint i = 0; i < n; i++) {
    char name[NAME_MAX_BYTES + 1] = {0};
    guint64 at = entries[i].d_un.d_val;
    if (entries[i].d_tag != DT_NEEDED)
      continue;
    if (elf->needed->len >= NEEDED_MAX || at >= table_size)
      return refuse(reason, "it is damaged: its list of needed libraries %s",
                    at >= table_size ? "points outside its strings" : "is too long");
    gsize length = (gsize)MIN(table_size - at, (guint64)NAME_MAX_BYTES);
    if (!ordo_file_read(image->file, table + at, name, length) || memchr(name, '\0', length) == NULL)
      return refuse(reason, "it is damaged: the name of a needed library does not end");
    g_ptr_array_add(elf->needed, g_utf8_make_valid(name, -1));
  }
  return TRUE;
}

static gboolean check_dynamic(const ordo_image *image, ordo_elf *elf, char **reason)
{
  guint64 offset;
  guint64 n_entries = image->dynamic->p_filesz / sizeof(Elf64_Dyn);
  if (n_entries == 0 || n_entries > DYNAMIC_MAX ||
      !address_to_offset(image, image->dynamic->p_vaddr, n_entries * sizeof(Elf64_Dyn), &offset) || offset != image->dynamic->p_offset)
    return refuse(reason, "its dynamic section is damaged or cut short");
  g_autofree Elf64_Dyn *entries = g_new(Elf64_Dyn, (gsize)n_entries);
  if (!ordo_file_read(image->file, offset, entries, (gsize)n_entries * sizeof(Elf64_Dyn)))
    return refuse(reason, "its dynamic section could not be read");
  guint n = 0;
  while (n < n_entries && entries[n].d_tag != DT_NULL)
    n++;
  if (n == n_entries)
    return refuse(reason, "its dynamic section does not end");
  const Elf64_Dyn *flags = dynamic_entry(entries, n, DT_FLAGS);
  if (dynamic_entry(entries, n, DT_TEXTREL) || (flags && (flags->d_un.d_val & DF_TEXTREL)))
    return refuse(reason, "it changes its own code while loading (text relocations); compile every part of it with -fPIC");
  elf->static_tls = flags && (flags->d_un.d_val & DF_STATIC_TLS);
  return check_tables(image, entries, n, reason) && read_needed(image, entries, n, elf, reason);
}

/* Segments survive strip; sections are the second chance, for linkers that make no PT_NOTE. */
static gboolean read_notes(const ordo_image *image, ordo_elf *elf, char **reason)
{
  const Elf64_Ehdr *header = &image->header;
  for (guint i = 0; i < image->n_segments; i++) {
    const Elf64_Phdr *segment = &image->segments[i];
    if (segment->p_type == PT_NOTE &&
        !ordo_note_walk(image->file, segment->p_offset, segment->p_filesz, segment->p_align, &elf->notes, reason))
      return FALSE;
  }
  if (elf->notes.text || header->e_shoff == 0 || header->e_shentsize != sizeof(Elf64_Shdr) || header->e_shnum > SECTIONS_MAX)
    return TRUE;
  g_autofree Elf64_Shdr *sections = g_new(Elf64_Shdr, (gsize)header->e_shnum + 1);
  if (!ordo_file_read(image->file, header->e_shoff, sections, header->e_shnum * sizeof(Elf64_Shdr)))
    return refuse(reason, "it is cut short: its section headers end after its %" G_GUINT64_FORMAT " bytes", image->file->size);
  for (guint i = 0; i < header->e_shnum; i++)
    if (sections[i].sh_type == SHT_NOTE &&
        !ordo_note_walk(image->file, sections[i].sh_offset, sections[i].sh_size, sections[i].sh_addralign, &elf->notes, reason))
      return FALSE;
  return TRUE;
}

gboolean ordo_elf_read(const ordo_file_view *file, ordo_elf *elf, char **reason)
{
  g_autofree ordo_image *image = g_new0(ordo_image, 1);
  image->file = file;
  if (!elf->needed)
    elf->needed = g_ptr_array_new_with_free_func(g_free);
  errno = 0;
  return read_header(image, reason) && check_segments(image, reason) && check_dynamic(image, elf, reason) && read_notes(image, elf, reason);
}

static const char *kind_of_file(mode_t mode)
{
  if (S_ISDIR(mode))
    return "a directory";
  if (S_ISFIFO(mode))
    return "a FIFO";
  if (S_ISSOCK(mode))
    return "a socket";
  return S_ISLNK(mode) ? "a symbolic link" : "a device";
}

/* Looked at before it is opened, since opening a device can do something; and again after, since it may have been exchanged. */
static int open_regular(const char *real_path, struct stat *status, char **reason)
{
  struct stat before;
  if (lstat(real_path, &before) != 0) {
    refuse(reason, "%s", g_strerror(errno));
    return -1;
  }
  if (!S_ISREG(before.st_mode)) {
    refuse(reason, "it is %s, not a file", kind_of_file(before.st_mode));
    return -1;
  }
  int fd = open(real_path, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY);
  if (fd < 0) {
    refuse(reason, "it cannot be opened: %s", g_strerror(errno));
    return -1;
  }
  if (fstat(fd, status) != 0 || !S_ISREG(status->st_mode) || status->st_ino != before.st_ino || status->st_dev != before.st_dev) {
    refuse(reason, "it was exchanged while it was opened");
    close(fd);
    return -1;
  }
  return fd;
}

static char *resolve(const char *path, char **reason)
{
  struct stat status;
  char *real_path = realpath(path, NULL);
  if (real_path)
    return real_path;
  if (errno == ELOOP)
    refuse(reason, "its symbolic links form a loop");
  else if (errno == ENOENT && lstat(path, &status) == 0)
    refuse(reason, "it is a symbolic link to something that does not exist");
  else
    refuse(reason, "%s", g_strerror(errno));
  return NULL;
}

ordo_elf *ordo_elf_open(const char *path, char **reason)
{
  struct stat status;
  char *real_path = resolve(path, reason);
  if (!real_path)
    return NULL;
  g_autoptr(ordo_elf) elf = g_new0(ordo_elf, 1);
  elf->real_path = g_strdup(real_path);
  free(real_path);
  int fd = open_regular(elf->real_path, &status, reason);
  if (fd < 0)
    return NULL;
  elf->device = status.st_dev;
  elf->inode = status.st_ino;
  elf->size = (guint64)status.st_size;
  elf->mtime_ns = (guint64)status.st_mtim.tv_sec * 1000000000u + (guint64)status.st_mtim.tv_nsec;
  ordo_file_view file = {fd, elf->size};
  gboolean good = elf->size > 0 ? ordo_elf_read(&file, elf, reason) : refuse(reason, "it is empty");
  close(fd);
  return good ? g_steal_pointer(&elf) : NULL;
}

void ordo_elf_free(ordo_elf *elf)
{
  if (!elf)
    return;
  g_free(elf->real_path);
  ordo_notes_clear(&elf->notes);
  if (elf->needed)
    g_ptr_array_unref(elf->needed);
  g_free(elf);
}
