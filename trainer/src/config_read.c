/* config_read.c - a configuration from a key file and from arguments.
 *
 * GKeyFile takes the last of two equal keys without a word and reports a binary file as a strange character, so the lines are
 * looked over first: that also gives each key its line number.
 */
#include "config_private.h"

#include <errno.h>
#include <string.h>

#define LARGEST_FILE (16 << 20) /* a configuration of more than 16 MiB is some other file */

static ordo_status bad_file(const char *path, const char *why, ordo_problems *problems)
{
  return ordo_problems_push(problems, ORDO_E_INVALID, "E-CONFIG-FILE", path, why,
                            "write sections and keys as in \"[train]\" and \"steps = 100\"; --help lists them", "not a configuration file");
}

static ordo_status load(const char *path, char **text, ordo_problems *problems)
{
  g_autoptr(GError) error = NULL;
  gsize length = 0;
  const char *bad = NULL;
  if (!g_file_test(path, G_FILE_TEST_EXISTS))
    return ordo_problems_push(problems, ORDO_E_NOT_FOUND, "E-CONFIG-FILE", path, "there is no such file", "give the path of an existing .ini file",
                              "cannot read the configuration");
  if (g_file_test(path, G_FILE_TEST_IS_DIR))
    return bad_file(path, "it is a directory", problems);
  if (!g_file_get_contents(path, text, &length, &error))
    return ordo_problems_push(problems, ORDO_E_IO, "E-FILE-IO", path, error->message, "check its permissions", "cannot read the configuration");
  if (length > LARGEST_FILE)
    return bad_file(path, "it is larger than 16 MiB", problems);
  if (memchr(*text, 0, length))
    return bad_file(path, "it is binary: it contains zero bytes", problems);
  if (!g_utf8_validate(*text, (gssize)length, &bad)) {
    unsigned line = 1;
    for (const char *c = *text; c < bad; c++)
      line += *c == '\n';
    g_autofree char *why = g_strdup_printf("line %u is not valid UTF-8 (byte 0x%02x)", line, (unsigned)(guchar)*bad);
    return bad_file(path, why, problems);
  }
  if (g_str_has_prefix(*text, "\xef\xbb\xbf"))
    memset(*text, '\n', 1), memmove(*text + 1, *text + 3, length - 2); /* a byte order mark; the line count of errors stays below by none */
  if (!*g_strstrip(g_strdelimit(g_strdup(*text), "\r\n\t ", ' ')))
    return bad_file(path, "it is empty", problems);
  return ORDO_OK;
}
