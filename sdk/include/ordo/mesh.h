/* ordo/mesh.h - the named axes whose product is the world size.
 *
 * Axis 0 is the outermost: ranks of the last axis are neighbours. `coordinate` is this rank's place on an axis. A data
 * axis splits the batch, a model axis sees identical data. Every strategy owns one axis, and its collectives run there.
 */
#ifndef ORDO_MESH_H
#define ORDO_MESH_H

#include <ordo/comm.h>

enum { ORDO_AXIS_DATA = 1, ORDO_AXIS_MODEL = 2 };

typedef struct ordo_axis {
  size_t struct_size;
  const char *name;      /* "ddp", or the name given in the strategy expression */
  uint32_t index;        /* position in ordo_mesh.axes */
  uint32_t kind;         /* ORDO_AXIS_DATA or ORDO_AXIS_MODEL */
  int32_t size;          /* ranks on the axis */
  int32_t coordinate;    /* 0 .. size-1 */
  const ordo_comm *comm; /* the ranks that differ from this one in this coordinate only */
} ordo_axis;
ORDO_PIN_LAST(ordo_axis, comm);

typedef struct ordo_mesh {
  size_t struct_size;
  uint32_t n_axes; /* at most ORDO_MAX_AXES; 0 for a single rank without strategy */
  int32_t rank;    /* in the whole mesh, row-major over the axes */
  int32_t size;
  uint32_t reserved;
  const ordo_axis *const *axes;
  const ordo_comm *world; /* all ranks of the mesh */
  /* The ranks whose gradients are summands of one sum: those that differ from this one in coordinates of data axes only, axes of a strategy
   * with `replicas_diverge` left out. In rank order. The same pointer as `world` or as the `comm` of an axis where those are the same
   * ranks. Ordered sums over two data axes run here: a sum of sums rounds otherwise than one sum. Owned by the host. since 0.1 */
  const ordo_comm *data;
} ordo_mesh;
ORDO_PIN_LAST(ordo_mesh, data);

#endif
