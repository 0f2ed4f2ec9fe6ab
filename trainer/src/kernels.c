/* kernels.c - which table of kernels this process uses. The tables themselves come from kernels_impl.c, compiled once per
 * instruction set; a table must not be touched on a processor that lacks its instructions, hence pointers only. */
#include "kernels.h"

extern const struct kernels kernels_portable;
#ifdef KERNELS_X86
extern const struct kernels kernels_avx2;
extern const struct kernels kernels_avx512;
#endif

const struct kernels *kernels_for(enum cpu_isa isa)
{
  if (isa > cpu_core_isa())
    return NULL;
  switch (isa) {
#ifdef KERNELS_X86
  case CPU_AVX512:
    return &kernels_avx512;
  case CPU_AVX2:
    return &kernels_avx2;
#endif
  case CPU_PORTABLE:
    return &kernels_portable;
  default:
    return NULL;
  }
}

const struct kernels *kernels_default(void)
{
  const struct kernels *kernels = kernels_for(cpu_core_isa_wanted(NULL));
  return kernels != NULL ? kernels : &kernels_portable;
}
