/* collective.c - what a collective may look like, and its names in texts.
 *
 * Every provider passes through here, so a wrong argument gives the same text on one rank, in a dry run and under MPI, and before
 * any other rank is involved: a bad call never leaves peers waiting for half a collective.
 */
#include "channel.h"

#include <string.h>

static const char *const kind_names[] = {"",           "all_reduce",   "reduce_scatter", "all_gather", "broadcast",
                                         "all_to_all", "all_to_all_v", "send",           "recv",       "barrier"};

const char *ordo_collective_kind_name(uint32_t kind)
{
  return kind >= ORDO_ALL_REDUCE && kind <= ORDO_BARRIER ? kind_names[kind] : "unknown kind";
}

const char *ordo_collective_op_name(uint32_t op)
{
  static const char *const names[] = {"", "sum", "avg", "max", "min"};
  return op >= ORDO_SUM && op <= ORDO_MIN ? names[op] : "unknown op";
}

const char *ordo_dtype_name(ordo_dtype dtype)
{
  static const char *const names[] = {"", "f32", "f64", "f16", "bf16", "i8", "u8", "i32", "i64", "u64"};
  return dtype >= ORDO_F32 && dtype <= ORDO_U64 ? names[dtype] : "unknown dtype";
}

gboolean ordo_collective_reduces(uint32_t kind)
{
  return kind == ORDO_ALL_REDUCE || kind == ORDO_REDUCE_SCATTER;
}

gboolean ordo_collective_is_pair(uint32_t kind)
{
  return kind == ORDO_SEND || kind == ORDO_RECV;
}

static int64_t sum_of(const int64_t *counts, int32_t n)
{
  int64_t sum = 0;
  for (int32_t i = 0; i < n; i++)
    sum += counts[i];
  return sum;
}

uint64_t ordo_collective_bytes(const ordo_collective *c, int32_t size)
{
  uint64_t one = (uint64_t)c->count * ordo_dtype_size(c->dtype);
  switch (c->kind) {
  case ORDO_REDUCE_SCATTER:
  case ORDO_ALL_GATHER:
  case ORDO_ALL_TO_ALL:
    return one * (uint64_t)size;
  case ORDO_ALL_TO_ALL_V:
    return (uint64_t)sum_of(c->send_counts, size) * ordo_dtype_size(c->dtype);
  case ORDO_BARRIER:
    return 0;
  default:
    return one;
  }
}

static ordo_status refuse(ordo_channel *channel, const ordo_collective *c, const char *argument, const char *format, ...)
    G_GNUC_PRINTF(4, 5);

static ordo_status refuse(ordo_channel *channel, const ordo_collective *c, const char *argument, const char *format, ...)
{
  va_list args;
  va_start(args, format);
  g_autofree char *why = g_strdup_vprintf(format, args);
  va_end(args);
  gboolean labelled = ORDO_HAS(c, ordo_collective, label) && c->label;
  return ordo_hub_fail(channel->hub, ORDO_E_INVALID, "E-COMM-ARGUMENT", channel->name, why, "Pass the same valid arguments on every rank.",
                       "argument `%s` of %s%s%s on '%s' cannot work: %s", argument, ordo_collective_kind_name(c->kind),
                       labelled ? " for " : "", labelled ? c->label : "", channel->name, why);
}

static ordo_status check_counts(ordo_channel *channel, const ordo_collective *c, const int64_t *counts, const char *argument)
{
  int64_t total = 0;
  if (!counts)
    return refuse(channel, c, argument, "it is null");
  for (int32_t i = 0; i < channel->table.size; i++)
    if (counts[i] < 0 || counts[i] > INT64_MAX / 16 - total)
      return refuse(channel, c, argument, "entry %d is %" G_GINT64_FORMAT, i, counts[i]);
    else
      total += counts[i];
  return ORDO_OK;
}

static ordo_status check_scalars(ordo_channel *channel, const ordo_collective *c)
{
  int32_t size = channel->table.size;
  if (c->kind < ORDO_ALL_REDUCE || c->kind > ORDO_BARRIER)
    return refuse(channel, c, "kind", "it is %u, known are 1 to 9", c->kind);
  if (c->kind != ORDO_BARRIER && !ordo_dtype_size(c->dtype))
    return refuse(channel, c, "dtype", "it is %u; an opaque type is exchanged as u8", c->dtype);
  if (c->count < 0 || c->count > INT64_MAX / 16 / size)
    return refuse(channel, c, "count", "it is %" G_GINT64_FORMAT, c->count);
  if (c->flags & ~(uint32_t)ORDO_COMM_ORDERED)
    return refuse(channel, c, "flags", "bits 0x%x are unknown", c->flags & ~(uint32_t)ORDO_COMM_ORDERED);
  gboolean rooted = c->kind == ORDO_BROADCAST || ordo_collective_is_pair(c->kind);
  if (rooted && (c->root < 0 || c->root >= size))
    return refuse(channel, c, "root", "it is %d, the axis has %d ranks", c->root, size);
  if (ordo_collective_is_pair(c->kind) && c->root == channel->table.rank)
    return refuse(channel, c, "root", "rank %d cannot send to itself", c->root);
  if (ordo_collective_is_pair(c->kind) && (c->tag < 0 || c->tag > 32767))
    return refuse(channel, c, "tag", "it is %d, allowed are 0 to 32767", c->tag);
  return ORDO_OK;
}

/* Pieces lie in one buffer each side, so their own order and gaps are free; only sizes can be wrong. */
static ordo_status check_pieces(ordo_channel *channel, const ordo_collective *c)
{
  int64_t left = c->count;
  if (c->kind != ORDO_ALL_GATHER && c->kind != ORDO_REDUCE_SCATTER)
    return refuse(channel, c, "n_pieces", "only all_gather and reduce_scatter have pieces");
  if (!c->pieces)
    return refuse(channel, c, "pieces", "it is null, n_pieces is %" G_GUINT64_FORMAT, c->n_pieces);
  for (uint64_t i = 0; i < c->n_pieces; i++) {
    const ordo_comm_piece *piece = &c->pieces[i];
    if (piece->count < 0 || piece->count > left || piece->shard_offset < 0 || piece->full_offset < 0)
      return refuse(channel, c, "pieces", "piece %" G_GUINT64_FORMAT " has a negative offset or count, or more than `count` elements", i);
    left -= piece->count;
  }
  if (left)
    return refuse(channel, c, "pieces", "their counts are %" G_GINT64_FORMAT " elements short of `count`", left);
  return ORDO_OK;
}

static gboolean is_float(ordo_dtype dtype)
{
  return dtype == ORDO_F32 || dtype == ORDO_F64 || dtype == ORDO_F16 || dtype == ORDO_BF16;
}

static ordo_status check_reduction(ordo_channel *channel, const ordo_collective *c, ordo_reduction *reduction)
{
  if (c->op < ORDO_SUM || c->op > ORDO_MIN)
    return refuse(channel, c, "op", "it is %u, known are 1 to 4", c->op);
  gboolean scaled = (c->factor < 0.0 || c->factor > 0.0) && (c->factor < 1.0 || c->factor > 1.0);
  gboolean sums = c->op == ORDO_SUM || c->op == ORDO_AVG;
  if (c->factor != c->factor || (scaled && !(sums && is_float(c->dtype))))
    return refuse(channel, c, "factor", "it is %g; only sums and averages of floats have one", c->factor);
  if (c->op == ORDO_AVG && !is_float(c->dtype))
    return ordo_hub_fail(channel->hub, ORDO_E_UNSUPPORTED, "E-COMM-ARGUMENT", channel->name, "an average of integers is not an integer",
                         "Sum them and divide, or average in f32.", "argument `op` of %s on '%s': avg does not exist for %s",
                         ordo_collective_kind_name(c->kind), channel->name, ordo_dtype_name(c->dtype));
  reduction->dtype = c->dtype;
  reduction->op = sums ? ORDO_SUM : c->op;
  reduction->factor = (scaled ? c->factor : 1.0) / (c->op == ORDO_AVG ? channel->table.size : 1);
  reduction->factor_after = (c->flags & ORDO_COMM_ORDERED) != 0;
  return ORDO_OK;
}

static gboolean overlap(const void *a, uint64_t a_bytes, const void *b, uint64_t b_bytes)
{
  uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
  return a_bytes && b_bytes && x < y + b_bytes && y < x + a_bytes;
}

/* Buffers either coincide in the documented way or do not touch. */
static ordo_status check_buffers(ordo_channel *channel, const ordo_collective *c)
{
  uint64_t element = ordo_dtype_size(c->dtype), size = (uint64_t)channel->table.size, rank = (uint64_t)channel->table.rank;
  uint64_t one = (uint64_t)c->count * element;
  uint64_t send_bytes = one, recv_bytes = one;
  const char *in_place = c->send;
  if (c->kind == ORDO_REDUCE_SCATTER) {
    send_bytes = one * size;
    in_place = (const char *)((uintptr_t)c->send + rank * one);
  } else if (c->kind == ORDO_ALL_GATHER) {
    recv_bytes = one * size;
    in_place = (const char *)((uintptr_t)c->send - rank * one);
  } else if (c->kind == ORDO_ALL_TO_ALL) {
    send_bytes = recv_bytes = one * size;
    in_place = NULL;
  } else if (c->kind == ORDO_ALL_TO_ALL_V) {
    send_bytes = (uint64_t)sum_of(c->send_counts, channel->table.size) * element;
    recv_bytes = (uint64_t)sum_of(c->recv_counts, channel->table.size) * element;
    in_place = NULL;
  }
  gboolean reads_send = c->kind != ORDO_BROADCAST && c->kind != ORDO_RECV, writes_recv = c->kind != ORDO_SEND;
  if (reads_send && send_bytes && !c->send)
    return refuse(channel, c, "send", "it is null");
  if (writes_recv && recv_bytes && !c->recv)
    return refuse(channel, c, "recv", "it is null");
  if (reads_send && writes_recv && (c->n_pieces || c->recv != in_place) && overlap(c->send, send_bytes, c->recv, recv_bytes))
    return refuse(channel, c, "recv", "it overlaps send, but not in the in-place way of this kind");
  return ORDO_OK;
}

ordo_status ordo_collective_check(ordo_channel *channel, const ordo_collective *c, ordo_collective *copy, ordo_reduction *reduction)
{
  ordo_status status;
  memset(copy, 0, sizeof *copy);
  memset(reduction, 0, sizeof *reduction);
  if (!c || !ORDO_HAS(c, ordo_collective, kind))
    return ordo_hub_fail(channel->hub, ORDO_E_INVALID, "E-COMM-ARGUMENT", channel->name, "the struct is null or states no size",
                         "Fill it with ordo_collective_make.", "a collective on '%s' has no description", channel->name);
  memcpy(copy, c, MIN(c->struct_size, sizeof *copy));
  copy->struct_size = sizeof *copy;
  if ((status = check_scalars(channel, copy)) != ORDO_OK)
    return status;
  if (ordo_collective_reduces(copy->kind) && (status = check_reduction(channel, copy, reduction)) != ORDO_OK)
    return status;
  if (copy->kind == ORDO_ALL_TO_ALL_V && ((status = check_counts(channel, copy, copy->send_counts, "send_counts")) != ORDO_OK ||
                                          (status = check_counts(channel, copy, copy->recv_counts, "recv_counts")) != ORDO_OK))
    return status;
  if (copy->n_pieces && (status = check_pieces(channel, copy)) != ORDO_OK)
    return status;
  return copy->kind == ORDO_BARRIER ? ORDO_OK : check_buffers(channel, copy);
}

char *ordo_request_describe(const ordo_request *request)
{
  const ordo_collective *c = &request->c;
  GString *text = g_string_new(ordo_collective_kind_name(c->kind));
  if (c->kind != ORDO_BARRIER)
    g_string_append_printf(text, " of %" G_GINT64_FORMAT " %s", c->count, ordo_dtype_name(c->dtype));
  if (c->label)
    g_string_append_printf(text, " for '%s'", c->label);
  g_string_append_printf(text, " on '%s'", request->channel->name);
  return g_string_free(text, FALSE);
}
