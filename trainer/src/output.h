/* output.h - the directory that a training run leaves behind (train.output), and what may happen to an earlier run in it. */
#ifndef ORDO_TRAINER_OUTPUT_H
#define ORDO_TRAINER_OUTPUT_H

#include "config.h"

/* Takes possession of train.output for one run: makes it and writes resolved.ini into it. A directory with an earlier run is refused,
 * unless train.overwrite is set: then what that run left is removed. If nobody set train.output, the first of ordo-run, ordo-run-2, ...
 * without a run is taken and set. An empty train.output is fine: nothing is written. For one rank only, after all ranks have read their
 * inputs. Errors: INVALID, IO. */
ordo_status ordo_output_take(ordo_config *config, ordo_problems *problems);

#endif
