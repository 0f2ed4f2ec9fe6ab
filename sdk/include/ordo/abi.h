/* ordo/abi.h - how every struct that crosses the plugin boundary may grow.
 *
 * Invariants
 *  - The first field of such a struct is `struct_size`, set by whoever fills it to sizeof of the struct it was compiled
 *    with. Structs are append-only: a field never moves and never changes its meaning within one ABI major.
 *  - A field is readable iff ORDO_HAS(pointer, type, field). Nobody compares sizes with `==`.
 *  - Structs have no implicit tail padding; ORDO_PIN_LAST fails the build when a field is added without moving the pin.
 *  - Enumerations cross as fixed-width integers; a receiver must cope with values it does not know.
 *
 * These headers need the C standard library only and compile as C11, C17 and C++17.
 *
 * Words used in every function comment
 *   thread tags   [main] the thread that created the session, outside a training step
 *                 [step] the thread that runs the training step (it may be the main thread)
 *                 [any]  any thread, also at the same time
 *   since 0.1     the first release of Ordo whose ABI has the function
 */
#ifndef ORDO_ABI_H
#define ORDO_ABI_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define ORDO_STATIC_ASSERT static_assert
#define ORDO_EXTERN_C_BEGIN extern "C" {
#define ORDO_EXTERN_C_END }
#else
#define ORDO_STATIC_ASSERT _Static_assert
#define ORDO_EXTERN_C_BEGIN
#define ORDO_EXTERN_C_END
#endif

/* Version of the plugin ABI. Major: meaning changed or something was removed. Minor: fields or functions were added. */
#define ORDO_ABI_MAJOR 1u
#define ORDO_ABI_MINOR 0u

/* Size that a struct must state for FIELD of TYPE to be readable. */
#define ORDO_SIZE_THROUGH(TYPE, FIELD) (offsetof(TYPE, FIELD) + sizeof(((TYPE *)0)->FIELD))

/* True if the struct behind PTR was filled by somebody who knew FIELD. PTR must not be null. */
#define ORDO_HAS(PTR, TYPE, FIELD) ((PTR)->struct_size >= ORDO_SIZE_THROUGH(TYPE, FIELD))

/* True if the function FIELD of a table is known to its author and present. */
#define ORDO_CAN(PTR, TYPE, FIELD) (ORDO_HAS(PTR, TYPE, FIELD) && (PTR)->FIELD != 0)

/* Pins the last field of a struct by strict equality: a looser test would miss a field that slips into tail padding. */
#define ORDO_PIN_LAST(TYPE, FIELD) \
  ORDO_STATIC_ASSERT(sizeof(TYPE) == ORDO_SIZE_THROUGH(TYPE, FIELD), #FIELD " is not the last field of " #TYPE ", or padding follows it")

/* Largest number of dimensions of a parameter and of axes of a mesh. */
#define ORDO_MAX_DIMS 8
#define ORDO_MAX_AXES 8

#if defined(__GNUC__)
#define ORDO_EXPORT __attribute__((visibility("default")))
#define ORDO_INLINE static inline __attribute__((unused))
#else
#define ORDO_EXPORT
#define ORDO_INLINE static inline
#endif

#endif
