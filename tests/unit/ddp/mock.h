/* mock.h - N ranks in one process for tests of a data-parallel strategy: a thread each, a communicator in memory, and just enough
 * of a job and a model.
 *
 * The communicator checks what a real one cannot: that every rank starts the same collectives in the same order, that a buffer
 * in flight is not touched, and that every request is waited for. Gradients without value are filled with NaN, so garbage that
 * gets summed shows.
 */
#ifndef TEST_DDP_MOCK_H
#define TEST_DDP_MOCK_H

#include <ordo/comm_hook.h>
#include <ordo/plugin.h>
#include <ordo/strategy.h>

#include <pthread.h>

enum { MAX_RANKS = 5, MAX_PARAMS = 64, MAX_EVENTS = 4096, MAX_COLLECTIVES = 1024, MAX_OPTIONS = 16 };

typedef struct mock_event {
  char kind; /* 'r' grad_ready, 's' collective started, 'w' waited for, 'b' bind */
  int index; /* param, or number of the collective */
} mock_event;

typedef struct mock_collective {
  ordo_collective desc; /* of the rank that came first */
  char label[32];
  int arrived, waited, failed;
  unsigned char *sent[MAX_RANKS];
  unsigned char *result;
} mock_collective;

typedef struct mock_world {
  int size;
  pthread_mutex_t lock;
  pthread_cond_t change;
  mock_collective collectives[MAX_COLLECTIVES];
  int n_collectives;
  int dead;
  char breach[256]; /* first misuse of the communicator */
} mock_world;

typedef struct mock_rank {
  mock_world *world;
  int rank;
  int started; /* collectives */
  int open_requests, open_blocks, open_windows;
  int64_t all_reduce_bytes;
  mock_event events[MAX_EVENTS];
  int n_events;

  ordo_host host;
  ordo_comm comm;
  ordo_axis axis;
  const ordo_axis *axes[1];
  ordo_mesh mesh;
  ordo_job job;
  ordo_model model;
  ordo_unit unit;
  ordo_param params[MAX_PARAMS];
  const ordo_param *param_list[MAX_PARAMS];
  ordo_leaf leaves[MAX_PARAMS];
  ordo_leaf *leaf_list[MAX_PARAMS];
  const ordo_param *leaf_params[MAX_PARAMS][4];
  ordo_placement placement;
  float *own_grads[MAX_PARAMS]; /* the embedder's gradient memory */
  int reduced[MAX_PARAMS];
  double divided_by[MAX_PARAMS];
  const char *options[MAX_OPTIONS][2];
  int n_options;
  const ordo_comm_hook *plugin_hook;
  void *plugin_hook_instance;

  ordo_status failed; /* of the last host->fail */
  char error[2048], hint[512];
  int n_metrics;
  double overlap;
  double clock; /* one second for each look at it */
  double busy;  /* a quarter of a second for each start and wait */

  const ordo_strategy *strategy;
  void *instance;
} mock_rank;

/* A model of n params of the given sizes, each its own leaf, in one unit. */
void mock_init(mock_world *world, mock_rank *ranks, int size, int n_params, const int64_t *numels);
void mock_clear(mock_world *world, mock_rank *ranks);
void mock_option(mock_rank *ranks, int size, const char *key, const char *value);
/* Makes the last leaf hold params `a` and `b` as one tie group. Call before create. */
void mock_tie(mock_rank *rank, int a, int b);

/* Runs `body` on every rank at once. */
void mock_run(mock_world *world, mock_rank *ranks, void (*body)(mock_rank *rank, void *arg), void *arg);

/* The gradient that rank, step, micro-batch add to element i of param p: small integers, so that sums are exact in fp32. */
float mock_gradient(int rank, int step, int micro, int p, int64_t i);

typedef struct mock_step {
  int step;
  int n_micro;
  double divide_factor;
  const int *order;                 /* params in the order in which they become ready; null: last to first */
  uint64_t skip[MAX_RANKS];         /* bit p: the rank does not use param p in any micro-batch */
  uint64_t skip_in_last[MAX_RANKS]; /* the same for the last micro-batch only */
  uint64_t poison[MAX_RANKS];       /* bit p: the rank's gradient of param p holds an infinity */
  ordo_status status[MAX_RANKS];    /* result */
} mock_step;
/* A whole training step on one rank, for mock_run; `arg` is a mock_step. */
void mock_train(mock_rank *rank, void *arg);
/* create and wrap, for mock_run; arg: ordo_status[MAX_RANKS]. */
void mock_wrap(mock_rank *rank, void *arg);
/* destroy, for mock_run. */
void mock_destroy(mock_rank *rank, void *arg);

#endif
