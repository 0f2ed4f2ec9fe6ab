/* policy.c - see policy.h. */
#include "policy.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct level {
  ordo_dtype stored, compute;
  int patches, keep_norm, masters, dynamic;
} level;

static const level LEVELS[] = {
    {ORDO_F32, ORDO_F32, 0, 0, 0, 0},  /* O0 */
    {ORDO_F32, ORDO_F16, 1, 0, 0, 1},  /* O1 */
    {ORDO_F16, ORDO_F16, 0, 1, 1, 1},  /* O2 */
    {ORDO_F16, ORDO_F16, 0, 0, 0, 0},  /* O3 */
    {ORDO_F32, ORDO_BF16, 1, 0, 0, 0}, /* O4 */
    {ORDO_BF16, ORDO_BF16, 0, 1, 1, 0} /* O5 */
};

static const double APEX_INIT_SCALE = 65536.0, APEX_MAX_SCALE = 16777216.0;
enum { DEFAULT_WINDOW = 2000 };

#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
static int
refuse(amp_problem *problem, const char *hint, const char *format, ...)
{
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(problem->text, sizeof problem->text, format, arguments);
  va_end(arguments);
  problem->hint = hint;
  return -1;
}

/* With O1 and O4 operations are cast and weights are not (apex: Properties.__setattr__). */
static int check_patching(const amp_request *request, amp_problem *problem)
{
  if (request->cast != AMP_UNSET && request->cast != ORDO_F32)
    return refuse(problem, "to store the model in 16 bits use O2, O3 or O5",
                  "O%d casts operations and keeps the weights in fp32, so cast_model_type has no place in it", request->level);
  if (request->keep_norm != AMP_UNSET)
    return refuse(problem, "leave keep_norm_fp32 out", "O%d computes norms in fp32 always, so keep_norm_fp32 has no place in it",
                  request->level);
  if (request->masters != AMP_UNSET)
    return refuse(problem, "leave master_weights out",
                  "O%d keeps the weights themselves in fp32, so master_weights would be copies of them", request->level);
  return 0;
}

/* A level that loses all it is, by an override: what is left has another name, and the name that was written would be a lie. */
static int check_identity(const amp_request *request, amp_problem *problem)
{
  if (request->level == 0 && request->cast != AMP_UNSET && request->cast != ORDO_F32)
    return refuse(problem, "to store the model in 16 bits use O3, with cast_model_type=bf16 for bf16, or O2 or O5, which have masters",
                  "O0 (32-true) is fp32 everywhere, and cast_model_type=%s stores the model in 16 bits",
                  request->cast == ORDO_F16 ? "f16" : "bf16");
  if (LEVELS[request->level].stored != ORDO_F32 && request->cast == ORDO_F32)
    return refuse(problem, "use O0 for fp32, or O1 or O4, which keep fp32 weights and multiply in 16 bits",
                  "O%d stores the model in 16 bits, and nothing of that is left with cast_model_type=f32", request->level);
  return 0;
}

static int apply_types(const amp_request *request, amp_policy *policy, amp_problem *problem)
{
  const level *of = &LEVELS[request->level];
  if ((of->patches && check_patching(request, problem) != 0) || check_identity(request, problem) != 0)
    return -1;
  policy->stored = request->cast != AMP_UNSET ? (ordo_dtype)request->cast : of->stored;
  policy->compute = of->patches ? of->compute : policy->stored;
  policy->patches = of->patches;
  policy->keep_norm = request->keep_norm != AMP_UNSET ? request->keep_norm != 0 : of->keep_norm;
  policy->masters = request->masters != AMP_UNSET ? request->masters != 0 : of->masters;
  if (policy->stored != ORDO_F32)
    return 0;
  if (request->keep_norm != AMP_UNSET && !of->patches)
    return refuse(problem, "leave keep_norm_fp32 out, or choose a level that stores 16 bits (O2, O3, O5)",
                  "nothing is cast at O%d, so keep_norm_fp32 has no effect", request->level);
  if (request->masters == 1)
    return refuse(problem, "leave master_weights out, or choose a level that stores 16 bits (O2, O3, O5)",
                  "the weights are fp32 at O%d, so master_weights would be copies of them", request->level);
  return 0;
}

/* Losses and gradients are multiplied by the scale and by its inverse in fp32. `value` NaN: the option was not given. */
static int check_range(const char *name, double value, amp_problem *problem)
{
  if (isnan(value) || (value >= AMP_SCALE_LEAST && value <= AMP_SCALE_MOST))
    return 0;
  return refuse(problem, "a power of two between 1 and 2^24 is usual",
                "%s=%g is outside of 2^-100 .. 2^126 (7.9e-31 .. 8.5e37): the scale and its inverse have to be fp32 numbers other than 0",
                name, value);
}

/* Reads loss_scale: 1 if dynamic, 0 with a number in *scale, -1 with *problem. */
static int read_scale(const amp_request *request, int bf16, double *scale, amp_problem *problem)
{
  char *end = NULL;
  *scale = 1.0;
  if (request->loss_scale == NULL)
    return LEVELS[request->level].dynamic;
  if (strcmp(request->loss_scale, "dynamic") == 0)
    return 1;
  *scale = strtod(request->loss_scale, &end);
  if (end == request->loss_scale || *end != '\0' || !isfinite(*scale) || !(*scale > 0.0))
    return refuse(problem, bf16 ? "leave loss_scale out: bf16 needs none" : "write loss_scale=dynamic or a number, 128 for example",
                  "loss_scale=%.60s is no number above 0 and not 'dynamic'", request->loss_scale);
  return bf16 ? 0 : check_range("loss_scale", *scale, problem);
}

static int check_static(const amp_request *request, int bf16, amp_problem *problem)
{
  const char *name = !isnan(request->min_scale)       ? "min_loss_scale"
                     : !isnan(request->max_scale)     ? "max_loss_scale"
                     : !isnan(request->init_scale)    ? "init_scale"
                     : !isnan(request->growth)        ? "growth_factor"
                     : !isnan(request->backoff)       ? "backoff_factor"
                     : request->window != AMP_UNSET   ? "window"
                     : request->patience != AMP_UNSET ? "patience"
                     : request->torch_scaler          ? "scaler=torch" /* the default, apex, cannot be told from one that was written */
                                                      : NULL;
  if (name != NULL)
    return refuse(problem,
                  bf16 ? "leave it out: bf16 needs no loss scale; O1 and O2 have one that moves"
                       : "leave it out (16-mixed brings scaler=torch along: write apex_amp:O1), or set loss_scale=dynamic",
                  "%s belongs to a dynamic loss scale, and that of O%d is %.60s%s", name, request->level,
                  request->loss_scale != NULL ? request->loss_scale : "1", bf16 ? ", because it computes in bf16" : "");
  return 0;
}

/* From the first scale to 1: more steps than AMP_DESCENT count as no help, so a factor that needs more would never be given its time. */
static int check_backoff(double backoff, double first, amp_problem *problem)
{
  const double most = first > 2.0 ? exp(-log(first) / AMP_DESCENT) : exp(-log(2.0) / AMP_DESCENT);
  if (!(backoff > 0.0 && backoff < 1.0))
    return refuse(problem, "the default is 0.5", "backoff_factor=%g must lie between 0 and 1", backoff);
  if (backoff > most)
    return refuse(problem, "the default is 0.5; the closer to 1, the more steps are skipped before one is not",
                  "backoff_factor=%g is above %.3f: the scale would need more than %d overflows to come from %g down to 1", backoff, most,
                  AMP_DESCENT, first);
  if (backoff < 0x1p-16)
    return refuse(problem, "the default is 0.5",
                  "backoff_factor=%g is below 2^-16: one overflow would leave gradients that fp16 rounds to 0", backoff);
  return 0;
}

static int check_dynamic(const amp_request *request, amp_problem *problem)
{
  int bounded = !isnan(request->min_scale) || !isnan(request->max_scale);
  if (request->torch_scaler && bounded)
    return refuse(problem, "use scaler=apex", "PyTorch's GradScaler has no %s",
                  isnan(request->min_scale) ? "max_loss_scale" : "min_loss_scale");
  if (!request->torch_scaler && (!isnan(request->growth) || !isnan(request->backoff)))
    return refuse(problem, "use scaler=torch, which has factors", "apex's scaler doubles and halves; %s belongs to scaler=torch",
                  isnan(request->growth) ? "backoff_factor" : "growth_factor");
  if (!isnan(request->growth) && !(request->growth > 1.0))
    return refuse(problem, "the default is 2", "growth_factor=%g must be above 1", request->growth);
  if (!isnan(request->growth) && request->growth > 65536.0)
    return refuse(problem, "the default is 2", "growth_factor=%g is above 2^16: the step after it would overflow", request->growth);
  if (check_range("init_scale", request->init_scale, problem) != 0 || check_range("max_loss_scale", request->max_scale, problem) != 0)
    return -1;
  return request->min_scale != 0.0 ? check_range("min_loss_scale", request->min_scale, problem) : 0; /* 0: no floor */
}

static double or_else(double value, double otherwise)
{
  return isnan(value) ? otherwise : value;
}

static int make_dynamic(const amp_request *request, amp_scaler *scaler, amp_problem *problem)
{
  if (check_dynamic(request, problem) != 0)
    return -1;
  scaler->growth = or_else(request->growth, 2.0);
  scaler->backoff = or_else(request->backoff, 0.5);
  scaler->min = or_else(request->min_scale, 0.0);
  scaler->max = or_else(request->max_scale, request->torch_scaler ? (double)INFINITY : APEX_MAX_SCALE);
  scaler->window = request->window != AMP_UNSET ? request->window : DEFAULT_WINDOW;
  scaler->patience = request->patience != AMP_UNSET ? request->patience : 10;
  if (scaler->min > scaler->max)
    return refuse(problem, "give a minimum below the maximum", "min_loss_scale=%g is above max_loss_scale=%g", scaler->min, scaler->max);
  scaler->scale = or_else(request->init_scale, APEX_INIT_SCALE);
  if (scaler->scale > scaler->max) /* apex starts at min(max_loss_scale, 2^16) */
    scaler->scale = scaler->max;
  if (scaler->min > scaler->scale)
    return refuse(problem, "give a minimum that is not above the first scale",
                  "min_loss_scale=%g is above the first loss scale, %g (init_scale): an overflow would raise the scale", scaler->min,
                  scaler->scale);
  return check_backoff(scaler->backoff, scaler->scale, problem);
}

static int apply_scale(const amp_request *request, amp_policy *policy, amp_problem *problem)
{
  double scale;
  int bf16 = policy->compute == ORDO_BF16;
  int dynamic = read_scale(request, bf16, &scale, problem);
  if (dynamic < 0)
    return -1;
  if (bf16 && (dynamic || scale != 1.0))
    return refuse(problem, request->level == 2 ? "use O5, which is O2 in bf16 without a scaler" : "leave loss_scale out, or set it to 1",
                  "bf16 has the range of fp32, so its gradients need no loss scale; O%d with loss_scale=%.60s and bf16 was asked for",
                  request->level, dynamic ? "dynamic" : request->loss_scale);
  policy->scaler = (amp_scaler){.dynamic = dynamic, .scale = scale, .growth = 1.0, .backoff = 1.0, .max = (double)INFINITY};
  return dynamic ? make_dynamic(request, &policy->scaler, problem) : check_static(request, bf16, problem);
}

int amp_policy_resolve(const amp_request *request, amp_policy *policy, amp_problem *problem)
{
  memset(policy, 0, sizeof *policy);
  problem->text[0] = '\0';
  policy->level = request->level;
  policy->n_losses = (uint32_t)request->n_losses;
  policy->delay_unscale = request->delay_unscale != 0;
  if (apply_types(request, policy, problem) != 0 || apply_scale(request, policy, problem) != 0)
    return -1;
  if (policy->delay_unscale && !policy->masters)
    return refuse(problem, "leave delay_unscale out, or use masters (O2, O5)",
                  "delay_unscale keeps sums of 16-bit gradients out of the fp32 masters, and O%d has none", request->level);
  return 0;
}

ordo_dtype amp_policy_op_dtype(const amp_policy *policy, uint32_t op)
{
  switch (op) {
  case ORDO_OP_MATMUL:
    return policy->compute;
  case ORDO_OP_EMBEDDING:
  case ORDO_OP_ELEMENTWISE:
    return policy->stored; /* patching leaves them alone; a cast model computes them as it stores them */
  case ORDO_OP_NORM:
    return policy->keep_norm ? ORDO_F32 : policy->stored;
  case ORDO_OP_SOFTMAX:
  case ORDO_OP_ROPE:
    return policy->masters ? ORDO_F32 : policy->stored; /* O3 is 16 bits throughout */
  default:
    return ORDO_F32; /* the loss, and what a later release asks for */
  }
}

int amp_policy_wraps(const amp_policy *policy)
{
  return policy->masters || policy->scaler.dynamic || policy->scaler.scale != 1.0;
}
