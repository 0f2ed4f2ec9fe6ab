/* files.c - see files.h. */
#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <glib/gstdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char *not_regular(mode_t mode)
{
  return S_ISREG(mode) ? NULL : g_strdup(S_ISDIR(mode) ? "it is a directory" : "it is not a regular file");
}

char *ordo_file_unusable(const char *path)
{
  struct stat info;
  if (stat(path, &info) == 0)
    return not_regular(info.st_mode);
  return g_strdup(errno == ENOENT ? "there is no such file" : g_strerror(errno));
}

static char *read_whole(int fd, size_t size, size_t *length, char **why)
{
  char *data = g_try_malloc(size + 1);
  size_t done = 0;
  ssize_t n = 1;
  while (data && done < size && n != 0) {
    n = read(fd, data + done, size - done);
    if (n < 0 && errno != EINTR) {
      *why = g_strdup(g_strerror(errno));
      g_free(data);
      return NULL;
    }
    done += n > 0 ? (size_t)n : 0;
  }
  if (!data) {
    *why = g_strdup_printf("its %zu bytes do not fit into memory", size);
    return NULL;
  }
  data[done] = '\0';
  *length = done; /* less than its size if somebody has cut it meanwhile: the parsers notice */
  return data;
}

char *ordo_file_whole(const char *path, size_t limit, size_t *length, char **why)
{
  struct stat info;
  char *data = NULL;
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  *why = NULL;
  if (fd < 0) {
    *why = g_strdup(errno == ENOENT ? "there is no such file" : g_strerror(errno));
    return NULL;
  }
  if (fstat(fd, &info) != 0)
    *why = g_strdup(g_strerror(errno));
  else if (!(*why = not_regular(info.st_mode)) && (uint64_t)info.st_size > limit)
    *why = g_strdup_printf("it has %" G_GINT64_FORMAT " bytes, the limit is %zu", (gint64)info.st_size, limit);
  if (!*why)
    data = read_whole(fd, (size_t)info.st_size, length, why);
  close(fd);
  return data;
}

ordo_status ordo_file_write(int fd, const void *bytes, size_t size, const char *path, ordo_problems *problems)
{
  const char *at = bytes;
  while (size > 0) {
    ssize_t n = write(fd, at, size);
    if (n < 0 && errno == EINTR)
      continue;
    if (n < 0)
      return ordo_problems_push_errno(problems, "write", path, errno);
    at += n;
    size -= (size_t)n;
  }
  return ORDO_OK;
}

ordo_status ordo_file_read(int fd, void *dst, size_t size, uint64_t offset, const char *path, ordo_problems *problems)
{
  for (size_t done = 0; done < size;) {
    ssize_t n = pread(fd, (char *)dst + done, size - done, (off_t)(offset + done));
    if (n < 0 && errno == EINTR)
      continue;
    if (n < 0)
      return ordo_problems_push_errno(problems, "read", path, errno);
    if (n == 0) {
      g_autofree char *why = g_strdup_printf("it ends at byte %" G_GUINT64_FORMAT ", more is needed", offset + done);
      return ordo_problems_push(problems, ORDO_E_INVALID, "E-FILE-SHORT", path, why, "the file is cut off; copy it again",
                                "the file is too short");
    }
    done += (size_t)n;
  }
  return ORDO_OK;
}

static ordo_status sync_directory_of(const char *path, ordo_problems *problems)
{
  g_autofree char *directory = g_path_get_dirname(path);
  int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  int error = fd < 0 ? errno : 0;
  if (fd >= 0 && fsync(fd) != 0)
    error = errno;
  if (fd >= 0)
    close(fd);
  return error && error != EINVAL ? ordo_problems_push_errno(problems, "sync", directory, error) : ORDO_OK;
}

ordo_status ordo_file_commit(int fd, const char *temporary, const char *path, ordo_problems *problems)
{
  int error = fsync(fd) != 0 ? errno : 0;
  if (close(fd) != 0 && !error)
    error = errno;
  if (error)
    return ordo_problems_push_errno(problems, "write", temporary, error);
  if (rename(temporary, path) != 0)
    return ordo_problems_push_errno(problems, "rename the new file to", path, errno);
  return sync_directory_of(path, problems);
}

ordo_status ordo_file_replace(const char *path, const char *text, size_t length, ordo_problems *problems)
{
  g_autofree char *temporary = g_strdup_printf("%s.tmp-%d", path, (int)getpid());
  int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0)
    return ordo_problems_push_errno(problems, "create", temporary, errno);
  ordo_status status = ordo_file_write(fd, text, length, temporary, problems);
  if (status == ORDO_OK)
    status = ordo_file_commit(fd, temporary, path, problems);
  else
    close(fd);
  if (status != ORDO_OK)
    unlink(temporary);
  return status;
}

ordo_status ordo_directory_make(const char *path, ordo_problems *problems)
{
  return g_mkdir_with_parents(path, 0777) == 0 ? ORDO_OK : ordo_problems_push_errno(problems, "make the directory", path, errno);
}

void ordo_directory_remove(const char *path)
{
  const char *name;
  GDir *directory = g_dir_open(path, 0, NULL);
  while (directory && (name = g_dir_read_name(directory))) {
    g_autofree char *file = g_build_filename(path, name, NULL);
    unlink(file);
  }
  if (directory)
    g_dir_close(directory);
  rmdir(path);
}

ordo_status ordo_directory_commit(const char *temporary, const char *path, ordo_problems *problems)
{
  g_autofree char *old = g_strdup_printf("%s.old-%d", path, (int)getpid());
  gboolean exists = g_file_test(path, G_FILE_TEST_EXISTS);
  if (exists && !g_file_test(path, G_FILE_TEST_IS_DIR))
    return ordo_problems_push(problems, ORDO_E_IO, "E-FILE-IO", path, "something that is no directory stands there",
                              "move it away, or choose another output", "cannot make the directory %s", path);
  if (exists && renameat2(AT_FDCWD, temporary, AT_FDCWD, path, RENAME_EXCHANGE) == 0) {
    ordo_directory_remove(temporary); /* now the old one; there was no moment without one at `path` */
    return sync_directory_of(path, problems);
  }
  if (exists && rename(path, old) != 0)
    return ordo_problems_push_errno(problems, "move aside", path, errno);
  if (rename(temporary, path) != 0) {
    ordo_status status = ordo_problems_push_errno(problems, "rename the new directory to", path, errno);
    if (exists && rename(old, path) != 0)
      ordo_problems_push_errno(problems, "move back", old, errno);
    return status;
  }
  if (exists)
    ordo_directory_remove(old);
  return sync_directory_of(path, problems);
}
