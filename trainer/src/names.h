/* names.h - the known name that is nearest to an unknown one, for error texts. */
#ifndef ORDO_TRAINER_NAMES_H
#define ORDO_TRAINER_NAMES_H

/* The name in `names` (null-terminated) with the smallest edit distance, null if none is within a third of the length (at least 2).
 * The part after the last dot counts too: "train.lr" is near "optim.lr". Ties go to the first. Not copied. */
const char *ordo_names_nearest(const char *name, const char *const *names);

#endif
