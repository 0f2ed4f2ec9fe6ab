/* fuzz_elf.c - damaged shared objects through pre-flight, note reader and manifest parser. Whatever the bytes are, the answer is a
 * record or a reason, within bounded memory; a sanitizer build sees every read outside. With libFuzzer (clang -fsanitize=fuzzer
 * -DORDO_LIBFUZZER) the same function takes its inputs. */
#include "plugin_files.h"

#include <string.h>
#include <unistd.h>

#include "discovery/elf.h"
#include "mutate.h"
#include "plan/manifest.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  g_autofree char *reason = NULL;
  ordo_file_view file = {memory_file(data, size), size};
  ordo_elf *elf = g_new0(ordo_elf, 1);
  gboolean good = ordo_elf_read(&file, elf, &reason);
  assert_true(good == (reason == NULL));
  if (good && elf->notes.text) {
    assert_true(elf->notes.length <= 65536 && elf->notes.text[elf->notes.length] == '\0');
    ordo_errors *errors = ordo_errors_new();
    ordo_manifest *manifest = ordo_manifest_parse(elf->notes.text, elf->notes.length, "fuzz", errors);
    assert_true((manifest == NULL) == (ordo_errors_count(errors) > 0));
    ordo_manifest_free(manifest);
    ordo_errors_free(errors);
  }
  assert_true(!reason || g_utf8_validate(reason, -1, NULL));
  close(file.fd);
  ordo_elf_free(elf);
  return good;
}

#ifndef ORDO_LIBFUZZER

/* Bytes that matter: headers, notes and the dynamic section are hit more often than the strings between them. */
static void damage(mutator *m, GByteArray *bytes)
{
  if (mutate_below(m, 2)) {
    guint64 edge = mutate_edge(m);
    guint at = 8 * mutate_below(m, MIN(bytes->len, 288u) / 8), width = 1u << mutate_below(m, 4);
    memcpy(bytes->data + at, &edge, MIN(bytes->len - at, width));
  } else {
    mutate_bytes(m, bytes);
  }
}

static void damaged_files_get_an_answer(void **state)
{
  (void)state;
  g_autofree char *manifest =
      manifest_text("fuzz", "strategy", "1.0.0", "option=level|int|1|1..3|l\nalias=a:level=2\nsteps=strategy.wrap\n");
  elf_recipe recipes[] = {{.manifest = manifest, .build_id = "0123456789", .needed = {"libc.so.6", "libm.so.6"}},
                          {.manifest = manifest, .only_sections = TRUE, .needed = {"libc.so.6"}}};
  mutator m = {42};
  gint64 end = g_get_monotonic_time() + 2 * G_USEC_PER_SEC;
  guint n = 0, n_good = 0;
  while (n < 200 || (n < 60000 && g_get_monotonic_time() < end)) {
    g_autoptr(GByteArray) bytes = make_elf(&recipes[n % 2]);
    damage(&m, bytes);
    n_good += (guint)LLVMFuzzerTestOneInput(bytes->data, bytes->len);
    n++;
  }
  print_message("%u files, %u still sound\n", n, n_good);
  assert_true(n_good > 0 && n_good < n); /* both sides were reached */
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(damaged_files_get_an_answer)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
