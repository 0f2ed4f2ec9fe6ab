/* shared.h - cases of a sharded strategy that are the same for fsdp1 and fsdp2: a session in every mode, and what must come out. See rig.h.
 *
 * A test program states its modes in `shared` and lists SHARED_CASES beside its own.
 */
#ifndef TEST_FSDP1_SHARED_H
#define TEST_FSDP1_SHARED_H

#include "rig.h"

enum { SHARED_MODES = 40, SHARED_COUNTS = 8 };

/* Collectives of one training step. */
typedef struct shared_count {
  const char *strategy;
  int n_micro;
  uint64_t gathers, scatters, reduces;
} shared_count;

typedef struct shared_strategy {
  const char *axis;                    /* that collectives are counted on */
  const char *modes[SHARED_MODES];     /* all; every list ends with a null. The first few are also run in the longer cases */
  const char *precision[SHARED_MODES]; /* parameters are bf16 values, sums exact */
  const char *frozen[SHARED_MODES];    /* a frozen unit, and one that is mixed */
  const char *ignored[SHARED_MODES];   /* with ignored=p3 */
  const char *replicas[SHARED_MODES];  /* 2 x 2 ranks */
  const char *one_sum[SHARED_MODES];   /* the same, where parameters may go without a gradient in ordered mode */
  const shared_count counts[SHARED_COUNTS];
} shared_strategy;

extern const shared_strategy shared;

/* Options under which every mode trains: see rig.h. */
rig_options shared_options(const char *strategy);
/* `steps` steps with all comparisons. */
void shared_train(const rig_options *options, const rig_step_spec *spec, int steps);

void trains_in_every_mode(void **state);
void trains_in_ordered_mode_with_clipping(void **state);
void frozen_subsets_stay(void **state);
void unused_parameters(void **state);
void a_unit_whose_forward_never_runs(void **state);
void a_unit_that_only_the_first_micro_batch_uses(void **state);
void evaluates_between_steps(void **state);
void evaluates_without_an_optimizer(void **state);
void collectives_are_counted(void **state);
void trains_with_bf16_parameters(void **state);
void more_ranks_than_any_dimension(void **state);
void ignored_parameters_stay_whole(void **state);
void full_parameters_are_written_back(void **state);
void full_parameters_on_rank_0_only(void **state);
void no_step_begins_inside_a_scope(void **state);
void replicas_of_shards(void **state);
void one_sum_over_two_axes(void **state);
void two_models_in_one_session(void **state);

/* clang-format off */
#define SHARED_CASES                                              \
  cmocka_unit_test(trains_in_every_mode),                         \
  cmocka_unit_test(trains_in_ordered_mode_with_clipping),         \
  cmocka_unit_test(frozen_subsets_stay),                          \
  cmocka_unit_test(unused_parameters),                            \
  cmocka_unit_test(a_unit_whose_forward_never_runs),              \
  cmocka_unit_test(a_unit_that_only_the_first_micro_batch_uses),  \
  cmocka_unit_test(evaluates_between_steps),                      \
  cmocka_unit_test(evaluates_without_an_optimizer),               \
  cmocka_unit_test(collectives_are_counted),                      \
  cmocka_unit_test(trains_with_bf16_parameters),                  \
  cmocka_unit_test(more_ranks_than_any_dimension),                \
  cmocka_unit_test(ignored_parameters_stay_whole),                \
  cmocka_unit_test(full_parameters_are_written_back),             \
  cmocka_unit_test(full_parameters_on_rank_0_only),               \
  cmocka_unit_test(no_step_begins_inside_a_scope),                \
  cmocka_unit_test(replicas_of_shards),                           \
  cmocka_unit_test(one_sum_over_two_axes),                        \
  cmocka_unit_test(two_models_in_one_session)
/* clang-format on */

#endif
