/* safetensors.h - strict reader and atomic writer of safetensors files.
 *
 * A file: 8 bytes little-endian length N of the header, N bytes of JSON that begins with '{' and may end in spaces, then the data.
 * Per tensor: dtype, shape, data_offsets [begin, end) into the data. Source: the format description in huggingface/safetensors.
 *
 * The reader refuses equal keys, overlaps, holes, data that no tensor covers, sizes that differ from shape times dtype (overflow
 * checked), a header past the end of the file or above 100 MB, bad UTF-8, unknown fields. Empty and rank-0 tensors are legal. It
 * reads with pread, so a file that shrinks meanwhile is an error and not a signal.
 */
#ifndef ORDO_TRAINER_SAFETENSORS_H
#define ORDO_TRAINER_SAFETENSORS_H

#include "problems.h"
#include <ordo/dtype.h>

typedef struct ordo_tensor {
  char *name;
  const char *dtype_name; /* "BF16" */
  ordo_dtype dtype;       /* 0: known to the format, but only its bytes can be read */
  unsigned element_size;
  uint32_t ndim;
  int64_t shape[ORDO_MAX_DIMS];
  int64_t numel;
  uint64_t begin; /* in the data */
  uint64_t end;
} ordo_tensor;

typedef struct ordo_safetensors ordo_safetensors;

/* Errors: NOT_FOUND, IO, INVALID (damaged; the reason says what). The caller owns *file. */
ordo_status ordo_safetensors_open(const char *path, ordo_problems *problems, ordo_safetensors **file);
void ordo_safetensors_close(ordo_safetensors *file);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ordo_safetensors, ordo_safetensors_close)
size_t ordo_safetensors_count(const ordo_safetensors *file);
/* In the order of the header. Null past the end. */
const ordo_tensor *ordo_safetensors_at(const ordo_safetensors *file, size_t index);
/* Null if there is none. */
const ordo_tensor *ordo_safetensors_find(const ordo_safetensors *file, const char *name);
/* dst[count] = elements first .. first+count-1 as fp32 (from F64, F32, F16, BF16). Errors: IO, INVALID (range), UNSUPPORTED (dtype). */
ordo_status ordo_safetensors_read(const ordo_safetensors *file, const ordo_tensor *tensor, int64_t first, int64_t count, float *dst,
                                  ordo_problems *problems);

typedef struct ordo_safetensors_writer ordo_safetensors_writer;

/* Starts PATH.tmp-PID. Tensors are declared first (any number), then written in the order of declaration, then the file takes its
 * name. `dtype`: ORDO_F32, ORDO_BF16 or ORDO_F16 for all tensors. */
ordo_safetensors_writer *ordo_safetensors_writer_new(const char *path, ordo_dtype dtype);
void ordo_safetensors_writer_declare(ordo_safetensors_writer *writer, const char *name, uint32_t ndim, const int64_t *shape);
/* Opens the file and writes the header. `what` (may be null) goes into __metadata__ beside format = pt. Errors: IO. */
ordo_status ordo_safetensors_writer_begin(ordo_safetensors_writer *writer, const char *what, ordo_problems *problems);
/* The next declared tensor, all of it. Errors: IO. */
ordo_status ordo_safetensors_writer_write(ordo_safetensors_writer *writer, const float *values, ordo_problems *problems);
/* fsync, rename, fsync of the directory. Errors: IO, STATE (a declared tensor was not written). */
ordo_status ordo_safetensors_writer_finish(ordo_safetensors_writer *writer, ordo_problems *problems);
/* Frees it; an unfinished file is removed. Null is fine. */
void ordo_safetensors_writer_free(ordo_safetensors_writer *writer);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ordo_safetensors_writer, ordo_safetensors_writer_free)

#endif
