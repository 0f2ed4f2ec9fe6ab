/* options.c - see options.h. */
#include "options.h"

#include <string.h>

const char *sharding_option_text(const ordo_job *job, const char *key)
{
  const char *text = job->option(job->ctx, key);
  return text != NULL ? text : "";
}

int64_t sharding_option_int(const ordo_job *job, const char *key, int64_t unset)
{
  int64_t value = unset;
  (void)job->option_int(job->ctx, key, &value); /* NOT_FOUND leaves it alone; everything else was checked before create */
  return value;
}

void sharding_option_types(const ordo_job *job, sharding_options *options)
{
  options->param_dtype = (ordo_dtype)sharding_option_int(job, "param_dtype", ORDO_F32);
  options->low_reduce_dtype = (ordo_dtype)sharding_option_int(job, "reduce_dtype", 0);
  options->reduce_dtype = options->low_reduce_dtype != 0 ? options->low_reduce_dtype : options->param_dtype;
}

int sharding_option_word(const ordo_job *job, const char *key, const char *const *words)
{
  const char *text = sharding_option_text(job, key);
  int i = 0;
  while (words[i] != NULL && strcmp(words[i], text) != 0)
    i++;
  return words[i] != NULL ? i : 0;
}
