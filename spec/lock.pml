/* One lock: acquire, extend, restore, release, loss of memory, and clocks.
 *
 * Properties
 *   one holder   at most one client has a valid lease                    (assertion)
 *   no return    a lease that has ended is never valid again             (assertion)
 *   again        when the others are gone and nothing fails any more, a client that
 *                tries again and again gets the lock                     (LTL)
 *
 * Time. Durations are counters that count down to 0. A client's clock is the measure: it
 * ticks once in each tick. A node's clock may gain one tick on it in the course of a ttl or
 * of a quarantine: bounded drift. (A node that is slow keeps others out for longer, no
 * more.) With -DJUMPS the clock of node 0, a minority, also jumps forward at any time: its
 * key ends at once. That is harmless only to a lock that more nodes than a majority have.
 * There A counts on no fewer than all nodes, and B on a majority.
 *
 * Messages. Those of the present attempt arrive at any time or never. Of attempts that
 * are over, any message may arrive at any time, any number of times. So a key of such an
 * attempt lasts or ends as it likes; only in calm its ttl is counted.
 *
 * Recorded histories of the code are checked with -DTRACE: trace.pml takes their steps
 * one by one, each by the same guard and the same text as here. Durations are counted in
 * microseconds then, and each attempt has a ttl of its own.
 */
#include "common.pml"

#ifndef CLIENTS
#define CLIENTS 2
#endif
#ifndef TTL
#define TTL 3              /* ticks that a key lives on a node; also max_ttl */
#endif
#define DRIFT 1            /* what a client takes off its validity */

#ifdef TRACE
#include "trace.h"
#else
#define TIME byte
#define TTL_OF(c) TTL
#define DRIFT_OF(c) DRIFT
#define EARLY(x) DRIFT
#define EARLY_WAIT DRIFT
#endif

#ifdef NO_DRIFT
#define VALIDITY(c) TTL_OF(c)
#else
#define VALIDITY(c) (TTL_OF(c) - DRIFT_OF(c))
#endif
#ifdef TRACE
#elif defined(NO_LONG_QUARANTINE)
#define QUARANTINE 1
#else
#define QUARANTINE (TTL + 1) /* ticks that a node without memory does not vote */
#endif
#ifdef NO_MAJORITY
#define ENOUGH (N / 2)
#else
#define ENOUGH QUORUM
#endif
#if defined(JUMPS) && !defined(NO_SPARE_VOTE)
#define ENOUGH_FOR(c) ((c) == 0 -> N : ENOUGH)
#else
#define ENOUGH_FOR(c) ENOUGH
#endif

mtype = { IDLE, ASKING, HELD }

/* A node. Its key is FREE, belongs to the present attempt of a client, or to an OLD one,
 * which is over. */
#define OLD CLIENTS
#define FREE (CLIENTS + 1)
byte holder[N] = FREE;
TIME left[N];              /* ticks until its key ends */
TIME wait[N];              /* ticks until it may vote, by its clock and the others' */
bool votes[N] = true;

/* A client and its attempt. */
mtype phase[CLIENTS] = IDLE;
TIME valid[CLIENTS];       /* ticks until the validity ends */
byte yes[CLIENTS];         /* the nodes that granted */
bool renews[CLIENTS];      /* a renewal is under way, */
TIME fresh[CLIENTS];       /*   the validity that it would give, */
byte again[CLIENTS];       /*   the nodes that said yes to it */
bool asked[CLIENTS];       /* some renewal was begun: its messages may still arrive */
bool ended[CLIENTS];       /* the lease has ended */

bool stale;                /* some attempt is over: its messages may still arrive */
bool calm;                 /* nothing fails any more, and only the last client acts */
byte n, c;                 /* the node and the client of this step */

#define LAST (CLIENTS - 1)
#define HOLDS(c) (phase[c] == HELD && valid[c] > 0)
#define OTHERS_VOTE(x) (votes[0] + votes[1] + votes[2] - votes[x] == N - 1)

#ifdef NO_FREE_CHECK
#define MAY_TAKE(c, x) (votes[x])
#else
#define MAY_TAKE(c, x) (votes[x] && (holder[x] == FREE || holder[x] == c))
#endif
#ifdef NO_RESTORE_ONLY_FREE
#define MAY_WRITE(x) true
#else
#define MAY_WRITE(x) (holder[x] == FREE)
#endif
#ifdef NO_VOTE_TO_RENEW
#define MAY_RESTORE_ON(x) true
#else
#define MAY_RESTORE_ON(x) (votes[x])
#endif
#ifdef NO_RENEWAL_IN_TIME
#define IN_TIME(c) true
#else
#define IN_TIME(c) (valid[c] > 0)
#endif
#ifdef NO_TOKEN
#define IS_OLD(x) (holder[x] != FREE)
#else
#define IS_OLD(x) (holder[x] == OLD)
#endif
#ifdef TRACE
#define JUMPS_AT(x) (jumped[x])
#elif defined(JUMPS)
#define JUMPS_AT(x) (x == 0)
#else
#define JUMPS_AT(x) false
#endif

/* -- When a step is possible ---------------------------------------------- */

#define CAN_START(C) (phase[C] == IDLE)
#define CAN_GRANT(C) (phase[C] == ASKING && SIZE(yes[C]) >= ENOUGH_FOR(C) && valid[C] > 0)
#define CAN_BEGIN_RENEWAL(C) (HOLDS(C) && !renews[C])
#define CAN_RENEW(C) (renews[C] && SIZE(again[C]) >= ENOUGH_FOR(C) && IN_TIME(C))
#define CAN_GIVE_UP(C) (renews[C])
#define CAN_FINISH(C) (phase[C] != IDLE)
#define CAN_ACQUIRE(C, X) (phase[C] != IDLE && MAY_TAKE(C, X))
#define CAN_EXTEND(C, X) (phase[C] == HELD && asked[C] && \
  (holder[X] == C || (MAY_RESTORE_ON(X) && MAY_WRITE(X))))
#define CAN_TAKE_LATE(X) (stale && votes[X] && holder[X] == FREE)
#define CAN_RELEASE_LATE(X) (stale && IS_OLD(X))
#define CAN_FAIL(X) (votes[X] && OTHERS_VOTE(X))
#define CAN_VOTE(X) (!votes[X] && wait[X] == 0)
#define CAN_BE_FAST(X) (left[X] > 0 && left[X] <= EARLY(X))
#define CAN_HAVE_WAITED(X) (wait[X] > 0 && wait[X] <= EARLY_WAIT)

/* -- What a node does with a message ------------------------------------- */

inline acquire() {                       /* acquire.lua */
  holder[n] = c; left[n] = TTL_OF(c);
  if
  :: phase[c] == ASKING -> yes[c] = yes[c] | BIT(n);
     printf("STEP node %d grants the lock to %c\n", n, NAME(c))
  :: else -> printf("STEP a message of %c comes late to node %d\n", NAME(c), n)
  fi
}

inline extend() {                        /* extend.lua, restore.lua */
  if
  :: holder[n] == c -> printf("STEP node %d renews the key of %c\n", n, NAME(c))
  :: else -> printf("STEP the key of %c is restored on node %d\n", NAME(c), n)
  fi;
  holder[n] = c; left[n] = TTL_OF(c);
  if
  :: renews[c] -> again[c] = again[c] | BIT(n)
  :: else
  fi
}

inline release() {                       /* release.lua */
  holder[n] = FREE; left[n] = 0
}

inline take_late() {
  holder[n] = OLD;
  printf("STEP a late message of an ended attempt takes node %d\n", n)
}

inline release_late() {
  release();
  printf("STEP a late release of an ended attempt reaches node %d\n", n)
}

inline forget() {                        /* a restart without data, FLUSHALL */
  release();
#ifdef NO_QUARANTINE
  printf("STEP node %d restarts without its memory, and votes\n", n)
#else
  votes[n] = false; wait[n] = QUARANTINE;
  printf("STEP node %d restarts without its memory, and does not vote\n", n)
#endif
}

inline restart() {                       /* with its data: it renews the keys that it has */
#ifdef NO_QUARANTINE
  skip
#else
  votes[n] = false; wait[n] = QUARANTINE;
  printf("STEP node %d restarts with its memory, and does not vote\n", n)
#endif
}

inline vote() {
  votes[n] = true; printf("STEP node %d has waited, and votes again\n", n)
}

inline end_early() {
  left[n] = 0; end_key();
  printf("STEP the clock of node %d is a tick fast: its key ends\n", n)
}

inline jump() {
  left[n] = 0; end_key();
  printf("STEP the clock of node %d jumps: its key ends\n", n)
}

inline have_waited() {
  wait[n] = 0; printf("STEP the clock of node %d is a tick fast: it has waited\n", n)
}

/* -- What a client does ---------------------------------------------------- */

inline start() {
  phase[c] = ASKING; valid[c] = VALIDITY(c); yes[c] = 0;
  printf("STEP %c starts an attempt\n", NAME(c))
}

inline grant() {
  phase[c] = HELD; yes[c] = 0;
#ifdef NO_COUNT_FROM_FIRST_SEND
  valid[c] = VALIDITY(c);
#endif
  printf("STEP %c has enough votes: it holds the lock\n", NAME(c))
}

inline begin_renewal() {
  renews[c] = true; asked[c] = true; fresh[c] = VALIDITY(c);
  printf("STEP %c starts a renewal\n", NAME(c))
}

inline renew() {
  valid[c] = MAX(valid[c], fresh[c]);
  stop_renewal();
  printf("STEP %c has enough votes: its lease is renewed\n", NAME(c))
}

inline give_up() {
  stop_renewal();
  printf("STEP %c gives its renewal up\n", NAME(c))
}

inline stop_renewal() { renews[c] = false; fresh[c] = 0; again[c] = 0 }

inline finish() {                        /* what is left of its keys is OLD now */
  phase[c] = IDLE; valid[c] = 0; yes[c] = 0; ended[c] = false; stale = true;
  asked[c] = false; stop_renewal();
  for (n : 0 .. N - 1) { if :: holder[n] == c -> holder[n] = OLD; left[n] = 0 :: else fi }
}

/* -- Time -------------------------------------------------------------------- */

inline down(counter, d) {
  if :: counter > d -> counter = counter - d :: else -> counter = 0 fi
}

inline end_key() {
#ifndef NO_TTL
  if :: left[n] == 0 && holder[n] != OLD -> holder[n] = FREE :: else fi
#else
  skip
#endif
}

inline pass(d) {
  printf("STEP a tick passes\n");
  for (n : 0 .. N - 1) {
    if
    :: left[n] > 0 && left[n] <= d && calm && holder[n] == OLD -> release()
    :: else -> down(left[n], d); end_key()
    fi;
    down(wait[n], d)
  }
  for (c : 0 .. CLIENTS - 1) {
    if
    :: valid[c] > 0 && valid[c] <= d && phase[c] == HELD -> ended[c] = true;
       printf("STEP the validity of %c ends\n", NAME(c))
    :: else
    fi;
    down(valid[c], d); down(fresh[c], d)
  }
}

/* -- All steps ----------------------------------------------------------------- */

#define CLIENT(C) \
  :: d_step { !calm && CAN_START(C) -> c = C; start(); check() } \
  :: d_step { !calm && CAN_GRANT(C) -> c = C; grant(); check() } \
  :: d_step { !calm && CAN_BEGIN_RENEWAL(C) -> c = C; begin_renewal(); check() } \
  :: d_step { !calm && CAN_RENEW(C) -> c = C; renew(); check() } \
  :: d_step { !calm && CAN_GIVE_UP(C) -> c = C; give_up(); check() } \
  :: d_step { !calm && CAN_FINISH(C) -> c = C; finish(); \
     printf("STEP %c ends its attempt, or dies\n", NAME(c)); check() }

#define MESSAGE(C, X) \
  :: d_step { !calm && CAN_ACQUIRE(C, X) -> c = C; n = X; acquire(); check() } \
  :: d_step { !calm && CAN_EXTEND(C, X) -> c = C; n = X; extend(); check() }

#define NODE(X) \
  :: d_step { !calm && CAN_TAKE_LATE(X) -> n = X; take_late(); check() } \
  :: d_step { !calm && CAN_RELEASE_LATE(X) -> n = X; release_late(); check() } \
  :: d_step { !calm && CAN_FAIL(X) -> n = X; forget(); check() } \
  :: d_step { !calm && CAN_FAIL(X) -> n = X; restart(); check() } \
  :: d_step { !calm && CAN_VOTE(X) && OTHERS_VOTE(X) -> n = X; vote(); check() } \
  :: d_step { !calm && CAN_BE_FAST(X) -> n = X; end_early(); check() } \
  :: d_step { !calm && CAN_HAVE_WAITED(X) -> n = X; have_waited(); check() } \
  :: d_step { !calm && JUMPS_AT(X) && left[X] > 0 -> n = X; jump(); check() }

#ifndef TRACE
/* One holder, and no return. */
inline check() {
  assert(!(HOLDS(0) && HOLDS(1)));
#if CLIENTS > 2
  assert(!(HOLDS(0) && HOLDS(2)) && !(HOLDS(1) && HOLDS(2)));
#endif
  for (c : 0 .. CLIENTS - 1) { assert(!(HOLDS(c) && ended[c])) }
  n = 0; c = 0
}
#endif

inline count_old_keys() {
#ifndef NO_TTL
  for (n : 0 .. N - 1) {
    if :: holder[n] == OLD && left[n] == 0 -> left[n] = TTL :: else fi
  };
  n = 0
#else
  skip
#endif
}

/* In calm, the last client tries once in each tick: all nodes get its messages at once. */
inline try_again() {
  c = LAST;
  if
  :: phase[c] != IDLE -> finish()
  :: else
  fi;
  count_old_keys(); pass(1);
  for (n : 0 .. N - 1) { votes[n] = votes[n] || (wait[n] == 0) }
  c = LAST; start();
  for (n : 0 .. N - 1) { if :: MAY_TAKE(c, n) -> acquire() :: else fi }
  if
  :: SIZE(yes[c]) >= ENOUGH -> grant()
  :: else ->
#ifndef NO_RELEASE_OF_A_FAILED_ATTEMPT
     for (n : 0 .. N - 1) { if :: holder[n] == c -> release() :: else fi };
#endif
     finish()
  fi;
  n = 0; c = 0
}

#ifdef TRACE
#include "trace.pml"
#else
active proctype World() {
  do
  CLIENT(0) CLIENT(1) MESSAGE(0, 0) MESSAGE(0, 1) MESSAGE(0, 2)
  MESSAGE(1, 0) MESSAGE(1, 1) MESSAGE(1, 2)
#if CLIENTS > 2
  CLIENT(2) MESSAGE(2, 0) MESSAGE(2, 1) MESSAGE(2, 2)
#endif
  NODE(0) NODE(1) NODE(2)
  :: d_step { !calm -> pass(1); check() }
#ifdef LIVENESS
  :: d_step { !calm -> calm = true; count_old_keys();
     printf("STEP from now on nothing fails, and only %c acts\n", NAME(LAST)) }
  :: d_step { calm && !HOLDS(LAST) -> try_again() }
  :: calm && HOLDS(LAST) -> skip
#endif
  od
}
#endif

#ifdef LIVENESS
ltl again { [] (calm -> <> HOLDS(LAST)) }
#endif
