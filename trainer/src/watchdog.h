/* watchdog.h - a limit for the moments in which ranks wait for each other outside of a collective with a deadline: MPI's start and end,
 * and the agreement before a session. One at a time, in the main thread. */
#ifndef ORDO_TRAINER_WATCHDOG_H
#define ORDO_TRAINER_WATCHDOG_H

/* If watchdog_end does not follow within `seconds`, the process writes an error that names `doing` and ends with `exit_code`. */
void watchdog_begin(double seconds, const char *doing, int rank, int exit_code);
void watchdog_end(void);

#endif
