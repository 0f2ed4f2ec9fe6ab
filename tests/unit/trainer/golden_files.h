/* golden_files.h - just enough reading of safetensors and JSON for the golden tests. It trusts its input: the product's strict
 * reader is elsewhere and is tested elsewhere. */
#ifndef GOLDEN_FILES_H
#define GOLDEN_FILES_H

#include <json-glib/json-glib.h>

/* Directory of the golden numbers, or null with a message printed if there is none: ORDO_GOLDEN_DIR, else ../shared/data/stories260K
 * beside the source root. Free with g_free. */
char *golden_dir(void);

struct golden_tensors;
/* Fails the running test if the file cannot be read. */
struct golden_tensors *golden_tensors_open(const char *dir, const char *file);
void golden_tensors_close(struct golden_tensors *tensors);
/* fp32 data, and its element count; fails the running test if there is no such tensor. */
const float *golden_tensor(const struct golden_tensors *tensors, const char *name, int64_t *numel);

JsonParser *golden_json(const char *dir, const char *file);
JsonObject *golden_root(JsonParser *parser);
double golden_number(JsonObject *object, const char *member);
/* The array's numbers; free with g_free. */
double *golden_numbers(JsonArray *array);
/* Whole file; free with g_free. */
void *golden_bytes(const char *dir, const char *file, gsize *size);

#endif
