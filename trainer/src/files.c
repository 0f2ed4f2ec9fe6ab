/* files.c - see files.h. */
#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <glib/gstdio.h>
#include <string.h>
#include <unistd.h>

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
