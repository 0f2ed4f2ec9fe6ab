/* test_ranks.c - sessions of several ranks. Run under mpirun with 2, 3 and 4 ranks; every case is collective.
 *
 * Rank r writes a gradient of (r + 1) * (i + 1) for element i and has the weight r: rank 0 counts no token. The true gradient is then
 * (i + 1) * n (n + 1) / 2 / (n (n - 1) / 2) = (i + 1) * (n + 1) / (n - 1), the tied storage has twice that. */
#include "kit.h"

#include <math.h>
#include <ordo/mpi.h>
#include <string.h>

#define SQUARES (4.0 * 1240.0 + 650.0 + 14.0) /* as in test_finish.c */

static ordo_comm_provider *provider;
static int rank, size;

static kit *new_kit(void)
{
  kit *k = kit_new();
  k->comm = provider;
  return k;
}

static double true_factor(void)
{
  return (double)(size + 1) / (double)(size - 1);
}

/* Float gradients: (i+1)(r+1)/w is rounded per rank, the sum size - 1 times, the division once; the norm averages these. */
static double tolerance(void)
{
  return (size + 2) * 0x1p-24;
}

static void assert_near(double value, double expected)
{
  if (!(fabs(value - expected) <= tolerance() * fabs(expected)))
    fail_msg("rank %d: %.17g is not near %.17g", rank, value, expected);
}

static void sync_makes_replicas_equal(void **state)
{
  kit *k = new_kit();
  const ordo_model *model;
  (void)state;
  k->weight_offset = rank;
  kit_add(k, "ddp", KIT_DDP, size);
  kit_setup(k);
  model = ordo_session_model(k->session, 0);
  for (uint32_t i = 0; i < model->n_params; i++)
    for (int64_t e = 0; e < model->params[i]->numel; e++)
      assert_true(((float *)model->params[i]->data)[e] == kit_weight(i, e));
  kit_free(k);
}

static void without_sync_a_difference_is_an_error(void **state)
{
  kit *k = new_kit();
  (void)state;
  k->weight_offset = rank;
  k->options.no_weight_sync = 1;
  kit_add(k, "ddp", KIT_DDP, size);
  assert_int_equal(kit_create(k), ORDO_OK);
  assert_int_equal(ordo_session_setup(k->session), ORDO_E_MISMATCH);
  assert_string_equal(kit_code(k), "E-WEIGHTS-DIFFER");
  kit_assert_mentions(k, "embed.weight");
  assert_int_equal(ordo_n_errors(k->context), 3); /* every leaf that differs, not the first only */
  kit_free(k);
  k = new_kit();
  k->options.no_weight_sync = 1;
  kit_add(k, "ddp", KIT_DDP, size);
  kit_setup(k);
  kit_free(k);
}

/* Ranks of an axis whose strategy needs identical data: a difference on one rank is an error on all. Others compare nothing. */
static void data_is_compared_where_it_must_be_the_same(void **state)
{
  int32_t ids[3] = {1, 2, 3};
  kit *k = new_kit();
  (void)state;
  kit_add(k, "same",
          "flags=self_sharded,needs_identical_data\nsteps=strategy.partition\nreplaces_leaves=strategy.partition\nmesh_axis=model\n", size);
  kit_setup(k);
  assert_int_equal(ordo_session_check_data(k->session, ids, sizeof ids), ORDO_OK);
  ids[2] += rank == size - 1;
  assert_int_equal(ordo_session_check_data(k->session, ids, sizeof ids), ORDO_E_MISMATCH);
  assert_string_equal(kit_code(k), "E-DATA-DIFFERS");
  kit_assert_mentions(k, "axis 'same'");
  assert_int_equal(ordo_session_check_data(k->session, ids, sizeof ids), ORDO_E_STATE); /* there is nothing to go on with */
  kit_free(k);
  k = new_kit();
  kit_add(k, "ddp", KIT_DDP, size);
  kit_setup(k);
  assert_int_equal(ordo_session_check_data(k->session, ids, sizeof ids), ORDO_OK);
  kit_free(k);
}

static ordo_step_result train(kit *k, int steps)
{
  ordo_step_result result = {.struct_size = sizeof result};
  for (int i = 0; i < steps; i++) {
    ordo_status status = kit_step(k, rank, (float)(rank + 1), &result);
    if (status != ORDO_OK) {
      g_autofree char *text = kit_text(k);
      fail_msg("rank %d: %s", rank, text);
    }
  }
  return result;
}

static void replicated_and_flat_shards_train_alike(void **state)
{
  const char *const lines[] = {KIT_DDP, KIT_FSDP1, KIT_FSDP2};
  double norm[3];
  (void)state;
  for (int ordered = 0; ordered < 2; ordered++) {
    for (int i = 0; i < 3; i++) {
      kit *k = new_kit();
      ordo_step_result result;
      k->options.ordered = (uint32_t)ordered;
      k->options.max_grad_norm = 1.0;
      k->options.drift_interval = 1;
      kit_add(k, "any", lines[i], size)->flat = i > 0;
      kit_setup(k);
      result = train(k, 2);
      assert_true(result.weight == size * (size - 1) / 2.0);
      assert_near(result.grad_norm, sqrt(SQUARES) * true_factor());
      assert_true(result.clip_coef < 1.0);
      norm[i] = result.grad_norm;
      kit_free(k);
    }
    if (ordered) { /* bit for bit, whatever the layout */
      assert_memory_equal(&norm[0], &norm[1], sizeof norm[0]);
      assert_memory_equal(&norm[0], &norm[2], sizeof norm[0]);
    }
  }
}

/* Hybrid: replicas of shards, 2 x 2. The flat strategy reduces its leaves first, the observing one the shards after it. */
static void two_axes_count_each_element_once(void **state)
{
  kit *k;
  ordo_step_result result;
  (void)state;
  if (size != 4)
    return;
  k = new_kit();
  kit_add(k, "ddp", KIT_DDP, 2);
  kit_add(k, "flat", KIT_FSDP2, 2)->flat = TRUE;
  kit_setup(k);
  g_string_truncate(k->log, 0);
  result = train(k, 1);
  assert_near(result.grad_norm, sqrt(SQUARES) * true_factor());
  assert_true(strstr(k->log->str, "flat.reduce") < strstr(k->log->str, "ddp.reduce"));
  kit_free(k);
}

static void one_ranks_overflow_or_veto_skips_all(void **state)
{
  (void)state;
  for (int i = 0; i < (size == 4 ? 6 : 2); i++) { /* one axis; replicas of shards; a model axis that replicates */
    const int veto = i % 2, both = i >= 2;
    kit *k = new_kit();
    ordo_step_result result;
    fake *ddp = kit_add(k, "ddp", KIT_DDP, both ? 2 : size), *amp = kit_add(k, "amp", KIT_AMP, 0);
    if (i / 2 == 1)
      kit_add(k, "flat", KIT_FSDP2, 2)->flat = TRUE;
    if (i / 2 == 2)
      kit_add(k, "tp", "steps=strategy.partition\nmesh_axis=model\nflags=self_sharded\n", 2);
    amp->fp16 = TRUE;
    ddp->veto = veto == 1;
    amp->overflow = veto == 0;
    kit_setup(k);
    result = train(k, 1);
    assert_int_equal(result.skipped, 1);
    assert_int_equal(k->last_optimizer_step, 0);
    kit_free(k);
  }
}

/* Gradients at different scales met in the reduction, and every rank took its own out of the sum. */
static void a_scale_that_depends_on_the_rank_is_refused(void **state)
{
  (void)state;
  for (int flat = 0; flat < 2; flat++) {
    kit *k = new_kit();
    fake *amp;
    kit_add(k, "strategy", flat ? KIT_FSDP2 : KIT_DDP, size)->flat = flat;
    amp = kit_add(k, "amp", KIT_AMP, 0);
    amp->scale = rank == size - 1 ? 8.0 : 4.0;
    kit_setup(k);
    assert_int_equal(ordo_session_step_begin(k->session, 1, 1.0), ORDO_OK);
    assert_int_equal(kit_micro(k, 1.0f), ORDO_OK);
    assert_int_equal(ordo_session_step_end(k->session, NULL), ORDO_E_MISMATCH);
    assert_string_equal(kit_code(k), "E-STEP-LOSS-DIFFERS");
    kit_assert_mentions(k, "scale 8");
    kit_assert_mentions(k, "scale 4");
    assert_int_equal(k->last_optimizer_step, 0);
    kit_free(k);
  }
}

static void a_loss_of_one_rank_alone_is_refused(void **state)
{
  (void)state;
  for (int at = 0; at < 2; at++) { /* another last loss; the same one after another */
    kit *k = new_kit();
    kit_add(k, "ddp", KIT_DDP, size);
    kit_add(k, "amp", KIT_AMP, 0)->scale = 4.0;
    kit_setup(k);
    assert_int_equal(ordo_session_step_begin(k->session, 2, 1.0), ORDO_OK);
    for (int micro = 0; micro < 2; micro++) {
      assert_int_equal(ordo_session_select_loss(k->session, micro == at && rank == 0 ? 7 : (uint32_t)micro), ORDO_OK);
      assert_int_equal(kit_micro(k, 1.0f), ORDO_OK);
    }
    assert_int_equal(ordo_session_step_end(k->session, NULL), ORDO_E_MISMATCH);
    assert_string_equal(kit_code(k), "E-STEP-LOSS-DIFFERS");
    kit_assert_mentions(k, rank == 0 ? "rank 1" : "rank 0");
    kit_free(k);
  }
}

/* The other ranks reported a good step, and waited in the next one for a rank that had ended. */
static void a_scaler_that_gives_up_on_one_rank_does_so_on_all(void **state)
{
  (void)state;
  for (int overflow = 0; overflow < 2; overflow++) {
    kit *k = new_kit();
    fake *amp;
    kit_add(k, "ddp", KIT_DDP, size);
    amp = kit_add(k, "amp", KIT_AMP, 0);
    amp->overflow = overflow;
    amp->fail_in = rank != 1 ? NULL : overflow ? "update_scale(1)" : "update_scale(0)";
    kit_setup(k);
    assert_int_equal(ordo_session_step_begin(k->session, 1, 1.0), ORDO_OK);
    assert_int_equal(kit_micro(k, 1.0f), ORDO_OK);
    assert_int_equal(ordo_session_step_end(k->session, NULL), rank == 1 ? ORDO_E_UNSUPPORTED : ORDO_E_MISMATCH);
    assert_string_equal(kit_code(k), rank == 1 ? "E-PLUGIN-FAILED" : "E-STEP-LOSS-DIFFERS");
    if (rank != 1)
      kit_assert_mentions(k, "not updated on rank 1");
    assert_int_equal(k->last_optimizer_step, 0);
    kit_free(k);
  }
}

static void a_nan_in_one_ranks_shard_stops_all(void **state)
{
  kit *k = new_kit();
  (void)state;
  kit_add(k, "flat", KIT_FSDP2, size)->flat = TRUE;
  kit_setup(k);
  assert_int_equal(ordo_session_step_begin(k->session, 1, 1.0), ORDO_OK);
  assert_int_equal(kit_micro(k, 1.0f), ORDO_OK);
  assert_int_equal(ordo_session_reduce_gradients(k->session), ORDO_OK);
  if (rank == size - 1)
    ((float *)ordo_session_model(k->session, 0)->leaves[0]->grad)[0] = NAN;
  assert_int_equal(ordo_session_step_end(k->session, NULL), ORDO_E_INVARIANT);
  assert_string_equal(kit_code(k), "E-STEP-NONFINITE");
  kit_assert_mentions(k, rank == size - 1 ? "flat" : "another rank");
  kit_free(k);
}

static void zero_weight_everywhere_is_refused_on_all_ranks(void **state)
{
  kit *k = new_kit();
  (void)state;
  kit_add(k, "ddp", KIT_DDP, size);
  kit_setup(k);
  assert_int_equal(ordo_session_step_begin(k->session, 1, 0.0), ORDO_E_INVALID);
  /* a bad share on one rank is an error on every rank, and nobody waits */
  assert_int_equal(ordo_session_step_begin(k->session, 1, rank == 1 ? -1.0 : 1.0), ORDO_E_INVALID);
  assert_string_equal(kit_code(k), "E-STEP-WEIGHT");
  train(k, 1);
  kit_free(k);
}

static void check_6_different_models_are_refused(void **state)
{
  kit *k = new_kit();
  (void)state;
  k->shape_from_rank = TRUE;
  kit_add(k, "ddp", KIT_DDP, size);
  assert_int_equal(kit_create(k), ORDO_OK);
  assert_int_equal(ordo_session_setup(k->session), ORDO_E_MISMATCH);
  {
    size_t n = ordo_n_errors(k->context);
    assert_string_equal(ordo_error_at(k->context, n - 1)->code, "E-INVARIANT-MODEL-DIFFERS");
  }
  kit_free(k);
}

static void check_6_different_plans_or_options_are_refused(void **state)
{
  (void)state;
  for (int i = 0; i < 2; i++) {
    kit *k = new_kit();
    kit_add(k, "ddp", KIT_DDP, size);
    if (i == 0 && rank == 1)
      k->plan->digest[0] = 'f';
    if (i == 1)
      k->options.seed = (uint64_t)rank;
    assert_int_equal(kit_create(k), ORDO_E_MISMATCH);
    assert_null(k->session);
    kit_free(k);
  }
}

static void check_7_drift_is_found(void **state)
{
  kit *k = new_kit();
  (void)state;
  kit_add(k, "ddp", KIT_DDP, size)->drifts = TRUE;
  k->options.drift_interval = 2;
  kit_setup(k);
  assert_int_equal(kit_step(k, 1.0, 1.0f, NULL), ORDO_OK);
  assert_int_equal(kit_step(k, 1.0, 1.0f, NULL), ORDO_E_INVARIANT);
  assert_string_equal(kit_code(k), "E-INVARIANT-DRIFT");
  kit_assert_mentions(k, "block.a");
  kit_free(k);
}

static void sums_and_parts_follow_the_data_axes(void **state)
{
  kit *k = new_kit();
  double values[2] = {rank, 1.0};
  int32_t index, parts;
  ordo_comm_stats stats = {.struct_size = sizeof stats};
  (void)state;
  kit_add(k, "ddp", KIT_DDP, size);
  kit_setup(k);
  assert_int_equal(ordo_session_sum(k->session, values, 2), ORDO_OK);
  assert_true(values[0] == size * (size - 1) / 2.0 && values[1] == size);
  ordo_session_data_part(k->session, &index, &parts);
  assert_int_equal(index, rank);
  assert_int_equal(parts, size);
  assert_int_equal(ordo_session_comm_stats(k->session, "ddp", &stats), ORDO_OK);
  assert_true(stats.calls[ORDO_ALL_REDUCE] >= 1);
  assert_int_equal(ordo_session_comm_stats(k->session, "nobody", &stats), ORDO_E_NOT_FOUND);
  kit_free(k);
  k = new_kit();
  kit_add(k, "tp", "steps=strategy.partition\nmesh_axis=model\nflags=self_sharded\n", size);
  kit_setup(k);
  values[0] = rank;
  assert_int_equal(ordo_session_sum(k->session, values, 1), ORDO_OK);
  assert_true(values[0] == rank); /* a model axis sees one batch */
  ordo_session_data_part(k->session, &index, &parts);
  assert_int_equal(index, 0);
  assert_int_equal(parts, 1);
  kit_free(k);
}

/* 2 x 2: one sum in rank order is (((1e16 + 1) - 1e16) + 1) = 1; sums along one axis first, then along the other, would be 0 + 2. */
static void a_sum_over_two_axes_is_one_sum(void **state)
{
  const double summands[] = {1e16, 1.0, -1e16, 1.0};
  kit *k;
  (void)state;
  if (size != 4)
    return;
  for (int order = 0; order < 2; order++) {
    double value = summands[rank];
    k = new_kit();
    k->options.ordered = 1;
    kit_add(k, order ? "flat" : "ddp", order ? KIT_FSDP2 : KIT_DDP, 2)->flat = order == 1;
    kit_add(k, order ? "ddp" : "flat", order ? KIT_DDP : KIT_FSDP2, 2)->flat = order == 0;
    kit_setup(k);
    assert_int_equal(ordo_session_sum(k->session, &value, 1), ORDO_OK);
    assert_true(value == 1.0);
    kit_free(k);
  }
}

/* Where replicas go their own ways gradients do not add up; losses and counts do. */
static void replicas_that_diverge_share_no_sum(void **state)
{
  kit *k;
  double value = 1.0;
  const ordo_mesh *mesh;
  (void)state;
  if (size != 4)
    return;
  k = new_kit();
  kit_add(k, "ddp", KIT_DDP, 2);
  kit_add(k, "local", "steps=strategy.wrap\nreduces=yes\nflags=replicas_diverge\n", 2);
  kit_setup(k);
  mesh = ordo_session_mesh(k->session);
  for (uint32_t a = 0; a < mesh->n_axes; a++) {
    int sums = strcmp(mesh->axes[a]->name, "ddp") == 0;
    assert_int_equal(mesh->axes[a]->comm == mesh->data, sums);
    assert_int_equal(ordo_session_model(k->session, 0)->leaves[0]->placement->grad_partial[a], sums);
  }
  assert_int_equal(ordo_session_sum(k->session, &value, 1), ORDO_OK);
  assert_true(value == 4.0);
  kit_free(k);
}

static void a_plan_for_another_world_is_refused(void **state)
{
  kit *k = new_kit();
  (void)state;
  kit_add(k, "ddp", KIT_DDP, size + 1);
  assert_int_equal(kit_create(k), ORDO_E_INVALID);
  assert_string_equal(kit_code(k), "E-SESSION-WORLD");
  kit_free(k);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(sync_makes_replicas_equal),
      cmocka_unit_test(data_is_compared_where_it_must_be_the_same),
      cmocka_unit_test(without_sync_a_difference_is_an_error),
      cmocka_unit_test(replicated_and_flat_shards_train_alike),
      cmocka_unit_test(two_axes_count_each_element_once),
      cmocka_unit_test(one_ranks_overflow_or_veto_skips_all),
      cmocka_unit_test(a_scale_that_depends_on_the_rank_is_refused),
      cmocka_unit_test(a_loss_of_one_rank_alone_is_refused),
      cmocka_unit_test(a_scaler_that_gives_up_on_one_rank_does_so_on_all),
      cmocka_unit_test(a_nan_in_one_ranks_shard_stops_all),
      cmocka_unit_test(zero_weight_everywhere_is_refused_on_all_ranks),
      cmocka_unit_test(check_6_different_models_are_refused),
      cmocka_unit_test(check_6_different_plans_or_options_are_refused),
      cmocka_unit_test(check_7_drift_is_found),
      cmocka_unit_test(sums_and_parts_follow_the_data_axes),
      cmocka_unit_test(a_sum_over_two_axes_is_one_sum),
      cmocka_unit_test(replicas_that_diverge_share_no_sum),
      cmocka_unit_test(a_plan_for_another_world_is_refused),
  };
  const ordo_mpi_options options = {.struct_size = sizeof options, .deadline_seconds = 20.0};
  ordo_context *context = NULL;
  int failed;
  if (ordo_context_create(NULL, &context) != ORDO_OK || ordo_comm_mpi_create(context, MPI_COMM_NULL, &options, &provider) != ORDO_OK)
    return 1;
  rank = provider->rank;
  size = provider->size;
  failed = cmocka_run_group_tests(tests, NULL, NULL);
  ordo_comm_provider_destroy(provider);
  ordo_context_destroy(context);
  return failed;
}
