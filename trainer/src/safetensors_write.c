/* safetensors_write.c - see safetensors.h. A reader sees the old file or the whole new one, never a part: temporary name in the same
 * directory, fsync, rename, fsync of the directory. The header is padded so that the data begin at a multiple of 8. */
#include "safetensors.h"

#include "files.h"
#include <ordo/half_array.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct ordo_safetensors_writer {
  char *path;
  char *temporary;
  int fd;
  ordo_dtype dtype;
  GPtrArray *names;
  GArray *numels; /* int64_t */
  GString *entries;
  uint64_t offset;
  guint written;
};

ordo_safetensors_writer *ordo_safetensors_writer_new(const char *path, ordo_dtype dtype)
{
  ordo_safetensors_writer *w = g_new0(ordo_safetensors_writer, 1);
  w->path = g_strdup(path);
  w->temporary = g_strdup_printf("%s.tmp-%d", path, (int)getpid());
  w->fd = -1;
  w->dtype = dtype;
  w->names = g_ptr_array_new_with_free_func(g_free);
  w->numels = g_array_new(FALSE, FALSE, sizeof(int64_t));
  w->entries = g_string_new(NULL);
  return w;
}

static void append_escaped(GString *text, const char *value)
{
  g_string_append_c(text, '"');
  for (; *value; value++) {
    if (*value == '"' || *value == '\\')
      g_string_append_c(text, '\\');
    if ((unsigned char)*value < 0x20)
      g_string_append_printf(text, "\\u%04x", (unsigned)*value);
    else
      g_string_append_c(text, *value);
  }
  g_string_append_c(text, '"');
}

void ordo_safetensors_writer_declare(ordo_safetensors_writer *w, const char *name, uint32_t ndim, const int64_t *shape)
{
  const char *dtype = w->dtype == ORDO_BF16 ? "BF16" : w->dtype == ORDO_F16 ? "F16" : "F32";
  int64_t numel = 1;
  g_string_append_c(w->entries, ',');
  append_escaped(w->entries, name);
  g_string_append_printf(w->entries, ":{\"dtype\":\"%s\",\"shape\":[", dtype);
  for (uint32_t d = 0; d < ndim; d++) {
    g_string_append_printf(w->entries, "%s%" G_GINT64_FORMAT, d ? "," : "", shape[d]);
    numel *= shape[d];
  }
  uint64_t end = w->offset + (uint64_t)numel * ordo_dtype_size(w->dtype);
  g_string_append_printf(w->entries, "],\"data_offsets\":[%" G_GUINT64_FORMAT ",%" G_GUINT64_FORMAT "]}", w->offset, end);
  w->offset = end;
  g_array_append_val(w->numels, numel);
  g_ptr_array_add(w->names, g_strdup(name));
}

ordo_status ordo_safetensors_writer_begin(ordo_safetensors_writer *w, const char *what, ordo_problems *problems)
{
  g_autoptr(GString) header = g_string_new("{\"__metadata__\":{\"format\":\"pt\"");
  unsigned char prefix[8];
  if (what) {
    g_string_append(header, ",\"what\":");
    append_escaped(header, what);
  }
  g_string_append_printf(header, "}%s}", w->entries->str);
  while (header->len % 8)
    g_string_append_c(header, ' ');
  for (int i = 0; i < 8; i++)
    prefix[i] = (unsigned char)((uint64_t)header->len >> (8 * i));
  w->fd = open(w->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (w->fd < 0)
    return ordo_problems_push_errno(problems, "create", w->temporary, errno);
  ordo_status status = ordo_file_write(w->fd, prefix, 8, w->temporary, problems);
  return status == ORDO_OK ? ordo_file_write(w->fd, header->str, header->len, w->temporary, problems) : status;
}

ordo_status ordo_safetensors_writer_write(ordo_safetensors_writer *w, const float *values, ordo_problems *problems)
{
  enum { AT_ONCE = 65536 };
  int64_t numel = g_array_index(w->numels, int64_t, w->written++);
  if (w->dtype == ORDO_F32)
    return ordo_file_write(w->fd, values, (size_t)numel * 4, w->temporary, problems);
  g_autofree uint16_t *half = g_new(uint16_t, AT_ONCE);
  ordo_status status = ORDO_OK;
  for (int64_t done = 0; done < numel && status == ORDO_OK;) {
    size_t n = (size_t)MIN((int64_t)AT_ONCE, numel - done);
    ordo_half_narrow(w->dtype, values + done, (int64_t)n, half);
    status = ordo_file_write(w->fd, half, n * 2, w->temporary, problems);
    done += (int64_t)n;
  }
  return status;
}

ordo_status ordo_safetensors_writer_finish(ordo_safetensors_writer *w, ordo_problems *problems)
{
  if (w->written != w->names->len)
    return ordo_problems_push(problems, ORDO_E_STATE, "E-SAFETENSORS", w->path, "not all declared tensors were written", NULL,
                              "the file is not complete");
  int fd = w->fd;
  w->fd = -1;
  ordo_status status = ordo_file_commit(fd, w->temporary, w->path, problems);
  if (status == ORDO_OK)
    g_clear_pointer(&w->temporary, g_free);
  return status;
}

void ordo_safetensors_writer_free(ordo_safetensors_writer *w)
{
  if (!w)
    return;
  if (w->fd >= 0)
    close(w->fd);
  if (w->temporary)
    unlink(w->temporary);
  g_ptr_array_unref(w->names);
  g_array_unref(w->numels);
  g_string_free(w->entries, TRUE);
  g_free(w->temporary);
  g_free(w->path);
  g_free(w);
}
