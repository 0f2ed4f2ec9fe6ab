/* pieces.c - all-gathers and reduce-scatters whose whole side is not in rank order.
 *
 * A collective with pieces moves the same elements as one without; only their places differ. A transport that copies element by element
 * (the shared window) asks for runs that are contiguous on both sides and needs no temporary. For the others the channel packs the buffers
 * into rank order before and puts the result in place afterwards, so that every communicator of this host has the feature.
 */
#include "channel.h"

#include <stdlib.h>
#include <string.h>

ordo_piece_span ordo_pieces_at(const ordo_request *request, int rank, int64_t at, int64_t end)
{
  int64_t first = 0;
  for (uint64_t i = 0; i < request->c.n_pieces; i++) {
    const ordo_comm_piece *piece = &request->c.pieces[i];
    if (at < first + piece->count) {
      ordo_piece_span span = {piece->shard_offset + at - first, piece->full_offset + rank * piece->count + at - first,
                              MIN(end, first + piece->count) - at};
      return span;
    }
    first += piece->count;
  }
  return (ordo_piece_span){0, 0, 0};
}

int64_t ordo_pieces_shard_extent(const ordo_request *request)
{
  int64_t extent = 0;
  for (uint64_t i = 0; i < request->c.n_pieces; i++)
    extent = MAX(extent, request->c.pieces[i].shard_offset + request->c.pieces[i].count);
  return extent;
}

int64_t ordo_pieces_full_extent(const ordo_request *request, int32_t size)
{
  int64_t extent = 0;
  for (uint64_t i = 0; i < request->c.n_pieces; i++)
    extent = MAX(extent, request->c.pieces[i].full_offset + size * request->c.pieces[i].count);
  return extent;
}

/* Copies between packed memory and the shard (rank < 0) or the part of `rank` in the whole. */
static void move(const ordo_request *request, int rank, char *packed, char *place, gboolean to_packed)
{
  size_t element = ordo_dtype_size(request->c.dtype);
  for (int64_t at = 0, n; at < request->c.count; at += n) {
    ordo_piece_span span = ordo_pieces_at(request, MAX(rank, 0), at, request->c.count);
    char *there = place + (size_t)(rank < 0 ? span.shard : span.full) * element, *here = packed + (size_t)at * element;
    n = span.count;
    if (n == 0) /* counts were checked, so this is the end */
      return;
    memcpy(to_packed ? here : there, to_packed ? there : here, (size_t)n * element);
  }
}

ordo_status ordo_pieces_pack(ordo_channel *channel, ordo_request *request)
{
  ordo_collective *c = &request->c;
  size_t one = (size_t)c->count * ordo_dtype_size(c->dtype), all = one * (size_t)channel->table.size;
  if (c->kind != ORDO_ALL_GATHER && c->kind != ORDO_REDUCE_SCATTER)
    return ORDO_OK;
  if (c->n_pieces == 0) {
    request->whole = (ordo_comm_piece){0, 0, c->count};
    if (channel->transport->takes_pieces) {
      c->pieces = &request->whole;
      c->n_pieces = 1;
    }
    return ORDO_OK;
  }
  if (channel->transport->takes_pieces || c->count == 0)
    return ORDO_OK;
  request->send_pieces = c->send;
  request->recv_pieces = c->recv;
  c->send = malloc(c->kind == ORDO_ALL_GATHER ? one : all);
  c->recv = malloc(c->kind == ORDO_ALL_GATHER ? all : one);
  if (!c->send || !c->recv)
    return ordo_hub_fail(channel->hub, ORDO_E_NOMEM, "E-COMM-MEMORY", channel->name, "the system has no memory left",
                         "Use smaller groups or more ranks.", "no memory to pack %zu bytes for %s on '%s'", all + one,
                         ordo_collective_kind_name(c->kind), channel->name);
  if (c->kind == ORDO_ALL_GATHER)
    move(request, -1, (char *)c->send, (char *)request->send_pieces, TRUE);
  else
    for (int i = 0; i < channel->table.size; i++)
      move(request, i, (char *)c->send + one * (size_t)i, (char *)request->send_pieces, TRUE);
  return ORDO_OK;
}

void ordo_pieces_unpack(ordo_channel *channel, ordo_request *request)
{
  size_t one = (size_t)request->c.count * ordo_dtype_size(request->c.dtype);
  if (!request->recv_pieces)
    return;
  if (request->c.kind == ORDO_REDUCE_SCATTER)
    move(request, -1, request->c.recv, request->recv_pieces, FALSE);
  else
    for (int i = 0; i < channel->table.size; i++)
      move(request, i, (char *)request->c.recv + one * (size_t)i, request->recv_pieces, FALSE);
}

void ordo_pieces_forget(ordo_request *request)
{
  if (!request->recv_pieces)
    return;
  free((void *)request->c.send);
  free(request->c.recv);
}
