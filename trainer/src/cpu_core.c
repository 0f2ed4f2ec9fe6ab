/* cpu_core.c - CPUID, and the choice that follows from it. See cpu_core.h. */
#include "cpu_core.h"

#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>

/* The compilers' own test does not know this one everywhere. It needs the wide registers, which the callers ask for. */
static int has_f16c(void)
{
  unsigned a, b, c = 0, d;
  return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) != 0;
}
#endif

enum cpu_isa cpu_core_isa(void)
{
#if defined(__x86_64__)
  __builtin_cpu_init(); /* also asks the kernel (XGETBV) whether it saves the wide registers */
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    return CPU_AVX512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c())
    return CPU_AVX2;
#endif
  return CPU_PORTABLE;
}

const char *cpu_core_isa_name(enum cpu_isa isa)
{
  switch (isa) {
  case CPU_AVX512:
    return "avx512";
  case CPU_AVX2:
    return "avx2";
  default:
    return "portable";
  }
}

enum cpu_isa cpu_core_isa_wanted(int *ignored)
{
  enum cpu_isa best = cpu_core_isa();
  const char *wish = getenv("ORDO_CPU");
  if (ignored != NULL)
    *ignored = 0;
  if (wish == NULL || wish[0] == '\0')
    return best;
  for (int isa = CPU_PORTABLE; isa <= (int)best; isa++)
    if (strcmp(wish, cpu_core_isa_name((enum cpu_isa)isa)) == 0)
      return (enum cpu_isa)isa;
  if (ignored != NULL)
    *ignored = 1;
  return best;
}

const char *cpu_core_openblas(enum cpu_isa isa, int nth)
{
  /* Nehalem needs SSE4.2 only, which is older than any processor with AVX; on others OpenBLAS keeps its own choice. */
  static const char *const names[] = {"SkylakeX", "Haswell", "Nehalem"};
  int first = isa == CPU_AVX512 ? 0 : isa == CPU_AVX2 ? 1 : 3;
  if (nth < 0 || nth >= 3 - first)
    return NULL;
  return names[first + nth];
}

int cpu_core_prepare_environment(void)
{
  int changed = 0;
  const char *core = cpu_core_openblas(cpu_core_isa(), 0);
  if (core != NULL && getenv("OPENBLAS_CORETYPE") == NULL) {
    if (setenv("OPENBLAS_CORETYPE", core, 1) != 0 || setenv(CPU_CORE_CHOSEN_VARIABLE, "0", 1) != 0)
      return -1;
    changed = 1;
  }
  if (getenv("OPENBLAS_NUM_THREADS") == NULL) {
    if (setenv("OPENBLAS_NUM_THREADS", "1", 1) != 0)
      return -1;
    changed = 1;
  }
  return changed;
}
