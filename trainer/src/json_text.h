/* json_text.h - strict reading of JSON that others wrote.
 *
 * json-glib builds the tree, but accepts comments and trailing text, takes the last of two equal keys without a word, saturates
 * numbers, and recurses as deep as the input wants. So the text is checked first, by the grammar of RFC 8259.
 */
#ifndef ORDO_TRAINER_JSON_TEXT_H
#define ORDO_TRAINER_JSON_TEXT_H

#include <json-glib/json-glib.h>

#define ORDO_JSON_DEPTH 32

/* Null if `text` is one JSON value of valid UTF-8, at most ORDO_JSON_DEPTH deep, without equal keys in an object and with integers
 * that fit int64; else what is wrong and where (freed with g_free). Blanks may follow the value. */
char *ordo_json_check(const char *text, size_t length);
/* The tree of a checked object; null with *why set (g_free) if the text is wrong or no object. */
JsonNode *ordo_json_object(const char *text, size_t length, char **why);

#endif
