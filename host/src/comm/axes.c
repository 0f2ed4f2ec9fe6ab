/* axes.c - the mesh of a session: one communicator for the world, one for each axis, one for the ranks that share a sum of gradients.
 *
 * Ranks are laid out row-major, axis 0 outermost, so neighbours in the world share the last axis (on one node that is where most
 * traffic belongs). Not the place where axis sizes are guessed: they arrive complete and only their product is checked.
 * Guards against ranks that planned differently: ordo_axes_agree costs one small reduction when they agree.
 */
#include "axes.h"

#include <string.h>

typedef struct mesh_box {
  ordo_mesh mesh;
  ordo_axis axes[ORDO_MAX_AXES];
  const ordo_axis *pointers[ORDO_MAX_AXES];
  char *names[ORDO_MAX_AXES];
} mesh_box;

static ordo_status wrong_size(const ordo_comm_provider *provider, const ordo_axis_spec *specs, size_t n, ordo_errors *errors)
{
  GString *product = g_string_new(NULL);
  for (size_t i = 0; i < n; i++)
    g_string_append_printf(product, "%s%s=%d", i ? " x " : "", specs[i].name, specs[i].size);
  g_autofree char *text = g_string_free(product, FALSE);
  return ordo_errors_push(errors, ORDO_E_INVALID, "E-MESH-SIZE", "mesh", "the product of the axis sizes must be the number of ranks",
                          "Change the axis sizes in the strategy expression, or start another number of ranks (--ranks).",
                          "the mesh %s does not fit %d rank%s", n ? text : "without axes", provider->size, provider->size == 1 ? "" : "s");
}

static gboolean product_fits(const ordo_comm_provider *provider, const ordo_axis_spec *specs, size_t n)
{
  int64_t product = 1;
  for (size_t i = 0; i < n; i++) {
    if (specs[i].size < 1 || product > provider->size)
      return FALSE;
    product *= specs[i].size;
  }
  return product == provider->size;
}

/* The provider keeps the text of its last error; a provider of ours has pushed its own record already. */
static ordo_status split_failed(const ordo_comm_provider *provider, ordo_status status, const char *name, ordo_errors *errors)
{
  const char *text = provider->error_text ? provider->error_text(provider->ctx) : "";
  if (ordo_errors_count(errors) > 0)
    return status;
  return ordo_errors_push(errors, status, status == ORDO_E_PEER_LOST ? "E-COMM-PEER-LOST" : "E-MESH-SIZE", name, text,
                          "See the reason; every rank must be alive and pass the same mesh.",
                          "the communicator of axis '%s' could not be made by provider '%s'", name, provider->name);
}

/* This rank's coordinate on each axis, and the colour: the world rank with that coordinate set to 0. */
static ordo_status add_axis(const ordo_comm_provider *provider, const ordo_axis_spec *spec, int inner, mesh_box *box, ordo_errors *errors)
{
  uint32_t index = box->mesh.n_axes;
  int32_t coordinate = provider->rank / inner % spec->size;
  const ordo_comm *comm = NULL;
  ordo_status status = provider->split(provider->ctx, provider->rank - coordinate * inner, coordinate, spec->size, spec->name, &comm);
  if (status != ORDO_OK)
    return split_failed(provider, status, spec->name, errors);
  box->names[index] = g_strdup(spec->name);
  ordo_axis axis = {sizeof(ordo_axis), box->names[index], index, spec->kind, spec->size, coordinate, comm};
  box->axes[index] = axis;
  box->pointers[index] = &box->axes[index];
  box->mesh.n_axes++;
  return ORDO_OK;
}

ordo_status ordo_axes_create(const ordo_comm_provider *provider, const ordo_axis_spec *specs, size_t n, ordo_errors *errors,
                             ordo_mesh **mesh)
{
  *mesh = NULL;
  if (n > ORDO_MAX_AXES)
    return ordo_errors_push(errors, ORDO_E_INVALID, "E-MESH-SIZE", "mesh", "a mesh has at most 8 axes", "Name fewer strategies.",
                            "the mesh has %zu axes", n);
  if (!product_fits(provider, specs, n))
    return wrong_size(provider, specs, n, errors);
  mesh_box *box = g_new0(mesh_box, 1);
  box->mesh.struct_size = sizeof box->mesh;
  box->mesh.rank = provider->rank;
  box->mesh.size = provider->size;
  box->mesh.axes = box->pointers;
  ordo_status status = provider->split(provider->ctx, 0, provider->rank, provider->size, "world", &box->mesh.world);
  if (status != ORDO_OK)
    status = split_failed(provider, status, "world", errors);
  int inner = provider->size;
  for (size_t i = 0; i < n && status == ORDO_OK; i++) {
    inner /= specs[i].size;
    status = add_axis(provider, &specs[i], inner, box, errors);
  }
  if (status != ORDO_OK) {
    ordo_axes_destroy(provider, &box->mesh);
    return status;
  }
  *mesh = &box->mesh;
  return ORDO_OK;
}

/* A communicator that is there already and has the `size` ranks of `mask`: an axis of it if the others of it have one rank each, the world
 * if all ranks are meant; a single rank is found on any axis of one rank. */
static const ordo_comm *find_same(const ordo_mesh *mesh, guint32 mask, int32_t size)
{
  for (uint32_t a = 0; a < mesh->n_axes; a++)
    if (mesh->axes[a]->size == size && (size == 1 || (mask & (1u << a))))
      return mesh->axes[a]->comm;
  return size == mesh->size ? mesh->world : NULL;
}

ordo_status ordo_axes_join(const ordo_comm_provider *provider, ordo_mesh *mesh, guint32 mask, ordo_errors *errors)
{
  int32_t place = 0, size = 1, inner = mesh->size, colour = mesh->rank;
  for (uint32_t a = 0; a < mesh->n_axes; a++) {
    const ordo_axis *axis = mesh->axes[a];
    inner /= axis->size;
    if (!(mask & (1u << a)))
      continue;
    place = place * axis->size + axis->coordinate;
    size *= axis->size;
    colour -= axis->coordinate * inner; /* the rank with these coordinates set to 0 */
  }
  mesh->data = find_same(mesh, mask, size);
  if (mesh->data)
    return ORDO_OK;
  ordo_status status = provider->split(provider->ctx, colour, place, size, "data", &mesh->data);
  return status == ORDO_OK ? ORDO_OK : split_failed(provider, status, "data", errors);
}

static gboolean is_joined(const ordo_mesh *mesh)
{
  gboolean shared = mesh->data == mesh->world;
  for (uint32_t a = 0; a < mesh->n_axes; a++)
    shared = shared || mesh->data == mesh->axes[a]->comm;
  return mesh->data && !shared;
}

void ordo_axes_destroy(const ordo_comm_provider *provider, ordo_mesh *mesh)
{
  mesh_box *box = (mesh_box *)mesh;
  if (!mesh)
    return;
  if (is_joined(mesh))
    provider->release(provider->ctx, mesh->data);
  for (uint32_t i = mesh->n_axes; i-- > 0;) {
    provider->release(provider->ctx, box->axes[i].comm);
    g_free(box->names[i]);
  }
  if (mesh->world)
    provider->release(provider->ctx, mesh->world);
  g_free(box);
}

/* First eight bytes of SHA-256, so that digests of any length compare in one small message. */
static uint64_t hash_of(const char *digest)
{
  guint8 bytes[32];
  gsize length = sizeof bytes;
  uint64_t hash;
  GChecksum *sum = g_checksum_new(G_CHECKSUM_SHA256);
  g_checksum_update(sum, (const guchar *)digest, (gssize)strlen(digest));
  g_checksum_get_digest(sum, bytes, &length);
  g_checksum_free(sum);
  memcpy(&hash, bytes, sizeof hash);
  return hash;
}

/* Ranks whose hash differs from the most frequent one (ties: from that of the lowest rank). */
static char *name_the_different(const uint64_t *hashes, int32_t size)
{
  int32_t best = 0, best_count = 0;
  GString *text = g_string_new(NULL);
  for (int32_t i = 0; i < size; i++) {
    int32_t count = 0;
    for (int32_t j = 0; j < size; j++)
      count += hashes[j] == hashes[i];
    if (count > best_count) {
      best = i;
      best_count = count;
    }
  }
  for (int32_t i = 0; i < size; i++)
    if (hashes[i] != hashes[best])
      g_string_append_printf(text, "%s%d", text->len ? ", " : "", i);
  return g_string_free(text, FALSE);
}

ordo_status ordo_axes_agree(const ordo_comm *world, const char *digest, const char *what, ordo_errors *errors)
{
  uint64_t mine = hash_of(digest);
  uint64_t extremes[2] = {mine, ~mine}; /* the maximum of ~x is the complement of the minimum of x */
  ordo_status status = ordo_all_reduce(world, extremes, 2, ORDO_U64, ORDO_MAX, 1.0);
  if (status != ORDO_OK || extremes[0] == ~extremes[1])
    return status;
  g_autofree uint64_t *all = g_new0(uint64_t, (gsize)world->size);
  if ((status = ordo_all_gather(world, &mine, all, 1, ORDO_U64)) != ORDO_OK)
    return status;
  g_autofree char *ranks = name_the_different(all, world->size);
  return ordo_errors_push(errors, ORDO_E_MISMATCH, "E-PLAN-DIGEST", what, "every rank must plan from the same plugins and configuration",
                          "Compare `ordo plan --digest` on the named rank with another one.",
                          "the %s differs on rank %s (this rank has %.16s)", what, ranks, digest);
}
