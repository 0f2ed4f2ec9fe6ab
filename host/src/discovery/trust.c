/* trust.c - could anybody but root and you have put this plugin here?
 *
 * A plugin runs with all rights of the process, so the file and every directory above it must belong to root or to the effective
 * user and be writable by nobody else. It is no signature: it says who could write, not who wrote.
 *
 * The rule for directories such as /tmp, which everybody can write and which have the sticky bit: the directory that holds the
 * plugin must never be writable by others, sticky or not, since anybody could add a plugin there. Further up a sticky directory is
 * accepted, because there nobody but its owner can rename or remove the next component down, which by this same rule belongs to
 * root or the user. Without this, no plugin could be tried from a private directory below /tmp.
 *
 * Access lists need no code of their own: a list that lets somebody else write shows as the group's write bit (the mask).
 */
#include "trust.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#define OTHERS_WRITE (S_IWGRP | S_IWOTH)

static char *foreign_owner(const char *path, const struct stat *status, uid_t user)
{
  if (status->st_uid == 0 || status->st_uid == user)
    return NULL;
  return g_strdup_printf("%s belongs to user %u, not to root or to user %u; chown it, or allow insecure plugins", path, status->st_uid,
                         user);
}

static const char *who(mode_t mode)
{
  if ((mode & OTHERS_WRITE) == OTHERS_WRITE)
    return "its group and everybody";
  return mode & S_IWOTH ? "everybody" : "its group";
}

static char *others_write(const char *path, const struct stat *status)
{
  return g_strdup_printf("%s can be written by %s (mode %04o); run: chmod go-w '%s'", path, who(status->st_mode),
                         (unsigned)(status->st_mode & 07777), path);
}

static char *check_one(const char *path, uid_t user, gboolean accept_sticky)
{
  struct stat status;
  if (lstat(path, &status) != 0)
    return g_strdup_printf("%s cannot be examined: %s", path, g_strerror(errno));
  char *reason = foreign_owner(path, &status, user);
  if (reason || !(status.st_mode & OTHERS_WRITE))
    return reason;
  if (accept_sticky && S_ISDIR(status.st_mode) && (status.st_mode & S_ISVTX))
    return NULL;
  return others_write(path, &status);
}

char *ordo_trust_check(const char *real_path, uid_t user)
{
  g_autofree char *path = g_strdup(real_path);
  char *reason = check_one(path, user, FALSE);
  for (guint level = 1; !reason && strcmp(path, "/") != 0; level++) {
    char *parent = g_path_get_dirname(path);
    g_free(path);
    path = parent;
    reason = check_one(path, user, level > 1);
  }
  return reason;
}
