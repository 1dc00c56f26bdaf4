/* Fences: the number of each grant, its settlement, and counters after a loss of memory.
 *
 * Properties
 *   unique    no two grants have the same fence                         (assertion)
 *   growing   a grant to an attempt that began after another grant has a greater
 *             fence than that one                                       (assertion)
 *
 * The argument for fences uses no clock, so this model has none: the key of an attempt
 * may end on a node at any moment, also while its client believes that it holds it.
 * Only a quarantine is long enough: it outlives the attempts that had begun before it.
 *
 * An attempt acts once. Each of its requests, one to each node, arrives at any time or
 * never, also after the attempt has decided on its fence, and after it is over. At the
 * start the counters are what earlier attempts have left: any numbers up to COUNTERS.
 */
#include "common.pml"

#ifndef ATTEMPTS
#define ATTEMPTS 2
#endif
#ifndef COUNTERS
#define COUNTERS 1
#endif
#ifndef LOSSES
#define LOSSES 1
#endif
#define FREE ATTEMPTS
#define AT(a, x) [(a) * N + (x)]

mtype = { IDLE, ASKING, SETTLING, HELD, OVER }

/* A node. */
byte counter[N];
byte holder[N] = FREE;
mtype = { VOTES, WAITS, READS };
mtype status[N] = VOTES;
byte awaits[N];            /* the attempts that its quarantine outlives */
byte taken_over[N];        /* the greatest counter that the others told it */
byte losses = LOSSES;

/* An attempt. */
mtype phase[ATTEMPTS] = IDLE;
byte number[ATTEMPTS * N]; /* what each node granted it, if it has counted that; or 0 */
byte arrived[ATTEMPTS];    /* the nodes that its request has reached */
byte settled[ATTEMPTS];    /* the nodes that are known to be at its fence */
byte fence[ATTEMPTS];
byte before[ATTEMPTS];     /* the greatest fence that was granted before it began */
byte greatest;             /* the greatest fence that was granted */
byte granted;              /* the attempts that were granted */
byte n, a, i;

#define ACTIVE(a) (phase[a] == ASKING || phase[a] == SETTLING || phase[a] == HELD)

#ifdef NO_RAISE_NEEDS_KEY
#define HAS_KEY(a, x) true
#else
#define HAS_KEY(a, x) (holder[x] == a)
#endif
#ifdef NO_RAISE_NEEDS_NUMBER
#define COUNTED(a, x) true
#else
#define COUNTED(a, x) (number AT(a, x) > 0)
#endif
#ifdef NO_SETTLEMENT
#define IS_SETTLED(a) true
#else
#define IS_SETTLED(a) (SIZE(settled[a]) >= QUORUM)
#endif
#ifdef NO_MAJORITY
#define ENOUGH (N / 2)
#else
#define ENOUGH QUORUM
#endif

/* -- What a node does with a message ------------------------------------- */

/* acquire.lua: a node that votes, with a free key. Each grant counts one up. */
inline acquire(replies) {
#ifndef NO_COUNTING_UP
  counter[n]++;
#endif
  holder[n] = a; arrived[a] = arrived[a] | BIT(n);
  if
  :: phase[a] == ASKING && replies -> number AT(a, n) = MAX(counter[n], 1);
     printf("STEP node %d grants number %d to %c\n", n, counter[n], NAME(a))
  :: else -> printf("STEP node %d grants number %d to %c, which does not count it\n",
     n, counter[n], NAME(a))
  fi
}

/* raise_fence.lua: only while the key is still the attempt's. Never lowers. */
inline raise_fence() {
  counter[n] = MAX(counter[n], fence[a]);
  if
  :: COUNTED(a, n) && phase[a] == SETTLING -> settled[a] = settled[a] | BIT(n);
     printf("STEP %c raises node %d to %d, and it counts\n", NAME(a), n, fence[a])
  :: else ->
     printf("STEP %c raises node %d to %d, and it does not count\n", NAME(a), n, fence[a])
  fi
}

inline forget() {
  holder[n] = FREE; counter[n] = 0; losses--; awaits[n] = 0; taken_over[n] = 0;
#ifndef NO_QUARANTINE
  for (i : 0 .. ATTEMPTS - 1) {
    if :: ACTIVE(i) -> awaits[n] = awaits[n] | BIT(i) :: else fi
  }
  status[n] = WAITS;
#endif
#ifdef NO_COUNTERS_AT_THE_END
  read_others();
#endif
  printf("STEP node %d restarts without its memory\n", n)
}

/* sync.lua: all others, r of them in a cluster of three, vote and tell their counters. */
inline read_others() {
  for (i : 0 .. N - 1) {
    if :: i != n -> taken_over[n] = MAX(taken_over[n], counter[i]) :: else fi
  }
}

/* -- What a client does ---------------------------------------------------- */

inline decide() {
  fence[a] = 0;
  for (i : 0 .. N - 1) { fence[a] = MAX(fence[a], number AT(a, i)) }
  for (i : 0 .. N - 1) {
    if :: number AT(a, i) == fence[a] -> settled[a] = settled[a] | BIT(i) :: else fi
  }
  phase[a] = SETTLING;
  printf("STEP %c decides on fence %d\n", NAME(a), fence[a])
}

inline grant() {
  printf("STEP %c is granted fence %d\n", NAME(a), fence[a]);
  for (i : 0 .. ATTEMPTS - 1) {
    assert(i == a || !(fence[i] == fence[a] && HAS(granted, i)));       /* unique */
  }
  assert(fence[a] > before[a]);                                       /* growing */
  phase[a] = HELD; granted = granted | BIT(a);
  greatest = MAX(greatest, fence[a])
}

/* The numbers are of no use any more; of a granted attempt the fence stays, to compare. */
inline finish() {
  phase[a] = OVER; settled[a] = 0; before[a] = 0;
  for (i : 0 .. N - 1) { number AT(a, i) = 0 }
  if :: !HAS(granted, a) -> fence[a] = 0 :: else fi
}

/* -- All steps ----------------------------------------------------------------- */

#define ATTEMPT(A) \
  :: d_step { phase[A] == IDLE && BEGUN_BEFORE(A) -> a = A; \
     phase[a] = ASKING; before[a] = greatest; \
     printf("STEP %c begins\n", NAME(a)); clear() } \
  :: d_step { phase[A] == ASKING && VOTES_FOR(A) >= ENOUGH -> \
     a = A; decide(); clear() } \
  :: d_step { phase[A] == SETTLING && IS_SETTLED(A) -> a = A; grant(); clear() } \
  :: d_step { ACTIVE(A) -> a = A; finish(); \
     printf("STEP %c ends its attempt, or dies\n", NAME(a)); clear() }
#define VOTES_FOR(A) \
  ((number AT(A, 0) > 0) + (number AT(A, 1) > 0) + (number AT(A, 2) > 0))
#define BEGUN_BEFORE(A) ((A) == 0 || phase[((A) + ATTEMPTS - 1) % ATTEMPTS] != IDLE)

/* The reply to a request may be lost, or come too late. */
#define MESSAGE(A, X) \
  :: d_step { phase[A] != IDLE && !HAS(arrived[A], X) && status[X] == VOTES && \
     holder[X] == FREE -> a = A; n = X; acquire(true); clear() } \
  :: d_step { phase[A] == ASKING && !HAS(arrived[A], X) && status[X] == VOTES && \
     holder[X] == FREE -> a = A; n = X; acquire(false); clear() } \
  :: d_step { (phase[A] == SETTLING || phase[A] == HELD) && HAS_KEY(A, X) && \
     status[X] == VOTES && !HAS(settled[A], X) && (counter[X] < fence[A] || \
     phase[A] == SETTLING && COUNTED(A, X)) -> a = A; n = X; raise_fence(); clear() } \
  :: d_step { phase[A] == HELD && holder[X] == FREE && status[X] == VOTES -> \
     a = A; n = X; holder[n] = a; counter[n] = MAX(counter[n], fence[a]); \
     printf("STEP %c restores its key on node %d\n", NAME(a), n); clear() }

#define NODE(X) \
  :: d_step { holder[X] != FREE -> n = X; \
     printf("STEP the key of %c ends on node %d\n", NAME(holder[n]), n); \
     holder[n] = FREE; clear() } \
  :: d_step { losses > 0 && status[X] == VOTES -> n = X; forget(); clear() } \
  :: d_step { status[X] == WAITS && NONE_ACTIVE(awaits[X]) -> n = X; awaits[n] = 0; \
     after_wait(); printf("STEP the quarantine of node %d ends\n", n); clear() } \
  :: d_step { status[X] == READS && OTHERS_VOTE(X) -> n = X; come_back(); clear() }

#define GONE(set, A) (!HAS(set, A) || !ACTIVE(A))
#if ATTEMPTS > 2
#define NONE_ACTIVE(set) (GONE(set, 0) && GONE(set, 1) && GONE(set, 2))
#else
#define NONE_ACTIVE(set) (GONE(set, 0) && GONE(set, 1))
#endif
#define OTHERS_VOTE(X) ((X == 0 || status[0] == VOTES) && \
  (X == 1 || status[1] == VOTES) && (X == 2 || status[2] == VOTES))

inline after_wait() { status[n] = READS }
inline come_back() {
#if !defined(NO_COUNTERS_TAKEN_OVER) && !defined(NO_COUNTERS_AT_THE_END)
  read_others();
#endif
  counter[n] = MAX(counter[n], taken_over[n]); taken_over[n] = 0; status[n] = VOTES;
  printf("STEP node %d votes again, from number %d\n", n, counter[n])
}

inline clear() { n = 0; a = 0; i = 0 }

active proctype World() {
  atomic {
    select(n : 0 .. COUNTERS); counter[0] = n;
    select(n : 0 .. COUNTERS); counter[1] = n;
    select(n : 0 .. COUNTERS); counter[2] = n;
    counter[0] <= counter[1] && counter[1] <= counter[2]; /* nodes are alike */
    printf("STEP the counters are %d, %d and %d\n", counter[0], counter[1], counter[2]);
    n = 0
  }
  do
  ATTEMPT(0) MESSAGE(0, 0) MESSAGE(0, 1) MESSAGE(0, 2)
  ATTEMPT(1) MESSAGE(1, 0) MESSAGE(1, 1) MESSAGE(1, 2)
#if ATTEMPTS > 2
  ATTEMPT(2) MESSAGE(2, 0) MESSAGE(2, 1) MESSAGE(2, 2)
#endif
  NODE(0) NODE(1) NODE(2)
  od
}
