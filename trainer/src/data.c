/* data.c - see data.h. */
#include "data.h"

#include "files.h"
#include "random.h"

#include <string.h>

ordo_status ordo_data_view(ordo_data *data, ordo_tokens *tokens, int64_t first, int64_t count, int64_t seq_len, const char *name,
                           ordo_problems *problems)
{
  memset(data, 0, sizeof *data);
  data->tokens = tokens;
  data->first_token = first;
  data->n_tokens = count;
  data->seq_len = seq_len;
  data->n_sequences = count > seq_len ? (count - 1) / seq_len : 0;
  if (data->n_sequences == 0) {
    g_autofree char *why = g_strdup_printf("it has %" G_GINT64_FORMAT " tokens, one sequence of %" G_GINT64_FORMAT
                                           " and its last target need %" G_GINT64_FORMAT,
                                           count, seq_len, seq_len + 1);
    return ordo_problems_push(problems, ORDO_E_INVALID, "E-DATA-SHORT", name, why, "use a longer file or a smaller train.seq_len",
                              "the data is shorter than one sequence");
  }
  return ORDO_OK;
}

static int32_t target_at(const ordo_data *data, int64_t index)
{
  const unsigned char *p = (const unsigned char *)g_mapped_file_get_contents(data->targets) + (size_t)index * 4;
  return (int32_t)((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
}

static ordo_status bad_targets(const char *path, const char *why, ordo_problems *problems)
{
  return ordo_problems_push(
      problems, ORDO_E_INVALID, "E-DATA-TARGETS", path, why,
      "the file is little-endian int32 [sequences][train.seq_len] for the sequences of data.train, -100 where not counted",
      "cannot use the targets file");
}

ordo_status ordo_data_set_targets(ordo_data *data, const char *path, int64_t vocab, ordo_problems *problems)
{
  g_autoptr(GError) error = NULL;
  g_autofree char *why = NULL;
  if ((why = ordo_file_unusable(path)))
    return ordo_problems_push(problems, ORDO_E_NOT_FOUND, "E-DATA-TARGETS", path, why, "check data.targets", "cannot read the targets");
  data->targets = g_mapped_file_new(path, FALSE, &error);
  if (!data->targets)
    return ordo_problems_push(problems, ORDO_E_IO, "E-FILE-IO", path, error->message, "check its permissions", "cannot read the targets");
  size_t length = g_mapped_file_get_length(data->targets);
  int64_t sequences = (int64_t)(length / 4) / data->seq_len;
  if (length == 0 || length % (4 * (size_t)data->seq_len)) {
    why = g_strdup_printf("its size, %zu bytes, is no positive multiple of 4 * %" G_GINT64_FORMAT, length, data->seq_len);
    return bad_targets(path, why, problems);
  }
  if (sequences > data->n_sequences) {
    why = g_strdup_printf("it has %" G_GINT64_FORMAT " sequences, the data has %" G_GINT64_FORMAT, sequences, data->n_sequences);
    return bad_targets(path, why, problems);
  }
  for (int64_t i = 0; i < sequences * data->seq_len; i++) {
    int32_t target = target_at(data, i);
    if (target != -100 && (target < 0 || target >= vocab)) {
      why = g_strdup_printf("target %" G_GINT64_FORMAT " is %d, the vocabulary has %" G_GINT64_FORMAT " entries", i, target, vocab);
      return bad_targets(path, why, problems);
    }
  }
  data->n_sequences = sequences;
  return ORDO_OK;
}

void ordo_data_clear(ordo_data *data)
{
  if (data->owns_tokens)
    ordo_tokens_free(data->tokens);
  g_clear_pointer(&data->targets, g_mapped_file_unref);
  data->tokens = NULL;
}

static int64_t sequence_of(const ordo_data *data, int64_t sample)
{
  int64_t epoch = sample / data->n_sequences, place = sample % data->n_sequences;
  if (!data->shuffled)
    return place;
  uint64_t key = ordo_random_key(data->seed + (uint64_t)epoch, "data.order");
  return (int64_t)ordo_random_permute(key, (uint64_t)data->n_sequences, (uint64_t)place);
}

int64_t ordo_data_sample(const ordo_data *data, int64_t sample, int32_t *ids, int32_t *targets)
{
  int64_t T = data->seq_len, n = sequence_of(data, sample), counted = 0;
  int64_t first = data->first_token + n * T;
  ordo_tokens_read(data->tokens, first, T, ids);
  if (!data->targets)
    ordo_tokens_read(data->tokens, first + 1, T, targets);
  for (int64_t t = 0; t < T; t++) {
    if (data->targets)
      targets[t] = target_at(data, n * T + t);
    counted += targets[t] != -100;
  }
  return counted;
}

ordo_data_part ordo_data_split(int64_t batch, int64_t micro_batch, int32_t index, int32_t ranks)
{
  int64_t share = batch / ranks, rest = batch % ranks;
  int64_t largest = share + (rest > 0);
  ordo_data_part part;
  part.first = index * share + MIN((int64_t)index, rest);
  part.count = share + (index < rest);
  part.micro_size = micro_batch > 0 ? MIN(micro_batch, largest) : largest;
  part.n_micro_batches = (int32_t)((largest + part.micro_size - 1) / part.micro_size);
  return part;
}
