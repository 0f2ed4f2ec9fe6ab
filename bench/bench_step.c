/* bench_step.c - one training step of the reference model against the matrix products it consists of.
 *
 * Every cblas_sgemm of a step is recorded (the linker wraps the symbol) and replayed alone: same shapes, same memory, same order. Steps and
 * replays alternate, because the machine's speed drifts; what counts is the median of the ratios of neighbours.
 *
 *   bench_step [--precision P] [--rounds N] [--batch B] [--seq T] [--small] [--profile]   prints the report
 *   bench_step [--precision P] --serve                      one step per input line, answers with its seconds (for peer_torch.py)
 *
 * With a precision other than fp32 an fp32 step runs before each step, and what is between the two is their ratio; the conversions of a
 * step are timed in runs of their own. A kernel that rounds as it goes counts with what the rounding adds to it. A limit that is printed
 * and not met is exit code 1.
 *
 * It refuses to report on a generic OpenBLAS kernel: the ratio would look good and mean nothing.
 */
#include <math.h>
#include <ordo/precision.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench_products.h"
#include "blas_core.h"
#include "kernels_low.h"
#include "kernels_memory.h"
#include "llama.h"
#include "optim.h"

/* ---- the model ---- */

/* Norms stay fp32 in all of them; masters, moments and activations too. */
struct precision {
  const char *name;
  ordo_dtype storage; /* of 2-D weights and their gradients */
  ordo_dtype matmul;
};

static const struct precision precisions[] = {
    {"fp32", ORDO_F32, ORDO_F32},         {"bf16", ORDO_BF16, ORDO_BF16},      {"fp16", ORDO_F16, ORDO_F16},
    {"bf16-policy", ORDO_F32, ORDO_BF16}, {"fp16-policy", ORDO_F32, ORDO_F16}, {"bf16-storage", ORDO_BF16, ORDO_F32},
    {"fp16-storage", ORDO_F16, ORDO_F32},
};
enum { N_PRECISIONS = sizeof precisions / sizeof precisions[0] };

struct bench {
  const struct precision *precision;
  struct llama *model;
  const struct kernels *kernels;
  void **data, **grad;      /* where the model computes */
  float **weight, **m, **v; /* the optimizer's; `weight` is `data` where that is fp32 */
  int32_t *ids, *targets;
  int64_t batch, seq;
  int64_t step;
  int64_t n_weights, stored_bytes;                          /* bytes of weights and gradients of the model */
  double forward_seconds, backward_seconds, update_seconds; /* of the last step */
};

static ordo_dtype storage_of(const struct bench *b, uint32_t p)
{
  return llama_param_at(b->model, p)->ndim == 1 ? ORDO_F32 : b->precision->storage;
}

static int overwrite(void *ctx, uint32_t param)
{
  (void)ctx;
  (void)param;
  return 0;
}

static ordo_dtype op_dtype(void *ctx, uint32_t op)
{
  return op == ORDO_OP_MATMUL ? ((const struct bench *)ctx)->precision->matmul : ORDO_F32;
}

static float *weights_new(const struct llama_param *param, uint32_t *state)
{
  float *data = kernels_alloc(NULL, (size_t)param->numel * sizeof *data, 0);
  for (int64_t i = 0; data != NULL && i < param->numel; i++) {
    *state = *state * 1664525u + 1013904223u;
    data[i] = param->ndim == 1 ? 1.0f : (float)(int32_t)*state / 2147483648.0f * 0.035f; /* standard deviation 0.02 */
  }
  return data;
}

static void *zeros(int64_t n, size_t width)
{
  void *data = kernels_alloc(NULL, (size_t)n * width, 0);
  return data == NULL ? NULL : memset(data, 0, (size_t)n * width);
}

/* Storage of a param and of its optimizer. -1 without memory. */
static int param_create(struct bench *b, uint32_t p, uint32_t *state)
{
  const struct llama_param *param = llama_param_at(b->model, p);
  ordo_dtype dtype = storage_of(b, p);
  size_t width = ordo_dtype_size(dtype);
  b->weight[p] = weights_new(param, state);
  b->data[p] = dtype == ORDO_F32 ? b->weight[p] : zeros(param->numel, width);
  b->grad[p] = zeros(param->numel, width);
  b->m[p] = zeros(param->numel, sizeof(float));
  b->v[p] = zeros(param->numel, sizeof(float));
  if (b->weight[p] == NULL || b->data[p] == NULL || b->grad[p] == NULL || b->m[p] == NULL || b->v[p] == NULL)
    return -1;
  if (dtype != ORDO_F32)
    kernels_narrow(b->kernels, dtype, (size_t)param->numel, b->weight[p], b->data[p]);
  b->n_weights += param->numel;
  b->stored_bytes += 2 * param->numel * (int64_t)width;
  return 0;
}

static int params_create(struct bench *b)
{
  uint32_t n = llama_n_params(b->model), state = 1;
  void **arrays = calloc((size_t)n * 2, sizeof *arrays);
  float **floats = calloc((size_t)n * 3, sizeof *floats);
  if (arrays == NULL || floats == NULL)
    return -1;
  b->data = arrays;
  b->grad = arrays + n;
  b->weight = floats;
  b->m = floats + n;
  b->v = floats + 2 * n;
  for (uint32_t p = 0; p < n; p++) {
    int alias = p > 0 && llama_param_at(b->model, p)->tie_group >= 0;
    if (alias) {
      b->data[p] = b->data[0];
      b->grad[p] = b->grad[0];
    } else if (param_create(b, p, &state) != 0) {
      return -1;
    }
    llama_bind_as(b->model, p, storage_of(b, p), b->data[p], storage_of(b, p), b->grad[p]);
  }
  return 0;
}

/* Returns 0, or -1 without memory. The process ends then, so nothing is undone. */
static int bench_create(struct bench *b, const struct llama_config *config)
{
  char reason[200];
  uint32_t state = 7;
  struct llama_hooks hooks = {.ctx = b, .grad_adds = overwrite, .op_dtype = op_dtype};
  b->kernels = kernels_default();
  b->model = llama_create(config, NULL, reason, sizeof reason);
  b->ids = calloc((size_t)(b->batch * b->seq), sizeof *b->ids);
  b->targets = calloc((size_t)(b->batch * b->seq), sizeof *b->targets);
  if (b->model == NULL || b->ids == NULL || b->targets == NULL || params_create(b) != 0)
    return -1;
  for (int64_t i = 0; i < b->batch * b->seq; i++) {
    state = state * 1664525u + 1013904223u;
    b->ids[i] = (int32_t)((state >> 8) % (uint32_t)config->vocab);
    b->targets[i] = (int32_t)((state >> 9) % (uint32_t)config->vocab);
  }
  llama_set_hooks(b->model, &hooks);
  return llama_reserve(b->model, b->batch, b->seq, LLAMA_KEEP_ALL, 0) == LLAMA_OK ? 0 : -1;
}

static void *at_element(void *array, ordo_dtype dtype, size_t index)
{
  return (char *)array + index * ordo_dtype_size(dtype);
}

static double grad_norm(const struct bench *b)
{
  enum { PIECE = 1024 };
  float wide[PIECE];
  double sum = 0.0;
  for (uint32_t p = 0; p + 1 < llama_n_params(b->model); p++) {
    size_t n = (size_t)llama_param_at(b->model, p)->numel;
    ordo_dtype dtype = storage_of(b, p);
    for (size_t at = 0; at < n; at += PIECE) {
      size_t part = n - at < PIECE ? n - at : PIECE;
      const float *x = dtype == ORDO_F32 ? (const float *)b->grad[p] + at : wide;
      float square = 0.0f;
      if (dtype != ORDO_F32)
        kernels_widen(b->kernels, dtype, part, at_element(b->grad[p], dtype, at), wide);
      b->kernels->row_dot(1, part, x, 0, x, 0, &square);
      sum += (double)square;
    }
  }
  return sqrt(sum);
}

/* AdamW on the fp32 weights; a 16-bit gradient is widened and the new weight rounded a piece at a time. */
static void update(const struct bench *b, uint32_t p, double factor)
{
  enum { PIECE = 4096 };
  const struct llama_param *param = llama_param_at(b->model, p);
  const struct adamw_options options = {1e-3, 0.9, 0.95, 1e-8, param->decay ? 0.1 : 0.0};
  ordo_dtype dtype = storage_of(b, p);
  size_t n = (size_t)param->numel;
  float wide[PIECE];
  if (dtype == ORDO_F32) {
    adamw_step(b->kernels, n, b->weight[p], b->grad[p], b->m[p], b->v[p], &options, b->step, factor);
    return;
  }
  for (size_t at = 0; at < n; at += PIECE) {
    size_t part = n - at < PIECE ? n - at : PIECE;
    kernels_widen(b->kernels, dtype, part, at_element(b->grad[p], dtype, at), wide);
    adamw_step(b->kernels, part, b->weight[p] + at, wide, b->m[p] + at, b->v[p] + at, &options, b->step, factor);
    kernels_narrow(b->kernels, dtype, part, b->weight[p] + at, at_element(b->data[p], dtype, at));
  }
}

/* Forward, backward, global norm, clipping and AdamW. Returns seconds, negative on an error. */
static double one_step(struct bench *b)
{
  double start = bench_now();
  struct llama_forward_args args = {.ids = b->ids, .targets = b->targets, .batch = b->batch, .seq = b->seq, .keep = 1};
  if (llama_forward(b->model, &args) != LLAMA_OK)
    return -1.0;
  double middle = bench_now();
  if (llama_backward(b->model, 1.0 / (double)args.count) != LLAMA_OK)
    return -1.0;
  double end = bench_now();
  double factor = fmin(1.0, 1.0 / (grad_norm(b) + 1e-6));
  b->step++;
  for (uint32_t p = 0; p + 1 < llama_n_params(b->model); p++)
    update(b, p, factor);
  b->forward_seconds = middle - start;
  b->backward_seconds = end - middle;
  b->update_seconds = bench_now() - end;
  return bench_now() - start;
}

/* Seconds of a step in conversions; in kernels that round as they go, with the rounding or without it. */
static double timed_step(struct bench *b, int rounds, double *rounded)
{
  const struct kernels *plain = b->kernels;
  b->kernels = bench_timed_kernels(plain, rounds ? kernels_rounded(plain, b->precision->matmul) : NULL);
  llama_set_kernels(b->model, b->kernels);
  (void)one_step(b);
  b->kernels = plain;
  llama_set_kernels(b->model, plain);
  return bench_conversion_seconds(rounded);
}

/* Seconds of a step's conversions: the passes that do nothing else, and what rounding adds to the kernels that do it as they go, which is
 * their time less that of the same kernels without it in the next step. */
static double conversions_of_a_step(struct bench *b)
{
  double with = 0.0, without = 0.0, passes = timed_step(b, 1, &with);
  (void)timed_step(b, 0, &without);
  return passes + with - without;
}

/* ---- reports ---- */

/* Other processes that want the cores make every time here longer, and the ratios less certain: said before any number is read. */
static void report_machine(double peak, double in_run)
{
  double load[3] = {0.0, 0.0, 0.0};
  long cores = sysconf(_SC_NPROCESSORS_ONLN);
  int known = getloadavg(load, 3) > 0;
  printf("machine         load average %.1f on %ld core%s; sgemm during the run at %.0f%% of its peak\n", load[0], cores,
         cores == 1 ? "" : "s", 100.0 * in_run / peak);
  if (!known || load[0] > 0.5 * (double)cores || in_run < 0.9 * peak)
    printf("note            the machine is not quiet: absolute times mean little, compare the ratios, and run again when it is idle\n");
}

static double peak_rss_mib(void)
{
  char line[256];
  double kib = 0.0;
  FILE *file = fopen("/proc/self/status", "r");
  while (file != NULL && fgets(line, sizeof line, file) != NULL)
    if (strncmp(line, "VmHWM:", 6) == 0)
      kib = atof(line + 6);
  if (file != NULL)
    fclose(file);
  return kib / 1024.0;
}

static int compare_doubles(const void *a, const void *b)
{
  double x = *(const double *)a;
  double y = *(const double *)b;
  return (x > y) - (x < y);
}

static double median(double *values, size_t n)
{
  qsort(values, n, sizeof *values, compare_doubles);
  return n % 2 == 1 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

static int serve(struct bench *b)
{
  char line[64];
  one_step(b);
  printf("ready %.1f\n", peak_rss_mib());
  fflush(stdout);
  while (fgets(line, sizeof line, stdin) != NULL) {
    printf("%.6f %.1f\n", one_step(b), peak_rss_mib());
    fflush(stdout);
  }
  return 0;
}

/* Medians of what was measured, one array a quantity. */
enum { STEP, PRODUCTS, SHARE, FORWARD, BACKWARD, UPDATE, RATE, FP32_STEP, RATIO, BF16_PRODUCTS, N_SERIES };

static void measure(struct bench *b, struct bench *fp32, size_t rounds, double *series[N_SERIES])
{
  for (size_t i = 0; i < rounds; i++) {
    series[FP32_STEP][i] = fp32 == NULL ? 0.0 : one_step(fp32);
    series[STEP][i] = one_step(b);
    series[RATIO][i] = series[STEP][i] / series[FP32_STEP][i];
    series[BF16_PRODUCTS][i] = bench_replay(1);
    series[PRODUCTS][i] = series[BF16_PRODUCTS][i] + bench_replay(0);
    series[SHARE][i] = series[PRODUCTS][i] / series[STEP][i];
    series[FORWARD][i] = b->forward_seconds;
    series[BACKWARD][i] = b->backward_seconds;
    series[UPDATE][i] = b->update_seconds;
    series[RATE][i] = blas_core_peak(0.1);
  }
}

/* Of bf16 on the reference model, where there are no matrix units for it; fp16 is storage, and may take what it takes. */
#define STEP_LIMIT 1.15
#define CONVERSIONS_LIMIT 0.05

/* 0 if a limit is missed. */
static int print_precision(struct bench *b, double *series[N_SERIES], size_t rounds, int is_reference)
{
  enum { TIMES = 5 };
  double step = median(series[STEP], rounds), bf16 = median(series[BF16_PRODUCTS], rounds), conversions[TIMES];
  for (int i = 0; i < TIMES; i++)
    conversions[i] = conversions_of_a_step(b);
  double seconds = median(conversions, TIMES), ratio = median(series[RATIO], rounds);
  int is_fp16 = b->precision->storage == ORDO_F16 || b->precision->matmul == ORDO_F16;
  int limited = is_reference && !is_fp16 && !(bench_recorded_flop(1) > 0.0);
  char step_limit[24] = "", conversions_limit[24] = "";
  if (limited) {
    snprintf(step_limit, sizeof step_limit, " (limit %.2f)", STEP_LIMIT);
    snprintf(conversions_limit, sizeof conversions_limit, " (limit %.0f%%)", 100.0 * CONVERSIONS_LIMIT);
  }
  printf("precision       %s: %.3f x the fp32 step%s of %.1f ms (median of %zu neighbouring pairs)\n", b->precision->name, ratio,
         step_limit, median(series[FP32_STEP], rounds) * 1e3, rounds);
  printf("conversions     %.1f ms, %.1f%% of the step%s\n", seconds * 1e3, 100.0 * seconds / step, conversions_limit);
  printf("model           weights and gradients %.1f MiB, work space %.1f MiB\n", (double)b->stored_bytes / 1048576.0,
         (double)llama_work_bytes(b->model) / 1048576.0);
  if (bench_recorded_flop(1) > 0.0)
    printf("bf16 products   %.1f ms alone, %.1f GF/s; the step takes %.2f x as long\n", bf16 * 1e3, bench_recorded_flop(1) / bf16 / 1e9,
           step / bf16);
  return !limited || (ratio <= STEP_LIMIT && seconds <= CONVERSIONS_LIMIT * step);
}

static int report(struct bench *b, struct bench *fp32, const struct blas_core_report *core, size_t rounds, int profile, int is_reference)
{
  const struct llama_config *config = llama_get_config(b->model);
  double *series[N_SERIES], *memory = calloc(rounds * N_SERIES, sizeof *memory);
  int overflow = 0, met = 1;
  if (memory == NULL || bench_record(0) != 0)
    return 1;
  for (int i = 0; i < N_SERIES; i++)
    series[i] = memory + (size_t)i * rounds;
  double peak = blas_core_peak(0.5);
  if ((fp32 != NULL && one_step(fp32) < 0.0) || one_step(b) < 0.0) {
    fprintf(stderr, "bench_step: %s\n", llama_error(b->model));
    return 1;
  }
  (void)bench_record(1);
  one_step(b);
  (void)bench_record(0);
  (void)bench_recorded(&overflow);
  if (overflow) {
    fprintf(stderr, "bench_step: more products than the recorder holds: use a smaller batch\n");
    return 1;
  }
  measure(b, fp32, rounds, series);
  for (size_t i = 0; i < rounds; i++)
    peak = fmax(peak, series[RATE][i]);
  double tokens = (double)(b->batch * b->seq), step = median(series[STEP], rounds), products = median(series[PRODUCTS], rounds);
  printf("core            %s (OPENBLAS_CORETYPE=%s), self-test %.2f of its bound, kernels %s, 1 thread\n", core->name, core->wanted,
         core->self_test, b->kernels->name);
  printf("model           %lld layers, hidden %lld, batch %lld x %lld, %.1f M parameters\n", (long long)config->layers,
         (long long)config->hidden, (long long)b->batch, (long long)b->seq, (double)b->n_weights / 1e6);
  report_machine(peak, median(series[RATE], rounds));
  printf("sgemm peak      %.1f GF/s in this run\n", peak / 1e9);
  printf("products alone  %.1f ms, %.1f GFLOP, %.1f GF/s\n", products * 1e3, bench_recorded_flop(-1) / 1e9,
         bench_recorded_flop(-1) / products / 1e9);
  printf("step            %.1f ms (forward %.1f, backward %.1f, norm and AdamW %.1f)\n", step * 1e3, median(series[FORWARD], rounds) * 1e3,
         median(series[BACKWARD], rounds) * 1e3, median(series[UPDATE], rounds) * 1e3);
  printf("products / step %.3f (median of %zu neighbouring pairs)\n", median(series[SHARE], rounds), rounds);
  printf("tokens/s        %.0f median, %.0f best\n", tokens / step, tokens / series[STEP][0]); /* median() has sorted */
  if (fp32 == NULL)
    printf("memory          peak RSS %.0f MiB; weights, gradients, AdamW %.0f MiB; activations %.1f MiB\n", peak_rss_mib(),
           (double)b->n_weights * 16.0 / 1048576.0, (double)llama_activation_bytes(config, b->batch, b->seq, 1, 0) / 1048576.0);
  else
    met = print_precision(b, series, rounds, is_reference);
  if (profile)
    bench_print_shapes();
  return met ? 0 : 1;
}

static const struct precision *precision_named(const char *name)
{
  for (int i = 0; i < N_PRECISIONS; i++)
    if (strcmp(precisions[i].name, name) == 0)
      return &precisions[i];
  return NULL;
}

int main(int argc, char **argv)
{
  struct llama_config config = {4096, 512, 1408, 8, 8, 8, 64, 1024, 1e-5, 10000.0, 1};
  struct bench bench = {.precision = &precisions[0], .batch = 4, .seq = 256}, fp32;
  struct blas_core_report core;
  char reason[256];
  size_t rounds = 9;
  int serving = 0;
  int profile = 0;
  int is_reference = 1;
  if (blas_core_start(argv, &core, reason, sizeof reason) != 0) {
    fprintf(stderr, "bench_step: %s\n", reason);
    return 1;
  }
  if (core.fallback) {
    fprintf(stderr, "bench_step: OpenBLAS runs its %s kernel on a processor with AVX2; unset OPENBLAS_CORETYPE\n", core.name);
    return 1;
  }
  for (int i = 1; i < argc; i++) {
    if (strcmp(argv[i], "--serve") == 0)
      serving = 1;
    else if (strcmp(argv[i], "--profile") == 0)
      profile = 1;
    else if (strcmp(argv[i], "--small") == 0)
      is_reference = 0, config = (struct llama_config){512, 64, 172, 5, 8, 4, 8, 512, 1e-5, 10000.0, 1};
    else if (i + 1 < argc && strcmp(argv[i], "--rounds") == 0)
      rounds = (size_t)atoi(argv[++i]);
    else if (i + 1 < argc && strcmp(argv[i], "--batch") == 0)
      bench.batch = atoi(argv[++i]);
    else if (i + 1 < argc && strcmp(argv[i], "--seq") == 0)
      bench.seq = atoi(argv[++i]);
    else if (i + 1 < argc && strcmp(argv[i], "--precision") == 0 && precision_named(argv[i + 1]) != NULL)
      bench.precision = precision_named(argv[++i]);
    else {
      fprintf(stderr, "usage: bench_step [--precision P] [--rounds N] [--batch B] [--seq T] [--small] [--profile] | --serve\n"
                      "P is fp32; bf16 or fp16 (stored and multiplied so); bf16-policy, fp16-policy (products only); bf16-storage, "
                      "fp16-storage\n");
      return 2;
    }
  }
  fp32 = bench;
  fp32.precision = &precisions[0];
  int compares = bench.precision != &precisions[0] && !serving;
  if (rounds < 1 || bench_create(&bench, &config) != 0 || (compares && bench_create(&fp32, &config) != 0)) {
    fprintf(stderr, "bench_step: no memory, or a shape that the model does not take\n");
    return 1;
  }
  return serving ? serve(&bench) : report(&bench, compares ? &fp32 : NULL, &core, rounds, profile, is_reference);
}
