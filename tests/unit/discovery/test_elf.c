/* test_elf.c - the pre-flight on made files, each damaged in one way, and on things that are no files. */
#include "plugin_files.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "discovery/elf.h"

static const elf_recipe plain = {.manifest = "id=x\n", .build_id = "0123456789abcdefghij", .needed = {"libm.so.6", "libc.so.6"}};

static gboolean read_bytes(const GByteArray *bytes, ordo_elf *elf, char **reason)
{
  ordo_file_view file = {memory_file(bytes->data, bytes->len), bytes->len};
  gboolean good = ordo_elf_read(&file, elf, reason);
  close(file.fd);
  return good;
}

/* The reason for refusing `bytes`; null if they are accepted. */
static char *refusal(const GByteArray *bytes)
{
  char *reason = NULL;
  ordo_elf *elf = g_new0(ordo_elf, 1);
  gboolean good = read_bytes(bytes, elf, &reason);
  assert_true(good == (reason == NULL));
  ordo_elf_free(elf);
  return reason;
}

#define assert_refused(BYTES, PART)                   \
  do {                                                \
    g_autofree char *refused_reason = refusal(BYTES); \
    assert_contains(refused_reason, PART);            \
  } while (0)

static void a_sound_file_is_read(void **state)
{
  (void)state;
  g_autoptr(GByteArray) bytes = make_elf(&plain);
  g_autofree char *reason = NULL;
  ordo_elf *elf = g_new0(ordo_elf, 1);
  assert_true(read_bytes(bytes, elf, &reason));
  assert_string_equal(elf->notes.text, "id=x\n");
  assert_string_equal(elf->notes.build_id, "303132333435363738396162636465666768696a");
  assert_int_equal(elf->needed->len, 2);
  assert_string_equal(g_ptr_array_index(elf->needed, 0), "libm.so.6");
  assert_string_equal(g_ptr_array_index(elf->needed, 1), "libc.so.6");
  assert_false(elf->static_tls);
  ordo_elf_free(elf);
}

static void notes_are_found_through_sections_too(void **state)
{
  (void)state;
  elf_recipe recipe = plain;
  recipe.only_sections = TRUE;
  g_autoptr(GByteArray) bytes = make_elf(&recipe);
  g_autofree char *reason = NULL;
  ordo_elf *elf = g_new0(ordo_elf, 1);
  assert_true(read_bytes(bytes, elf, &reason));
  assert_string_equal(elf->notes.text, "id=x\n");
  ordo_elf_free(elf);
}

static void every_shorter_length_is_refused_with_a_reason(void **state)
{
  (void)state;
  g_autoptr(GByteArray) whole = make_elf(&plain);
  for (guint length = 0; length < whole->len; length++) {
    g_autoptr(GByteArray) cut = g_byte_array_new();
    g_byte_array_append(cut, whole->data, length);
    g_autofree char *reason = refusal(cut);
    assert_non_null(reason);
    if (length >= SELFMAG)
      assert_contains(reason, "cut short");
  }
}

static void foreign_files_are_named(void **state)
{
  (void)state;
  g_autoptr(GByteArray) bytes = make_elf(&plain);
  Elf64_Ehdr *header = elf_header(bytes), good = *header;
  header->e_machine = EM_S390;
  assert_refused(bytes, "it was built for s390 (ELF machine 22), this host is");
  *header = good;
  header->e_ident[EI_CLASS] = ELFCLASS32;
  assert_refused(bytes, "32-bit file");
  *header = good;
  header->e_ident[EI_DATA] = ELFDATA2MSB;
  assert_refused(bytes, "big-endian file");
  *header = good;
  header->e_type = ET_EXEC;
  assert_refused(bytes, "no shared object (ELF type 2");
  *header = good;
  header->e_version = 9;
  assert_refused(bytes, "ELF version is 9");
  *header = good;
  header->e_ident[0] = 'M';
  assert_refused(bytes, "does not begin with the ELF signature");
}

static void damaged_headers_are_refused(void **state)
{
  (void)state;
  g_autoptr(GByteArray) bytes = make_elf(&plain);
  Elf64_Ehdr *header = elf_header(bytes), good = *header;
  header->e_phnum = 0;
  assert_refused(bytes, "program header table");
  *header = good;
  header->e_phnum = 0xffff;
  assert_refused(bytes, "program header table");
  *header = good;
  header->e_phentsize = 32;
  assert_refused(bytes, "program header table");
  *header = good;
  header->e_phoff = G_MAXUINT64 - 8;
  assert_refused(bytes, "cut short");
}

static void damaged_segments_are_refused(void **state)
{
  (void)state;
  static const struct {
    guint64 offset, filesz, memsz, vaddr, align;
    const char *part;
  } cases[] = {
      {0, 1 << 20, 1 << 20, 0, 0x1000, "cut short"},
      {G_MAXUINT64, 16, 16, 0, 1, "cut short"},
      {16, G_MAXUINT64, G_MAXUINT64, 0, 1, "cut short"},
      {0, 64, 63, 0, 1, "damaged address or size"},
      {0, 64, G_MAXUINT64, 16, 1, "damaged address or size"},
      {0, 64, 64, 0, 3, "not aligned"},
      {0, 64, 64, 0x10, 0x1000, "not aligned"},
  };
  g_autoptr(GByteArray) bytes = make_elf(&plain);
  for (gsize i = 0; i < G_N_ELEMENTS(cases); i++) {
    Elf64_Phdr *load = elf_segment(bytes, ELF_PHDR_LOAD);
    load->p_offset = cases[i].offset;
    load->p_filesz = cases[i].filesz;
    load->p_memsz = cases[i].memsz;
    load->p_vaddr = cases[i].vaddr;
    load->p_align = cases[i].align;
    assert_refused(bytes, cases[i].part);
  }
}

static void segments_that_overlap_or_fall_are_refused(void **state)
{
  (void)state;
  g_autoptr(GByteArray) bytes = make_elf(&plain);
  Elf64_Phdr *load = elf_segment(bytes, ELF_PHDR_LOAD), *second = elf_segment(bytes, ELF_PHDR_NOTE);
  *second = *load;
  second->p_vaddr = load->p_vaddr + 0x10000;
  g_autofree char *apart = refusal(bytes);
  assert_null(apart);
  second->p_vaddr = load->p_vaddr;
  assert_refused(bytes, "damaged address or size");
}

static void names_of_libraries_must_end_inside_their_table(void **state)
{
  (void)state;
  g_autofree char *long_name = g_strnfill(300, 'x');
  elf_recipe recipe = plain;
  recipe.needed[1] = long_name;
  g_autoptr(GByteArray) endless = make_elf(&recipe);
  assert_refused(endless, "does not end");
  g_autoptr(GByteArray) bytes = make_elf(&plain);
  Elf64_Dyn *needed = (Elf64_Dyn *)(void *)(bytes->data + elf_segment(bytes, ELF_PHDR_DYNAMIC)->p_offset);
  needed->d_un.d_val = 1 + strlen("libm.so.6") + 1 + strlen("libc.so.6") + 1; /* the first byte after the table */
  assert_refused(bytes, "points outside its strings");
}

static void a_file_with_nothing_to_load_is_refused(void **state)
{
  (void)state;
  g_autoptr(GByteArray) bytes = make_elf(&plain);
  elf_segment(bytes, ELF_PHDR_LOAD)->p_type = PT_NULL;
  assert_refused(bytes, "no segment to load");
  elf_segment(bytes, ELF_PHDR_LOAD)->p_type = PT_LOAD;
  elf_segment(bytes, ELF_PHDR_DYNAMIC)->p_type = PT_NULL;
  assert_refused(bytes, "no dynamic section");
}

static void a_damaged_dynamic_section_is_refused(void **state)
{
  (void)state;
  g_autoptr(GByteArray) bytes = make_elf(&plain);
  Elf64_Phdr *segment = elf_segment(bytes, ELF_PHDR_DYNAMIC), good = *segment;
  Elf64_Dyn *entries = (Elf64_Dyn *)(void *)(bytes->data + segment->p_offset);
  segment->p_filesz -= sizeof(Elf64_Dyn);
  assert_refused(bytes, "does not end");
  *segment = good;
  segment->p_offset += 16;
  assert_refused(bytes, "damaged or cut short");
  *segment = good;
  segment->p_filesz = 1 << 30;
  assert_refused(bytes, "damaged or cut short");
  *segment = good;
  for (Elf64_Dyn *entry = entries; entry->d_tag != DT_NULL; entry++) {
    Elf64_Dyn kept = *entry;
    if (entry->d_tag == DT_FLAGS)
      continue;
    entry->d_un.d_val = 1 << 30;
    g_autofree char *reason = refusal(bytes);
    assert_contains(reason, "damaged");
    entry->d_tag = DT_DEBUG;
    if (kept.d_tag != DT_NEEDED)
      assert_refused(bytes, "names no symbol table");
    *entry = kept;
  }
  assert_null(refusal(bytes));
}

static void dangerous_files_are_refused_in_plain_text(void **state)
{
  (void)state;
  elf_recipe recipe = plain;
  recipe.executable_stack = TRUE;
  g_autoptr(GByteArray) stack = make_elf(&recipe);
  assert_refused(stack, "executable stack");
  recipe = plain;
  recipe.no_stack = TRUE;
  g_autoptr(GByteArray) unsaid = make_elf(&recipe);
  assert_refused(unsaid, "executable stack");
  recipe = plain;
  recipe.text_relocations = TRUE;
  g_autoptr(GByteArray) tag = make_elf(&recipe);
  assert_refused(tag, "text relocations");
  recipe = plain;
  recipe.dynamic_flags = DF_TEXTREL;
  g_autoptr(GByteArray) flag = make_elf(&recipe);
  assert_refused(flag, "text relocations");
}

static void static_tls_is_seen(void **state)
{
  (void)state;
  elf_recipe recipe = plain;
  recipe.dynamic_flags = DF_STATIC_TLS;
  g_autoptr(GByteArray) bytes = make_elf(&recipe);
  g_autofree char *reason = NULL;
  ordo_elf *elf = g_new0(ordo_elf, 1);
  assert_true(read_bytes(bytes, elf, &reason));
  assert_true(elf->static_tls);
  ordo_elf_free(elf);
}

static void two_manifests_are_refused(void **state)
{
  (void)state;
  elf_recipe recipe = plain;
  recipe.manifest_2 = "id=y\n";
  g_autoptr(GByteArray) bytes = make_elf(&recipe);
  assert_refused(bytes, "two manifests");
}

typedef struct place {
  char *directory, *path;
} place;

static int set_up(void **state)
{
  place *p = g_new0(place, 1);
  p->directory = scratch_new();
  p->path = g_strdup_printf("%s/x.so", p->directory);
  *state = p;
  return 0;
}

static int tear_down(void **state)
{
  place *p = *state;
  scratch_free(p->directory);
  g_free(p->path);
  g_free(p);
  return 0;
}

static void assert_open_refused(const char *path, const char *part)
{
  g_autofree char *reason = NULL;
  assert_null(ordo_elf_open(path, &reason));
  assert_contains(reason, part);
}

static void what_is_no_file_is_refused_without_hanging(void **state)
{
  place *p = *state;
  assert_open_refused(p->path, "No such file");
  assert_int_equal(mkfifo(p->path, 0600), 0);
  alarm(10); /* opening a FIFO without a writer would block for ever */
  assert_open_refused(p->path, "it is a FIFO");
  alarm(0);
  unlink(p->path);
  assert_int_equal(mkdir(p->path, 0700), 0);
  assert_open_refused(p->path, "it is a directory");
  rmdir(p->path);
  write_bytes(p->path, "", 0);
  assert_open_refused(p->path, "it is empty");
  assert_open_refused("/dev/null", "it is a device");
}

static void links_are_followed_unless_they_lead_nowhere(void **state)
{
  place *p = *state;
  g_autofree char *target = g_strdup_printf("%s/target", p->directory);
  g_autofree char *reason = NULL;
  assert_int_equal(symlink("x.so", p->path), 0);
  assert_open_refused(p->path, "loop");
  unlink(p->path);
  assert_int_equal(symlink("target", p->path), 0);
  assert_open_refused(p->path, "symbolic link to something that does not exist");
  write_elf(target, &plain);
  g_autoptr(ordo_elf) elf = ordo_elf_open(p->path, &reason);
  assert_non_null(elf);
  assert_string_equal(elf->real_path, target);
  assert_true(elf->inode != 0 && elf->mtime_ns != 0 && elf->size > 64);
}

static gboolean permission_is_denied(const void *path)
{
  char *reason = NULL;
  gboolean good = !ordo_elf_open(path, &reason) && reason && strstr(reason, "cannot be opened: Permission denied");
  g_free(reason);
  return good;
}

static void a_file_without_read_permission_is_named(void **state)
{
  place *p = *state;
  write_elf(p->path, &plain);
  assert_int_equal(chmod(p->directory, 0755), 0);
  assert_false(as_ordinary_user(permission_is_denied, p->path));
  assert_int_equal(chmod(p->path, 0), 0);
  assert_true(as_ordinary_user(permission_is_denied, p->path));
}

static void this_program_itself_is_accepted(void **state)
{
  (void)state;
  g_autofree char *reason = NULL;
  g_autoptr(ordo_elf) elf = ordo_elf_open("/proc/self/exe", &reason); /* position-independent: a shared object to ELF */
  if (!elf)
    fail_msg("%s", reason);
  assert_null(elf->notes.text);
  assert_true(elf->needed->len > 0);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_sound_file_is_read),
      cmocka_unit_test(notes_are_found_through_sections_too),
      cmocka_unit_test(every_shorter_length_is_refused_with_a_reason),
      cmocka_unit_test(foreign_files_are_named),
      cmocka_unit_test(damaged_headers_are_refused),
      cmocka_unit_test(damaged_segments_are_refused),
      cmocka_unit_test(segments_that_overlap_or_fall_are_refused),
      cmocka_unit_test(names_of_libraries_must_end_inside_their_table),
      cmocka_unit_test(a_file_with_nothing_to_load_is_refused),
      cmocka_unit_test(a_damaged_dynamic_section_is_refused),
      cmocka_unit_test(dangerous_files_are_refused_in_plain_text),
      cmocka_unit_test(static_tls_is_seen),
      cmocka_unit_test(two_manifests_are_refused),
      cmocka_unit_test_setup_teardown(what_is_no_file_is_refused_without_hanging, set_up, tear_down),
      cmocka_unit_test_setup_teardown(links_are_followed_unless_they_lead_nowhere, set_up, tear_down),
      cmocka_unit_test_setup_teardown(a_file_without_read_permission_is_named, set_up, tear_down),
      cmocka_unit_test(this_program_itself_is_accepted),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
