/* embed_step.c - the passes between the host's events: a training step, an evaluation.
 *
 * Every rank runs the same events, also a rank whose micro-batch has no sequence: strategies gather and reduce inside them, and
 * a rank that stayed away would leave the others waiting. Such a pass computes nothing and contributes gradients of zero.
 */
#include "embed_private.h"

#include <string.h>

static ordo_status empty_forward(ordo_embed *embed)
{
  ordo_status status = ORDO_OK;
  for (uint32_t u = 0; status == ORDO_OK && u < embed->model->n_units; u++) {
    status = ordo_embed_pre_forward(embed, u);
    if (status == ORDO_OK)
      status = ordo_embed_post_forward(embed, u);
  }
  return status;
}

static ordo_status empty_param(ordo_embed *embed, const ordo_param *param)
{
  int64_t numel = 1;
  if (!(param->flags & ORDO_PARAM_REQUIRES_GRAD))
    return ORDO_OK;
  for (uint32_t d = 0; d < param->ndim; d++)
    numel *= param->local_shape[d];
  if (param->grad && !embed->options.dry && !ordo_session_grad_adds(embed->session, 0, param->index))
    memset(param->grad, 0, (size_t)numel * ordo_dtype_size(param->grad_dtype));
  return ordo_session_grad_ready(embed->session, 0, param->index);
}

static ordo_status empty_backward(ordo_embed *embed)
{
  ordo_status status = ORDO_OK;
  for (uint32_t u = embed->model->n_units; status == ORDO_OK && u-- > 0;) {
    const ordo_unit *unit = embed->model->units[u];
    status = ordo_embed_pre_backward(embed, u);
    for (uint32_t p = 0; status == ORDO_OK && p < unit->n_params; p++)
      status = empty_param(embed, unit->params[p]);
    if (status == ORDO_OK)
      status = ordo_embed_post_backward(embed, u);
  }
  return status;
}

static ordo_status micro_batch(ordo_embed *embed, int64_t first, int64_t count, double *loss_sum)
{
  int64_t T = embed->options.seq_len;
  ordo_status status = ordo_session_micro_begin(embed->session);
  if (status != ORDO_OK)
    return status;
  if (count <= 0) {
    status = empty_forward(embed);
    if (status == ORDO_OK)
      status = empty_backward(embed);
  } else {
    struct llama_forward_args args = {
        .ids = embed->ids + first * T, .targets = embed->targets + first * T, .batch = count, .seq = T, .keep = 1};
    status = ordo_embed_llama_status(embed, llama_forward(embed->llama, &args));
    *loss_sum += args.loss_sum;
    if (status == ORDO_OK)
      status = ordo_embed_llama_status(embed, llama_backward(embed->llama, ordo_session_loss_factor(embed->session)));
  }
  return status == ORDO_OK ? ordo_session_micro_end(embed->session) : status;
}

static double current_lr(ordo_embed *embed)
{
  const ordo_optimizer *optimizer = ordo_session_optimizer(embed->session, 0);
  return optimizer && optimizer->n_groups ? optimizer->groups[0].lr : 0.0;
}

static int64_t payload(const ordo_embed *embed)
{
  ordo_comm_stats stats = {.struct_size = sizeof stats};
  uint64_t bytes = 0;
  ordo_session_comm_stats(embed->session, NULL, &stats);
  for (int kind = 0; kind < 16; kind++)
    bytes += stats.bytes[kind];
  return (int64_t)bytes;
}

/* All micro-batches, and the events after them. */
static ordo_status run_step(ordo_embed *embed, double counted, double *loss_sum, ordo_before_update before_update, void *ctx,
                            ordo_step_outcome *outcome)
{
  const ordo_data_part *part = &embed->part;
  ordo_status status = ordo_session_step_begin(embed->session, part->n_micro_batches, counted);
  for (int32_t m = 0; status == ORDO_OK && m < part->n_micro_batches; m++) {
    int64_t begin = m * part->micro_size;
    status = micro_batch(embed, begin, MIN(part->micro_size, part->count - begin), loss_sum);
  }
  if (status == ORDO_OK && before_update) {
    status = ordo_session_reduce_gradients(embed->session);
    if (status == ORDO_OK)
      status = before_update(ctx, embed);
  }
  if (status != ORDO_OK)
    return status;
  memset(outcome, 0, sizeof *outcome);
  outcome->lr = current_lr(embed);
  outcome->result.struct_size = sizeof outcome->result;
  ordo_embed_activity(embed, ORDO_ACTIVITY_STEP_END, "", ORDO_EDGE_BEGIN);
  status = ordo_session_step_end(embed->session, &outcome->result);
  ordo_embed_activity(embed, ORDO_ACTIVITY_STEP_END, "", ORDO_EDGE_END);
  return status;
}

/* Ranks that compute parts of one batch must have read the same ids and targets. Collective. */
static ordo_status check_data(ordo_embed *embed)
{
  return ordo_session_check_data(embed->session, embed->ids, 2 * embed->tokens * sizeof *embed->ids);
}

ordo_status ordo_embed_step(ordo_embed *embed, const ordo_data *data, int64_t first, int stop, ordo_before_update before_update, void *ctx,
                            ordo_step_outcome *outcome)
{
  const ordo_data_part *part = &embed->part;
  int64_t T = embed->options.seq_len, counted = 0;
  double sums[2] = {0.0, stop ? 1.0 : 0.0};
  int64_t moved_before = payload(embed);
  if (!data)
    counted = part->count * T;
  for (int64_t s = 0; data && s < part->count; s++)
    counted += ordo_data_sample(data, first + part->first + s, embed->ids + s * T, embed->targets + s * T);
  ordo_embed_activity(embed, ORDO_ACTIVITY_STEP, "", ORDO_EDGE_BEGIN);
  ordo_status status = check_data(embed);
  if (status == ORDO_OK)
    status = run_step(embed, (double)counted, &sums[0], before_update, ctx, outcome);
  if (status == ORDO_OK)
    status = ordo_session_sum(embed->session, sums, 2);
  ordo_embed_activity(embed, ORDO_ACTIVITY_STEP, "", ORDO_EDGE_END);
  if (status != ORDO_OK)
    return status;
  outcome->comm_bytes = payload(embed) - moved_before;
  outcome->loss = sums[0] / outcome->result.weight;
  outcome->stop = sums[1] > 0.0;
  return status;
}

static double bytes_of_targets(const int32_t *targets, int64_t n, const double *lengths)
{
  double bytes = 0.0;
  for (int64_t i = 0; i < n; i++)
    bytes += targets[i] >= 0 ? lengths[targets[i]] : 0.0;
  return bytes;
}

static double *token_lengths(const ordo_tokenizer *tokenizer, int64_t vocab)
{
  double *lengths = g_new0(double, (gsize)vocab);
  for (int64_t id = 0; tokenizer && id < MIN(vocab, ordo_tokenizer_vocab(tokenizer)); id++)
    lengths[id] = (double)ordo_tokenizer_bytes(tokenizer, (int32_t)id);
  return lengths;
}

ordo_status ordo_embed_evaluate(ordo_embed *embed, const ordo_data *data, int64_t n, const ordo_tokenizer *tokenizer, ordo_loss_sum *total)
{
  int64_t T = embed->options.seq_len, at_once = embed->part.micro_size;
  ordo_data_part part = ordo_data_split(n, at_once, embed->rank, embed->ranks);
  g_autofree double *lengths = token_lengths(tokenizer, embed->options.weights->config.vocab);
  double sums[3] = {0.0, 0.0, 0.0};
  ordo_data plain = *data;
  plain.shuffled = 0;
  ordo_status status = ordo_session_eval_begin(embed->session);
  for (int32_t m = 0; status == ORDO_OK && m < part.n_micro_batches; m++) {
    int64_t begin = m * part.micro_size, count = MIN(part.micro_size, part.count - begin);
    if (count <= 0) {
      status = empty_forward(embed);
      continue;
    }
    for (int64_t s = 0; s < count; s++)
      ordo_data_sample(&plain, part.first + begin + s, embed->ids + s * T, embed->targets + s * T);
    struct llama_forward_args args = {.ids = embed->ids, .targets = embed->targets, .batch = count, .seq = T};
    status = check_data(embed);
    if (status != ORDO_OK)
      break;
    status = ordo_embed_llama_status(embed, llama_forward(embed->llama, &args));
    sums[0] += args.loss_sum;
    sums[1] += (double)args.count;
    sums[2] += bytes_of_targets(embed->targets, count * T, lengths);
  }
  if (status == ORDO_OK)
    status = ordo_session_eval_end(embed->session);
  if (status == ORDO_OK)
    status = ordo_session_sum(embed->session, sums, 3);
  *total = (ordo_loss_sum){sums[0], sums[1], sums[2]};
  if (status == ORDO_OK && !(sums[1] > 0.0))
    return ordo_fail(embed->options.context, ORDO_E_INVALID, "E-DATA-TARGETS", "no target counts", "evaluation",
                     "every target of these sequences is -100, so there is no loss", "give targets of which at least one is a token id");
  return status;
}
