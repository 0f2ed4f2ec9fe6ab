/* wire.c - gathers of packed parameters: what the precision plugin makes of each piece travels, and is unpacked on arrival.
 *
 * The shards stay as they are; only the message is packed (fp8 with a scale, a quarter of the bytes). Pieces differ in size once packed, so
 * every rank sends one range of bytes, piece after piece, and finds out for itself where which one begins. A gather in flight takes a slot
 * of two ranges, its own and that of all ranks; the oldest is finished when none is free.
 *
 * Not packed: whole parameters for export (exact), what reshard_after_forward=N keeps between forward and backward, leaves of an opaque
 * type (their bits are no numbers, and they are packed already), and flat parameters of 16 bits, which have no leaf to say so. The log says
 * the last: the traffic is twice what whoever chose the plugin expects.
 */
#include "private.h"

#include <stdio.h>
#include <string.h>

enum { MOST_BYTES = 16, MOST_MORE = 4096 }; /* of a packed element, and of a piece on top (precision.h) */

int sharding_wire_packs(const sharding *s, const sharding_group *group)
{
  return s->wire != NULL && !s->options.replicated && (group->dtype == ORDO_F32 || s->callbacks.leaf != NULL);
}

void sharding_wire_report(const sharding *s)
{
  uint32_t n = 0;
  const char *first = NULL, *type = NULL;
  char text[320];
  for (uint32_t g = 0; s->wire != NULL && !s->options.replicated && g < s->n_groups; g++) {
    if (sharding_wire_packs(s, &s->groups[g]))
      continue;
    n++;
    first = first != NULL ? first : s->groups[g].name;
    type = type != NULL ? type : sharding_dtype_name(s->groups[g].dtype);
  }
  if (n == 0)
    return;
  snprintf(text, sizeof text,
           "the precision plugin packs what all-gathers send, but %u of %u flat parameters ('%.100s' first) are %s and travel as they are: "
           "only fp32 flat parameters are packed; fsdp2 packs parameters of every type",
           n, s->n_groups, first, type);
  s->job->host->log(s->job->host->ctx, ORDO_LOG_WARNING, text);
}

static const ordo_leaf *leaf_of(const sharding *s, const sharding_group *group, uint32_t piece)
{
  return s->callbacks.leaf != NULL ? s->callbacks.leaf(s->callbacks.self, group, piece) : NULL;
}

/* The piece is carried in words of fp32 that are no numbers. */
static int is_opaque(const sharding *s, const sharding_group *group, uint32_t piece)
{
  const ordo_leaf *leaf = leaf_of(s, group, piece);
  return leaf != NULL && leaf->opaque != NULL;
}

static int64_t raw_bytes(const sharding_group *group, uint32_t piece)
{
  return group->pieces[piece].count * (int64_t)ordo_dtype_size(group->dtype);
}

/* Asked once: a second answer could be another one, and whoever reserved by the first would be written past. */
static ordo_status ask(const sharding *s, const sharding_group *group, uint32_t piece, int64_t *bytes)
{
  const ordo_leaf *leaf = leaf_of(s, group, piece);
  const int64_t n = group->pieces[piece].count;
  if (is_opaque(s, group, piece)) {
    *bytes = raw_bytes(group, piece);
    return ORDO_OK;
  }
  *bytes = s->wire->wire_bytes(s->wire_self, leaf, n);
  if (*bytes >= (n > 0) && *bytes <= n * MOST_BYTES + MOST_MORE)
    return ORDO_OK;
  return sharding_fail(s->job, ORDO_E_INVALID, "report this to the author of the precision plugin",
                       "wire_bytes of the precision plugin says that %lld elements of '%s' are %lld bytes packed; %d to %lld are possible",
                       (long long)n, leaf != NULL ? leaf->name : group->name, (long long)*bytes, n > 0,
                       (long long)(n * MOST_BYTES + MOST_MORE));
}

static ordo_status pack(const sharding *s, const sharding_group *group, uint32_t piece, unsigned char *at)
{
  const sharding_piece *p = &group->pieces[piece];
  const void *from = sharding_at(group->shard, group->dtype, p->shard_offset);
  if (!is_opaque(s, group, piece))
    return s->wire->pre_all_gather(s->wire_self, leaf_of(s, group, piece), from, p->count, at);
  memcpy(at, from, (size_t)sharding_touchable(s, raw_bytes(group, piece)));
  return ORDO_OK;
}

static ordo_status unpack(const sharding *s, const sharding_group *group, uint32_t piece, int32_t rank, const unsigned char *at)
{
  const sharding_piece *p = &group->pieces[piece];
  void *to = sharding_at(group->full, group->dtype, p->full_offset + rank * p->count);
  if (!is_opaque(s, group, piece))
    return s->wire->post_all_gather(s->wire_self, leaf_of(s, group, piece), at, p->count, to);
  memcpy(to, at, (size_t)sharding_touchable(s, raw_bytes(group, piece)));
  return ORDO_OK;
}

/* The sizes of the pieces of every group that is packed. */
static ordo_status measure(sharding *s, size_t *most)
{
  const ordo_job *job = s->job;
  size_t n = 0, used = 0;
  for (uint32_t g = 0; g < s->n_groups; g++)
    n += s->groups[g].n_pieces;
  if (s->wire_sizes == NULL)
    s->wire_sizes = job->alloc(job->ctx, (n > 0 ? n : 1) * sizeof *s->wire_sizes, ORDO_MEM_OTHER);
  if (s->wire_sizes == NULL)
    return sharding_fail(job, ORDO_E_NOMEM, "free some memory", "no memory for the sizes of %zu packed parameters", n);
  for (uint32_t g = 0; g < s->n_groups; g++) {
    sharding_group *group = &s->groups[g];
    group->run->wire_sizes = s->wire_sizes + used;
    group->run->wire_bytes = 0;
    used += group->n_pieces;
    for (uint32_t i = 0; i < group->n_pieces && sharding_wire_packs(s, group); i++) {
      ordo_status status = ask(s, group, i, &group->run->wire_sizes[i]);
      if (status != ORDO_OK)
        return status;
      group->run->wire_bytes += group->run->wire_sizes[i];
    }
    *most = (size_t)group->run->wire_bytes > *most ? (size_t)group->run->wire_bytes : *most;
  }
  return ORDO_OK;
}

/* Slots for the largest group, on first use: the leaves that the plugin is asked about do not exist before. */
static ordo_status reserve(sharding *s)
{
  const ordo_job *job = s->job;
  size_t most = 1;
  if (s->wire_block != NULL)
    return ORDO_OK;
  ordo_status status = measure(s, &most);
  if (status != ORDO_OK)
    return status;
  s->wire_slot = (most + 63) / 64 * 64 * ((size_t)s->comm->size + 1);
  s->wire_block = job->alloc(job->ctx, SHARDING_WIRE_SLOTS * s->wire_slot, ORDO_MEM_COMM);
  if (s->wire_block == NULL)
    return sharding_fail(job, ORDO_E_NOMEM, "use smaller units", "no memory for packed parameters of %zu bytes in flight",
                         SHARDING_WIRE_SLOTS * s->wire_slot);
  return ORDO_OK;
}

static ordo_status take_slot(sharding *s, sharding_group *group)
{
  for (int i = 0; i < SHARDING_WIRE_SLOTS; i++)
    if (s->wire_taken[i] == NULL) {
      s->wire_taken[i] = group;
      group->run->wire = s->wire_block + (size_t)i * s->wire_slot;
      return ORDO_OK;
    }
  for (int i = 0; i < SHARDING_WIRE_SLOTS; i++) {
    ordo_status status = sharding_finish_gather(s, s->wire_taken[i]);
    if (status != ORDO_OK || s->wire_taken[i] == NULL)
      return status == ORDO_OK ? take_slot(s, group) : status;
  }
  return sharding_fail(s->job, ORDO_E_INTERNAL, "report this as a defect of Ordo", "no slot for packed parameters is free");
}

ordo_status sharding_wire_start(sharding *s, sharding_group *group)
{
  struct sharding_run *run = group->run;
  ordo_status status = reserve(s);
  if (status == ORDO_OK)
    status = take_slot(s, group);
  unsigned char *at = run->wire;
  for (uint32_t i = 0; i < group->n_pieces && status == ORDO_OK; i++) {
    status = pack(s, group, i, at);
    at += run->wire_sizes[i];
  }
  if (status != ORDO_OK) {
    (void)sharding_wire_finish(s, group, 0);
    return status;
  }
  ordo_collective c =
      ordo_collective_make(ORDO_ALL_GATHER, run->wire, run->wire + s->wire_slot / ((size_t)s->comm->size + 1), run->wire_bytes, ORDO_U8);
  c.tag = (int32_t)group->index + 1;
  c.label = run->label;
  run->gather_comm = s->comm;
  return s->comm->start(s->comm->ctx, &c, &run->gather);
}

ordo_status sharding_wire_finish(sharding *s, sharding_group *group, int arrived)
{
  struct sharding_run *run = group->run;
  const unsigned char *at = arrived ? run->wire + s->wire_slot / ((size_t)s->comm->size + 1) : NULL;
  ordo_status status = ORDO_OK;
  for (int32_t r = 0; r < s->comm->size && arrived; r++)
    for (uint32_t i = 0; i < group->n_pieces && status == ORDO_OK; i++) {
      status = unpack(s, group, i, r, at);
      at += run->wire_sizes[i];
    }
  for (int i = 0; i < SHARDING_WIRE_SLOTS; i++)
    if (s->wire_taken[i] == group)
      s->wire_taken[i] = NULL;
  run->wire = NULL;
  return status;
}
