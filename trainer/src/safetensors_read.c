/* safetensors_read.c - see safetensors.h. */
#include "safetensors.h"

#include "files.h"
#include <ordo/half.h>
#include "json_text.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LARGEST_HEADER 100000000u

struct ordo_safetensors {
  char *path;
  int fd;
  uint64_t data_offset; /* of the data in the file */
  uint64_t data_size;
  GPtrArray *tensors;  /* ordo_tensor */
  GHashTable *by_name; /* not owned */
};

typedef struct dtype_info {
  const char *name;
  ordo_dtype dtype;
  unsigned size;
} dtype_info;

static const dtype_info dtypes[] = {{"F64", ORDO_F64, 8}, {"F32", ORDO_F32, 4}, {"F16", ORDO_F16, 2}, {"BF16", ORDO_BF16, 2},
                                    {"I64", ORDO_I64, 8}, {"I32", ORDO_I32, 4}, {"I16", 0, 2},        {"I8", ORDO_I8, 1},
                                    {"U8", ORDO_U8, 1},   {"BOOL", 0, 1},       {"F8_E4M3", 0, 1},    {"F8_E5M2", 0, 1},
                                    {"U16", 0, 2},        {"U32", 0, 4},        {"U64", ORDO_U64, 8}};

static ordo_status damaged(const char *path, ordo_problems *problems, const char *format, ...) G_GNUC_PRINTF(3, 4);
static ordo_status damaged(const char *path, ordo_problems *problems, const char *format, ...)
{
  va_list args;
  va_start(args, format);
  g_autofree char *why = g_strdup_vprintf(format, args);
  va_end(args);
  return ordo_problems_push(problems, ORDO_E_INVALID, "E-SAFETENSORS", path, why,
                            "the file is damaged or no safetensors file; copy or write it again", "cannot use the safetensors file");
}

static void tensor_free(gpointer data)
{
  ordo_tensor *tensor = data;
  g_free(tensor->name);
  g_free(tensor);
}

/* The member as an array of integers >= 0; null if it is anything else. */
static JsonArray *integers(JsonObject *object, const char *member)
{
  JsonNode *node = json_object_get_member(object, member);
  if (!node || !JSON_NODE_HOLDS_ARRAY(node))
    return NULL;
  JsonArray *array = json_node_get_array(node);
  for (guint i = 0; i < json_array_get_length(array); i++) {
    JsonNode *element = json_array_get_element(array, i);
    if (!JSON_NODE_HOLDS_VALUE(element) || json_node_get_value_type(element) != G_TYPE_INT64 || json_node_get_int(element) < 0)
      return NULL;
  }
  return array;
}

static ordo_status parse_shape(const ordo_safetensors *file, ordo_tensor *t, JsonArray *shape, ordo_problems *problems)
{
  t->ndim = json_array_get_length(shape);
  t->numel = 1;
  if (t->ndim > ORDO_MAX_DIMS)
    return damaged(file->path, problems, "tensor \"%s\" has %u dimensions; at most %d are supported", t->name, t->ndim, ORDO_MAX_DIMS);
  for (uint32_t d = 0; d < t->ndim; d++) {
    t->shape[d] = json_array_get_int_element(shape, d);
    if (__builtin_mul_overflow(t->numel, t->shape[d], &t->numel))
      return damaged(file->path, problems, "the number of elements of tensor \"%s\" overflows", t->name);
  }
  return ORDO_OK;
}

static ordo_status parse_tensor(ordo_safetensors *file, const char *name, JsonNode *node, ordo_problems *problems)
{
  JsonObject *object = JSON_NODE_HOLDS_OBJECT(node) ? json_node_get_object(node) : NULL;
  JsonNode *dtype = object ? json_object_get_member(object, "dtype") : NULL;
  JsonArray *shape = object ? integers(object, "shape") : NULL;
  JsonArray *offsets = object ? integers(object, "data_offsets") : NULL;
  ordo_tensor *t = g_new0(ordo_tensor, 1);
  const dtype_info *info = NULL;
  uint64_t bytes;
  t->name = g_strdup(name);
  g_ptr_array_add(file->tensors, t);
  g_hash_table_insert(file->by_name, t->name, t);
  if (!shape || !offsets || json_array_get_length(offsets) != 2 || !dtype || json_node_get_value_type(dtype) != G_TYPE_STRING ||
      json_object_get_size(object) != 3)
    return damaged(file->path, problems,
                   "the entry of tensor \"%s\" is not exactly dtype (text), shape and data_offsets (two) of whole numbers", name);
  for (size_t i = 0; i < G_N_ELEMENTS(dtypes) && !info; i++)
    info = strcmp(dtypes[i].name, json_node_get_string(dtype)) == 0 ? &dtypes[i] : NULL;
  if (!info)
    return damaged(file->path, problems, "tensor \"%s\" has the unknown dtype \"%.40s\"", name, json_node_get_string(dtype));
  t->dtype_name = info->name;
  t->dtype = info->dtype;
  t->element_size = info->size;
  ordo_status status = parse_shape(file, t, shape, problems);
  if (status != ORDO_OK)
    return status;
  t->begin = (uint64_t)json_array_get_int_element(offsets, 0);
  t->end = (uint64_t)json_array_get_int_element(offsets, 1);
  if (__builtin_mul_overflow((uint64_t)t->numel, (uint64_t)info->size, &bytes) || t->end < t->begin || t->end - t->begin != bytes)
    return damaged(file->path, problems,
                   "tensor \"%s\": data_offsets [%" G_GUINT64_FORMAT ", %" G_GUINT64_FORMAT ") do not fit its shape and dtype %s", name,
                   t->begin, t->end, info->name);
  return ORDO_OK;
}

static ordo_status check_metadata(const ordo_safetensors *file, JsonNode *node, ordo_problems *problems)
{
  if (!JSON_NODE_HOLDS_OBJECT(node))
    return damaged(file->path, problems, "__metadata__ is no object");
  g_autoptr(GList) values = json_object_get_values(json_node_get_object(node));
  for (GList *v = values; v; v = v->next)
    if (!JSON_NODE_HOLDS_VALUE((JsonNode *)v->data) || json_node_get_value_type(v->data) != G_TYPE_STRING)
      return damaged(file->path, problems, "__metadata__ holds something that is not text");
  return ORDO_OK;
}

static int by_begin(gconstpointer a, gconstpointer b)
{
  const ordo_tensor *x = *(ordo_tensor *const *)a, *y = *(ordo_tensor *const *)b;
  if (x->begin != y->begin)
    return x->begin < y->begin ? -1 : 1;
  return (x->end > y->end) - (x->end < y->end); /* empty tensors before the one that starts at the same byte */
}

/* Tensors sorted by offset must touch each other from the first byte to the last. */
static ordo_status check_coverage(const ordo_safetensors *file, ordo_problems *problems)
{
  g_autofree gconstpointer *sorted = g_memdup2(file->tensors->pdata, file->tensors->len * sizeof(gpointer));
  uint64_t at = 0;
  if (file->tensors->len)
    qsort(sorted, file->tensors->len, sizeof *sorted, by_begin);
  for (guint i = 0; i < file->tensors->len; i++) {
    const ordo_tensor *t = sorted[i];
    if (t->begin != at)
      return damaged(file->path, problems,
                     "%s before tensor \"%s\": it begins at byte %" G_GUINT64_FORMAT
                     " of the data, the one before ends at %" G_GUINT64_FORMAT,
                     t->begin < at ? "overlap" : "hole", t->name, t->begin, at);
    at = t->end;
  }
  if (at != file->data_size)
    return damaged(file->path, problems,
                   "the tensors end at byte %" G_GUINT64_FORMAT " of the data, the file has %" G_GUINT64_FORMAT " bytes of it", at,
                   file->data_size);
  return ORDO_OK;
}

static ordo_status parse_header(ordo_safetensors *file, const char *header, size_t length, ordo_problems *problems)
{
  g_autofree char *why = NULL;
  if (length == 0 || *header != '{')
    return damaged(file->path, problems, "its header does not begin with '{'");
  g_autoptr(JsonNode) root = ordo_json_object(header, length, &why);
  if (!root)
    return damaged(file->path, problems, "its header is wrong: %s", why);
  g_autoptr(GList) names = json_object_get_members(json_node_get_object(root));
  for (GList *n = names; n; n = n->next) {
    JsonNode *node = json_object_get_member(json_node_get_object(root), n->data);
    ordo_status status =
        strcmp(n->data, "__metadata__") == 0 ? check_metadata(file, node, problems) : parse_tensor(file, n->data, node, problems);
    if (status != ORDO_OK)
      return status;
  }
  return check_coverage(file, problems);
}

ordo_status ordo_safetensors_open(const char *path, ordo_problems *problems, ordo_safetensors **result)
{
  g_autoptr(ordo_safetensors) file = g_new0(ordo_safetensors, 1);
  struct stat info;
  unsigned char prefix[8];
  uint64_t length = 0;
  file->path = g_strdup(path);
  file->tensors = g_ptr_array_new_with_free_func(tensor_free);
  file->by_name = g_hash_table_new(g_str_hash, g_str_equal);
  file->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file->fd < 0)
    return errno == ENOENT ? ordo_problems_push(problems, ORDO_E_NOT_FOUND, "E-FILE-IO", path, "there is no such file", "check the path",
                                                "cannot open the weights")
                           : ordo_problems_push_errno(problems, "open", path, errno);
  if (fstat(file->fd, &info) != 0)
    return ordo_problems_push_errno(problems, "look at", path, errno);
  if (!S_ISREG(info.st_mode))
    return damaged(path, problems, "it is not a regular file");
  if (info.st_size < 8)
    return damaged(path, problems, "it has %" G_GINT64_FORMAT " bytes; the smallest possible file has 10", (gint64)info.st_size);
  ordo_status status = ordo_file_read(file->fd, prefix, 8, 0, path, problems);
  if (status != ORDO_OK)
    return status;
  for (int i = 7; i >= 0; i--)
    length = length << 8 | prefix[i];
  if (length > LARGEST_HEADER || length > (uint64_t)info.st_size - 8)
    return damaged(path, problems, "its header claims %" G_GUINT64_FORMAT " bytes; the file has %" G_GINT64_FORMAT " and the limit is %u",
                   length, (gint64)info.st_size, LARGEST_HEADER);
  g_autofree char *header = g_malloc(length + 1);
  status = ordo_file_read(file->fd, header, length, 8, path, problems);
  if (status != ORDO_OK)
    return status;
  file->data_offset = 8 + length;
  file->data_size = (uint64_t)info.st_size - file->data_offset;
  status = parse_header(file, header, length, problems);
  if (status == ORDO_OK)
    *result = g_steal_pointer(&file);
  return status;
}

void ordo_safetensors_close(ordo_safetensors *file)
{
  if (!file)
    return;
  if (file->fd >= 0)
    close(file->fd);
  g_hash_table_unref(file->by_name);
  g_ptr_array_unref(file->tensors);
  g_free(file->path);
  g_free(file);
}

size_t ordo_safetensors_count(const ordo_safetensors *file)
{
  return file->tensors->len;
}

const ordo_tensor *ordo_safetensors_at(const ordo_safetensors *file, size_t index)
{
  return index < file->tensors->len ? g_ptr_array_index(file->tensors, index) : NULL;
}

const ordo_tensor *ordo_safetensors_find(const ordo_safetensors *file, const char *name)
{
  return g_hash_table_lookup(file->by_name, name);
}

static void convert(ordo_dtype dtype, const void *raw, size_t n, float *dst)
{
  for (size_t i = 0; i < n; i++) {
    if (dtype == ORDO_F64)
      dst[i] = (float)((const double *)raw)[i];
    else if (dtype == ORDO_F16)
      dst[i] = ordo_f32_from_f16(((const uint16_t *)raw)[i]);
    else
      dst[i] = ordo_f32_from_bf16(((const uint16_t *)raw)[i]);
  }
}

ordo_status ordo_safetensors_read(const ordo_safetensors *file, const ordo_tensor *tensor, int64_t first, int64_t count, float *dst,
                                  ordo_problems *problems)
{
  enum { AT_ONCE = 65536 };
  uint64_t offset = file->data_offset + tensor->begin + (uint64_t)first * tensor->element_size;
  if (first < 0 || count < 0 || first > tensor->numel - count)
    return damaged(file->path, problems,
                   "elements [%" G_GINT64_FORMAT ", %" G_GINT64_FORMAT ") were asked of tensor \"%s\", which has %" G_GINT64_FORMAT, first,
                   first + count, tensor->name, tensor->numel);
  if (tensor->dtype == ORDO_F32)
    return ordo_file_read(file->fd, dst, (size_t)count * 4, offset, file->path, problems);
  if (tensor->dtype != ORDO_F64 && tensor->dtype != ORDO_F16 && tensor->dtype != ORDO_BF16) {
    g_autofree char *why =
        g_strdup_printf("tensor \"%s\" has dtype %s; weights are read from F64, F32, F16 and BF16", tensor->name, tensor->dtype_name);
    return ordo_problems_push(problems, ORDO_E_UNSUPPORTED, "E-SAFETENSORS", file->path, why, "convert the model to one of these",
                              "cannot read the weights");
  }
  g_autofree double *raw = g_new(double, AT_ONCE);
  for (int64_t done = 0; done < count;) {
    size_t n = (size_t)MIN((int64_t)AT_ONCE, count - done);
    ordo_status status =
        ordo_file_read(file->fd, raw, n * tensor->element_size, offset + (uint64_t)done * tensor->element_size, file->path, problems);
    if (status != ORDO_OK)
      return status;
    convert(tensor->dtype, raw, n, dst + done);
    done += (int64_t)n;
  }
  return ORDO_OK;
}
