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
 */
#include "common.pml"

#ifndef CLIENTS
#define CLIENTS 2
#endif
#ifndef TTL
#define TTL 3              /* ticks that a key lives on a node; also max_ttl */
#endif
#define DRIFT 1            /* what a client takes off its validity */

#ifdef NO_DRIFT
#define VALIDITY TTL
#else
#define VALIDITY (TTL - DRIFT)
#endif
#ifdef NO_LONG_QUARANTINE
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
byte left[N];              /* ticks until its key ends */
byte wait[N];              /* ticks until it may vote, by its clock and the others' */
bool votes[N] = true;

/* A client and its attempt. */
mtype phase[CLIENTS] = IDLE;
byte valid[CLIENTS];       /* ticks until the validity ends */
byte yes[CLIENTS];         /* the nodes that granted */
bool renews[CLIENTS];      /* a renewal is under way, */
byte fresh[CLIENTS];       /*   the validity that it would give, */
byte again[CLIENTS];       /*   the nodes that said yes to it */
bool ended[CLIENTS];       /* the lease has ended */

bool stale;                /* some attempt is over: its messages may still arrive */
bool calm;                 /* nothing fails any more, and only the last client acts */
byte n, c;                 /* the node and the client of this step */

#define LAST (CLIENTS - 1)
#define HOLDS(c) (phase[c] == HELD && valid[c] > 0)
#define OTHERS_VOTE(x) (votes[0] + votes[1] + votes[2] - votes[x] == N - 1)

#ifdef NO_FREE_CHECK
#define MAY_TAKE(x) (votes[x])
#else
#define MAY_TAKE(x) (votes[x] && holder[x] == FREE)
#endif
#ifdef NO_RESTORE_ONLY_FREE
#define MAY_WRITE(x) true
#else
#define MAY_WRITE(x) (holder[x] == FREE)
#endif
#ifdef NO_VOTE_TO_RENEW
#define MAY_RENEW_ON(x) true
#else
#define MAY_RENEW_ON(x) (votes[x])
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
#ifdef JUMPS
#define JUMPS_AT(x) (x == 0)
#else
#define JUMPS_AT(x) false
#endif

/* -- What a node does with a message ------------------------------------- */

inline acquire() {                       /* acquire.lua */
  holder[n] = c; left[n] = TTL; yes[c] = yes[c] | BIT(n);
  printf("STEP node %d grants the lock to %c\n", n, NAME(c))
}

inline extend() {                        /* extend.lua, restore.lua */
  if
  :: holder[n] == c -> printf("STEP node %d renews the key of %c\n", n, NAME(c))
  :: else -> printf("STEP the key of %c is restored on node %d\n", NAME(c), n)
  fi;
  holder[n] = c; left[n] = TTL; again[c] = again[c] | BIT(n)
}

inline release() {                       /* release.lua */
  holder[n] = FREE; left[n] = 0
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

/* -- What a client does ---------------------------------------------------- */

inline start() {
  phase[c] = ASKING; valid[c] = VALIDITY; yes[c] = 0;
  printf("STEP %c starts an attempt\n", NAME(c))
}

inline grant() {
  phase[c] = HELD; yes[c] = 0;
#ifdef NO_COUNT_FROM_FIRST_SEND
  valid[c] = VALIDITY;
#endif
  printf("STEP %c has enough votes: it holds the lock\n", NAME(c))
}

inline renew() {
  valid[c] = MAX(valid[c], fresh[c]);
  stop_renewal();
  printf("STEP %c has enough votes: its lease is renewed\n", NAME(c))
}

inline stop_renewal() { renews[c] = false; fresh[c] = 0; again[c] = 0 }

inline finish() {                        /* what is left of its keys is OLD now */
  phase[c] = IDLE; valid[c] = 0; yes[c] = 0; ended[c] = false; stale = true;
  stop_renewal();
  for (n : 0 .. N - 1) { if :: holder[n] == c -> holder[n] = OLD; left[n] = 0 :: else fi }
}

/* -- Time -------------------------------------------------------------------- */

inline down(counter) { if :: counter > 0 -> counter-- :: else fi }

inline end_key() {
#ifndef NO_TTL
  if :: left[n] == 0 && holder[n] != OLD -> holder[n] = FREE :: else fi
#else
  skip
#endif
}

inline tick() {
  printf("STEP a tick passes\n");
  for (n : 0 .. N - 1) {
    if
    :: left[n] == 1 && calm && holder[n] == OLD -> release()
    :: else -> down(left[n]); end_key()
    fi;
    down(wait[n])
  }
  for (c : 0 .. CLIENTS - 1) {
    if
    :: valid[c] == 1 && phase[c] == HELD -> ended[c] = true;
       printf("STEP the validity of %c ends\n", NAME(c))
    :: else
    fi;
    down(valid[c]); down(fresh[c])
  }
}

/* -- All steps ----------------------------------------------------------------- */

#define CLIENT(C) \
  :: d_step { !calm && phase[C] == IDLE -> c = C; start(); check() } \
  :: d_step { !calm && phase[C] == ASKING && SIZE(yes[C]) >= ENOUGH_FOR(C) && valid[C] > 0 -> \
     c = C; grant(); check() } \
  :: d_step { !calm && HOLDS(C) && !renews[C] -> c = C; \
     renews[C] = true; fresh[C] = VALIDITY; \
     printf("STEP %c starts a renewal\n", NAME(c)); check() } \
  :: d_step { !calm && renews[C] && SIZE(again[C]) >= ENOUGH_FOR(C) && IN_TIME(C) -> \
     c = C; renew(); check() } \
  :: d_step { !calm && renews[C] -> c = C; stop_renewal(); \
     printf("STEP %c gives its renewal up\n", NAME(c)); check() } \
  :: d_step { !calm && phase[C] != IDLE -> c = C; finish(); \
     printf("STEP %c ends its attempt, or dies\n", NAME(c)); check() }

#define MESSAGE(C, X) \
  :: d_step { !calm && phase[C] == ASKING && !HAS(yes[C], X) && MAY_TAKE(X) -> \
     c = C; n = X; acquire(); check() } \
  :: d_step { !calm && renews[C] && !HAS(again[C], X) && MAY_RENEW_ON(X) && \
     (holder[X] == C || MAY_WRITE(X)) -> c = C; n = X; extend(); check() }

#define NODE(X) \
  :: d_step { !calm && stale && votes[X] && holder[X] == FREE -> n = X; holder[n] = OLD; \
     printf("STEP a late message of an ended attempt takes node %d\n", n); check() } \
  :: d_step { !calm && stale && IS_OLD(X) -> n = X; release(); \
     printf("STEP a late release of an ended attempt reaches node %d\n", n); check() } \
  :: d_step { !calm && votes[X] && OTHERS_VOTE(X) -> n = X; forget(); check() } \
  :: d_step { !calm && !votes[X] && wait[X] == 0 && OTHERS_VOTE(X) -> n = X; \
     votes[n] = true; printf("STEP node %d has waited, and votes again\n", n); check() } \
  :: d_step { !calm && left[X] == 1 -> n = X; left[n] = 0; end_key(); \
     printf("STEP the clock of node %d is a tick fast: its key ends\n", n); check() } \
  :: d_step { !calm && wait[X] == 1 -> n = X; wait[n] = 0; \
     printf("STEP the clock of node %d is a tick fast: it has waited\n", n); check() } \
  :: d_step { !calm && JUMPS_AT(X) && left[X] > 0 -> n = X; left[n] = 0; end_key(); \
     printf("STEP the clock of node %d jumps: its key ends\n", n); check() }

/* One holder, and no return. */
inline check() {
  assert(!(HOLDS(0) && HOLDS(1)));
#if CLIENTS > 2
  assert(!(HOLDS(0) && HOLDS(2)) && !(HOLDS(1) && HOLDS(2)));
#endif
  for (c : 0 .. CLIENTS - 1) { assert(!(HOLDS(c) && ended[c])) }
  n = 0; c = 0
}

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
  count_old_keys(); tick();
  for (n : 0 .. N - 1) { votes[n] = votes[n] || (wait[n] == 0) }
  c = LAST; start();
  for (n : 0 .. N - 1) { if :: MAY_TAKE(n) -> acquire() :: else fi }
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

active proctype World() {
  do
  CLIENT(0) CLIENT(1) MESSAGE(0, 0) MESSAGE(0, 1) MESSAGE(0, 2)
  MESSAGE(1, 0) MESSAGE(1, 1) MESSAGE(1, 2)
#if CLIENTS > 2
  CLIENT(2) MESSAGE(2, 0) MESSAGE(2, 1) MESSAGE(2, 2)
#endif
  NODE(0) NODE(1) NODE(2)
  :: d_step { !calm -> tick(); check() }
#ifdef LIVENESS
  :: d_step { !calm -> calm = true; count_old_keys();
     printf("STEP from now on nothing fails, and only %c acts\n", NAME(LAST)) }
  :: d_step { calm && !HOLDS(LAST) -> try_again() }
  :: calm && HOLDS(LAST) -> skip
#endif
  od
}

#ifdef LIVENESS
ltl again { [] (calm -> <> HOLDS(LAST)) }
#endif
