/* cpu_core.h - what this processor can do, and which OpenBLAS core type fits it. CPUID only: no BLAS, no GLib, so that
 * a launcher can compile this one file and set the core type before any process loads libopenblas.
 *
 * Why: OpenBLAS picks its kernel by processor model. One newer than the library gets the oldest kernel (Prescott, SSE3), which
 * costs a factor of 3 to 6 on a processor with AVX-512.
 */
#ifndef CPU_CORE_H
#define CPU_CORE_H

enum cpu_isa { CPU_PORTABLE = 0, CPU_AVX2 = 1, CPU_AVX512 = 2 };

/* The best of the three that processor and kernel support (AVX2 means AVX2, FMA and F16C; AVX512 means F, BW, DQ and VL). [any] since 0.1
 */
enum cpu_isa cpu_core_isa(void);
/* cpu_core_isa, or what ORDO_CPU (portable, avx2, avx512) asks for if the processor can do it. *ignored (may be null) is set to 1
 * if ORDO_CPU holds anything else or more than the processor has. [any] since 0.1 */
enum cpu_isa cpu_core_isa_wanted(int *ignored);
/* "portable", "avx2", "avx512". [any] since 0.1 */
const char *cpu_core_isa_name(enum cpu_isa isa);
/* Core types worth trying for an ISA, best first: "SkylakeX", "Haswell", "Nehalem"; null past the end. [any] since 0.1 */
const char *cpu_core_openblas(enum cpu_isa isa, int nth);

/* Index for cpu_core_openblas of the core type that Ordo put into OPENBLAS_CORETYPE; unset if the user did. */
#define CPU_CORE_CHOSEN_VARIABLE "ORDO_BLAS_CHOSEN"

/* For a launcher, before it starts a program that links OpenBLAS: sets OPENBLAS_CORETYPE if it is unset (and notes that it
 * did) and OPENBLAS_NUM_THREADS to 1 if it is unset. Returns 1 if the environment changed, 0 if not, -1 if it could not be changed. [main]
 * since 0.1 */
int cpu_core_prepare_environment(void);

#endif
