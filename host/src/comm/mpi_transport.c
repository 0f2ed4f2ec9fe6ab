/* mpi_transport.c - collectives over plain MPI: between nodes, and inside one when there is no shared window.
 *
 * Two ways. Kinds that MPI has as they are, and small sums, are posted at once. Large, ordered, 16-bit and NaN-aware reductions run
 * in chunks when they are the oldest: all_to_all of slices, ordo_reduce in rank order, all_gather of the results. That is the traffic
 * of a ring, gives the bits of the shared window, and keeps the temporary memory at one chunk (MPI's own temporaries above 16 MiB
 * are mapped and unmapped on every call).
 * Guards against ranks that start different collectives: MPI would truncate or hang, so a small all_gather of descriptors runs beside
 * each collective.
 */
#include "mpi_transport.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK_BYTES = 4 << 20, POST_BYTES = 64 << 10 };

enum { STAGE_NONE, STAGE_SCATTER, STAGE_GATHER };

struct ordo_exchange {
  MPI_Request request, check;
  ordo_descriptor mine, *all; /* all: [size] or null */
  gboolean staged;
  int stage;
  int64_t offset, chunk; /* elements of a piece (reduce_scatter) or of the buffer (all_reduce) */
  char *scratch;         /* the slices of one chunk from all ranks */
  int *counts;           /* 4 arrays of [size]: send counts, send offsets, receive counts, receive offsets */
  int failed;            /* MPI error of the data, kept until the check has had its say */
  gboolean in_flight;    /* MPI may still write here: after an error the memory is left to it */
};

static MPI_Datatype same_size_type(ordo_dtype dtype)
{
  switch (ordo_dtype_size(dtype)) {
  case 8:
    return MPI_UINT64_T;
  case 4:
    return MPI_UINT32_T;
  case 2:
    return MPI_UINT16_T;
  default:
    return MPI_BYTE;
  }
}

static MPI_Datatype number_type(ordo_dtype dtype)
{
  switch (dtype) {
  case ORDO_F32:
    return MPI_FLOAT;
  case ORDO_F64:
    return MPI_DOUBLE;
  case ORDO_I8:
    return MPI_INT8_T;
  case ORDO_U8:
    return MPI_UINT8_T;
  case ORDO_I32:
    return MPI_INT32_T;
  case ORDO_I64:
    return MPI_INT64_T;
  default:
    return MPI_UINT64_T;
  }
}

ordo_status ordo_mpi_failed(ordo_hub *hub, int code, const char *doing)
{
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0, class = MPI_ERR_OTHER;
  MPI_Error_class(code, &class);
  MPI_Error_string(code, text, &length);
  if (class == MPI_ERR_TRUNCATE)
    return ordo_hub_fail(hub, ORDO_E_MISMATCH, "E-COMM-MISMATCH", doing, text, "Compare the reports of recent collectives of all ranks.",
                         "%s: ranks passed different counts (%s)", doing, text);
  return ordo_hub_fail(hub, ORDO_E_PEER_LOST, "E-COMM-PEER-LOST", doing, text, "Look at the first error of the other ranks.",
                       "%s: MPI reports %s", doing, text);
}

void ordo_descriptor_of(const ordo_request *request, ordo_descriptor *descriptor)
{
  const ordo_collective *c = &request->c;
  memset(descriptor, 0, sizeof *descriptor);
  descriptor->kind = c->kind;
  descriptor->op = ordo_collective_reduces(c->kind) ? c->op : 0;
  descriptor->dtype = c->kind == ORDO_BARRIER ? 0 : c->dtype;
  descriptor->flags = ordo_collective_reduces(c->kind) ? c->flags : 0;
  descriptor->root = c->kind == ORDO_BROADCAST ? c->root : 0;
  descriptor->tag = c->tag;
  descriptor->count = c->kind == ORDO_BARRIER || c->kind == ORDO_ALL_TO_ALL_V ? 0 : c->count;
  descriptor->factor = ordo_collective_reduces(c->kind) ? request->reduction.factor : 0;
  g_strlcpy(descriptor->label, c->label ? c->label : "", sizeof descriptor->label);
}

gboolean ordo_descriptor_equal(const ordo_descriptor *a, const ordo_descriptor *b)
{
  return memcmp(a, b, offsetof(ordo_descriptor, label)) == 0;
}

static char *describe(const ordo_descriptor *d)
{
  GString *text = g_string_new(ordo_collective_kind_name(d->kind));
  if (ordo_collective_reduces(d->kind))
    g_string_append_printf(text, " %s%s", ordo_collective_op_name(d->op), d->flags & ORDO_COMM_ORDERED ? " ordered" : "");
  if (d->kind != ORDO_BARRIER)
    g_string_append_printf(text, " of %" G_GINT64_FORMAT " %s", d->count, ordo_dtype_name(d->dtype));
  if (d->kind == ORDO_BROADCAST)
    g_string_append_printf(text, " from %d", d->root);
  if (ordo_collective_reduces(d->kind) && (d->factor < 1.0 || d->factor > 1.0))
    g_string_append_printf(text, " times %.9g", d->factor);
  if (d->label[0])
    g_string_append_printf(text, " for '%.*s'", (int)sizeof d->label, d->label);
  return g_string_free(text, FALSE);
}

ordo_status ordo_descriptor_mismatch(ordo_request *request, const ordo_mpi_link *link, int other, const ordo_descriptor *theirs)
{
  ordo_descriptor own;
  ordo_descriptor_of(request, &own);
  g_autofree char *mine = describe(&own), *other_text = describe(theirs);
  return ordo_hub_fail(request->channel->hub, ORDO_E_MISMATCH, "E-COMM-MISMATCH", request->channel->name,
                       "all ranks of an axis must start the same collectives in the same order",
                       "Compare the reports of recent collectives of the named ranks.",
                       "on '%s' rank %d started %s, but rank %d started %s", request->channel->name, link->peers[link->rank].world_rank,
                       mine, link->peers[other].world_rank, other_text);
}

/* Start of the slice of rank `i` when `n` elements are divided among `size` ranks. */
static int slice_start(int64_t n, int i, int size)
{
  return (int)(n * i / size);
}

static int start_chunk(ordo_mpi_link *link, const ordo_collective *c, ordo_exchange *x)
{
  int size = link->size, *send_counts = x->counts, *send_offsets = x->counts + size;
  int *recv_counts = x->counts + 2 * size, *recv_offsets = x->counts + 3 * size;
  size_t element = ordo_dtype_size(c->dtype);
  gboolean scatter = c->kind == ORDO_REDUCE_SCATTER;
  int64_t limit = (int64_t)(CHUNK_BYTES / element) / (scatter ? size : 1);
  x->chunk = MIN(c->count - x->offset, MAX(limit, 1));
  int mine = scatter ? (int)x->chunk : slice_start(x->chunk, link->rank + 1, size) - slice_start(x->chunk, link->rank, size);
  for (int i = 0; i < size; i++) {
    send_counts[i] = scatter ? (int)x->chunk : slice_start(x->chunk, i + 1, size) - slice_start(x->chunk, i, size);
    send_offsets[i] = scatter ? (int)(c->count * i) : slice_start(x->chunk, i, size);
    recv_counts[i] = mine;
    recv_offsets[i] = mine * i;
  }
  x->stage = STAGE_SCATTER;
  x->in_flight = TRUE;
  MPI_Datatype type = same_size_type(c->dtype);
  return MPI_Ialltoallv((const char *)c->send + (size_t)x->offset * element, send_counts, send_offsets, type, x->scratch, recv_counts,
                        recv_offsets, type, link->staged, &x->request);
}

static void reduce_chunk(ordo_mpi_link *link, ordo_request *request, ordo_exchange *x)
{
  const ordo_collective *c = &request->c;
  size_t element = ordo_dtype_size(c->dtype);
  size_t mine = (size_t)x->counts[2 * link->size];
  int64_t start = x->offset + (c->kind == ORDO_ALL_REDUCE ? slice_start(x->chunk, link->rank, link->size) : 0);
  g_autofree const void **inputs = g_new(const void *, (gsize)link->size);
  void *const outputs[] = {(char *)c->recv + (size_t)start * element};
  for (int i = 0; i < link->size; i++)
    inputs[i] = x->scratch + (size_t)i * mine * element;
  ordo_reduce(&request->reduction, outputs, 1, inputs, (size_t)link->size, mine);
}

static int gather_chunk(ordo_mpi_link *link, const ordo_collective *c, ordo_exchange *x)
{
  MPI_Datatype type = same_size_type(c->dtype);
  x->stage = STAGE_GATHER;
  return MPI_Iallgatherv(MPI_IN_PLACE, 0, type, (char *)c->recv + (size_t)x->offset * ordo_dtype_size(c->dtype), x->counts,
                         x->counts + link->size, type, link->staged, &x->request);
}

/* Sums that MPI computes itself: small, so that its temporaries do not matter, and free to choose their order. */
static gboolean mpi_can_reduce(const ordo_request *request)
{
  ordo_dtype dtype = request->c.dtype;
  gboolean half = dtype == ORDO_F16 || dtype == ORDO_BF16, real = half || dtype == ORDO_F32 || dtype == ORDO_F64;
  return request->c.kind == ORDO_ALL_REDUCE && !request->reduction.factor_after && !half && !(real && request->reduction.op != ORDO_SUM) &&
         (uint64_t)request->c.count * ordo_dtype_size(dtype) <= POST_BYTES;
}

static int post_all_reduce(ordo_mpi_link *link, ordo_request *request, MPI_Request *out)
{
  const ordo_collective *c = &request->c;
  MPI_Op op = request->reduction.op == ORDO_SUM ? MPI_SUM : request->reduction.op == ORDO_MAX ? MPI_MAX : MPI_MIN;
  void *const outputs[] = {c->recv};
  const void *const inputs[] = {c->send};
  ordo_reduce(&request->reduction, outputs, 1, inputs, 1, (size_t)c->count); /* copies, and multiplies by the factor */
  return MPI_Iallreduce(MPI_IN_PLACE, c->recv, (int)c->count, number_type(c->dtype), op, link->posted, out);
}

static int post_all_to_all_v(ordo_mpi_link *link, const ordo_collective *c, ordo_exchange *x)
{
  int *send_counts = x->counts, *send_offsets = x->counts + link->size;
  int *recv_counts = x->counts + 2 * link->size, *recv_offsets = x->counts + 3 * link->size;
  MPI_Datatype type = same_size_type(c->dtype);
  int sent = 0, received = 0;
  for (int i = 0; i < link->size; i++) {
    send_counts[i] = (int)c->send_counts[i];
    recv_counts[i] = (int)c->recv_counts[i];
    send_offsets[i] = sent;
    recv_offsets[i] = received;
    sent += send_counts[i];
    received += recv_counts[i];
  }
  return MPI_Ialltoallv(c->send, send_counts, send_offsets, type, c->recv, recv_counts, recv_offsets, type, link->posted, &x->request);
}

static int post_all_gather(ordo_mpi_link *link, const ordo_collective *c, MPI_Datatype type, ordo_exchange *x)
{
  int count = (int)c->count;
  const size_t before = (size_t)c->count * ordo_dtype_size(c->dtype) * (size_t)link->rank;
  const char *own_piece = c->recv ? (const char *)c->recv + before : NULL;
  return MPI_Iallgather(c->send == own_piece ? MPI_IN_PLACE : c->send, count, type, c->recv, count, type, link->posted, &x->request);
}

static int post(ordo_mpi_link *link, ordo_request *request, ordo_exchange *x)
{
  const ordo_collective *c = &request->c;
  MPI_Datatype type = same_size_type(c->dtype);
  int count = (int)c->count;
  switch (c->kind) {
  case ORDO_ALL_REDUCE:
    return post_all_reduce(link, request, &x->request);
  case ORDO_ALL_GATHER:
    return post_all_gather(link, c, type, x);
  case ORDO_BROADCAST:
    return MPI_Ibcast(c->recv, count, type, c->root, link->posted, &x->request);
  case ORDO_ALL_TO_ALL:
    return MPI_Ialltoall(c->send, count, type, c->recv, count, type, link->posted, &x->request);
  case ORDO_ALL_TO_ALL_V:
    return post_all_to_all_v(link, c, x);
  case ORDO_SEND:
    return MPI_Isend(c->send, count, type, c->root, c->tag, link->posted, &x->request);
  case ORDO_RECV:
    return MPI_Irecv(c->recv, count, type, c->root, c->tag, link->posted, &x->request);
  default:
    return MPI_Ibarrier(link->posted, &x->request);
  }
}

ordo_status ordo_mpi_begin(ordo_mpi_link *link, ordo_request *request, gboolean checked, ordo_exchange **out)
{
  const ordo_collective *c = &request->c;
  ordo_hub *hub = request->channel->hub;
  int rc = MPI_SUCCESS;
  if (ordo_collective_bytes(c, link->size) / MAX(ordo_dtype_size(c->dtype), 1) > INT32_MAX)
    return ordo_hub_fail(hub, ORDO_E_UNSUPPORTED, "E-COMM-ARGUMENT", request->channel->name, "MPI counts elements in 31 bits",
                         "Exchange it in parts.", "argument `count` of %s on '%s': more than 2^31 elements in all",
                         ordo_collective_kind_name(c->kind), request->channel->name);
  ordo_exchange *x = *out = g_new0(ordo_exchange, 1);
  x->request = x->check = MPI_REQUEST_NULL;
  if (checked && !ordo_collective_is_pair(c->kind)) {
    ordo_descriptor_of(request, &x->mine);
    x->all = g_new0(ordo_descriptor, (gsize)link->size);
    rc = MPI_Iallgather(&x->mine, sizeof x->mine, MPI_BYTE, x->all, sizeof x->mine, MPI_BYTE, link->checks, &x->check);
  }
  x->staged = ordo_collective_reduces(c->kind) && !mpi_can_reduce(request);
  if (x->staged || c->kind == ORDO_ALL_TO_ALL_V)
    x->counts = g_new0(int, (gsize)(4 * link->size));
  x->in_flight = !x->staged || x->all;
  if (rc == MPI_SUCCESS && !x->staged)
    rc = post(link, request, x);
  return rc == MPI_SUCCESS ? ORDO_OK : ordo_mpi_failed(hub, rc, ordo_collective_kind_name(c->kind));
}

/* The descriptors first: a mismatch explains whatever went wrong with the data. */
static ordo_status advance_check(ordo_mpi_link *link, ordo_request *request, ordo_exchange *x)
{
  int done = 0;
  if (x->check == MPI_REQUEST_NULL)
    return ORDO_OK;
  int rc = MPI_Test(&x->check, &done, MPI_STATUS_IGNORE);
  if (rc != MPI_SUCCESS)
    return ordo_mpi_failed(request->channel->hub, rc, "comparing collectives");
  for (int i = 0; done && i < link->size; i++)
    if (!ordo_descriptor_equal(&x->all[i], &x->mine))
      return ordo_descriptor_mismatch(request, link, i, &x->all[i]);
  return ORDO_OK;
}

/* Sets *waiting while the chunk in flight is not finished, else starts the next stage; leaves stage NONE when all is done. */
static int advance_stage(ordo_mpi_link *link, ordo_request *request, ordo_exchange *x, gboolean *waiting)
{
  const ordo_collective *c = &request->c;
  int done = 0, rc;
  if (x->stage == STAGE_NONE)
    return x->offset < c->count ? start_chunk(link, c, x) : MPI_SUCCESS;
  if ((rc = MPI_Test(&x->request, &done, MPI_STATUS_IGNORE)) != MPI_SUCCESS)
    return rc;
  *waiting = !done;
  if (!done)
    return MPI_SUCCESS;
  request->channel->hub->moves++;
  if (x->stage == STAGE_SCATTER) {
    reduce_chunk(link, request, x);
    if (c->kind == ORDO_ALL_REDUCE)
      return gather_chunk(link, c, x);
  }
  x->offset += x->chunk;
  x->stage = STAGE_NONE;
  return MPI_SUCCESS;
}

static ordo_status advance_staged(ordo_mpi_link *link, ordo_request *request, ordo_exchange *x, gboolean *finished)
{
  gboolean waiting = FALSE;
  int rc = MPI_SUCCESS;
  if (!x->scratch && (x->scratch = malloc((size_t)CHUNK_BYTES + 8u * (size_t)link->size * 8u)) == NULL)
    return ordo_hub_fail(request->channel->hub, ORDO_E_NOMEM, "E-COMM-MEMORY", request->channel->name, "the system has no memory left", "",
                         "no memory for a chunk of a reduction on '%s'", request->channel->name);
  while (rc == MPI_SUCCESS && !waiting && !(x->stage == STAGE_NONE && x->offset >= request->c.count))
    rc = advance_stage(link, request, x, &waiting);
  *finished = rc == MPI_SUCCESS && !waiting;
  return rc == MPI_SUCCESS ? ORDO_OK : ordo_mpi_failed(request->channel->hub, rc, ordo_collective_kind_name(request->c.kind));
}

ordo_status ordo_mpi_advance(ordo_mpi_link *link, ordo_request *request, ordo_exchange *x, gboolean *done)
{
  gboolean finished = FALSE;
  int flag = 0;
  ordo_status status = advance_check(link, request, x);
  if (status != ORDO_OK)
    return status;
  if (x->staged) {
    status = advance_staged(link, request, x, &finished);
  } else {
    int rc = MPI_Test(&x->request, &flag, MPI_STATUS_IGNORE);
    finished = flag;
    if (rc != MPI_SUCCESS)
      x->failed = rc;
    if (x->failed && x->check == MPI_REQUEST_NULL)
      status = ordo_mpi_failed(request->channel->hub, x->failed, ordo_collective_kind_name(request->c.kind));
  }
  *done = finished && status == ORDO_OK && x->check == MPI_REQUEST_NULL;
  if (*done)
    x->in_flight = FALSE;
  return status;
}

void ordo_mpi_forget(ordo_exchange *x)
{
  if (!x || x->in_flight) /* left behind on purpose: MPI may still write into it */
    return;
  g_free(x->all);
  g_free(x->counts);
  free(x->scratch);
  g_free(x);
}

static ordo_status transport_begin(ordo_channel *channel, ordo_request *request)
{
  ordo_exchange *exchange = NULL;
  ordo_status status = ordo_mpi_begin(channel->transport_state, request, TRUE, &exchange);
  request->state = exchange;
  return status;
}

static ordo_status transport_advance(ordo_channel *channel, ordo_request *request)
{
  return ordo_mpi_advance(channel->transport_state, request, request->state, &request->done);
}

static ordo_status transport_watch(ordo_channel *channel)
{
  return ordo_mpi_watch(channel->hub, channel->transport_state, channel->name);
}

static void transport_idle(ordo_channel *channel, unsigned round)
{
  if (channel->hub->oversubscribed || round > 1000)
    sched_yield();
}

/* Ranks that wait for each other reach the deadline at about the same time, and each then calls the roll: who does not answer within a
 * second is not waiting, that is, has not arrived. */
static void transport_missing(ordo_channel *channel, ordo_request *request, GString *text)
{
  enum { ROLL_CALL_TAG = 32767 };
  const ordo_mpi_link *link = channel->transport_state;
  g_autofree MPI_Request *answers = g_new(MPI_Request, (gsize)link->size);
  gint64 end = g_get_monotonic_time() + G_USEC_PER_SEC;
  int missing = link->size;
  if (ordo_collective_is_pair(request->c.kind)) {
    g_string_append_printf(text, "rank %d did not answer", link->peers[request->c.root].world_rank);
    return;
  }
  for (int i = 0; i < link->size; i++) {
    MPI_Request call = MPI_REQUEST_NULL;
    answers[i] = MPI_REQUEST_NULL;
    if (i == link->rank)
      continue;
    MPI_Irecv(NULL, 0, MPI_BYTE, i, ROLL_CALL_TAG, link->checks, &answers[i]);
    if (MPI_Isend(NULL, 0, MPI_BYTE, i, ROLL_CALL_TAG, link->checks, &call) == MPI_SUCCESS)
      MPI_Request_free(&call); /* empty, so it has no buffer that must stay */
  }
  while (missing && g_get_monotonic_time() < end) {
    missing = 0;
    for (int i = 0; i < link->size; i++) {
      int done = 0;
      MPI_Test(&answers[i], &done, MPI_STATUS_IGNORE);
      missing += !done;
    }
    sched_yield();
  }
  for (int i = 0; i < link->size; i++) {
    if (answers[i] == MPI_REQUEST_NULL)
      continue;
    g_string_append_printf(text, "%srank %d did not arrive", text->len ? ", " : "", link->peers[i].world_rank);
    MPI_Cancel(&answers[i]);
    MPI_Request_free(&answers[i]);
  }
}

static void transport_forget(ordo_channel *channel, ordo_request *request)
{
  (void)channel;
  ordo_mpi_forget(request->state);
}

static int free_link(void *subject)
{
  ordo_mpi_link_clear(subject, FALSE);
  g_free(subject);
  return MPI_SUCCESS;
}

static void transport_close(ordo_channel *channel)
{
  if (!channel->hub->dead) {
    (void)ordo_mpi_call(channel->hub, NULL, channel->name, "closing the communicator", free_link, channel->transport_state);
    return;
  }
  ordo_mpi_link_clear(channel->transport_state, TRUE);
  g_free(channel->transport_state);
}

const ordo_transport ordo_mpi_transport = {
    .begin = transport_begin,
    .advance = transport_advance,
    .watch = transport_watch,
    .idle = transport_idle,
    .missing = transport_missing,
    .forget = transport_forget,
    .close = transport_close,
};
