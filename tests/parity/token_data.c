/* token_data.c - see token_data.h. */
#include "token_data.h"

#include <glib/gstdio.h>
#include <unistd.h>

int token_data_open(ordo_data *data, const void *bytes, size_t n, const char *format, int64_t vocab, int64_t seq)
{
  g_autoptr(ordo_tokenizer) tokenizer = NULL;
  g_autofree char *path = NULL;
  ordo_tokens *tokens = NULL;
  g_auto(ordo_problems) problems;
  ordo_problems_init(&problems);
  int file = g_file_open_tmp("ordo-tokens-XXXXXX", &path, NULL);
  if (file < 0)
    return 0;
  int opened = write(file, bytes, n) == (ssize_t)n && !ordo_tokenizer_open("bytes", 0, &problems, &tokenizer) &&
               !ordo_tokens_open(path, format, tokenizer, TRUE, vocab, &problems, &tokens) &&
               !ordo_data_view(data, tokens, 0, ordo_tokens_count(tokens), seq, "made up", &problems);
  data->owns_tokens = 1;
  close(file);
  g_unlink(path);
  return opened;
}
