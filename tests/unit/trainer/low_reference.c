/* low_reference.c - see low_reference.h. */
#include "low_reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <ordo/half.h>

enum { Q, K, V, O, GATE, UP, DOWN, INPUT_NORM, POST_NORM, BLOCK_PARAMS };

/* What a layer's backward reads. */
struct layer {
  double *x, *q, *k, *v, *attn, *mid, *gate, *up;
};

struct run {
  struct low_reference *ref;
  const struct llama_config *c;
  int64_t n, d, qs, ks; /* tokens, hidden, sizes of q and of k */
  struct layer *layers;
  double *out, *head_in, *logits, *dx;
};

double low_round(ordo_dtype dtype, double x)
{
  float f = (float)x;
  return dtype == ORDO_BF16  ? (double)ordo_f32_from_bf16(ordo_bf16_from_f32(f))
         : dtype == ORDO_F16 ? (double)ordo_f32_from_f16(ordo_f16_from_f32(f))
                             : x;
}

static double *zeros(int64_t n)
{
  return calloc((size_t)n, sizeof(double));
}

static double *copy(int64_t n, const double *x)
{
  return memcpy(zeros(n), x, (size_t)n * sizeof *x);
}

static void round_all(ordo_dtype dtype, int64_t n, double *x)
{
  for (int64_t i = 0; i < n; i++)
    x[i] = low_round(dtype, x[i]);
}

static ordo_dtype matmul(const struct run *r)
{
  return r->ref->policy.matmul;
}

static double weight(const struct run *r, uint32_t param, int64_t i)
{
  return low_round(matmul(r), (double)r->ref->weight[param][i]);
}

/* y [n, out] = x [n, in] W^T, rounded. */
static void product(const struct run *r, uint32_t param, int64_t in, int64_t out, const double *x, double *y)
{
  for (int64_t t = 0; t < r->n; t++)
    for (int64_t o = 0; o < out; o++) {
      double sum = 0.0;
      for (int64_t i = 0; i < in; i++)
        sum += x[t * in + i] * weight(r, param, o * in + i);
      y[t * out + o] = low_round(matmul(r), sum);
    }
}

/* dW += dy^T x;  dx += dy W, not rounded. */
static void product_backward(struct run *r, uint32_t param, int64_t in, int64_t out, const double *dy, const double *x, double *dx)
{
  for (int64_t t = 0; t < r->n; t++)
    for (int64_t o = 0; o < out; o++)
      for (int64_t i = 0; i < in; i++) {
        r->ref->grad[param][o * in + i] += dy[t * out + o] * x[t * in + i];
        dx[t * in + i] += dy[t * out + o] * weight(r, param, o * in + i);
      }
}

static double inverse_rms(const struct run *r, const double *row)
{
  double squares = 0.0;
  for (int64_t i = 0; i < r->d; i++)
    squares += row[i] * row[i];
  return 1.0 / sqrt(squares / (double)r->d + r->c->rms_eps);
}

/* The norm's output as an operand. */
static double *norm(const struct run *r, uint32_t param, const double *x)
{
  double *y = zeros(r->n * r->d);
  for (int64_t t = 0; t < r->n; t++) {
    double inv = inverse_rms(r, x + t * r->d);
    for (int64_t i = 0; i < r->d; i++)
      y[t * r->d + i] = x[t * r->d + i] * inv * (double)r->ref->weight[param][i];
  }
  round_all(r->ref->policy.norm, r->n * r->d, y);
  round_all(matmul(r), r->n * r->d, y);
  return y;
}

static void norm_backward(struct run *r, uint32_t param, const double *x, const double *dy)
{
  for (int64_t t = 0; t < r->n; t++) {
    const double *xr = x + t * r->d, *gr = dy + t * r->d;
    double inv = inverse_rms(r, xr), dot = 0.0;
    for (int64_t i = 0; i < r->d; i++)
      dot += gr[i] * (double)r->ref->weight[param][i] * xr[i];
    for (int64_t i = 0; i < r->d; i++) {
      r->dx[t * r->d + i] += inv * (gr[i] * (double)r->ref->weight[param][i] - xr[i] * inv * inv * dot / (double)r->d);
      r->ref->grad[param][i] += gr[i] * xr[i] * inv;
    }
  }
}

static void rotate(const struct run *r, int64_t heads, double sign, double *x)
{
  int64_t half = r->c->head_dim / 2;
  for (int64_t t = 0; t < r->n; t++)
    for (int64_t h = 0; h < heads; h++)
      for (int64_t i = 0; i < half; i++) {
        double *a = x + (t * heads + h) * 2 * half + i, *b = a + half, first = *a, second = *b;
        /* The angle is rounded to fp32, as in the models. */
        float angle = (float)(t % r->ref->seq) * (float)pow(r->c->rope_theta, -2.0 * (double)i / (double)r->c->head_dim);
        double c = (double)(float)cos((double)angle), s = sign * (double)(float)sin((double)angle);
        *a = first * c - second * s;
        *b = second * c + first * s;
      }
}

/* Row `t` of head `h`: probabilities of tokens first .. t of its sequence, before they are rounded. */
static void probabilities(const struct run *r, const struct layer *l, int64_t t, int64_t h, double *p)
{
  int64_t hd = r->c->head_dim, kv = h / (r->c->heads / r->c->kv_heads), first = t / r->ref->seq * r->ref->seq;
  double most = -INFINITY, sum = 0.0;
  for (int64_t s = first; s <= t; s++) {
    double dot = 0.0;
    for (int64_t i = 0; i < hd; i++)
      dot += l->q[t * r->qs + h * hd + i] * l->k[s * r->ks + kv * hd + i];
    p[s - first] = low_round(matmul(r), dot) / sqrt((double)hd);
    most = fmax(most, p[s - first]);
  }
  for (int64_t s = first; s <= t; s++)
    sum += p[s - first] = exp(p[s - first] - most);
  for (int64_t s = first; s <= t; s++)
    p[s - first] /= sum;
}

static double as_operand(const struct run *r, double p)
{
  return low_round(matmul(r), low_round(r->ref->policy.softmax, p));
}

static void attend(const struct run *r, struct layer *l)
{
  int64_t hd = r->c->head_dim, group = r->c->heads / r->c->kv_heads;
  double *p = zeros(r->ref->seq);
  for (int64_t t = 0; t < r->n; t++)
    for (int64_t h = 0; h < r->c->heads; h++) {
      int64_t first = t / r->ref->seq * r->ref->seq;
      probabilities(r, l, t, h, p);
      for (int64_t i = 0; i < hd; i++) {
        double sum = 0.0;
        for (int64_t s = first; s <= t; s++)
          sum += as_operand(r, p[s - first]) * l->v[s * r->ks + h / group * hd + i];
        l->attn[t * r->qs + h * hd + i] = low_round(matmul(r), sum);
      }
    }
  free(p);
}

static void attend_backward(const struct run *r, const struct layer *l, const double *dattn, double *dq, double *dk, double *dv)
{
  int64_t hd = r->c->head_dim, group = r->c->heads / r->c->kv_heads;
  double *p = zeros(r->ref->seq);
  for (int64_t t = 0; t < r->n; t++)
    for (int64_t h = 0; h < r->c->heads; h++) {
      int64_t first = t / r->ref->seq * r->ref->seq, at = t * r->qs + h * hd;
      double delta = 0.0;
      probabilities(r, l, t, h, p);
      for (int64_t i = 0; i < hd; i++)
        delta += dattn[at + i] * l->attn[at + i];
      for (int64_t s = first; s <= t; s++) {
        int64_t kv = s * r->ks + h / group * hd;
        double dp = 0.0;
        for (int64_t i = 0; i < hd; i++)
          dp += dattn[at + i] * l->v[kv + i];
        double ds = low_round(matmul(r), p[s - first] * (low_round(matmul(r), dp) - delta) / sqrt((double)hd));
        for (int64_t i = 0; i < hd; i++) {
          dq[at + i] += ds * l->k[kv + i];
          dk[kv + i] += ds * l->q[at + i];
          dv[kv + i] += as_operand(r, p[s - first]) * dattn[at + i];
        }
      }
    }
  free(p);
}

static double *activation(const struct run *r, const struct layer *l)
{
  double *act = zeros(r->n * r->c->intermediate);
  for (int64_t i = 0; i < r->n * r->c->intermediate; i++)
    act[i] = l->gate[i] / (1.0 + exp(-l->gate[i])) * l->up[i];
  round_all(r->ref->policy.elementwise, r->n * r->c->intermediate, act);
  round_all(matmul(r), r->n * r->c->intermediate, act);
  return act;
}

static double *residual(const struct run *r, const double *x, const double *branch)
{
  double *sum = copy(r->n * r->d, x);
  for (int64_t i = 0; i < r->n * r->d; i++)
    sum[i] += branch[i];
  round_all(r->ref->policy.elementwise, r->n * r->d, sum);
  return sum;
}

static double *block(struct run *r, uint32_t first, struct layer *l)
{
  int64_t f = r->c->intermediate;
  double *y = norm(r, first + INPUT_NORM, l->x), *branch = zeros(r->n * r->d);
  l->q = zeros(r->n * r->qs);
  l->k = zeros(r->n * r->ks);
  l->v = zeros(r->n * r->ks);
  l->attn = zeros(r->n * r->qs);
  l->gate = zeros(r->n * f);
  l->up = zeros(r->n * f);
  product(r, first + Q, r->d, r->qs, y, l->q);
  product(r, first + K, r->d, r->ks, y, l->k);
  product(r, first + V, r->d, r->ks, y, l->v);
  free(y);
  rotate(r, r->c->heads, 1.0, l->q);
  rotate(r, r->c->kv_heads, 1.0, l->k);
  round_all(r->ref->policy.rope, r->n * r->qs, l->q);
  round_all(r->ref->policy.rope, r->n * r->ks, l->k);
  round_all(matmul(r), r->n * r->qs, l->q);
  round_all(matmul(r), r->n * r->ks, l->k);
  attend(r, l);
  product(r, first + O, r->qs, r->d, l->attn, branch);
  l->mid = residual(r, l->x, branch);
  y = norm(r, first + POST_NORM, l->mid);
  product(r, first + GATE, r->d, f, y, l->gate);
  product(r, first + UP, r->d, f, y, l->up);
  double *act = activation(r, l);
  product(r, first + DOWN, f, r->d, act, branch);
  double *out = residual(r, l->mid, branch);
  free(act);
  free(y);
  free(branch);
  return out;
}

/* The residual stream's gradient as an operand. */
static double *branch_gradient(const struct run *r)
{
  double *dout = copy(r->n * r->d, r->dx);
  round_all(matmul(r), r->n * r->d, dout);
  return dout;
}

static void mlp_backward(struct run *r, uint32_t first, const struct layer *l)
{
  int64_t f = r->c->intermediate;
  double *dout = branch_gradient(r), *act = activation(r, l), *y = norm(r, first + POST_NORM, l->mid);
  double *dact = zeros(r->n * f), *dgate = zeros(r->n * f), *dup = zeros(r->n * f), *dy = zeros(r->n * r->d);
  product_backward(r, first + DOWN, f, r->d, dout, act, dact);
  round_all(matmul(r), r->n * f, dact);
  for (int64_t i = 0; i < r->n * f; i++) {
    double z = l->gate[i], s = 1.0 / (1.0 + exp(-z));
    dup[i] = low_round(matmul(r), dact[i] * z * s);
    dgate[i] = low_round(matmul(r), dact[i] * l->up[i] * s * (1.0 + z * (1.0 - s)));
  }
  product_backward(r, first + UP, r->d, f, dup, y, dy);
  product_backward(r, first + GATE, r->d, f, dgate, y, dy);
  round_all(matmul(r), r->n * r->d, dy);
  norm_backward(r, first + POST_NORM, l->mid, dy);
  double *all[] = {dout, act, y, dact, dgate, dup, dy};
  for (int i = 0; i < 7; i++)
    free(all[i]);
}

static void rounded_back(const struct run *r, int64_t heads, int64_t n, double *x)
{
  round_all(matmul(r), n, x);
  rotate(r, heads, -1.0, x);
  round_all(matmul(r), n, x);
}

static void attention_backward_branch(struct run *r, uint32_t first, const struct layer *l)
{
  double *dout = branch_gradient(r), *y = norm(r, first + INPUT_NORM, l->x), *dattn = zeros(r->n * r->qs), *dy = zeros(r->n * r->d);
  double *dq = zeros(r->n * r->qs), *dk = zeros(r->n * r->ks), *dv = zeros(r->n * r->ks);
  product_backward(r, first + O, r->qs, r->d, dout, l->attn, dattn);
  round_all(matmul(r), r->n * r->qs, dattn);
  attend_backward(r, l, dattn, dq, dk, dv);
  rounded_back(r, r->c->heads, r->n * r->qs, dq);
  rounded_back(r, r->c->kv_heads, r->n * r->ks, dk);
  round_all(matmul(r), r->n * r->ks, dv);
  product_backward(r, first + Q, r->d, r->qs, dq, y, dy);
  product_backward(r, first + K, r->d, r->ks, dk, y, dy);
  product_backward(r, first + V, r->d, r->ks, dv, y, dy);
  round_all(matmul(r), r->n * r->d, dy);
  norm_backward(r, first + INPUT_NORM, l->x, dy);
  double *all[] = {dout, y, dattn, dy, dq, dk, dv};
  for (int i = 0; i < 7; i++)
    free(all[i]);
}

/* Logits become their gradient, as an operand. */
static void loss(struct run *r, double factor)
{
  int64_t v = r->c->vocab;
  for (int64_t t = 0; t < r->n; t++) {
    double *row = r->logits + t * v, most = -INFINITY, sum = 0.0;
    int32_t target = r->ref->targets[t];
    for (int64_t i = 0; i < v; i++)
      most = fmax(most, row[i]);
    for (int64_t i = 0; i < v; i++)
      sum += exp(row[i] - most);
    r->ref->loss_sum += target < 0 ? 0.0 : log(sum) + most - row[target];
    for (int64_t i = 0; i < v; i++)
      row[i] = target < 0 ? 0.0 : low_round(matmul(r), factor * (exp(row[i] - most) / sum - (i == target ? 1.0 : 0.0)));
  }
}

static uint32_t block_first(int64_t layer)
{
  return 1 + (uint32_t)layer * BLOCK_PARAMS;
}

static void head(struct run *r, double factor)
{
  uint32_t norm_param = block_first(r->c->layers), param = norm_param + 1;
  double *y = norm(r, norm_param, r->out), *dy = zeros(r->n * r->d);
  r->logits = zeros(r->n * r->c->vocab);
  product(r, param, r->d, r->c->vocab, y, r->logits);
  loss(r, factor);
  product_backward(r, param, r->d, r->c->vocab, r->logits, y, dy);
  round_all(matmul(r), r->n * r->d, dy);
  norm_backward(r, norm_param, r->out, dy);
  free(y);
  free(dy);
  free(r->logits);
}

static void free_layer(struct layer *l)
{
  double *all[] = {l->x, l->q, l->k, l->v, l->attn, l->mid, l->gate, l->up};
  for (int i = 0; i < 8; i++)
    free(all[i]);
}

void low_reference_run(struct low_reference *reference, double factor)
{
  const struct llama_config *c = reference->config;
  struct run r = {.ref = reference,
                  .c = c,
                  .n = reference->batch * reference->seq,
                  .d = c->hidden,
                  .qs = c->heads * c->head_dim,
                  .ks = c->kv_heads * c->head_dim};
  reference->loss_sum = 0.0;
  r.layers = calloc((size_t)c->layers, sizeof *r.layers);
  r.dx = zeros(r.n * r.d);
  double *x = zeros(r.n * r.d);
  for (int64_t i = 0; i < r.n * r.d; i++)
    x[i] = low_round(reference->policy.embedding, (double)reference->weight[0][(int64_t)reference->ids[i / r.d] * r.d + i % r.d]);
  for (int64_t layer = 0; layer < c->layers; layer++) {
    r.layers[layer].x = x;
    x = block(&r, block_first(layer), &r.layers[layer]);
  }
  r.out = x;
  head(&r, factor);
  free(r.out);
  for (int64_t layer = c->layers - 1; layer >= 0; layer--) {
    mlp_backward(&r, block_first(layer), &r.layers[layer]);
    attention_backward_branch(&r, block_first(layer), &r.layers[layer]);
    free_layer(&r.layers[layer]);
  }
  for (int64_t i = 0; i < r.n * r.d; i++)
    reference->grad[0][(int64_t)reference->ids[i / r.d] * r.d + i % r.d] += r.dx[i];
  free(r.layers);
  free(r.dx);
}
