/* expression.h - the strategy expression and option values (private).
 *
 * NAME[=SIZE][:key=value...] joined with '+', innermost axis first. */
#ifndef ORDO_PRIVATE_EXPRESSION_H
#define ORDO_PRIVATE_EXPRESSION_H

#include "registry.h"

typedef struct ordo_choice {
  const ordo_found *found;
  int size;            /* ranks on its axis; 0: the rest; -1: takes no axis */
  char *written;       /* this part of the expression */
  GHashTable *options; /* key -> text, validated and normalised, defaults filled in; an unset option is absent */
} ordo_choice;

/* Parses, finds the plugins and validates options. `kind` is ORDO_KIND_STRATEGY (joined parts) or ORDO_KIND_PRECISION (one part). Null or
 * "none" or "" gives an empty array. Returns an array of ordo_choice (free with g_ptr_array_unref), null on error, all findings pushed. */
GPtrArray *ordo_expression_parse(const char *text, uint32_t kind, ordo_registry *registry, ordo_errors *errors);
/* What was chosen in full: "apex_amp:O1:scaler=torch" for 16-mixed - the id, the value of the positional option also where it is the
 * default, and every other option that is not at its default. To be freed with g_free. */
char *ordo_choice_resolved(const ordo_choice *choice);
/* A getter for conditions and jobs; `user` is an ordo_choice. */
const char *ordo_choice_option(gpointer user, const char *key);
/* Conversions of validated text: size "25MiB" -> bytes, bool -> 0/1, dtype -> ordo_dtype. FALSE if the type does not fit. */
gboolean ordo_option_to_int(const ordo_option_schema *schema, const char *text, gint64 *value);
gboolean ordo_option_to_real(const ordo_option_schema *schema, const char *text, double *value);

#endif
