/* config.h - the configuration of a run: one table of keys, a file, and options.
 *
 * A value comes from the table's default, then the file, then the command line; the later one wins. Every value is checked when
 * it is set, all findings are reported, and an unknown key is answered with the nearest known one. Accessors take ORDO_KEY_section_key
 * and the type of the table: asking for another type is a defect of the caller.
 */
#ifndef ORDO_TRAINER_CONFIG_H
#define ORDO_TRAINER_CONFIG_H

#include "problems.h"

enum {
#define ORDO_KEY(SECTION, KEY, TYPE, DEFAULT, LOW, HIGH, CHOICES, SHORT, VERBS, HELP) ORDO_KEY_##SECTION##_##KEY,
#include "config_keys.def"
#undef ORDO_KEY
  ORDO_N_KEYS
};
typedef unsigned ordo_key;

typedef struct ordo_config ordo_config;

/* Defaults only. `verb` is 'T', 'E', 'G' or 'P'; keys of other verbs are accepted from a file (one run.ini serves all) but not as options.
 */
ordo_config *ordo_config_new(char verb);
void ordo_config_free(ordo_config *config);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ordo_config, ordo_config_free)
/* Reads a key file. Errors: NOT_FOUND, IO, INVALID (empty, binary, not UTF-8, unknown or repeated keys, bad values; all of them). */
ordo_status ordo_config_read_file(ordo_config *config, const char *path, ordo_problems *problems);
/* Reads argv[1..]: --section.key VALUE, --section.key=VALUE, --section.no_key, short options, --config FILE or one positional
 * file (read first). *help is set by --help. Errors: as above. */
ordo_status ordo_config_read_arguments(ordo_config *config, int argc, char **argv, int *help, ordo_problems *problems);
/* Sets one value from text. `origin` is shown in errors ("run.ini:7", "--train.steps"). */
ordo_status ordo_config_set(ordo_config *config, ordo_key key, const char *text, const char *origin, ordo_problems *problems);

const char *ordo_config_string(const ordo_config *config, ordo_key key); /* STRING, PATH, CHOICE; never null */
int64_t ordo_config_int(const ordo_config *config, ordo_key key);
double ordo_config_real(const ordo_config *config, ordo_key key);
gboolean ordo_config_bool(const ordo_config *config, ordo_key key);
/* False if the value is the table's default because nobody set it. */
gboolean ordo_config_is_set(const ordo_config *config, ordo_key key);
/* "train.steps". Static. */
const char *ordo_config_name(ordo_key key);

/* The help text of the verb; freed with g_free. */
char *ordo_config_help(const ordo_config *config, const char *program, const char *summary);
/* All values of the verb as a key file that gives the same configuration again; comments name where each came from. g_free. */
char *ordo_config_resolved(const ordo_config *config);

#endif
