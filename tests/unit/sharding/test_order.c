/* test_order.c - hostile order and rows of the catalogue of known bugs (docs/known-bugs.md) that fsdp1 and fsdp2 must answer alike, in real
 * sessions. See ../fsdp1/rig.h. Under mpirun; argument 1 is the plugin path. What only one of them can meet is in its own test_refusals.c.
 */
#include "../fsdp1/rig.h"

#include <math.h>
#include <string.h>

static const struct {
  const char *strategy, *step; /* that shards */
} BOTH[] = {{"fsdp1", "strategy.wrap"}, {"fsdp1:use_orig_params=false", "strategy.wrap"}, {"fsdp2", "strategy.prepare_joint"}};
enum { N = 3 };

static rig_options options_of(int i)
{
  return (rig_options){.strategy = BOTH[i].strategy, .rebinds = 1, .no_decay = i == 1};
}

/* A session of row `i` whose set-up has come to the end of `step`. */
static void set_up_through(rig *r, int i, const char *step)
{
  const rig_options options = options_of(i);
  const ordo_plan_node *node = NULL;
  rig_ok(rig_create(r, &options), "create");
  do
    rig_ok(ordo_session_setup_next(r->session, &node), "setup_next");
  while (strcmp(node->name, step) != 0);
}

static void finish(rig *r)
{
  rig_ok(ordo_session_setup(r->session), "the rest of the set-up is not harmed");
  r->model = ordo_session_model(r->session, 0);
  rig_ok(rig_train(r, &(rig_step_spec){.n_micro = 1}), "step");
  rig_compare(r);
  rig_end(r);
}

/* accelerate #3256, PR #3905: an optimizer made before fsdp1's wrap would step on what the flat parameters replace; one half of a joint
 * preparation alone would leave the other behind. Asked for out of turn, both are refused by the name of the step that is due. */
static void no_step_comes_out_of_turn(void **state)
{
  (void)state;
  for (int i = 0; i < N; i++) {
    rig r;
    set_up_through(&r, i, "model.build");
    const char *early = i < 2 ? "optimizer.create" : "strategy.prepare_joint", *due = i < 2 ? "strategy.wrap" : "optimizer.create";
    rig_expect(ordo_session_run(r.session, early), ORDO_E_STATE, due);
    assert_int_equal(r.optimizers_made, 0);
    finish(&r);
  }
}

/* accelerate PR #1555, dp-transformers #43: what is wrapped is not wrapped again, nor is its optimizer. */
static void a_wrapped_model_is_not_wrapped_again(void **state)
{
  (void)state;
  for (int i = 0; i < N; i++) {
    rig r;
    set_up_through(&r, i, BOTH[i].step);
    const uint32_t generation = ordo_session_model(r.session, 0)->generation;
    rig_expect(ordo_session_run(r.session, BOTH[i].step), ORDO_E_STATE, BOTH[i].step);
    assert_int_equal(ordo_session_model(r.session, 0)->generation, generation);
    assert_true(r.rebound == (i == 2));
    finish(&r);
  }
}

/* pytorch #149205: a forward between sharding and what follows it. */
static void no_forward_before_the_set_up_ends(void **state)
{
  (void)state;
  for (int i = 0; i < N; i++) {
    rig r;
    set_up_through(&r, i, BOTH[i].step);
    assert_int_equal(r.optimizers_made, i == 2);
    rig_expect(ordo_session_eval_begin(r.session), ORDO_E_STATE, "eval_begin");
    rig_expect(ordo_session_pre_forward(r.session, 0, 0), ORDO_E_STATE, "pre_forward");
    rig_expect(ordo_session_step_begin(r.session, 1, 1.0), ORDO_E_STATE, "step_begin");
    finish(&r);
  }
}

/* transformers PR #28830, #25580: no optimizer state and no leaf of full size is ever made, also without views, and the optimizer is made
 * and moved once. */
static void the_optimizer_is_made_once_and_of_shards(void **state)
{
  (void)state;
  for (int i = 0; i < N; i++) {
    rig r;
    int64_t held = 0, total = 0, most = 0;
    const rig_options options = options_of(i);
    rig_ok(rig_begin(&r, &options), "begin");
    for (uint32_t l = 0; l < r.model->n_leaves; l++)
      held += r.model->leaves[l]->numel;
    for (int p = 0; p < RIG_HEAD; p++)
      total += rig_numel(p);
    assert_int_equal(r.optimizers_made, 1);
    assert_int_equal(r.rebound, i == 2);
    assert_true(held <= total / rig_ranks + 4 * RIG_PARAMS * 5); /* a row more for each parameter at most, or a gap and padding */
    if (i < 2)
      assert_int_equal(r.elements_at_creation, held);
    ordo_session_memory(r.session, ORDO_MEM_OPTIMIZER, NULL, &most);
    assert_int_equal(most, 0); /* the rig's SGD has none, and nobody else made any */
    rig_end(&r);
  }
}

/* dp-transformers #43: the embedder's optimizer stays the one and only, with live leaves in the groups that
 * the embedder changes rates in. */
static void the_embedders_optimizer_stays_the_one(void **state)
{
  (void)state;
  for (int i = 0; i < N; i++) {
    rig r;
    const rig_options options = options_of(i);
    rig_ok(rig_begin(&r, &options), "begin");
    ordo_optimizer *optimizer = ordo_session_optimizer(r.session, 0);
    assert_ptr_equal(optimizer->groups, r.groups);
    rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1}), "step");
    for (uint32_t g = 0; g < optimizer->n_groups; g++)
      for (uint64_t l = 0; l < optimizer->groups[g].n_leaves; l++)
        rig_ok(ordo_session_check_leaf(r.session, optimizer->groups[g].leaves[l]), "the optimizer holds live leaves");
    rig_compare(&r);
    rig_end(&r);
  }
}

/* ---- pointers that were kept ---- */

typedef struct kept {
  const rig *r;
  const float *data; /* of p1, from its unit's forward */
  int looked;
} kept;

static void keep_and_look(void *ctx, uint32_t unit, int backward)
{
  kept *k = ctx;
  if (unit == 1 && !backward)
    k->data = k->r->model->params[1]->data;
  if (unit == 3 && !backward) {
    for (int64_t e = 0; e < rig_numel(1); e++)
      assert_true(isnan(k->data[e]));
    assert_null(k->r->model->params[1]->data);
    k->looked++;
  }
  if (unit == 1 && backward)
    assert_ptr_equal(k->data, k->r->model->params[1]->data); /* saved pointers are right again in backward */
}

static void a_kept_pointer_reads_nan_after_forward_and_after_the_step(void **state)
{
  (void)state;
  for (int i = 0; i < N; i++) {
    rig r;
    const rig_options options = options_of(i);
    rig_ok(rig_begin(&r, &options), "begin");
    kept k = {.r = &r};
    for (int s = 0; s < 2; s++) {
      rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1, .in_unit = keep_and_look, .ctx = &k}), "step");
      for (int64_t e = 0; e < rig_numel(1); e++)
        assert_true(isnan(k.data[e]));
    }
    assert_int_equal(k.looked, 2);
    rig_end(&r);
  }
}

/* A loss that is computed from a kept pointer stops the step by name, on all ranks, though only one kept it. */
static void poison_stops_the_step(void **state)
{
  (void)state;
  for (int i = 0; i < N; i++) {
    rig r;
    const float *data = NULL;
    const rig_options options = options_of(i);
    rig_ok(rig_begin(&r, &options), "begin");
    rig_ok(ordo_session_step_begin(r.session, 1, 1.0), "step_begin");
    rig_ok(ordo_session_micro_begin(r.session), "micro_begin");
    for (uint32_t u = 0; u < RIG_UNITS; u++) {
      rig_ok(ordo_session_pre_forward(r.session, 0, u), "pre_forward");
      data = u == 1 ? r.model->params[1]->data : data;
      rig_ok(ordo_session_post_forward(r.session, 0, u), "post_forward");
    }
    for (uint32_t u = RIG_UNITS; u-- > 0;) {
      rig_ok(ordo_session_pre_backward(r.session, 0, u), "pre_backward");
      for (uint32_t p = 0; p < r.model->units[u]->n_params; p++) {
        const ordo_param *param = r.model->units[u]->params[p];
        for (int64_t e = 0; e < param->numel; e++)
          ((float *)param->grad)[e] = u == 3 && rig_rank == 0 ? data[0] : 1.0f;
        rig_ok(ordo_session_grad_ready(r.session, 0, param->index), "grad_ready");
      }
      rig_ok(ordo_session_post_backward(r.session, 0, u), "post_backward");
    }
    rig_ok(ordo_session_micro_end(r.session), "micro_end");
    rig_expect(ordo_session_step_end(r.session, NULL), ORDO_E_INVARIANT, "E-STEP-NONFINITE");
    rig_end(&r);
  }
}

/* ---- models ---- */

/* trl #1147: the frozen reference model is sharded like the trained one, in training and in an evaluation-only session, and has no
 * optimizer. */
static void a_reference_model_is_sharded_as_well(void **state)
{
  (void)state;
  for (int i = 0; i < N; i++)
    for (int eval = 0; eval < 2; eval++) {
      rig r;
      rig_options options = options_of(i);
      options.two_models = 1;
      options.flags = eval ? ORDO_PLAN_EVAL : 0;
      rig_ok(rig_begin(&r, &options), "begin");
      const ordo_model *other = ordo_session_model(r.session, 1);
      const ordo_mesh *mesh = ordo_session_mesh(r.session);
      int64_t held[2] = {0, 0};
      for (uint32_t m = 0; m < 2; m++)
        for (uint32_t l = 0; l < ordo_session_model(r.session, m)->n_leaves; l++) {
          const ordo_leaf *leaf = ordo_session_model(r.session, m)->leaves[l];
          assert_int_equal(leaf->placement->data[0], ORDO_SHARD);
          held[m] += leaf->numel;
        }
      assert_int_equal(mesh->size, rig_ranks);
      assert_int_equal(held[0], held[1]);
      assert_null(ordo_session_optimizer(r.session, 1));
      assert_int_equal(r.optimizers_made, !eval);
      for (uint32_t l = 0; l < other->n_leaves; l++)
        assert_null(other->leaves[l]->grad);
      rig_evaluate(&r);
      rig_end(&r);
    }
}

/* A step inside a scope would train shards that the end of the scope overwrites with what the scope holds. Refused, it harms nothing. */
static void no_training_step_in_a_scope_of_full_parameters(void **state)
{
  (void)state;
  for (int i = 0; i < N; i++) {
    rig r;
    const rig_options options = options_of(i);
    rig_ok(rig_begin(&r, &options), "begin");
    rig_ok(ordo_session_gather_full(r.session, 0, ORDO_GATHER_WRITE_BACK), "gather_full");
    rig_expect(ordo_session_step_begin(r.session, 1, 1.0), ORDO_E_STATE, "scope of full parameters|release_full");
    rig_expect(ordo_session_gather_full(r.session, 0, 0), ORDO_E_STATE, "inside the scope of full parameters");
    rig_ok(ordo_session_release_full(r.session, 0), "release_full");
    rig_expect(ordo_session_release_full(r.session, 0), ORDO_E_STATE, "no scope");
    rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1}), "step");
    rig_compare(&r);
    rig_end(&r);
  }
}

/* How many of this rank's leaves have no element. Every parameter has 3 rows. Rows: the ranks above 3 have none of any. Views: a flat
 * parameter is cut anywhere, so nobody need be without, but more than 3 ranks cannot all have some of a parameter of 3 elements. A flat
 * leaf holds all parameters of a unit, which may well be enough for all ranks. */
static void check_empty(int i, int empty, int n_leaves)
{
  int most = empty;
  MPI_Allreduce(MPI_IN_PLACE, &most, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  if (i == 2)
    assert_int_equal(empty, rig_rank < 3 ? 0 : n_leaves);
  else
    assert_true(i == 1 || most > 0);
}

/* No dimension is above 3: ranks that hold no element of a parameter, or of any. */
static void more_ranks_than_any_dimension(void **state)
{
  (void)state;
  rig_tiny = 1;
  for (int i = 0; rig_ranks > 3 && i < N; i++)
    for (int n_micro = 1; n_micro <= 2; n_micro++) {
      rig r;
      int empty = 0;
      const rig_options options = options_of(i);
      rig_ok(rig_begin(&r, &options), "begin");
      for (uint32_t l = 0; l < r.model->n_leaves; l++)
        empty += r.model->leaves[l]->placement->n_chunks == 0;
      check_empty(i, empty, (int)r.model->n_leaves);
      for (int s = 0; s < 2; s++)
        rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = n_micro}), "step");
      rig_compare(&r);
      rig_end(&r);
    }
  rig_tiny = 0;
}

int main(int argc, char **argv)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(no_step_comes_out_of_turn),
      cmocka_unit_test(a_wrapped_model_is_not_wrapped_again),
      cmocka_unit_test(no_forward_before_the_set_up_ends),
      cmocka_unit_test(the_optimizer_is_made_once_and_of_shards),
      cmocka_unit_test(the_embedders_optimizer_stays_the_one),
      cmocka_unit_test(a_kept_pointer_reads_nan_after_forward_and_after_the_step),
      cmocka_unit_test(poison_stops_the_step),
      cmocka_unit_test(a_reference_model_is_sharded_as_well),
      cmocka_unit_test(no_training_step_in_a_scope_of_full_parameters),
      cmocka_unit_test(more_ranks_than_any_dimension),
  };
  rig_start(argc, argv);
  return rig_stop(cmocka_run_group_tests(tests, NULL, NULL));
}
