/* private.h - the inside of struct sharding, for the files of this folder. */
#ifndef SHARDING_PRIVATE_H
#define SHARDING_PRIVATE_H

#include "cold.h"
#include "sharding.h"

#include <ordo/precision.h>

enum { SHARDING_WIRE_SLOTS = 3 }; /* packed gathers in flight: two groups and the root */

/* What runs for a group. */
struct sharding_run {
  sharding_group *head;           /* the first group of the same units, which may be this one */
  sharding_group *next;           /* the next one of them, of another type; null: none */
  sharding_region region;         /* of a head: gathered parameters of all groups of its units */
  ordo_comm_piece *gather_pieces; /* null: one range in rank order */
  ordo_comm_piece *reduce_pieces;
  uint32_t n_reduce_pieces;
  ordo_request *gather;
  const ordo_comm *gather_comm; /* where it was started */
  uint16_t *low_gather;         /* it arrives here in 16 bits */
  int halves;                   /* index of the 16-bit send buffer in use, -1 */
  unsigned char *wire;          /* packed: this rank's bytes, and those of all ranks behind them; null: it travels as it is */
  int64_t wire_bytes;           /* of a rank: the sum of wire_sizes */
  int64_t *wire_sizes;          /* [n_pieces] bytes of each piece as the precision plugin said once, when room was made for them */
  int bound;                    /* the plugin's params point here */
  uint8_t *ready;               /* [n_pieces] gradient written in this micro-batch */
  int in_backward;              /* between the first pre_backward and the last post_backward of a micro-batch */
  int synchronise;              /* this micro-batch ends in a reduction of the group */
  int keeps;                    /* full_grad holds the gradient of earlier micro-batches of this step */
  int low_holds;                /* low_grad does */
  int reduced;                  /* the shard holds a gradient of this step */
  int64_t turn_offset;          /* bytes into grad_block: groups of the same units have it at the same time */
  void *own_grad;               /* [full_numel] no_sync and the root: its own gradient buffer */
  float *sum;                   /* [shard_numel] sync_each with 16-bit gradients: the reductions of this step in fp32 */
  uint16_t *low_grad;           /* [full_numel] no_sync in 16 bits */
  void *part;                   /* reshard_size: this rank's range between forward and backward */
  int part_holds;
  char label[24];

  /* What control.c sets: 1, 0, or ORDO_CONTROL_RULE for what the options say. */
  int sync;
  int reshard_after_forward;
  int reshard_after_backward;
  double divide_ratio; /* 0: that of the options */
};

/* Units to be gathered when another one has been, instead of its neighbour. */
typedef struct sharding_list {
  uint32_t *units;
  uint32_t n;
} sharding_list;

struct sharding {
  const ordo_job *job;
  const ordo_comm *comm;
  const ordo_comm *sum_comm;  /* of reductions: comm, or more ranks than its own in ordered mode */
  const ordo_comm *part_comm; /* reshard_size */
  sharding_options options;
  sharding_callbacks callbacks;
  sharding_pool *pool;
  sharding_cold *cold;
  sharding_group *groups;
  struct sharding_run *runs;
  uint32_t n_groups;
  uint32_t n_units;
  int32_t *group_of_unit; /* -1: none */
  int trainable;          /* any group is */
  int whole;              /* inside gather_full */
  uint32_t whole_flags;

  /* memory of the communicator (shard_block may be of the cold tier) */
  void *shard_block, *grad_shard_block;
  size_t shard_bytes, grad_shard_bytes;
  void *grad_block;       /* one gradient for the groups in turn, then the root's */
  void *accumulate_block; /* no_sync: gradients of all groups */
  void *part_block;
  uint16_t *half_block; /* 16-bit send buffers, each of half_numel */
  uint32_t n_halves;
  uint8_t halves_taken[8];
  int64_t half_numel;
  uint16_t *low_send, *low_recv; /* 16-bit reduction in flight */
  const ordo_precision *wire;    /* packs what is gathered, null: nobody */
  void *wire_self;
  unsigned char *wire_block; /* slots of wire_slot bytes */
  size_t wire_slot;
  int64_t *wire_sizes; /* of all groups */
  sharding_group *wire_taken[SHARDING_WIRE_SLOTS];
  float *spare_shard;                     /* sync_each: a reduction that is added to the shard */
  float *staging_gather, *staging_reduce; /* a communicator without pieces */

  sharding_group *reducing; /* whose reduction is in flight */
  ordo_request *reduction;
  ordo_dtype reduction_dtype;   /* what travels in it */
  int reduction_adds;           /* it goes to spare_shard and is added */
  uint16_t *low_result;         /* a reduction in reduce_dtype arrives here, to be widened */
  float *wide_send, *wide_recv; /* 16-bit gradients in fp32, whole and this rank's part (wide.c); null: none are widened */
  void *sum;                    /* the sum of a whole group arrives here, if it is not scattered */

  sharding_list *prefetch[2]; /* [n_units], forward and backward; null until one is set */
  double divide_factor;
  int evaluating;
  int last; /* the last micro-batch of the step */
  int ran;  /* a unit ran forward since the last end of a pass */
};

/* How many of `n` elements of a tensor may be touched: none in a dry run (job.h). */
ORDO_INLINE int64_t sharding_touchable(const sharding *s, int64_t n)
{
  return ordo_job_has_data(s->job) ? n : 0;
}

ORDO_INLINE int sharding_is_low(ordo_dtype dtype)
{
  return dtype == ORDO_BF16 || dtype == ORDO_F16;
}

/* The host adds 16-bit gradients of micro-batches up in fp32, so they go the whole way in their own type. Those in fp32 are reduced, and
 * kept between micro-batches, in reduce_dtype. */
ORDO_INLINE int sharding_narrows(const sharding *s, const sharding_group *group)
{
  return group->grad_dtype == ORDO_F32 && s->options.reduce_dtype != ORDO_F32;
}

/* 16-bit gradients are summed in fp32. */
ORDO_INLINE int sharding_widens(const sharding *s, const sharding_group *group)
{
  return sharding_is_low(group->grad_dtype) && s->options.low_reduce_dtype == ORDO_F32;
}

/* groups.c */
/* Every rank gets the whole sum of a group: nothing is sharded, or more ranks are summed than the axis has. */
int sharding_sums_whole(const sharding *s);
ordo_status sharding_reserve_accumulation(sharding *s);
/* Calls it for each group of the head's units, in order. */
ordo_status sharding_each(sharding *s, sharding_group *head, ordo_status (*call)(sharding *s, sharding_group *group));

/* wire.c */
/* The precision plugin packs what the group sends. Flat parameters have no leaf whose type it could be told, so only fp32 ones are packed.
 */
int sharding_wire_packs(const sharding *s, const sharding_group *group);
/* Says in the log which groups travel as they are although there is a plugin that packs. */
void sharding_wire_report(const sharding *s);
ordo_status sharding_wire_start(sharding *s, sharding_group *group);
/* Unpacks what has `arrived`, and frees the slot. */
ordo_status sharding_wire_finish(sharding *s, sharding_group *group, int arrived);

/* wide.c */
ordo_status sharding_wide_check(const ordo_job *job, const sharding_options *options, const sharding_group_spec *spec);
ordo_status sharding_wide_reserve(sharding *s);
void sharding_wide_free(sharding *s);
/* The collective takes the group's gradient in fp32. */
void sharding_wide_start(sharding *s, const sharding_group *group, ordo_collective *c);
/* from[shard_numel] is this rank's part of the sum. */
void sharding_wide_land(sharding *s, sharding_group *group, const float *from);

/* gather.c */
ordo_status sharding_start_gather(sharding *s, sharding_group *group, int exact);
ordo_status sharding_finish_gather(sharding *s, sharding_group *group);
ordo_status sharding_bind(sharding *s, sharding_group *group);
ordo_status sharding_release(sharding *s, sharding_group *group);
/* The same after forward: with reshard_size a range stays with this rank. */
ordo_status sharding_after_forward(sharding *s, sharding_group *group);
/* Groups that are gathered and take one of the `limit` places. */
uint32_t sharding_live(const sharding *s);
/* The group would take one: it is no root, and is released after forward and after backward. */
int sharding_takes_place(const sharding *s, const sharding_group *group);
int sharding_reshards(const sharding *s, const sharding_group *group);

/* control.c */
void sharding_control_clear(sharding *s);

/* reduce.c */
ordo_status sharding_take_gradient(sharding *s, sharding_group *group);
ordo_status sharding_end_gradient(sharding *s, sharding_group *group);
/* Reduces what earlier micro-batches left and the last one did not touch. */
ordo_status sharding_reduce_rest(sharding *s, sharding_group *group);
ordo_status sharding_finish_reduction(sharding *s);

/* low.c: fp32 to and from a 16-bit type. */
void sharding_narrow(ordo_dtype dtype, const float *from, int64_t n, double factor, uint16_t *to);
void sharding_widen(ordo_dtype dtype, const uint16_t *from, int64_t n, float *to);
/* to[i] = round(to[i] + from[i]) */
void sharding_add_low(ordo_dtype dtype, const float *from, int64_t n, uint16_t *to);

#endif
