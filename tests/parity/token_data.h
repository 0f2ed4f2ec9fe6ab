/* token_data.h - data for a program that trains on bytes which it makes up itself. */
#ifndef TOKEN_DATA_H
#define TOKEN_DATA_H

#include "data.h"

/* All of `n` bytes in `format` ("bytes", "text") as sequences of `seq` ids, each below `vocab`. Returns 0 if that cannot be had. The file
 * behind it has no name any more; the data owns it. */
int token_data_open(ordo_data *data, const void *bytes, size_t n, const char *format, int64_t vocab, int64_t seq);

#endif
