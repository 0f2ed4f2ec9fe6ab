/* ordo/dtype.h - element types of parameters, gradients and messages.
 *
 * Plain types have a fixed size. An opaque type (4-bit blocks, fp8 with scales) is described by an ordo_dtype_ops: Ordo
 * moves it as bytes and asks its owner to pack and unpack. Ids from ORDO_DTYPE_OPAQUE on belong to whoever registers them.
 */
#ifndef ORDO_DTYPE_H
#define ORDO_DTYPE_H

#include <ordo/status.h>

typedef uint32_t ordo_dtype;

enum {
  ORDO_F32 = 1,
  ORDO_F64 = 2,
  ORDO_F16 = 3,  /* IEEE 754 binary16 */
  ORDO_BF16 = 4, /* upper half of an IEEE 754 binary32 */
  ORDO_I8 = 5,
  ORDO_U8 = 6,
  ORDO_I32 = 7,
  ORDO_I64 = 8,
  ORDO_U64 = 9,
  ORDO_DTYPE_OPAQUE = 0x1000
};

/* Bytes of one element, 0 for an opaque or unknown type. [any] since 0.1 */
ORDO_INLINE size_t ordo_dtype_size(ordo_dtype dtype)
{
  switch (dtype) {
  case ORDO_F64:
  case ORDO_I64:
  case ORDO_U64:
    return 8;
  case ORDO_F32:
  case ORDO_I32:
    return 4;
  case ORDO_F16:
  case ORDO_BF16:
    return 2;
  case ORDO_I8:
  case ORDO_U8:
    return 1;
  default:
    return 0;
  }
}

/* An opaque storage type. All members are required. Storage is a sequence of blocks of `block_elements` elements in
 * `block_bytes` bytes, followed by `side_bytes` bytes of side data per leaf (scales, zero points). Limits: block_elements is 1 to 2^30,
 * block_bytes 1 to 16 * block_elements + 4096, side_bytes 0 to 2^40. A type beyond them is refused where it is handed in. */
typedef struct ordo_dtype_ops {
  size_t struct_size;
  ordo_dtype id;          /* >= ORDO_DTYPE_OPAQUE */
  uint32_t bits;          /* bits per element, for estimates */
  const char *name;       /* "nf4", "fp8_e4m3" */
  int64_t block_elements; /* elements that are packed together; a shard boundary must be a multiple of it */
  int64_t block_bytes;
  int64_t side_bytes;
  void *ctx;
  /* Packs `n` fp32 values into `dst` (blocks, then side data). ORDO_E_INVALID if n is no multiple of block_elements. [step] since 0.1 */
  ordo_status (*pack)(void *ctx, const float *src, int64_t n, void *dst);
  /* The inverse of pack. [step] since 0.1 */
  ordo_status (*unpack)(void *ctx, const void *src, int64_t n, float *dst);
} ordo_dtype_ops;
ORDO_PIN_LAST(ordo_dtype_ops, unpack);

#endif
