/* semver.h - order of versions (private). */
#ifndef ORDO_PRIVATE_SEMVER_H
#define ORDO_PRIVATE_SEMVER_H

/* Precedence of two versions after semver.org 2.0.0, item 11: below, at or above 0 as `a` is older, equal or newer. Build metadata
 * (after '+') does not count. Total on any text: what is no number is compared as text. */
int ordo_semver_compare(const char *a, const char *b);

#endif
