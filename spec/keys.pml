/* Several keys at once, and permits.
 *
 * An attempt wants one key or both. A node grants it all of them or none. A permit is a
 * lock on one of n names: an attempt picks one, and so PERMITS names have at most so many
 * holders. Here the two keys are also the two names of the permits of a limit of 2.
 *
 * Properties
 *   one holder   at most one client holds a key                         (assertion)
 *   permits      at most PERMITS clients hold a permit                  (assertion)
 *   all or none  no node keeps a part of the keys of an attempt         (assertion)
 *
 * This model has no clocks. What lock.pml shows is taken for granted: while a lease is
 * valid, a node on which it rests keeps its keys, and so does one that has said yes to its
 * renewal. Others, and all those of an attempt that is over, end its keys at any time.
 */
#include "common.pml"

#ifndef CLIENTS
#define CLIENTS 2
#endif
#define PERMITS 2
#define FREE CLIENTS
#define BOTH 3             /* the set of key 0 and key 1 */

mtype = { IDLE, ASKING, HELD, OVER }

byte holder0[N] = FREE;    /* who has key 0 on a node, */
byte holder1[N] = FREE;    /*   and key 1 */
mtype phase[CLIENTS] = IDLE;
byte wants[CLIENTS];       /* the keys of its attempt */
byte rests[CLIENTS];       /* the nodes that granted, or renewed it last */
byte again[CLIENTS];       /* the nodes that said yes to the renewal under way */
byte n, c;

#define KEYS_OF(C, X) ((holder0[X] == C) + 2 * (holder1[X] == C))
#define TAKEN(C, X) ((holder0[X] != C && holder0[X] != FREE) + \
  2 * (holder1[X] != C && holder1[X] != FREE))
#define MAY_END(C, X) (phase[C] == OVER || phase[C] == HELD && \
  !HAS(rests[C] | again[C], X))

#if defined(NO_NAMES)      /* a node counts holders: one more, while fewer than PERMITS */
#define CAN_TAKE(C, X) (TAKEN(C, X) != BOTH)
#elif defined(NO_ALL_OR_NONE)
#define CAN_TAKE(C, X) ((wants[C] & ~TAKEN(C, X)) != 0)
#else
#define CAN_TAKE(C, X) ((wants[C] & TAKEN(C, X)) == 0)
#endif

inline write_keys(keys) {
  if :: HAS(keys, 0) && holder0[n] == FREE -> holder0[n] = c :: else fi;
  if :: HAS(keys, 1) && holder1[n] == FREE -> holder1[n] = c :: else fi
}

inline acquire() {                       /* acquire.lua, acquire_permits.lua */
#ifdef NO_NAMES
  if
  :: holder0[n] == FREE -> holder0[n] = c
  :: else -> holder1[n] = c
  fi;
#else
  write_keys(wants[c]);
#endif
  rests[c] = rests[c] | BIT(n);
  printf("STEP node %d grants %c what it wants\n", n, NAME(c))
}

inline extend() {                        /* extend.lua, restore.lua */
#ifdef NO_RESTORE_OF_EVERY_KEY
  if :: KEYS_OF(c, n) == 0 -> write_keys((wants[c] & 1 -> 1 : 2)) :: else fi;
#else
  write_keys(wants[c]);
#endif
  again[c] = again[c] | BIT(n);
  printf("STEP node %d renews what %c holds, or restores it\n", n, NAME(c))
}

inline end_keys() {                      /* release.lua, or the ttl, which is the same */
#ifdef NO_RELEASE_OF_EVERY_KEY
  if
  :: holder0[n] == c -> holder0[n] = FREE
  :: else -> if :: holder1[n] == c -> holder1[n] = FREE :: else fi
  fi;
#else
  if :: holder0[n] == c -> holder0[n] = FREE :: else fi;
  if :: holder1[n] == c -> holder1[n] = FREE :: else fi;
#endif
  printf("STEP node %d ends what %c had\n", n, NAME(c))
}

#define HOLDS(C, k) (phase[C] == HELD && HAS(wants[C], k))
#define IN_PART(C, X) (KEYS_OF(C, X) != 0 && KEYS_OF(C, X) != wants[C])

inline check() {
#ifndef NO_NAMES
  assert(!(HOLDS(0, 0) && HOLDS(1, 0)) && !(HOLDS(0, 1) && HOLDS(1, 1)));
#if CLIENTS > 2
  assert(!(HOLDS(0, 0) && HOLDS(2, 0)) && !(HOLDS(0, 1) && HOLDS(2, 1)));
  assert(!(HOLDS(1, 0) && HOLDS(2, 0)) && !(HOLDS(1, 1) && HOLDS(2, 1)));
#endif
  for (n : 0 .. N - 1) {
    for (c : 0 .. CLIENTS - 1) { assert(phase[c] == IDLE || !IN_PART(c, n)) }
  }
#elif CLIENTS > 2
  assert((phase[0] == HELD) + (phase[1] == HELD) + (phase[2] == HELD) <= PERMITS);
#endif
  n = 0; c = 0
}

#define START(C, keys) \
  :: d_step { phase[C] == IDLE -> c = C; phase[c] = ASKING; wants[c] = keys; \
     printf("STEP %c wants %e\n", NAME(c), what[keys]); check() }
#define CLIENT(C) \
  STARTS(C) \
  :: d_step { phase[C] == ASKING && SIZE(rests[C]) >= QUORUM -> c = C; \
     phase[c] = HELD; printf("STEP %c holds what it wants\n", NAME(c)); check() } \
  :: d_step { phase[C] == HELD && SIZE(again[C]) >= QUORUM && again[C] != rests[C] -> \
     c = C; rests[c] = again[c]; again[c] = 0; \
     printf("STEP the renewal of %c counts\n", NAME(c)); check() } \
  :: d_step { (phase[C] == ASKING || phase[C] == HELD) -> c = C; phase[c] = OVER; \
     rests[c] = 0; again[c] = 0; \
     printf("STEP %c ends its attempt, or dies\n", NAME(c)); check() } \
  :: d_step { phase[C] == OVER && KEYS_OF(C, 0) + KEYS_OF(C, 1) + KEYS_OF(C, 2) == 0 -> \
     phase[C] = IDLE; wants[C] = 0 }

#define MESSAGE(C, X) \
  :: d_step { phase[C] == ASKING && !HAS(rests[C], X) && CAN_TAKE(C, X) -> \
     c = C; n = X; acquire(); check() } \
  :: d_step { phase[C] == HELD && !HAS(again[C], X) && CAN_TAKE(C, X) -> \
     c = C; n = X; extend(); check() } \
  :: d_step { MAY_END(C, X) && KEYS_OF(C, X) != 0 -> c = C; n = X; end_keys(); check() }

#ifdef ONE_NAME_EACH
#define STARTS(C) START(C, 1) START(C, 2)
#else
#define STARTS(C) START(C, 1) START(C, 2) START(C, 3)
#endif

mtype = { nothing, key_0, key_1, both_keys }
mtype what[4];

active proctype World() {
  d_step { what[1] = key_0; what[2] = key_1; what[3] = both_keys }
  do
  CLIENT(0) MESSAGE(0, 0) MESSAGE(0, 1) MESSAGE(0, 2)
  CLIENT(1) MESSAGE(1, 0) MESSAGE(1, 1) MESSAGE(1, 2)
#if CLIENTS > 2
  CLIENT(2) MESSAGE(2, 0) MESSAGE(2, 1) MESSAGE(2, 2)
#endif
  od
}
