/* files.h - reading whole files, and writing them so that a crash leaves the old one or the whole new one. */
#ifndef ORDO_TRAINER_FILES_H
#define ORDO_TRAINER_FILES_H

#include "problems.h"

/* Why `path` is no regular file ("there is no such file", "it is a directory", ...); null if it is one. Opens nothing: opening a FIFO
 * waits for somebody to write into it. Free with g_free. */
char *ordo_file_unusable(const char *path);
/* A whole regular file, with a zero byte behind it; free with g_free. Null and the reason in *why (free with g_free) if it is larger than
 * `limit` bytes, no regular file, or cannot be read. */
char *ordo_file_whole(const char *path, size_t limit, size_t *length, char **why);
/* All bytes, or an error. */
ordo_status ordo_file_write(int fd, const void *bytes, size_t size, const char *path, ordo_problems *problems);
/* Exactly `size` bytes at `offset`; a file that ends before is INVALID. */
ordo_status ordo_file_read(int fd, void *dst, size_t size, uint64_t offset, const char *path, ordo_problems *problems);
/* fsync and close fd, rename `temporary` to `path`, fsync the directory. fd is closed in any case. */
ordo_status ordo_file_commit(int fd, const char *temporary, const char *path, ordo_problems *problems);
/* A whole small file, atomically. */
ordo_status ordo_file_replace(const char *path, const char *text, size_t length, ordo_problems *problems);
/* The directory and its parents. */
ordo_status ordo_directory_make(const char *path, ordo_problems *problems);
/* Puts directory `temporary` in the place of `path`; an older `path` is moved aside first and removed last. */
ordo_status ordo_directory_commit(const char *temporary, const char *path, ordo_problems *problems);
/* Removes a directory of plain files (the model directories written here). Missing is fine. */
void ordo_directory_remove(const char *path);

#endif
