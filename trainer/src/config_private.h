/* config_private.h - what config.c and config_read.c share. */
#ifndef ORDO_TRAINER_CONFIG_PRIVATE_H
#define ORDO_TRAINER_CONFIG_PRIVATE_H

#include "config.h"

enum { ORDO_KEY_STRING, ORDO_KEY_PATH, ORDO_KEY_INT, ORDO_KEY_REAL, ORDO_KEY_BOOL, ORDO_KEY_CHOICE };

typedef struct ordo_key_info {
  const char *section;
  const char *key;
  const char *name; /* "section.key" */
  int type;
  const char *fallback;
  double low;
  double high;
  const char *choices;
  const char *alias;
  const char *verbs;
  const char *help;
} ordo_key_info;

extern const ordo_key_info ordo_keys[ORDO_N_KEYS];

typedef struct ordo_value {
  char *text;
  char *origin;   /* null: the default */
  gint64 integer; /* INT, BOOL */
  double real;
} ordo_value;

struct ordo_config {
  char verb;
  ordo_value values[ORDO_N_KEYS];
};

/* True if the key belongs to the configuration's verb. */
gboolean ordo_config_serves(const ordo_config *config, ordo_key key);
/* "train", "eval", "generate". */
const char *ordo_config_verb(const ordo_config *config);
/* Pushes E-CONFIG-KEY with the nearest name. */
ordo_status ordo_config_unknown(const ordo_config *config, const char *name, const char *origin, ordo_problems *problems);

#endif
