/* What lock.pml takes from a recorded history: its numbers, and its own kinds of time.
 *
 * The first lines of a history define N, CLIENTS, LENGTH, MAX_TTL and the arrays `op`,
 * `who`, `where` and `much`: spec/trace.py writes them. Times are microseconds.
 */
#include "history.h"

#define TIME int
int ttl[CLIENTS];
bool jumped[N];            /* the clock of the node was set forward */

#define TTL_OF(c) (ttl[c])
/* A node's clock is at most 0.5 % faster than true time, and so are clients' slower. A
 * key ends up to a millisecond early, because Redis counts milliseconds. */
#define DRIFT_OF(c) (ttl[c] / 200 + 1000)
#ifndef SLACK
#define SLACK 0            /* how much later than it was a step may be written down */
#endif
#define EARLY(x) (DRIFT_OF(holder[x]) + SLACK)
#define QUARANTINE MAX_TTL
#define EARLY_WAIT (MAX_TTL / 200)
