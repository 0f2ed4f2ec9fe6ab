/* random.h - random numbers that are a pure function of (key, counter).
 *
 * No state: any element of any stream can be computed alone, in any order, on any rank. That is what lets every placement and
 * world size start from the same weights without communication. Generator: Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel
 * random numbers, as easy as 1, 2, 3; SC11), checked against the authors' known answers.
 */
#ifndef ORDO_TRAINER_RANDOM_H
#define ORDO_TRAINER_RANDOM_H

#include <stdint.h>

/* out[4] = Philox4x32-10 of a 128-bit counter and a 64-bit key. */
void ordo_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);
/* A stream's key from a seed and a name: equal names give equal streams. */
uint64_t ordo_random_key(uint64_t seed, const char *name);
/* Uniform in [0, 1) with 53 bits: element `index` of the stream `key`. */
double ordo_random_uniform(uint64_t key, uint64_t index);
/* dst[count] = mean 0, deviation `deviation`: elements begin .. begin+count-1 of the stream (Box-Muller). */
void ordo_random_normal(uint64_t key, int64_t begin, int64_t count, double deviation, float *dst);
/* A permutation of 0 .. n-1, evaluated at i, without a table: a four-round Feistel network over the next power of four,
 * walked until it falls inside. */
uint64_t ordo_random_permute(uint64_t key, uint64_t n, uint64_t i);

#endif
