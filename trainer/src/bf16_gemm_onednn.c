/* bf16_gemm_onednn.c - bf16_gemm.h on the C interface of oneDNN 2.x.
 *
 * A product of given sizes is made once and kept: making one compiles machine code. Its weight operand is repacked into the layout that it
 * asks for, right before it is used: forward and the input's gradient want different ones, and each is used once in a pass, so a
 * packed copy of the model would cost its size again and save nothing within a micro-batch.
 *
 * oneDNN divides its work among the threads of OpenMP. A rank has one thread, so the number is one while the library runs and what it
 * was afterwards; another thread pool beside the one of the caller makes both slower.
 */
#include "bf16_gemm.h"

#include <dnnl.h>
#include <stdlib.h>
#include <string.h>

/* libgomp; its header belongs to one compiler, the library to all. */
extern int omp_get_max_threads(void);
extern void omp_set_num_threads(int n);

enum kind { NT, NN, TN };
enum { MOST_PRODUCTS = 256, PACK_ALIGN = 64 };

struct key {
  enum kind kind;
  int adds;
  int64_t m, n, k, lda, ldb, ldc;
};

struct product {
  struct key key;
  dnnl_primitive_t matmul;
  dnnl_primitive_t pack; /* null: b is used as it is */
  size_t packed_bytes;
  dnnl_memory_t a, b, packed, c;
};

struct bf16_gemm {
  dnnl_engine_t engine;
  dnnl_stream_t stream;
  struct product *products[MOST_PRODUCTS];
  int n_products;
  void *packed;
  size_t packed_bytes;
};

static int is_wanted(void)
{
  const int wish = bf16_gemm_wish(getenv(BF16_GEMM_VARIABLE));
  if (wish == BF16_GEMM_OFF || wish == BF16_GEMM_ON)
    return wish == BF16_GEMM_ON;
  const unsigned amx = dnnl_cpu_isa_avx512_core_amx; /* a set of bits; the library asks the kernel for the tiles */
  return ((unsigned)dnnl_get_effective_cpu_isa() & amx) == amx;
}

struct bf16_gemm *bf16_gemm_create(void)
{
  struct bf16_gemm *gemm = is_wanted() ? calloc(1, sizeof *gemm) : NULL;
  if (gemm == NULL)
    return NULL;
  if (dnnl_engine_create(&gemm->engine, dnnl_cpu, 0) == dnnl_success &&
      dnnl_stream_create(&gemm->stream, gemm->engine, dnnl_stream_default_flags) == dnnl_success)
    return gemm;
  bf16_gemm_destroy(gemm);
  return NULL;
}

static void product_free(struct product *p)
{
  dnnl_memory_t memories[] = {p->a, p->b, p->packed, p->c};
  for (size_t i = 0; i < sizeof memories / sizeof memories[0]; i++)
    if (memories[i] != NULL)
      dnnl_memory_destroy(memories[i]);
  if (p->matmul != NULL)
    dnnl_primitive_destroy(p->matmul);
  if (p->pack != NULL)
    dnnl_primitive_destroy(p->pack);
  free(p);
}

void bf16_gemm_destroy(struct bf16_gemm *gemm)
{
  if (gemm == NULL)
    return;
  for (int i = 0; i < gemm->n_products; i++)
    product_free(gemm->products[i]);
  if (gemm->stream != NULL)
    dnnl_stream_destroy(gemm->stream);
  if (gemm->engine != NULL)
    dnnl_engine_destroy(gemm->engine);
  free(gemm->packed);
  free(gemm);
}

/* ---- making a product ---- */

/* A matrix [rows, columns] whose storage is row-major with stride `ld`, or its transpose. */
static dnnl_memory_desc_t matrix(int64_t rows, int64_t columns, int64_t ld, int transposed, dnnl_data_type_t type)
{
  dnnl_memory_desc_t desc;
  const dnnl_dims_t dims = {rows, columns}, plain = {ld, 1}, turned = {1, ld};
  memset(&desc, 0, sizeof desc);
  if (dnnl_memory_desc_init_by_strides(&desc, 2, dims, type, transposed ? turned : plain) != dnnl_success)
    desc.ndims = 0;
  return desc;
}

static dnnl_primitive_desc_t describe(struct bf16_gemm *gemm, const struct key *key, const dnnl_memory_desc_t *a,
                                      const dnnl_memory_desc_t *b, const dnnl_memory_desc_t *c)
{
  dnnl_matmul_desc_t desc;
  dnnl_primitive_attr_t attributes = NULL;
  dnnl_post_ops_t sum = NULL;
  dnnl_primitive_desc_t result = NULL;
  if (dnnl_primitive_attr_create(&attributes) != dnnl_success || dnnl_post_ops_create(&sum) != dnnl_success)
    goto out;
  if (key->adds &&
      (dnnl_post_ops_append_sum(sum, 1.0f) != dnnl_success || dnnl_primitive_attr_set_post_ops(attributes, sum) != dnnl_success))
    goto out;
  if (dnnl_matmul_desc_init(&desc, a, b, NULL, c) != dnnl_success ||
      dnnl_primitive_desc_create(&result, &desc, attributes, gemm->engine, NULL) != dnnl_success)
    result = NULL;
out:
  if (sum != NULL)
    dnnl_post_ops_destroy(sum);
  if (attributes != NULL)
    dnnl_primitive_attr_destroy(attributes);
  return result;
}

/* The reorder of b, if the product wants b in another layout. 0 or -1. */
static int make_pack(struct bf16_gemm *gemm, struct product *p, const dnnl_memory_desc_t *plain, const dnnl_memory_desc_t *wanted)
{
  dnnl_primitive_desc_t reorder = NULL;
  if (dnnl_memory_desc_equal(plain, wanted))
    return 0;
  if (dnnl_reorder_primitive_desc_create(&reorder, plain, gemm->engine, wanted, gemm->engine, NULL) != dnnl_success)
    return -1;
  dnnl_status_t status = dnnl_primitive_create(&p->pack, reorder);
  dnnl_primitive_desc_destroy(reorder);
  if (status != dnnl_success)
    return -1;
  p->packed_bytes = dnnl_memory_desc_get_size(wanted);
  return dnnl_memory_create(&p->packed, wanted, gemm->engine, DNNL_MEMORY_NONE) == dnnl_success ? 0 : -1;
}

static int make(struct bf16_gemm *gemm, struct product *p)
{
  const struct key *key = &p->key;
  dnnl_memory_desc_t a = matrix(key->m, key->k, key->lda, key->kind == TN, dnnl_bf16);
  dnnl_memory_desc_t b = matrix(key->k, key->n, key->ldb, key->kind == NT, dnnl_bf16);
  dnnl_memory_desc_t c = matrix(key->m, key->n, key->ldc, 0, dnnl_f32);
  dnnl_memory_desc_t any = b;
  const dnnl_dims_t dims = {key->k, key->n};
  if (a.ndims == 0 || b.ndims == 0 || c.ndims == 0)
    return -1;
  if (key->kind != TN && dnnl_memory_desc_init_by_tag(&any, 2, dims, dnnl_bf16, dnnl_format_tag_any) != dnnl_success)
    return -1;
  dnnl_primitive_desc_t desc = describe(gemm, key, &a, &any, &c);
  if (desc == NULL)
    return -1;
  int status = dnnl_primitive_create(&p->matmul, desc) == dnnl_success ? 0 : -1;
  if (status == 0)
    status = make_pack(gemm, p, &b, dnnl_primitive_desc_query_md(desc, dnnl_query_weights_md, 0));
  dnnl_primitive_desc_destroy(desc);
  if (status == 0 && (dnnl_memory_create(&p->a, &a, gemm->engine, DNNL_MEMORY_NONE) != dnnl_success ||
                      dnnl_memory_create(&p->b, &b, gemm->engine, DNNL_MEMORY_NONE) != dnnl_success ||
                      dnnl_memory_create(&p->c, &c, gemm->engine, DNNL_MEMORY_NONE) != dnnl_success))
    status = -1;
  return status;
}

static int same_key(const struct key *a, const struct key *b)
{
  return a->kind == b->kind && a->adds == b->adds && a->m == b->m && a->n == b->n && a->k == b->k && a->lda == b->lda && a->ldb == b->ldb &&
         a->ldc == b->ldc;
}

static struct product *product_of(struct bf16_gemm *gemm, const struct key *key)
{
  for (int i = 0; i < gemm->n_products; i++)
    if (same_key(&gemm->products[i]->key, key))
      return gemm->products[i];
  struct product *p = calloc(1, sizeof *p);
  if (p == NULL)
    return NULL;
  p->key = *key;
  if (make(gemm, p) != 0) {
    product_free(p);
    return NULL;
  }
  if (gemm->n_products == MOST_PRODUCTS) /* sizes that change all the time: the last one made gives way */
    product_free(gemm->products[--gemm->n_products]);
  gemm->products[gemm->n_products++] = p;
  return p;
}

/* ---- running it ---- */

static int pack(struct bf16_gemm *gemm, struct product *p)
{
  if (p->pack == NULL)
    return 0;
  if (p->packed_bytes > gemm->packed_bytes) {
    size_t bytes = (p->packed_bytes + PACK_ALIGN - 1) / PACK_ALIGN * PACK_ALIGN;
    free(gemm->packed);
    gemm->packed = aligned_alloc(PACK_ALIGN, bytes);
    gemm->packed_bytes = gemm->packed == NULL ? 0 : bytes;
  }
  const dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, p->b}, {DNNL_ARG_TO, p->packed}};
  return gemm->packed != NULL && dnnl_memory_set_data_handle(p->packed, gemm->packed) == dnnl_success &&
                 dnnl_primitive_execute(p->pack, gemm->stream, 2, args) == dnnl_success
             ? 0
             : -1;
}

static int execute(struct bf16_gemm *gemm, const struct key *key, const uint16_t *a, const uint16_t *b, float *c)
{
  struct product *p = product_of(gemm, key);
  if (p == NULL || dnnl_memory_set_data_handle(p->a, (void *)(uintptr_t)a) != dnnl_success ||
      dnnl_memory_set_data_handle(p->b, (void *)(uintptr_t)b) != dnnl_success || dnnl_memory_set_data_handle(p->c, c) != dnnl_success ||
      pack(gemm, p) != 0)
    return -1;
  const dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, p->a}, {DNNL_ARG_WEIGHTS, p->pack != NULL ? p->packed : p->b}, {DNNL_ARG_DST, p->c}};
  return dnnl_primitive_execute(p->matmul, gemm->stream, 3, args) == dnnl_success && dnnl_stream_wait(gemm->stream) == dnnl_success ? 0
                                                                                                                                    : -1;
}

static int run(struct bf16_gemm *gemm, const struct key *key, const uint16_t *a, const uint16_t *b, float *c)
{
  int threads = omp_get_max_threads();
  omp_set_num_threads(1);
  int status = execute(gemm, key, a, b, c);
  omp_set_num_threads(threads);
  return status;
}

int bf16_gemm_nt(struct bf16_gemm *gemm, int64_t m, int64_t n, int64_t k, const uint16_t *a, int64_t lda, const uint16_t *b, int64_t ldb,
                 int adds, float *c, int64_t ldc)
{
  return run(gemm, &(struct key){NT, adds, m, n, k, lda, ldb, ldc}, a, b, c);
}

int bf16_gemm_nn(struct bf16_gemm *gemm, int64_t m, int64_t n, int64_t k, const uint16_t *a, int64_t lda, const uint16_t *b, int64_t ldb,
                 int adds, float *c, int64_t ldc)
{
  return run(gemm, &(struct key){NN, adds, m, n, k, lda, ldb, ldc}, a, b, c);
}

int bf16_gemm_tn(struct bf16_gemm *gemm, int64_t m, int64_t n, int64_t k, const uint16_t *a, int64_t lda, const uint16_t *b, int64_t ldb,
                 int adds, float *c, int64_t ldc)
{
  return run(gemm, &(struct key){TN, adds, m, n, k, lda, ldb, ldc}, a, b, c);
}
