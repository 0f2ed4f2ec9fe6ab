/* leaf_optimizer.h - AdamW or SGD over the leaves of a session: the ordo_optimizer of the trainer.
 *
 * Two groups: decay (2-D weights) and no_decay. State is made at a leaf's first update, so an optimizer that is created before a
 * strategy shards the model never holds state of full size. rebind moves groups and state together or changes nothing.
 */
#ifndef ORDO_TRAINER_LEAF_OPTIMIZER_H
#define ORDO_TRAINER_LEAF_OPTIMIZER_H

#include "optim.h"
#include <ordo/session.h>

typedef struct ordo_leaf_optimizer_options {
  int is_sgd;
  double lr; /* until a scheduler writes another */
  double beta1;
  double beta2;
  double eps;
  double weight_decay;
  double momentum;
} ordo_leaf_optimizer_options;

/* Fills *optimizer for the trainable leaves of the model. State is fp32, allocated from the session under ORDO_MEM_OPTIMIZER. A leaf of 16
 * bits without a master is updated in fp32 and rounded back at every step, so an update below half a unit of its last place is lost. */
ordo_status ordo_leaf_optimizer_create(ordo_context *context, ordo_session *session, const ordo_leaf_optimizer_options *options,
                                       const ordo_model *model, ordo_optimizer *optimizer);
/* Calls `stepping` when an update begins (1) and has ended (0). */
void ordo_leaf_optimizer_observe(ordo_optimizer *optimizer, void (*stepping)(void *ctx, int begins), void *ctx);
/* For a dry run: state is allocated and counted, nothing is read or written. */
void ordo_leaf_optimizer_set_dry(ordo_optimizer *optimizer);
/* Writes a learning rate into all groups. */
void ordo_leaf_optimizer_set_lr(ordo_optimizer *optimizer, double lr);

#endif
