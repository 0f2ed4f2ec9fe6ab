/* test_llama_memory.c - activation memory: what is allocated equals the function that promises it and the closed formula. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "attention.h"
#include "kernels_memory.h"
#include "llama.h"

static const struct llama_config odd = {.vocab = 37,
                                        .hidden = 24,
                                        .intermediate = 19,
                                        .layers = 2,
                                        .heads = 3,
                                        .kv_heads = 1,
                                        .head_dim = 8,
                                        .max_positions = 160,
                                        .rms_eps = 1e-5,
                                        .rope_theta = 500.0};

struct account {
  int64_t now, peak;
  int blocks;
};

static void *counted_alloc(void *ctx, size_t bytes, uint32_t tag)
{
  struct account *account = ctx;
  assert_int_equal(tag, 3);
  int64_t *memory = aligned_alloc(64, (bytes + 64 + 63) / 64 * 64);
  memory[0] = (int64_t)bytes;
  account->now += (int64_t)bytes;
  account->peak = account->now > account->peak ? account->now : account->peak;
  account->blocks++;
  return memory + 8;
}

static void counted_free(void *ctx, void *memory)
{
  struct account *account = ctx;
  int64_t *block = (int64_t *)memory - 8;
  account->now -= block[0];
  account->blocks--;
  free(block);
}

/* The formula in llama_memory.c, without the rounding to 64 bytes. */
static int64_t formula(const struct llama_config *c, int64_t batch, int64_t seq, int train, int64_t logits_rows)
{
  int64_t n = batch * seq, d = c->hidden, q = c->heads * c->head_dim, k = c->kv_heads * c->head_dim, f = c->intermediate;
  int64_t widest = f > q ? f : q;
  int64_t floats = n * 2 + n * 2 + logits_rows * c->vocab + seq * c->head_dim + 2 * n * d;
  if (train == LLAMA_KEEP_INPUTS)
    floats += c->layers * n * d + n * d + n * (d + 2 * q + 2 * k + 2 * f + 2 + c->heads);
  if (train == LLAMA_KEEP_ALL)
    floats += c->layers * n * (2 * d + 2 * q + 2 * k + 2 * f + 2 + c->heads) + n * d;
  if (train) {
    floats += n * widest + n * (d + q + 2 * k) + attention_workspace(seq, 1);
  } else {
    floats += n * (d + 2 * q + 2 * k + 2 * f + 2 + c->heads) + attention_workspace(seq, 0);
  }
  return floats * 4;
}

static void test_memory_account(void **state)
{
  (void)state;
  const struct llama_config reference = {4096, 512, 1408, 8, 8, 8, 64, 1024, 1e-5, 10000.0, 1};
  const struct llama_config *configs[] = {&odd, &reference};
  char reason[200];
  for (int i = 0; i < 2; i++) {
    for (int train = LLAMA_FORWARD_ONLY; train <= LLAMA_KEEP_INPUTS; train++) {
      struct account account = {0};
      struct llama_memory memory = {&account, counted_alloc, counted_free, 3};
      struct llama *llama = llama_create(configs[i], &memory, reason, sizeof reason);
      assert_int_equal(account.peak, 0);
      assert_int_equal(llama_reserve(llama, 3, 100, train, 70), LLAMA_OK);
      assert_int_equal(account.now, llama_activation_bytes(configs[i], 3, 100, train, 70));
      int64_t expected = formula(configs[i], 3, 100, train, 70);
      int64_t pieces = 20 + 12 * configs[i]->layers;
      assert_true(account.now >= expected && account.now <= expected + 63 * pieces);
      assert_int_equal(llama_reserve(llama, 1, 10, train, 0), LLAMA_OK); /* replaces, does not add */
      assert_int_equal(account.now, llama_activation_bytes(configs[i], 1, 10, train, 0));
      llama_destroy(llama);
      assert_int_equal(account.now, 0);
      assert_int_equal(account.blocks, 0);
    }
  }
}

static void test_default_logits_rows(void **state)
{
  (void)state;
  struct llama_config config = odd;
  assert_int_equal(llama_default_logits_rows(&config, 3, 10), 30);
  config.vocab = 128000;
  assert_true(llama_default_logits_rows(&config, 64, 1024) * 128000 * 4 <= 256 << 20);
  config.vocab = 1 << 24;
  assert_true(llama_default_logits_rows(&config, 64, 1024) >= 1);
}

static void test_blocks_are_aligned_and_writable(void **state)
{
  (void)state;
  const size_t sizes[] = {0, 1, 100, (2 << 20) - 1, 2 << 20, (5 << 20) + 12};
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    char *memory = kernels_alloc(NULL, sizes[i], 0);
    assert_non_null(memory);
    assert_int_equal((uintptr_t)memory % (sizes[i] >= 2 << 20 ? 2 << 20 : 64), 0);
    memset(memory, 1, sizes[i]);
    kernels_free(NULL, memory);
  }
  assert_null(kernels_alloc(NULL, SIZE_MAX / 2, 0));
  kernels_free(NULL, NULL);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_memory_account),
      cmocka_unit_test(test_default_logits_rows),
      cmocka_unit_test(test_blocks_are_aligned_and_writable),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
