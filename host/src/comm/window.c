/* window.c - collectives through memory that the ranks of one node share.
 *
 * Each rank announces a collective in its own slot (what, how much, where) and then needs no messages: it watches the others' slots and
 * counters. Three ways, chosen alike by all ranks once every announcement is there:
 *   inline   the data fit into the announcement: each rank reads all of them; one synchronisation
 *   direct   the buffers lie in segments: each rank reduces its slice out of all buffers into all buffers, or pulls what it needs
 *   staged   other buffers go through two staging buffers in turn, so that filling one overlaps with readers of the other
 * A rank finishes a phase by raising its tick; a phase may start when all ticks have reached its target. Targets follow from the
 * announcements alone, so they are equal everywhere.
 * Why two staging buffers are enough: before a buffer is filled again, every rank has been seen to raise a tick that it raises only after
 * it has read the previous contents; `half` alternates across collectives, so that also holds between two of them.
 * Guards against: torn reads (slots are released by their sequence number), ranks that started something else (announcements are
 * compared, always), dead ranks (watch), and spinning on processors that the awaited rank needs (futex when oversubscribed).
 */
#include "window.h"

#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { WAY_NONE, WAY_INLINE, WAY_DIRECT, WAY_STAGED, WAY_MESSAGES };
enum { FILL, REDUCE, DRAIN };

typedef struct window_request {
  uint64_t sequence;
  uint64_t target; /* ticks of all ranks that the next phase waits for */
  int way, phase;
  int64_t offset, chunk;   /* staged: elements done, elements in flight */
  ordo_exchange *exchange; /* pairs and all_to_all */
} window_request;

static ordo_window_slot *slot_of(const ordo_window *w, int rank, uint64_t sequence)
{
  return &w->pages[rank]->slots[sequence % ORDO_WINDOW_SLOTS];
}

/* Wakes ranks that sleep in idle. Without oversubscription nobody sleeps and the shared line is not touched. */
static void announce(const ordo_channel *channel, const ordo_window *w)
{
  ordo_window_page *page = w->pages[0];
  if (!channel->hub->oversubscribed)
    return;
  atomic_fetch_add(&page->doorbell, 1);
  if (atomic_load(&page->sleepers))
    syscall(SYS_futex, &page->doorbell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static void tick(const ordo_channel *channel, ordo_window *w)
{
  atomic_store_explicit(&w->pages[w->link.rank]->ticks, ++w->ticks, memory_order_release);
  announce(channel, w);
  channel->hub->moves++;
}

static gboolean all_ticks(const ordo_window *w, uint64_t target)
{
  for (int i = 0; i < w->link.size; i++)
    if (atomic_load_explicit(&w->pages[i]->ticks, memory_order_acquire) < target)
      return FALSE;
  return TRUE;
}

/* Bytes that this kind puts into the announcement of each rank (of the root for a broadcast). */
static uint64_t inline_bytes(const ordo_collective *c, int size)
{
  uint64_t one = (uint64_t)c->count * ordo_dtype_size(c->dtype);
  return c->kind == ORDO_BARRIER ? 0 : c->kind == ORDO_REDUCE_SCATTER ? one * (uint64_t)size : one;
}

static gboolean travels_as_messages(uint32_t kind)
{
  return kind == ORDO_ALL_TO_ALL || kind == ORDO_ALL_TO_ALL_V;
}

static void place(const ordo_window *w, const void *memory, uint64_t bytes, int32_t *segment_id, uint64_t *offset)
{
  const ordo_segment *segment = memory ? ordo_window_find(w, memory, bytes) : NULL;
  *segment_id = segment ? segment->id : -1;
  *offset = segment ? (uint64_t)((const char *)memory - segment->bases[w->link.rank]) : 0;
}

static gboolean has_pieces(const ordo_collective *c)
{
  return c->kind == ORDO_ALL_GATHER || c->kind == ORDO_REDUCE_SCATTER;
}

static void copy(void *to, const void *from, uint64_t bytes)
{
  if (bytes && to != from)
    memcpy(to, from, bytes);
}

/* Elements [at, at + n) of this rank's packed shard (all_gather), or of its copy of rank `i`'s (reduce_scatter), into packed memory. */
static void pack(const ordo_request *request, int i, int64_t at, int64_t n, const char *send, char *packed)
{
  size_t element = ordo_dtype_size(request->c.dtype);
  for (int64_t end = at + n; at < end;) {
    ordo_piece_span span = ordo_pieces_at(request, i, at, end);
    int64_t from = request->c.kind == ORDO_ALL_GATHER ? span.shard : span.full;
    copy(packed, send + (size_t)from * element, (uint64_t)span.count * element);
    packed += (size_t)span.count * element;
    at += span.count;
  }
}

/* Rank `i`'s elements [at, at + n) from packed memory into the whole of an all_gather. */
static void unpack(const ordo_request *request, int i, int64_t at, int64_t n, const char *packed)
{
  size_t element = ordo_dtype_size(request->c.dtype);
  for (int64_t end = at + n; at < end;) {
    ordo_piece_span span = ordo_pieces_at(request, i, at, end);
    copy((char *)request->c.recv + (size_t)span.full * element, packed, (uint64_t)span.count * element);
    packed += (size_t)span.count * element;
    at += span.count;
  }
}

/* This rank's elements [at, at + n) of a reduce_scatter; inputs[k] points at rank k's packed elements from `at` on. */
static void reduce_packed(const ordo_window *w, const ordo_request *request, int64_t at, int64_t n, const void **inputs)
{
  size_t element = ordo_dtype_size(request->c.dtype);
  for (int64_t end = at + n; at < end;) {
    ordo_piece_span span = ordo_pieces_at(request, w->link.rank, at, end);
    void *const outputs[] = {(char *)request->c.recv + (size_t)span.shard * element};
    ordo_reduce(&request->reduction, outputs, 1, inputs, (size_t)w->link.size, (size_t)span.count);
    for (int i = 0; i < w->link.size; i++)
      inputs[i] = (const char *)inputs[i] + (size_t)span.count * element;
    at += span.count;
  }
}

static void fill_inline(const ordo_window *w, const ordo_request *request, const void *source, char *payload)
{
  const ordo_collective *c = &request->c;
  size_t one = (size_t)c->count * ordo_dtype_size(c->dtype);
  if (c->kind == ORDO_REDUCE_SCATTER)
    for (int i = 0; i < w->link.size; i++)
      pack(request, i, 0, c->count, source, payload + one * (size_t)i);
  else if (c->kind == ORDO_ALL_GATHER)
    pack(request, w->link.rank, 0, c->count, source, payload);
  else
    memcpy(payload, source, one);
}

static void fill_slot(const ordo_window *w, ordo_request *request, ordo_window_slot *slot)
{
  const ordo_collective *c = &request->c;
  uint64_t bytes = inline_bytes(c, w->link.size);
  const void *source = c->kind == ORDO_BROADCAST ? (c->root == w->link.rank ? c->recv : NULL) : c->send;
  ordo_descriptor_of(request, &slot->descriptor);
  if (travels_as_messages(c->kind))
    return;
  if (bytes <= ORDO_WINDOW_INLINE) {
    if (bytes && source)
      fill_inline(w, request, source, slot->payload);
    return;
  }
  if (has_pieces(c))
    bytes = (uint64_t)(c->kind == ORDO_ALL_GATHER ? ordo_pieces_shard_extent(request) : ordo_pieces_full_extent(request, w->link.size)) *
            ordo_dtype_size(c->dtype);
  place(w, source, bytes, &slot->send_segment, &slot->send_offset);
  place(w, c->kind == ORDO_ALL_REDUCE ? c->recv : NULL, bytes, &slot->recv_segment, &slot->recv_offset);
}

/* A slot may be written again when every rank has finished the collective that used it last. */
static gboolean slot_is_free(const ordo_window *w, uint64_t sequence)
{
  for (int i = 0; i < w->link.size; i++)
    if (atomic_load_explicit(&w->pages[i]->completed, memory_order_acquire) + ORDO_WINDOW_SLOTS < sequence)
      return FALSE;
  return TRUE;
}

/* Announces what was started, in order, as far as slots are free. */
static void publish_pending(ordo_channel *channel, ordo_window *w)
{
  if (w->published == w->started)
    return;
  for (GList *link = channel->collectives.head; link; link = link->next) {
    ordo_request *request = link->data;
    window_request *state = request->state;
    if (!state || state->sequence <= w->published)
      continue;
    if (!slot_is_free(w, state->sequence))
      return;
    ordo_window_slot *slot = slot_of(w, w->link.rank, state->sequence);
    fill_slot(w, request, slot);
    atomic_store_explicit(&slot->sequence, state->sequence, memory_order_release);
    w->published = state->sequence;
    announce(channel, w);
  }
}

static ordo_status window_begin(ordo_channel *channel, ordo_request *request)
{
  ordo_window *w = channel->transport_state;
  window_request *state = g_new0(window_request, 1);
  request->state = state;
  if (ordo_collective_is_pair(request->c.kind))
    return ordo_mpi_begin(&w->link, request, FALSE, &state->exchange);
  state->sequence = ++w->started;
  publish_pending(channel, w);
  return travels_as_messages(request->c.kind) ? ordo_mpi_begin(&w->link, request, FALSE, &state->exchange) : ORDO_OK;
}

/* Where rank `i` keeps what others read (send side) or write (recv side). */
static char *address(const ordo_window *w, int i, int32_t segment_id, uint64_t offset)
{
  for (guint k = 0; k < w->segments->len; k++) {
    const ordo_segment *segment = g_ptr_array_index(w->segments, k);
    if (segment->id == segment_id)
      return segment->bases[i] + offset;
  }
  return NULL;
}

static gboolean can_go_direct(const ordo_window *w, const ordo_collective *c, uint64_t sequence)
{
  for (int i = 0; i < w->link.size; i++) {
    const ordo_window_slot *slot = slot_of(w, i, sequence);
    if (slot->send_segment < 0 && (c->kind != ORDO_BROADCAST || i == c->root))
      return FALSE;
    if (c->kind == ORDO_ALL_REDUCE && slot->recv_segment < 0)
      return FALSE;
  }
  return TRUE;
}

/* Waits for all announcements, compares them and picks the way. Leaves WAY_NONE while some are missing. */
static ordo_status choose_way(ordo_window *w, ordo_request *request, window_request *state)
{
  ordo_descriptor mine;
  for (int i = 0; i < w->link.size; i++)
    if (atomic_load_explicit(&slot_of(w, i, state->sequence)->sequence, memory_order_acquire) != state->sequence)
      return ORDO_OK;
  ordo_descriptor_of(request, &mine);
  for (int i = 0; i < w->link.size; i++)
    if (!ordo_descriptor_equal(&mine, &slot_of(w, i, state->sequence)->descriptor))
      return ordo_descriptor_mismatch(request, &w->link, i, &slot_of(w, i, state->sequence)->descriptor);
  if (travels_as_messages(request->c.kind))
    state->way = WAY_MESSAGES;
  else if (inline_bytes(&request->c, w->link.size) <= ORDO_WINDOW_INLINE)
    state->way = WAY_INLINE;
  else
    state->way = can_go_direct(w, &request->c, state->sequence) ? WAY_DIRECT : WAY_STAGED;
  request->channel->hub->moves++;
  return ORDO_OK;
}

/* Everything is in the announcements: `inputs[i]` is rank i's. */
static void run_inline(const ordo_window *w, ordo_request *request, uint64_t sequence)
{
  const ordo_collective *c = &request->c;
  const void *inputs[ORDO_WINDOW_MAX_RANKS];
  void *const outputs[] = {c->recv};
  uint64_t one = (uint64_t)c->count * ordo_dtype_size(c->dtype);
  for (int i = 0; i < w->link.size; i++)
    inputs[i] = slot_of(w, i, sequence)->payload + (c->kind == ORDO_REDUCE_SCATTER ? one * (uint64_t)w->link.rank : 0);
  if (c->kind == ORDO_REDUCE_SCATTER)
    reduce_packed(w, request, 0, c->count, inputs);
  else if (c->kind == ORDO_ALL_REDUCE)
    ordo_reduce(&request->reduction, outputs, 1, inputs, (size_t)w->link.size, (size_t)c->count);
  else if (c->kind == ORDO_ALL_GATHER)
    for (int i = 0; i < w->link.size; i++)
      unpack(request, i, 0, c->count, inputs[i]);
  else if (c->kind == ORDO_BROADCAST && c->root != w->link.rank)
    copy(c->recv, inputs[c->root], one);
}

/* First element of the slice of rank `i`; whole cache lines, so that two ranks never write one. */
static int64_t slice_start(int64_t count, int i, int size)
{
  return i == size ? count : count / size * i / 64 * 64;
}

/* This rank's slice of all send buffers, into all recv buffers. */
static void reduce_slice(const ordo_window *w, ordo_request *request, uint64_t sequence)
{
  const ordo_collective *c = &request->c;
  const void *inputs[ORDO_WINDOW_MAX_RANKS];
  void *outputs[ORDO_WINDOW_MAX_RANKS];
  size_t element = ordo_dtype_size(c->dtype);
  int64_t start = slice_start(c->count, w->link.rank, w->link.size), end = slice_start(c->count, w->link.rank + 1, w->link.size);
  for (int i = 0; i < w->link.size; i++) {
    const ordo_window_slot *slot = slot_of(w, i, sequence);
    inputs[i] = address(w, i, slot->send_segment, slot->send_offset) + (size_t)start * element;
    outputs[i] = address(w, i, slot->recv_segment, slot->recv_offset) + (size_t)start * element;
  }
  ordo_reduce(&request->reduction, outputs, (size_t)w->link.size, inputs, (size_t)w->link.size, (size_t)(end - start));
}

/* What the announced buffers say about rank `i`, null where it has none (a broadcast's receivers). */
static const char *sent_by(const ordo_window *w, int i, uint64_t sequence)
{
  const ordo_window_slot *slot = slot_of(w, i, sequence);
  return slot->send_segment < 0 ? NULL : address(w, i, slot->send_segment, slot->send_offset);
}

/* Every rank's shard, from where it lies to where it belongs. */
static void gather_direct(const ordo_window *w, const ordo_request *request, uint64_t sequence)
{
  size_t element = ordo_dtype_size(request->c.dtype);
  for (int k = 0; k < w->link.size; k++) {
    int i = (w->link.rank + k) % w->link.size; /* ranks begin with different sources */
    const char *base = sent_by(w, i, sequence);
    for (int64_t at = 0; at < request->c.count;) {
      ordo_piece_span span = ordo_pieces_at(request, i, at, request->c.count);
      copy((char *)request->c.recv + (size_t)span.full * element, base + (size_t)span.shard * element, (uint64_t)span.count * element);
      at += span.count;
    }
  }
}

static void reduce_scatter_direct(const ordo_window *w, const ordo_request *request, uint64_t sequence)
{
  size_t element = ordo_dtype_size(request->c.dtype);
  const void *inputs[ORDO_WINDOW_MAX_RANKS];
  for (int64_t at = 0; at < request->c.count;) {
    ordo_piece_span span = ordo_pieces_at(request, w->link.rank, at, request->c.count);
    void *const outputs[] = {(char *)request->c.recv + (size_t)span.shard * element};
    for (int i = 0; i < w->link.size; i++)
      inputs[i] = sent_by(w, i, sequence) + (size_t)span.full * element;
    ordo_reduce(&request->reduction, outputs, 1, inputs, (size_t)w->link.size, (size_t)span.count);
    at += span.count;
  }
}

static void run_direct(const ordo_window *w, ordo_request *request, uint64_t sequence)
{
  const ordo_collective *c = &request->c;
  if (c->kind == ORDO_ALL_REDUCE)
    reduce_slice(w, request, sequence);
  else if (c->kind == ORDO_ALL_GATHER)
    gather_direct(w, request, sequence);
  else if (c->kind == ORDO_REDUCE_SCATTER)
    reduce_scatter_direct(w, request, sequence);
  else if (c->root != w->link.rank)
    copy(c->recv, sent_by(w, c->root, sequence), (uint64_t)c->count * ordo_dtype_size(c->dtype));
}

/* Staged: puts the next chunk of this rank's data into its staging buffer. */
static void fill(const ordo_window *w, const ordo_request *request, window_request *state)
{
  const ordo_collective *c = &request->c;
  size_t element = ordo_dtype_size(c->dtype);
  int64_t limit = (int64_t)(ORDO_WINDOW_STAGING / element) / (c->kind == ORDO_REDUCE_SCATTER ? w->link.size : 1);
  char *in = w->pages[w->link.rank]->in[w->half];
  state->chunk = MIN(limit, c->count - state->offset);
  size_t bytes = (size_t)state->chunk * element, at = (size_t)state->offset * element;
  if (c->kind == ORDO_REDUCE_SCATTER)
    for (int i = 0; i < w->link.size; i++)
      pack(request, i, state->offset, state->chunk, c->send, in + bytes * (size_t)i);
  else if (c->kind == ORDO_ALL_GATHER)
    pack(request, w->link.rank, state->offset, state->chunk, c->send, in);
  else if (c->kind == ORDO_BROADCAST && c->root == w->link.rank)
    copy(in, (const char *)c->recv + at, bytes);
  else if (c->kind != ORDO_BROADCAST)
    copy(in, (const char *)c->send + at, bytes);
}

/* Staged all_reduce: this rank's slice of the chunk, for the others to fetch. */
static void reduce_staged(const ordo_window *w, ordo_request *request, const window_request *state)
{
  const void *inputs[ORDO_WINDOW_MAX_RANKS];
  size_t element = ordo_dtype_size(request->c.dtype);
  int64_t start = slice_start(state->chunk, w->link.rank, w->link.size), end = slice_start(state->chunk, w->link.rank + 1, w->link.size);
  void *const outputs[] = {w->pages[w->link.rank]->out[w->half]};
  for (int i = 0; i < w->link.size; i++)
    inputs[i] = w->pages[i]->in[w->half] + (size_t)start * element;
  ordo_reduce(&request->reduction, outputs, 1, inputs, (size_t)w->link.size, (size_t)(end - start));
}

static void drain(const ordo_window *w, ordo_request *request, const window_request *state)
{
  const ordo_collective *c = &request->c;
  const void *inputs[ORDO_WINDOW_MAX_RANKS];
  size_t element = ordo_dtype_size(c->dtype), bytes = (size_t)state->chunk * element;
  char *to = (char *)c->recv + (c->kind == ORDO_ALL_REDUCE || c->kind == ORDO_BROADCAST ? (size_t)state->offset * element : 0);
  for (int i = 0; i < w->link.size; i++) {
    size_t start = (size_t)slice_start(state->chunk, i, w->link.size), end = (size_t)slice_start(state->chunk, i + 1, w->link.size);
    if (c->kind == ORDO_REDUCE_SCATTER)
      inputs[i] = w->pages[i]->in[w->half] + bytes * (size_t)w->link.rank;
    else if (c->kind == ORDO_ALL_REDUCE)
      copy(to + start * element, w->pages[i]->out[w->half], (end - start) * element);
    else if (c->kind == ORDO_ALL_GATHER)
      unpack(request, i, state->offset, state->chunk, w->pages[i]->in[w->half]);
    else if (c->kind == ORDO_BROADCAST && i == c->root && i != w->link.rank)
      copy(to, w->pages[i]->in[w->half], bytes);
  }
  if (c->kind == ORDO_REDUCE_SCATTER)
    reduce_packed(w, request, state->offset, state->chunk, inputs);
}

/* Goes through the phases of the staged way until one must wait; TRUE when all chunks are through. */
static gboolean advance_staged(ordo_channel *channel, ordo_window *w, ordo_request *request, window_request *state)
{
  for (;;) {
    if (state->phase != FILL && !all_ticks(w, state->target))
      return FALSE;
    switch (state->phase) {
    case FILL:
      if (state->offset >= request->c.count)
        return TRUE;
      fill(w, request, state);
      tick(channel, w);
      state->phase = request->c.kind == ORDO_ALL_REDUCE ? REDUCE : DRAIN;
      break;
    case REDUCE:
      reduce_staged(w, request, state);
      tick(channel, w);
      state->phase = DRAIN;
      break;
    default:
      drain(w, request, state);
      state->offset += state->chunk;
      w->half ^= 1;
      state->phase = FILL;
      channel->hub->moves++;
    }
    state->target = w->ticks;
  }
}

static gboolean advance_direct(ordo_channel *channel, ordo_window *w, ordo_request *request, window_request *state)
{
  if (state->phase == FILL) {
    run_direct(w, request, state->sequence);
    tick(channel, w);
    state->target = w->ticks;
    state->phase = DRAIN;
  }
  return all_ticks(w, state->target);
}

static ordo_status run(ordo_channel *channel, ordo_window *w, ordo_request *request, window_request *state)
{
  switch (state->way) {
  case WAY_INLINE:
    run_inline(w, request, state->sequence);
    request->done = TRUE;
    return ORDO_OK;
  case WAY_DIRECT:
    request->done = advance_direct(channel, w, request, state);
    return ORDO_OK;
  case WAY_STAGED:
    request->done = advance_staged(channel, w, request, state);
    return ORDO_OK;
  default:
    return ordo_mpi_advance(&w->link, request, state->exchange, &request->done);
  }
}

static ordo_status window_advance(ordo_channel *channel, ordo_request *request)
{
  ordo_window *w = channel->transport_state;
  window_request *state = request->state;
  ordo_status status = ORDO_OK;
  if (ordo_collective_is_pair(request->c.kind))
    return ordo_mpi_advance(&w->link, request, state->exchange, &request->done);
  if (channel->hub->oversubscribed)
    w->doorbell_seen = atomic_load(&w->pages[0]->doorbell); /* before looking: a later ring then ends idle at once */
  publish_pending(channel, w);
  if (state->way == WAY_NONE && (status = choose_way(w, request, state)) != ORDO_OK)
    return status;
  if (state->way != WAY_NONE)
    status = run(channel, w, request, state);
  if (status == ORDO_OK && request->done) {
    atomic_store_explicit(&w->pages[w->link.rank]->completed, state->sequence, memory_order_release);
    announce(channel, w);
  }
  return status;
}

static ordo_status window_watch(ordo_channel *channel)
{
  ordo_window *w = channel->transport_state;
  ordo_status status = ordo_mpi_watch(channel->hub, &w->link, channel->name);
  if (status != ORDO_OK)
    return status; /* the cause, rather than that another rank has seen it first */
  for (int i = 0; i < w->link.size; i++) {
    ordo_status theirs = atomic_load(&w->pages[i]->given_up);
    if (!theirs || i == w->link.rank)
      continue;
    /* It may have given up over an announcement that came after the last look; then this rank can say the same. */
    ordo_request *oldest = g_queue_peek_head(&channel->collectives);
    window_request *state = oldest ? oldest->state : NULL;
    if (state && state->way == WAY_NONE && (status = choose_way(w, oldest, state)) != ORDO_OK)
      return status;
    return ordo_hub_fail(channel->hub, theirs, "E-COMM-GAVE-UP", channel->name, "a session ends on all ranks when it ends on one",
                         "Look at the error of that rank.", "rank %d gave up while rank %d waited for it on '%s'; its own error says why",
                         w->link.peers[i].world_rank, w->link.peers[w->link.rank].world_rank, channel->name);
  }
  return ORDO_OK;
}

static void pause_processor(void)
{
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

static void window_idle(ordo_channel *channel, unsigned round)
{
  ordo_window *w = channel->transport_state;
  ordo_window_page *page = w->pages[0];
  const struct timespec longest = {0, 1000000}; /* another channel or plain MPI may have work as well */
  if (!channel->hub->oversubscribed) {
    if (round < 2000)
      pause_processor();
    else
      sched_yield();
    return;
  }
  if (round < 20 || channel->pairs.length) {
    sched_yield();
    return;
  }
  atomic_fetch_add(&page->sleepers, 1);
  syscall(SYS_futex, &page->doorbell, FUTEX_WAIT, w->doorbell_seen, &longest, NULL, 0);
  atomic_fetch_sub(&page->sleepers, 1);
}

static void window_missing(ordo_channel *channel, ordo_request *request, GString *text)
{
  ordo_window *w = channel->transport_state;
  window_request *state = request->state;
  const ordo_request *oldest = g_queue_peek_head(&channel->collectives);
  if (ordo_collective_is_pair(request->c.kind)) {
    g_string_append_printf(text, "rank %d did not answer", w->link.peers[request->c.root].world_rank);
    return;
  }
  if (oldest)
    state = oldest->state; /* what blocks is the oldest */
  for (int i = 0; i < w->link.size; i++) {
    gboolean arrived = atomic_load(&slot_of(w, i, state->sequence)->sequence) == state->sequence;
    gboolean behind = state->way != WAY_NONE && atomic_load(&w->pages[i]->ticks) < state->target;
    if (i != w->link.rank && (!arrived || behind))
      g_string_append_printf(text, "%srank %d %s", text->len ? ", " : "", w->link.peers[i].world_rank,
                             arrived ? "arrived but did not go on" : "did not arrive");
  }
}

static void window_mourn(ordo_channel *channel)
{
  ordo_window *w = channel->transport_state;
  atomic_store(&w->pages[w->link.rank]->given_up, channel->hub->dead);
  announce(channel, w);
}

static void window_forget(ordo_channel *channel, ordo_request *request)
{
  window_request *state = request->state;
  (void)channel;
  if (state)
    ordo_mpi_forget(state->exchange);
  g_free(state);
}

static int free_window(void *subject)
{
  ordo_window_free(subject, FALSE);
  return MPI_SUCCESS;
}

static void window_close(ordo_channel *channel)
{
  if (channel->hub->dead)
    ordo_window_free(channel->transport_state, TRUE);
  else
    (void)ordo_mpi_call(channel->hub, NULL, channel->name, "closing the communicator", free_window, channel->transport_state);
}

const ordo_transport ordo_window_transport = {
    .begin = window_begin,
    .advance = window_advance,
    .watch = window_watch,
    .idle = window_idle,
    .missing = window_missing,
    .mourn = window_mourn,
    .forget = window_forget,
    .alloc = ordo_window_alloc,
    .free = ordo_window_release,
    .close = window_close,
    .takes_pieces = TRUE,
};
