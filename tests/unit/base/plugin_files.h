/* plugin_files.h - files that look like plugins, made byte by byte, and a scratch directory for them (tests only).
 *
 * A made file has everything that the pre-flight looks at (headers, one segment, dynamic section, notes) and nothing to run, so
 * that a test can damage any byte of it, and 200 of them cost nothing. Real plugins that are loaded stand in tests/conformance. */
#ifndef TEST_PLUGIN_FILES_H
#define TEST_PLUGIN_FILES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <elf.h>
#include <glib.h>

typedef struct elf_recipe {
  const char *manifest;   /* null: no manifest note */
  const char *manifest_2; /* a second one */
  const char *build_id;   /* null: none */
  const char *needed[4];
  guint64 dynamic_flags; /* DF_ */
  gboolean text_relocations;
  gboolean no_stack;
  gboolean executable_stack;
  gboolean only_sections; /* the notes are reached through section headers, as without PT_NOTE */
} elf_recipe;

/* Where the parts of the last made file stand, for tests that damage it. */
enum { ELF_PHDR_LOAD = 0, ELF_PHDR_DYNAMIC = 1, ELF_PHDR_STACK = 2, ELF_PHDR_NOTE = 3 };

GByteArray *make_elf(const elf_recipe *recipe);
Elf64_Ehdr *elf_header(GByteArray *elf);
Elf64_Phdr *elf_segment(GByteArray *elf, guint index);

/* A smallest manifest, `more` appended; freed by the caller. */
char *manifest_text(const char *id, const char *kind, const char *version, const char *more);

/* A directory below the temporary directory that only this user can write; removed with everything in it by scratch_free. */
char *scratch_new(void);
void scratch_free(char *directory);
void write_bytes(const char *path, const void *bytes, gsize length);
void write_elf(const char *path, const elf_recipe *recipe);
/* DIR/NAME.so with a manifest made of the arguments; returns its path, freed by the caller. */
char *write_plugin(const char *directory, const char *name, const char *id, const char *kind, const char *version, const char *more);
/* Runs `check` in a child that is no root (user 65534 if this process is root, since root may read everything). TRUE if it returned
 * TRUE; nothing that the child does reaches this process. */
gboolean as_ordinary_user(gboolean (*check)(const void *data), const void *data);
/* A memory file that holds `bytes`; closed by the caller. */
int memory_file(const void *bytes, gsize length);

/* This program has an address sanitizer in it; it runs under valgrind; one of both, so that times mean nothing. */
gboolean sanitized(void);
gboolean under_valgrind(void);
gboolean instrumented(void);

#define assert_contains(TEXT, PART) assert_contains_at(TEXT, PART, __FILE__, __LINE__)
void assert_contains_at(const char *text, const char *part, const char *file, int line);

#endif
