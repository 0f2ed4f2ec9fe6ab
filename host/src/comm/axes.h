/* axes.h - builds the mesh of a session from a provider and axis sizes (private). */
#ifndef ORDO_PRIVATE_AXES_H
#define ORDO_PRIVATE_AXES_H

#include "../base/error.h"
#include <ordo/mesh.h>
#include <ordo/provider.h>

typedef struct ordo_axis_spec {
  const char *name;
  uint32_t kind;
  int size;
} ordo_axis_spec;

/* Splits the provider's world into axes (outermost first); the product must be the provider's size. Free it with ordo_axes_destroy. */
ordo_status ordo_axes_create(const ordo_comm_provider *provider, const ordo_axis_spec *specs, size_t n, ordo_errors *errors,
                             ordo_mesh **mesh);
/* Sets mesh->data: the ranks that differ in coordinates of the axes of `mask` (bit per axis) only. Makes a communicator only where neither
 * the world nor an axis has the same ranks. Once, before the mesh is used. Errors: those of the provider. */
ordo_status ordo_axes_join(const ordo_comm_provider *provider, ordo_mesh *mesh, guint32 mask, ordo_errors *errors);
void ordo_axes_destroy(const ordo_comm_provider *provider, ordo_mesh *mesh);
/* Compares a digest on all ranks in one reduction; only on a difference a second one names the rank that differs. ORDO_E_MISMATCH then. */
ordo_status ordo_axes_agree(const ordo_comm *world, const char *digest, const char *what, ordo_errors *errors);

#endif
