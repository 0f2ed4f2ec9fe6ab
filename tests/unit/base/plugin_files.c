/* plugin_files.c - see plugin_files.h. The layout of a made file: ELF header, program headers, notes, strings, one empty symbol,
 * dynamic section, section headers; one segment loads it all. */
#include "plugin_files.h"

#include <glib/gstdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ordo/manifest.h>

static void align_to(GByteArray *bytes, guint alignment)
{
  static const guint8 zero[16];
  g_byte_array_append(bytes, zero, (alignment - bytes->len % alignment) % alignment);
}

static void add_note(GByteArray *bytes, const char *owner, guint type, const void *text, guint length)
{
  Elf64_Nhdr header = {(Elf64_Word)strlen(owner) + 1, length, type};
  g_byte_array_append(bytes, (const guint8 *)&header, sizeof header);
  g_byte_array_append(bytes, (const guint8 *)owner, header.n_namesz);
  align_to(bytes, 4);
  g_byte_array_append(bytes, text, length);
  align_to(bytes, 4);
}

static void add_dynamic(GByteArray *bytes, Elf64_Sxword tag, guint64 value)
{
  Elf64_Dyn entry = {tag, {value}};
  g_byte_array_append(bytes, (const guint8 *)&entry, sizeof entry);
}

Elf64_Ehdr *elf_header(GByteArray *elf)
{
  return (Elf64_Ehdr *)(void *)elf->data;
}

Elf64_Phdr *elf_segment(GByteArray *elf, guint index)
{
  return (Elf64_Phdr *)(void *)(elf->data + elf_header(elf)->e_phoff) + index;
}

static void add_notes(GByteArray *elf, const elf_recipe *recipe)
{
  if (recipe->build_id)
    add_note(elf, ELF_NOTE_GNU, NT_GNU_BUILD_ID, recipe->build_id, (guint)strlen(recipe->build_id));
  if (recipe->manifest)
    add_note(elf, ORDO_NOTE_OWNER, ORDO_NOTE_TYPE, recipe->manifest, (guint)strlen(recipe->manifest) + 1);
  if (recipe->manifest_2)
    add_note(elf, ORDO_NOTE_OWNER, ORDO_NOTE_TYPE, recipe->manifest_2, (guint)strlen(recipe->manifest_2) + 1);
}

static void add_dynamic_section(GByteArray *elf, const elf_recipe *recipe)
{
  guint strings = elf->len, at[4] = {0};
  g_byte_array_append(elf, (const guint8 *)"", 1);
  for (guint i = 0; i < 4 && recipe->needed[i]; i++) {
    at[i] = elf->len - strings;
    g_byte_array_append(elf, (const guint8 *)recipe->needed[i], (guint)strlen(recipe->needed[i]) + 1);
  }
  guint strings_size = elf->len - strings;
  align_to(elf, 16);
  guint symbols = elf->len;
  Elf64_Sym none = {0};
  g_byte_array_append(elf, (const guint8 *)&none, sizeof none);
  align_to(elf, 16);
  guint dynamic = elf->len;
  for (guint i = 0; i < 4 && recipe->needed[i]; i++)
    add_dynamic(elf, DT_NEEDED, at[i]);
  add_dynamic(elf, DT_STRTAB, strings);
  add_dynamic(elf, DT_STRSZ, strings_size);
  add_dynamic(elf, DT_SYMTAB, symbols);
  add_dynamic(elf, DT_FLAGS, recipe->dynamic_flags);
  if (recipe->text_relocations)
    add_dynamic(elf, DT_TEXTREL, 0);
  add_dynamic(elf, DT_NULL, 0);
  Elf64_Phdr *segment = elf_segment(elf, ELF_PHDR_DYNAMIC);
  segment->p_offset = segment->p_vaddr = dynamic;
  segment->p_filesz = segment->p_memsz = elf->len - dynamic;
}

GByteArray *make_elf(const elf_recipe *recipe)
{
  GByteArray *elf = g_byte_array_new();
  Elf64_Ehdr header = {.e_type = ET_DYN, .e_version = EV_CURRENT, .e_phoff = sizeof header, .e_ehsize = sizeof header};
  Elf64_Phdr segments[4] = {{.p_type = PT_LOAD, .p_flags = PF_R, .p_align = 0x1000},
                            {.p_type = PT_DYNAMIC, .p_flags = PF_R, .p_align = 8},
                            {.p_type = PT_GNU_STACK, .p_flags = PF_R | PF_W},
                            {.p_type = PT_NOTE, .p_flags = PF_R, .p_align = 4}};
#if defined(__x86_64__)
  header.e_machine = EM_X86_64;
#elif defined(__aarch64__)
  header.e_machine = EM_AARCH64;
#endif
  memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_ident[EI_VERSION] = EV_CURRENT;
  header.e_phentsize = sizeof segments[0];
  header.e_phnum = recipe->only_sections ? 3 : 4;
  if (recipe->executable_stack)
    segments[ELF_PHDR_STACK].p_flags |= PF_X;
  if (recipe->no_stack)
    segments[ELF_PHDR_STACK].p_type = PT_NULL;
  g_byte_array_append(elf, (const guint8 *)&header, sizeof header);
  g_byte_array_append(elf, (const guint8 *)segments, sizeof segments);
  guint notes = elf->len;
  add_notes(elf, recipe);
  guint notes_size = elf->len - notes;
  elf_segment(elf, ELF_PHDR_NOTE)->p_offset = elf_segment(elf, ELF_PHDR_NOTE)->p_vaddr = notes;
  elf_segment(elf, ELF_PHDR_NOTE)->p_filesz = elf_segment(elf, ELF_PHDR_NOTE)->p_memsz = notes_size;
  add_dynamic_section(elf, recipe);
  if (recipe->only_sections) {
    Elf64_Shdr sections[2] = {{0}, {.sh_type = SHT_NOTE, .sh_offset = notes, .sh_size = notes_size, .sh_addralign = 4}};
    elf_header(elf)->e_shoff = elf->len;
    elf_header(elf)->e_shentsize = sizeof sections[0];
    elf_header(elf)->e_shnum = 2;
    g_byte_array_append(elf, (const guint8 *)sections, sizeof sections);
  }
  elf_segment(elf, ELF_PHDR_LOAD)->p_filesz = elf_segment(elf, ELF_PHDR_LOAD)->p_memsz = elf->len;
  return elf;
}

char *manifest_text(const char *id, const char *kind, const char *version, const char *more)
{
  return g_strdup_printf(ORDO_ABI_LINE "id=%s\nkind=%s\nversion=%s\nsummary=made for a test\n%s", id, kind, version, more ? more : "");
}

char *scratch_new(void)
{
  char *directory = g_dir_make_tmp("ordo-test-XXXXXX", NULL);
  assert_non_null(directory);
  char *real = realpath(directory, NULL);
  assert_non_null(real);
  g_free(directory);
  directory = g_strdup(real);
  free(real);
  return directory;
}

static void remove_tree(const char *path)
{
  struct stat status;
  if (lstat(path, &status) != 0)
    return;
  if (S_ISDIR(status.st_mode)) {
    GDir *dir = g_dir_open(path, 0, NULL);
    const char *name;
    while (dir && (name = g_dir_read_name(dir))) {
      g_autofree char *child = g_build_filename(path, name, NULL);
      remove_tree(child);
    }
    if (dir)
      g_dir_close(dir);
  }
  g_remove(path);
}

void scratch_free(char *directory)
{
  remove_tree(directory);
  g_free(directory);
}

void write_bytes(const char *path, const void *bytes, gsize length)
{
  /* Without the flags that make it wait for the disk. */
  assert_true(g_file_set_contents_full(path, bytes, (gssize)length, G_FILE_SET_CONTENTS_NONE, 0644, NULL));
  assert_int_equal(chmod(path, 0644), 0);
}

void write_elf(const char *path, const elf_recipe *recipe)
{
  g_autoptr(GByteArray) elf = make_elf(recipe);
  write_bytes(path, elf->data, elf->len);
}

char *write_plugin(const char *directory, const char *name, const char *id, const char *kind, const char *version, const char *more)
{
  g_autofree char *manifest = manifest_text(id, kind, version, more);
  char *path = g_strdup_printf("%s/%s.so", directory, name);
  elf_recipe recipe = {.manifest = manifest};
  write_elf(path, &recipe);
  return path;
}

gboolean as_ordinary_user(gboolean (*check)(const void *data), const void *data)
{
  int status = 0;
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    if (geteuid() == 0 && setresuid(65534, 65534, 65534) != 0)
      _exit(3);
    _exit(check(data) ? 0 : 1);
  }
  assert_int_equal(waitpid(child, &status, 0), child);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int memory_file(const void *bytes, gsize length)
{
  int fd = memfd_create("test", MFD_CLOEXEC);
  assert_true(fd >= 0);
  assert_int_equal(write(fd, bytes, length), (ssize_t)length);
  return fd;
}

void assert_contains_at(const char *text, const char *part, const char *file, int line)
{
  if (!text || !strstr(text, part)) {
    print_error("'%s' is not in '%s'\n", part, text ? text : "(null)");
    _fail(file, line);
  }
}

gboolean sanitized(void)
{
#if defined(__SANITIZE_ADDRESS__)
  return TRUE; /* gcc */
#elif defined(__has_feature)
  return __has_feature(address_sanitizer); /* clang */
#else
  return FALSE;
#endif
}

gboolean under_valgrind(void)
{
  const char *preloaded = g_getenv("LD_PRELOAD");
  return preloaded && strstr(preloaded, "vgpreload");
}

gboolean instrumented(void)
{
  return sanitized() || under_valgrind();
}
