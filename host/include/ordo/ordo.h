/* ordo/ordo.h - everything that an embedder needs except MPI (mpi.h).
 *
 * context.h   search path, plugins, errors          plan.h      one order, or why there is none
 * session.h   executes a plan for your own loop     provider.h  where communicators come from
 * The plugin side: plugin.h manifest.h host.h job.h strategy.h precision.h comm_hook.h state.h, and the nouns both share:
 * abi.h status.h dtype.h step.h comm.h mesh.h model.h optimizer.h
 */
#ifndef ORDO_ORDO_H
#define ORDO_ORDO_H

#include <ordo/context.h>
#include <ordo/plan.h>
#include <ordo/precision.h>
#include <ordo/provider.h>
#include <ordo/session.h>

#endif
