/* mutate.h - deterministic damage for the fuzz tests: a seed gives the same inputs on every machine, so that a finding can be repeated. */
#ifndef TEST_MUTATE_H
#define TEST_MUTATE_H

#include <glib.h>
#include <string.h>

typedef struct mutator {
  guint64 state;
} mutator;

/* splitmix64, public domain, S. Vigna 2015. */
static inline guint64 mutate_next(mutator *m)
{
  guint64 z = (m->state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

static inline guint mutate_below(mutator *m, guint n)
{
  return n ? (guint)(mutate_next(m) % n) : 0;
}

/* Values at which length checks break. */
static inline guint64 mutate_edge(mutator *m)
{
  static const guint64 edges[] = {0,
                                  1,
                                  3,
                                  4,
                                  7,
                                  8,
                                  0x7f,
                                  0xff,
                                  0x100,
                                  0xffff,
                                  0x10000,
                                  0x7fffffff,
                                  0x80000000,
                                  0xffffffff,
                                  0x100000000,
                                  G_MAXINT64,
                                  (guint64)1 << 63,
                                  G_MAXUINT64 - 7,
                                  G_MAXUINT64};
  return edges[mutate_below(m, G_N_ELEMENTS(edges))];
}

/* One to eight changes: a flipped bit, a random byte, an edge value of 1 to 8 bytes, a copied stretch, a cut. */
static inline void mutate_bytes(mutator *m, GByteArray *bytes)
{
  for (guint n = 1 + mutate_below(m, 8); n > 0 && bytes->len > 0; n--) {
    guint at = mutate_below(m, bytes->len), left = bytes->len - at;
    guint64 edge = mutate_edge(m);
    guint stretch = 1 + mutate_below(m, 64), width = 1u << mutate_below(m, 4); /* not inside MIN, which evaluates twice */
    switch (mutate_below(m, 8)) {
    case 0:
      g_byte_array_set_size(bytes, at);
      break;
    case 1:
      bytes->data[at] = (guint8)mutate_next(m);
      break;
    case 2:
      memmove(bytes->data + at, bytes->data + mutate_below(m, at + 1), MIN(left, stretch));
      break;
    case 3:
    case 4:
      bytes->data[at] ^= (guint8)(1u << mutate_below(m, 8));
      break;
    default:
      memcpy(bytes->data + at, &edge, MIN(left, width));
    }
  }
}

#endif
