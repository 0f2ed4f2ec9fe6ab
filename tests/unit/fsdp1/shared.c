/* shared.c - see shared.h. Cases that need a certain number of ranks are left out on others. */
#include "shared.h"

#include <string.h>

enum { LONG = 6 }; /* modes of the longer cases */

/* Without views a unit must be uniform, so those modes train without weight decay; cutting by size would tear the tied weight apart. */
rig_options shared_options(const char *strategy)
{
  return (rig_options){.strategy = strategy,
                       .rebinds = 1,
                       .no_decay = strstr(strategy, "use_orig_params=false") != NULL,
                       .untied = strstr(strategy, "units=size") != NULL};
}

void shared_train(const rig_options *options, const rig_step_spec *spec, int steps)
{
  rig r;
  rig_ok(rig_begin(&r, options), options->strategy);
  rig_compare(&r);
  for (int s = 0; s < steps; s++) {
    rig_ok(rig_train(&r, spec), options->strategy);
    rig_compare(&r);
  }
  rig_end(&r);
}

static int mentions(const char *strategy, const char *word)
{
  return strstr(strategy, word) != NULL;
}

void trains_in_every_mode(void **state)
{
  (void)state;
  for (int m = 0; shared.modes[m] != NULL; m++)
    for (int n_micro = 1; n_micro <= 3; n_micro += 2) {
      const rig_options options = shared_options(shared.modes[m]);
      shared_train(&options, &(rig_step_spec){.n_micro = n_micro}, 3);
    }
}

void trains_in_ordered_mode_with_clipping(void **state)
{
  (void)state;
  for (int m = 0; m < LONG; m++) {
    rig_options options = shared_options(shared.modes[m]);
    options.ordered = 1;
    options.clip = 64.0;
    shared_train(&options, &(rig_step_spec){.n_micro = 2}, 3);
  }
}

/* p1, p2 frozen: a unit of frozen parameters only; p3 frozen: mixed with trained ones; p0 and p8: the tied matrix. */
void frozen_subsets_stay(void **state)
{
  (void)state;
  for (int m = 0; shared.frozen[m] != NULL; m++) {
    rig_options options = shared_options(shared.frozen[m]);
    options.frozen = 1u << 1 | 1u << 2 | 1u << 3;
    shared_train(&options, &(rig_step_spec){.n_micro = 2}, 3);
    options.frozen = 1u << 0 | 1u << RIG_HEAD;
    shared_train(&options, &(rig_step_spec){.n_micro = 1}, 2);
  }
}

/* A parameter without gradient on one rank still takes the others'; one that nobody uses is left alone, by weight decay too. */
void unused_parameters(void **state)
{
  (void)state;
  for (int m = 0; shared.modes[m] != NULL; m++) {
    rig_step_spec spec = {.n_micro = 2};
    const rig_options options = shared_options(shared.modes[m]);
    if (mentions(shared.modes[m], "use_orig_params=false"))
      continue;
    spec.skip_params[0] = 1u << 4;
    for (int rank = 0; rank < rig_ranks; rank++)
      spec.skip_params[rank] |= 1u << 5;
    shared_train(&options, &spec, 2);
  }
}

/* A flat parameter of several units cannot leave out a part of itself. */
static int parts_of_one_leaf(const char *strategy)
{
  return mentions(strategy, "units=") && mentions(strategy, "use_orig_params=false");
}

void a_unit_whose_forward_never_runs(void **state)
{
  (void)state;
  for (int m = 0; shared.modes[m] != NULL; m++) {
    rig r;
    const rig_options options = shared_options(shared.modes[m]);
    if (parts_of_one_leaf(shared.modes[m]))
      continue;
    rig_ok(rig_begin(&r, &options), shared.modes[m]);
    rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1}), shared.modes[m]);
    for (int s = 0; s < 2; s++)
      rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 2, .skip_units = 1u << 2}), shared.modes[m]);
    rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 2}), shared.modes[m]);
    rig_compare(&r);
    rig_end(&r);
  }
}

/* Its gradient is accumulated in the first micro-batch and reduced although the last one does not touch it. */
void a_unit_that_only_the_first_micro_batch_uses(void **state)
{
  (void)state;
  for (int m = 0; shared.modes[m] != NULL; m++) {
    const rig_options options = shared_options(shared.modes[m]);
    if (!parts_of_one_leaf(shared.modes[m]))
      shared_train(&options, &(rig_step_spec){.n_micro = 2, .skip_late = 1u << 2, .backward_only_in = 1}, 2);
  }
}

void evaluates_between_steps(void **state)
{
  (void)state;
  for (int m = 0; shared.modes[m] != NULL; m++) {
    rig r;
    const rig_options options = shared_options(shared.modes[m]);
    rig_ok(rig_begin(&r, &options), shared.modes[m]);
    rig_evaluate(&r);
    rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1}), shared.modes[m]);
    rig_evaluate(&r);
    rig_evaluate(&r);
    rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1}), shared.modes[m]);
    rig_compare(&r);
    rig_end(&r);
  }
}

void evaluates_without_an_optimizer(void **state)
{
  (void)state;
  for (int m = 0; shared.modes[m] != NULL; m++) {
    rig r;
    rig_options options = shared_options(shared.modes[m]);
    options.flags = ORDO_PLAN_EVAL;
    rig_ok(rig_begin(&r, &options), shared.modes[m]);
    rig_evaluate(&r);
    rig_compare(&r);
    assert_int_equal(r.optimizers_made, 0);
    rig_end(&r);
  }
}

/* One all-gather per unit and pass (the root is gathered once), one reduction per unit. */
void collectives_are_counted(void **state)
{
  uint64_t others = 0; /* all-reduces that every row has: of the host, and which parameters were used */
  (void)state;
  for (int i = 0; rig_ranks > 1 && i < SHARED_COUNTS && shared.counts[i].strategy != NULL; i++) {
    rig r;
    const shared_count *row = &shared.counts[i];
    const rig_options options = shared_options(row->strategy);
    const rig_step_spec spec = {.n_micro = row->n_micro};
    rig_ok(rig_begin(&r, &options), row->strategy);
    rig_ok(rig_train(&r, &spec), "the first step");
    const uint64_t gathers = rig_calls(&r, shared.axis, ORDO_ALL_GATHER, NULL),
                   scatters = rig_calls(&r, shared.axis, ORDO_REDUCE_SCATTER, NULL),
                   reduces = rig_calls(&r, shared.axis, ORDO_ALL_REDUCE, NULL);
    rig_ok(rig_train(&r, &spec), row->strategy);
    assert_int_equal(rig_calls(&r, shared.axis, ORDO_ALL_GATHER, NULL) - gathers, row->gathers);
    assert_int_equal(rig_calls(&r, shared.axis, ORDO_REDUCE_SCATTER, NULL) - scatters, row->scatters);
    const uint64_t reduced = rig_calls(&r, shared.axis, ORDO_ALL_REDUCE, NULL) - reduces;
    others = i == 0 ? reduced : others;
    assert_int_equal(reduced, others + row->reduces);
    rig_end(&r);
  }
}

/* Parameters travel and compute as bf16 values, weights stay fp32; small integers as gradients are exact in bf16. */
void trains_with_bf16_parameters(void **state)
{
  (void)state;
  for (int m = 0; shared.precision[m] != NULL; m++) {
    rig_options options = shared_options(shared.precision[m]);
    options.rounded = ORDO_BF16;
    shared_train(&options, &(rig_step_spec){.n_micro = 1}, 3);
  }
}

/* No dimension is above 3: ranks without an element of a parameter, and ranks that hold nothing but padding. */
void more_ranks_than_any_dimension(void **state)
{
  (void)state;
  rig_tiny = 1;
  for (int m = 0; rig_ranks > 3 && shared.modes[m] != NULL; m++) {
    const rig_options options = shared_options(shared.modes[m]);
    if (!mentions(shared.modes[m], "unit_size"))
      shared_train(&options, &(rig_step_spec){.n_micro = 2}, 2);
  }
  rig_tiny = 0;
}

/* Ignored parameters are whole on every rank and not reduced. */
void ignored_parameters_stay_whole(void **state)
{
  (void)state;
  for (int m = 0; shared.ignored[m] != NULL; m++) {
    rig r;
    rig_options options = shared_options(shared.ignored[m]);
    options.frozen = 1u << 3;
    rig_ok(rig_begin(&r, &options), shared.ignored[m]);
    assert_int_equal(r.model->params[3]->leaf->numel, rig_numel(3));
    for (int s = 0; s < 2; s++)
      rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1}), shared.ignored[m]);
    rig_compare(&r);
    rig_end(&r);
  }
}

/* Changes inside a write-back scope reach the shards; without the flag they are dropped; with RANK0_ONLY only rank 0 has to make them. */
void full_parameters_are_written_back(void **state)
{
  static const uint32_t flags[] = {0, ORDO_GATHER_WRITE_BACK, ORDO_GATHER_WRITE_BACK | ORDO_GATHER_RANK0_ONLY};
  (void)state;
  for (int m = 0; m < LONG; m++)
    for (int f = 0; f < 3; f++) {
      rig r;
      const rig_options options = shared_options(shared.modes[m]);
      if (mentions(shared.modes[m], "NO_SHARD") && f == 0)
        continue; /* nothing is copied there: a change is a change */
      rig_ok(rig_begin(&r, &options), shared.modes[m]);
      rig_ok(ordo_session_gather_full(r.session, 0, flags[f]), "gather_full");
      for (int p = 0; p < RIG_HEAD; p++)
        for (int64_t i = 0; i < rig_numel(p); i++) {
          if (rig_rank == 0 || f < 2)
            ((float *)r.model->params[p]->data)[i] += 2.0f;
          r.reference[p][i] += f > 0 ? 2.0f : 0.0f;
        }
      rig_ok(ordo_session_release_full(r.session, 0), "release_full");
      rig_compare(&r);
      rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1}), "step");
      rig_compare(&r);
      rig_end(&r);
    }
}

void full_parameters_on_rank_0_only(void **state)
{
  (void)state;
  rig r;
  const rig_options options = shared_options(shared.modes[0]);
  rig_ok(rig_begin(&r, &options), shared.modes[0]);
  rig_ok(ordo_session_gather_full(r.session, 0, ORDO_GATHER_RANK0_ONLY), "gather_full");
  for (uint32_t p = 0; rig_rank == 0 && p < r.model->n_params; p++)
    assert_memory_equal(r.model->params[p]->data, r.reference[p == RIG_HEAD ? 0 : p], (size_t)rig_numel((int)p) * sizeof(float));
  rig_ok(ordo_session_release_full(r.session, 0), "release_full");
  rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1}), "step");
  rig_compare(&r);
  rig_end(&r);
}

/* Inside a scope units are bound to copies that no update reaches: a step there made weights NaN. What is refused is harmless. */
void no_step_begins_inside_a_scope(void **state)
{
  float value[4096] = {0};
  (void)state;
  for (int m = 0; m < LONG; m++) {
    rig r;
    const rig_options options = shared_options(shared.modes[m]);
    rig_ok(rig_begin(&r, &options), shared.modes[m]);
    const ordo_param *param = r.model->params[1];
    assert_true(param->numel <= 4096);
    rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1}), "step");
    rig_expect(ordo_session_release_full(r.session, 0), ORDO_E_STATE, "E-STATE-ORDER|no scope of full parameters");
    rig_ok(ordo_session_gather_full(r.session, 0, ORDO_GATHER_WRITE_BACK), "gather_full");
    rig_expect(ordo_session_step_begin(r.session, 1, 1.0), ORDO_E_STATE, "E-STATE-ORDER|step_begin|scope of full parameters");
    rig_expect(ordo_session_gather_full(r.session, 0, 0), ORDO_E_STATE, "E-STATE-ORDER|scope of full parameters");
    rig_expect(ordo_session_import_param(r.session, param, -1, value), ORDO_E_STATE, "E-STATE-ORDER|import_param");
    rig_ok(ordo_session_release_full(r.session, 0), "release_full");
    rig_compare(&r);
    rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1}), "step");
    rig_compare(&r);
    rig_end(&r);
  }
}

/* Shards on one axis, replicas on the other; ordered: one sum over both. */
void replicas_of_shards(void **state)
{
  (void)state;
  for (int m = 0; rig_ranks == 4 && shared.replicas[m] != NULL; m++) {
    rig_options options = shared_options(shared.replicas[m]);
    for (options.ordered = 0; options.ordered < 2; options.ordered++)
      shared_train(&options, &(rig_step_spec){.n_micro = 2}, 4);
  }
}

/* Ordered: one sum over both axes, in which frozen, unused and 16-bit gradients have their places too. Of p4 and p6 only one of the two
 * shard groups has a gradient, whichever way the axes lie; nobody has one of p5. */
void one_sum_over_two_axes(void **state)
{
  (void)state;
  for (int m = 0; rig_ranks == 4 && shared.one_sum[m] != NULL; m++) {
    const int low = strstr(shared.one_sum[m], "reduce_dtype") != NULL;
    rig_step_spec spec = {.n_micro = 1, .skip_params = {1u << 4 | 1u << 6, 1u << 6, 1u << 4, 0}};
    rig_options options = shared_options(shared.one_sum[m]);
    options.ordered = 1;
    options.clip = low ? 0.0 : 64.0;
    for (int r = 0; r < 4; r++)
      spec.skip_params[r] |= 1u << 5;
    shared_train(&options, &spec, 3);
    options.frozen = 1u << 1 | 1u << 2 | 1u << 3;
    shared_train(&options, &(rig_step_spec){.n_micro = low ? 1 : 2}, 3);
  }
}

/* A frozen second model is gathered like the first, and has no optimizer. */
void two_models_in_one_session(void **state)
{
  (void)state;
  for (int m = 0; m < LONG; m++) {
    rig r;
    rig_options options = shared_options(shared.modes[m]);
    options.two_models = 1;
    rig_ok(rig_begin(&r, &options), shared.modes[m]);
    assert_int_equal(r.optimizers_made, 1);
    const ordo_model *other = ordo_session_model(r.session, 1);
    assert_non_null(other);
    for (int s = 0; s < 2; s++) {
      rig_ok(ordo_session_eval_begin(r.session), "eval_begin");
      for (uint32_t u = 0; u < RIG_UNITS; u++) {
        rig_ok(ordo_session_pre_forward(r.session, 1, u), "pre_forward");
        for (uint32_t p = 0; p < other->units[u]->n_params; p++) {
          const ordo_param *param = other->units[u]->params[p];
          assert_non_null(param->data);
          for (int64_t i = 0; i < param->numel; i++)
            assert_true(((const float *)param->data)[i] == rig_initial(options.untied, (int)param->index, i));
        }
        rig_ok(ordo_session_post_forward(r.session, 1, u), "post_forward");
      }
      rig_ok(ordo_session_eval_end(r.session), "eval_end");
      rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 2}), "step");
    }
    rig_compare(&r);
    rig_end(&r);
  }
}
