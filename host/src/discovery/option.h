/* option.h - validation of one option value (private). The conversions to numbers are declared in expression.h. */
#ifndef ORDO_PRIVATE_OPTION_H
#define ORDO_PRIVATE_OPTION_H

#include "expression.h"

/* "int" for ORDO_OPTION_INT. */
const char *ordo_option_type_name(int type);
/* The canonical text of a value that the schema allows, freed by the caller; null with *why (what it must be, freed by the caller). An
 * empty text is never a value. */
char *ordo_option_normalise(const ordo_option_schema *schema, const char *text, char **why);

#endif
