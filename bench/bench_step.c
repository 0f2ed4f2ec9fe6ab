/* bench_step.c - one training step of the reference model against the matrix products it consists of.
 *
 * Every cblas_sgemm of a step is recorded (the linker wraps the symbol) and replayed alone: same shapes, same memory, same order. Steps and
 * replays alternate, because the machine's speed drifts; what counts is the median of the ratios of neighbours.
 *
 *   bench_step [--rounds N] [--batch B] [--seq T] [--small] [--profile]   prints the report
 *   bench_step --serve                                      one step per input line, answers with its seconds (for peer_torch.py)
 *
 * It refuses to report on a generic OpenBLAS kernel: the ratio would look good and mean nothing.
 */
#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <math.h>
#include <time.h>
#include <unistd.h>

#include "blas_core.h"
#include "kernels.h"
#include "kernels_memory.h"
#include "llama.h"
#include "optim.h"

/* ---- recorded products ---- */

struct gemm_call {
  CBLAS_TRANSPOSE trans_a, trans_b;
  int m, n, k;
  const float *a;
  int lda;
  const float *b;
  int ldb;
  float beta;
  float *c;
  int ldc;
};

struct recorder {
  struct gemm_call *calls;
  size_t n;
  size_t room;
  int on;
};

static struct recorder recorder; /* a program's, not a library's */

void __real_cblas_sgemm(CBLAS_ORDER order, CBLAS_TRANSPOSE trans_a, CBLAS_TRANSPOSE trans_b, int m, int n, int k, float alpha,
                        const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc);
void __wrap_cblas_sgemm(CBLAS_ORDER order, CBLAS_TRANSPOSE trans_a, CBLAS_TRANSPOSE trans_b, int m, int n, int k, float alpha,
                        const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc);

void __wrap_cblas_sgemm(CBLAS_ORDER order, CBLAS_TRANSPOSE trans_a, CBLAS_TRANSPOSE trans_b, int m, int n, int k, float alpha,
                        const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc)
{
  if (recorder.on && recorder.n < recorder.room)
    recorder.calls[recorder.n++] = (struct gemm_call){trans_a, trans_b, m, n, k, a, lda, b, ldb, beta, c, ldc};
  __real_cblas_sgemm(order, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

static void replay(void)
{
  for (size_t i = 0; i < recorder.n; i++) {
    const struct gemm_call *g = &recorder.calls[i];
    __real_cblas_sgemm(CblasRowMajor, g->trans_a, g->trans_b, g->m, g->n, g->k, 1.0f, g->a, g->lda, g->b, g->ldb, g->beta, g->c, g->ldc);
  }
}

static double recorded_flop(void)
{
  double flop = 0.0;
  for (size_t i = 0; i < recorder.n; i++)
    flop += 2.0 * recorder.calls[i].m * recorder.calls[i].n * recorder.calls[i].k;
  return flop;
}

/* ---- the model ---- */

struct bench {
  struct llama *model;
  const struct kernels *kernels;
  float **weight, **grad, **m, **v;
  int32_t *ids, *targets;
  int64_t batch, seq;
  int64_t step;
  int64_t n_weights;
  double forward_seconds, backward_seconds, update_seconds; /* of the last step */
};

static double now(void)
{
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int overwrite(void *ctx, uint32_t param)
{
  (void)ctx;
  (void)param;
  return 0;
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

static float *zeros(int64_t n)
{
  float *data = kernels_alloc(NULL, (size_t)n * sizeof *data, 0);
  return data == NULL ? NULL : memset(data, 0, (size_t)n * sizeof *data);
}

/* Returns 0, or -1 without memory. The process ends then, so nothing is undone. */
static int bench_create(struct bench *b, const struct llama_config *config)
{
  char reason[200];
  uint32_t state = 1;
  b->model = llama_create(config, NULL, reason, sizeof reason);
  if (b->model == NULL || llama_reserve(b->model, b->batch, b->seq, 1, 0) != LLAMA_OK)
    return -1;
  uint32_t n = llama_n_params(b->model);
  float **arrays = calloc((size_t)n * 4, sizeof *arrays);
  b->ids = calloc((size_t)(b->batch * b->seq), sizeof *b->ids);
  b->targets = calloc((size_t)(b->batch * b->seq), sizeof *b->targets);
  if (arrays == NULL || b->ids == NULL || b->targets == NULL)
    return -1;
  b->weight = arrays;
  b->grad = arrays + n;
  b->m = arrays + 2 * n;
  b->v = arrays + 3 * n;
  for (uint32_t p = 0; p < n; p++) {
    const struct llama_param *param = llama_param_at(b->model, p);
    int alias = p > 0 && param->tie_group >= 0;
    b->n_weights += alias ? 0 : param->numel;
    b->weight[p] = alias ? b->weight[0] : weights_new(param, &state);
    b->grad[p] = alias ? b->grad[0] : zeros(param->numel);
    b->m[p] = alias ? b->m[0] : zeros(param->numel);
    b->v[p] = alias ? b->v[0] : zeros(param->numel);
    if (b->weight[p] == NULL || b->grad[p] == NULL || b->m[p] == NULL || b->v[p] == NULL)
      return -1;
    llama_bind(b->model, p, b->weight[p], b->grad[p]);
  }
  for (int64_t i = 0; i < b->batch * b->seq; i++) {
    state = state * 1664525u + 1013904223u;
    b->ids[i] = (int32_t)((state >> 8) % (uint32_t)config->vocab);
    b->targets[i] = (int32_t)((state >> 9) % (uint32_t)config->vocab);
  }
  struct llama_hooks hooks = {.grad_adds = overwrite};
  llama_set_hooks(b->model, &hooks);
  b->kernels = kernels_default();
  return 0;
}

static double grad_norm(const struct bench *b)
{
  const size_t piece = 1024;
  double sum = 0.0;
  for (uint32_t p = 0; p + 1 < llama_n_params(b->model); p++) {
    size_t n = (size_t)llama_param_at(b->model, p)->numel;
    for (size_t at = 0; at < n; at += piece) {
      float part = 0.0f;
      b->kernels->row_dot(1, n - at < piece ? n - at : piece, b->grad[p] + at, 0, b->grad[p] + at, 0, &part);
      sum += (double)part;
    }
  }
  return sqrt(sum);
}

/* Forward, backward, global norm, clipping and AdamW. Returns seconds, negative on an error. */
static double one_step(struct bench *b)
{
  double start = now();
  struct llama_forward_args args = {.ids = b->ids, .targets = b->targets, .batch = b->batch, .seq = b->seq, .keep = 1};
  if (llama_forward(b->model, &args) != LLAMA_OK)
    return -1.0;
  double middle = now();
  if (llama_backward(b->model, 1.0 / (double)args.count) != LLAMA_OK)
    return -1.0;
  double end = now();
  double factor = fmin(1.0, 1.0 / (grad_norm(b) + 1e-6));
  b->step++;
  for (uint32_t p = 0; p + 1 < llama_n_params(b->model); p++) {
    const struct llama_param *param = llama_param_at(b->model, p);
    struct adamw_options options = {1e-3, 0.9, 0.95, 1e-8, param->decay ? 0.1 : 0.0};
    adamw_step(b->kernels, (size_t)param->numel, b->weight[p], b->grad[p], b->m[p], b->v[p], &options, b->step, factor);
  }
  b->forward_seconds = middle - start;
  b->backward_seconds = end - middle;
  b->update_seconds = now() - end;
  return now() - start;
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

/* Seconds of each shape in a replay, to see which products are slow. */
static void print_profile(void)
{
  for (size_t i = 0; i < recorder.n; i++) {
    const struct gemm_call *g = &recorder.calls[i];
    int seen = 0;
    for (size_t j = 0; j < i && !seen; j++)
      seen = recorder.calls[j].m == g->m && recorder.calls[j].n == g->n && recorder.calls[j].k == g->k &&
             recorder.calls[j].trans_a == g->trans_a && recorder.calls[j].trans_b == g->trans_b;
    if (seen)
      continue;
    double seconds = 0.0;
    int count = 0;
    for (size_t j = i; j < recorder.n; j++) {
      const struct gemm_call *h = &recorder.calls[j];
      if (h->m != g->m || h->n != g->n || h->k != g->k || h->trans_a != g->trans_a || h->trans_b != g->trans_b)
        continue;
      double start = now();
      __real_cblas_sgemm(CblasRowMajor, h->trans_a, h->trans_b, h->m, h->n, h->k, 1.0f, h->a, h->lda, h->b, h->ldb, h->beta, h->c, h->ldc);
      seconds += now() - start;
      count++;
    }
    printf("  %c%c %5d %5d %5d  x%4d  %8.2f ms  %6.1f GF/s\n", g->trans_a == CblasTrans ? 'T' : 'N', g->trans_b == CblasTrans ? 'T' : 'N',
           g->m, g->n, g->k, count, seconds * 1e3, 2.0 * g->m * g->n * g->k * count / seconds / 1e9);
  }
}

static int report(struct bench *b, const struct blas_core_report *core, size_t rounds, int profile)
{
  double *ratio = calloc(rounds * 7, sizeof *ratio);
  double *step = ratio + rounds, *gemm = step + rounds, *forward = gemm + rounds, *backward = forward + rounds, *update = backward + rounds,
         *rate = update + rounds;
  const struct llama_config *config = llama_get_config(b->model);
  recorder.room = 1 << 17;
  recorder.calls = calloc(recorder.room, sizeof *recorder.calls);
  if (ratio == NULL || recorder.calls == NULL)
    return 1;
  double peak = blas_core_peak(0.5);
  one_step(b);
  recorder.on = 1;
  one_step(b);
  recorder.on = 0;
  if (recorder.n == recorder.room) {
    fprintf(stderr, "bench_step: more products than the recorder holds: use a smaller batch\n");
    return 1;
  }
  for (size_t i = 0; i < rounds; i++) {
    step[i] = one_step(b);
    double start = now();
    replay();
    gemm[i] = now() - start;
    ratio[i] = gemm[i] / step[i];
    forward[i] = b->forward_seconds;
    backward[i] = b->backward_seconds;
    update[i] = b->update_seconds;
    rate[i] = blas_core_peak(0.1);
    peak = fmax(peak, rate[i]);
  }
  double tokens = (double)(b->batch * b->seq);
  double step_median = median(step, rounds);
  double gemm_median = median(gemm, rounds);
  printf("core            %s (OPENBLAS_CORETYPE=%s), self-test %.2f of its bound, kernels %s, 1 thread\n", core->name, core->wanted,
         core->self_test, b->kernels->name);
  printf("model           %lld layers, hidden %lld, batch %lld x %lld, %.1f M parameters\n", (long long)config->layers,
         (long long)config->hidden, (long long)b->batch, (long long)b->seq, (double)b->n_weights / 1e6);
  report_machine(peak, median(rate, rounds));
  printf("sgemm peak      %.1f GF/s in this run\n", peak / 1e9);
  printf("products alone  %.1f ms, %.1f GFLOP, %.1f GF/s\n", gemm_median * 1e3, recorded_flop() / 1e9, recorded_flop() / gemm_median / 1e9);
  printf("step            %.1f ms (forward %.1f, backward %.1f, norm and AdamW %.1f)\n", step_median * 1e3, median(forward, rounds) * 1e3,
         median(backward, rounds) * 1e3, median(update, rounds) * 1e3);
  printf("products / step %.3f (median of %zu neighbouring pairs)\n", median(ratio, rounds), rounds);
  printf("tokens/s        %.0f median, %.0f best\n", tokens / step_median, tokens / step[0]); /* median() has sorted */
  printf("memory          peak RSS %.0f MiB; weights, gradients, AdamW %.0f MiB; activations %.1f MiB\n", peak_rss_mib(),
         (double)b->n_weights * 16.0 / 1048576.0, (double)llama_activation_bytes(config, b->batch, b->seq, 1, 0) / 1048576.0);
  if (profile)
    print_profile();
  return 0;
}

int main(int argc, char **argv)
{
  struct llama_config config = {4096, 512, 1408, 8, 8, 8, 64, 1024, 1e-5, 10000.0, 1};
  struct bench bench = {.batch = 4, .seq = 256};
  struct blas_core_report core;
  char reason[256];
  size_t rounds = 9;
  int serving = 0;
  int profile = 0;
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
      config = (struct llama_config){512, 64, 172, 5, 8, 4, 8, 512, 1e-5, 10000.0, 1};
    else if (i + 1 < argc && strcmp(argv[i], "--rounds") == 0)
      rounds = (size_t)atoi(argv[++i]);
    else if (i + 1 < argc && strcmp(argv[i], "--batch") == 0)
      bench.batch = atoi(argv[++i]);
    else if (i + 1 < argc && strcmp(argv[i], "--seq") == 0)
      bench.seq = atoi(argv[++i]);
    else {
      fprintf(stderr, "usage: bench_step [--rounds N] [--batch B] [--seq T] [--small] [--profile] | --serve\n");
      return 2;
    }
  }
  if (rounds < 1 || bench_create(&bench, &config) != 0) {
    fprintf(stderr, "bench_step: no memory, or a shape that the model does not take\n");
    return 1;
  }
  return serving ? serve(&bench) : report(&bench, &core, rounds, profile);
}
