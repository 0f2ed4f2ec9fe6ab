/* io_support.h - a scratch directory and short checks of problem lists, for the tests of files and configuration. */
#ifndef IO_SUPPORT_H
#define IO_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <glib.h>

#include "data.h"
#include "problems.h"

/* cmocka fixtures: *state is the path of an empty directory; afterwards it and its files are removed. */
int scratch_setup(void **state);
int scratch_teardown(void **state);
/* A file in the directory; the path is freed with g_free. */
char *scratch_write(const char *directory, const char *name, const void *bytes, size_t size);
char *scratch_text(const char *directory, const char *name, const char *text);
/* Sequences of `seq` tokens out of a file of `n` letters in the directory, read as bytes; ordo_data_clear frees them. */
void scratch_letters(const char *directory, int n, int64_t seq, ordo_data *data);
/* One problem says `word` in what, where, why or next. */
int problems_mention(const ordo_problems *problems, const char *word);
/* The golden directory, or null when it is absent; the test then says why it is skipped. */
const char *golden_root(void);

#endif
