/* files.h - writing files so that a crash leaves the old one or the whole new one. */
#ifndef ORDO_TRAINER_FILES_H
#define ORDO_TRAINER_FILES_H

#include "problems.h"

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
