/* Epochs: `redlock reconfigure` and `redlock init`, and nodes that lose their memory.
 *
 * The nodes of the set OLD vote in epoch 0. An operator closes them and opens those of NEW
 * for epoch 1, or takes that back. A node may be in both sets. Messages of operators
 * arrive at any time, any number of times, as those of clients do.
 *
 * Properties
 *   one holder   at most one client has a valid lease, in whichever epoch  (assertion)
 *   fences       a lease of epoch 1 has a greater fence than those of 0    (assertion)
 *
 * Time. A wait of a node is a set: the leases and renewals that had begun before it. A
 * quarantine outlives each of them, so it is over when all of them are. A renewal begins
 * anew: a lease that it renews is one that began with it. Keys end with their lease, which
 * is the worst moment. lock.pml shows that they do not end before.
 *
 * Fences. The counter of a node is 1 when it knows of a grant in epoch 0, and the fence of
 * an attempt is the greatest counter of its nodes. fence.pml shows the rest.
 */
#include "common.pml"
#undef N
#ifdef LARGE_OLD
#define N 5
#define OLD 15             /* the nodes 0, 1, 2, 3 */
#define NEW 16             /* the node 4 */
#else
#define N 4
#define OLD 7              /* the nodes 0, 1, 2 */
#ifndef NEW
#define NEW 12             /* the nodes 2, 3 */
#endif
#endif
#ifndef LOSSES
#define LOSSES 1           /* of memory */
#endif

#define MEMBERS(e) ((e) == 0 -> OLD : NEW)
#define MAJORITY_OF(e) (SIZE(MEMBERS(e)) / 2 + 1)
#define SOURCES_OF(e) (SIZE(MEMBERS(e)) - MAJORITY_OF(e) + 1)

#define NONE 2             /* no client */
#define LEASE(c) BIT(c)    /* a lease, or an attempt, in a set of waits */
#define RENEWAL(c) BIT(2 + (c))
#define FIRST 3            /* the leases and attempts of both clients */

mtype = { IDLE, ASKING, HELD }       /* of a client */
mtype = { VOTES, CLOSED, EMPTY }     /* of a node; one that is new is EMPTY, too */

mtype state[N] = EMPTY;
byte epoch[N];             /* in which it votes, or did before it was closed */
bool member[N];            /* it has a view: it has been a voter since it was empty */
bool planned[N];           /* it has the identity of the plan */
bool marked[N];            /* it never opens for the plan */
byte waits[N];             /* the leases and renewals that must be over */
byte key[N] = NONE;        /* who has the lock on it */
bool knows[N];             /* its counter */
bool changed[N];           /* a newcomer is in its view, which is not the plan's any more */

mtype phase[2] = IDLE;
byte in_epoch[2];          /* of the attempt or the lease */
byte yes[2];               /* the nodes that granted */
bool renews[2];
byte again[2];             /* the nodes that said yes to the renewal */
bool fence[2];             /* the greatest counter of those that granted */

byte closed;               /* the old nodes that said that they are closed, and waited, */
bool read;                 /*   and the greatest counter of theirs */
byte marks;                /* the new nodes that said that they are marked */
bool granted;              /* some lease of epoch 0 was granted */
byte lost;                 /* how many losses of memory there were */
bool begun;                /* the deployment was set up */
byte n, c, busy, votes;  /* of this step */

#define COUNT_BUSY busy = (phase[0] != IDLE) | (phase[1] != IDLE) << 1 | \
  renews[0] << 2 | renews[1] << 3

#ifdef NO_EPOCHS
#define SAME_EPOCH(c, x) true
#else
#define SAME_EPOCH(c, x) (epoch[x] == in_epoch[c])
#endif
#define MAY_VOTE(c, x) (state[x] == VOTES && SAME_EPOCH(c, x) && \
  HAS(MEMBERS(in_epoch[c]), x))
#ifdef NO_CLOSED_RENEWS_NOTHING
#define MAY_RENEW(c, x) (MAY_VOTE(c, x) || state[x] == CLOSED && member[x])
#else
#define MAY_RENEW(c, x) MAY_VOTE(c, x)
#endif
#ifdef NO_WAIT_WHEN_CLOSED
#define HAS_WAITED(x) true
#else
#define HAS_WAITED(x) (waits[x] == 0)
#endif
#ifdef NO_CLOSE_COMPARES
#define IS_PLANS_VIEW(x) true
#else
#define IS_PLANS_VIEW(x) (!changed[x])
#endif
#ifdef NO_MAJORITY_CLOSED
#define ALL_CLOSED (SIZE(closed) >= SOURCES_OF(0))
#else
#define ALL_CLOSED (SIZE(closed) >= MAJORITY_OF(0))
#endif
#ifdef NO_PLANNED_IDENTITY
#define MAY_OPEN(x) (!(state[x] == VOTES && epoch[x] == 1) && !marked[x])
#else
#define MAY_OPEN(x) (state[x] == CLOSED && planned[x] && !marked[x])
#endif
#ifdef NO_MARKS
#define ABORTED true
#else
#define ABORTED (SIZE(marks) >= MAJORITY_OF(1))
#endif
#ifdef NO_FIRST_MEMBERS
#define IS_FIRST(x) true
#else
#define IS_FIRST(x) (planned[x])
#endif

inline check() {
  assert(!(phase[0] == HELD && phase[1] == HELD));
  assert(!(phase[0] == HELD && in_epoch[0] == 1 && granted && !fence[0]));
  assert(!(phase[1] == HELD && in_epoch[1] == 1 && granted && !fence[1]));
  n = 0; c = 0; busy = 0; votes = 0
}

/* -- What a node does with a message of a client -------------------------- */

inline acquire() {
  key[n] = c; yes[c] = yes[c] | BIT(n); fence[c] = fence[c] | knows[n];
  if :: in_epoch[c] == 0 -> knows[n] = true :: else fi;
  printf("STEP node %d grants the lock to %c\n", n, NAME(c))
}

inline extend() {
  key[n] = c; again[c] = again[c] | BIT(n);
  printf("STEP node %d renews the lock of %c\n", n, NAME(c))
}

inline end_lease() {             /* a release, the ttl, or a failed attempt */
  phase[c] = IDLE; yes[c] = 0; renews[c] = false; again[c] = 0; fence[c] = false;
  for (n : 0 .. N - 1) {
    if :: key[n] == c -> key[n] = NONE :: else fi;
    waits[n] = waits[n] & ~(LEASE(c) | RENEWAL(c))
  }
  in_epoch[c] = 0;
  printf("STEP the lease or attempt of %c ends\n", NAME(c))
}

inline renewed() {         /* the lease is now one that began with the renewal */
  for (n : 0 .. N - 1) {
    waits[n] = (waits[n] & ~LEASE(c) & ~RENEWAL(c)) | \
      (waits[n] & RENEWAL(c) -> LEASE(c) : 0)
  }
  renews[c] = false; again[c] = 0;
  printf("STEP the renewal of %c counts\n", NAME(c))
}

/* -- What a node does with a message of an operator ------------------------ */

inline close_node() {      /* close.lua */
  state[n] = CLOSED; COUNT_BUSY; waits[n] = busy;
  printf("STEP node %d is closed\n", n)
}

inline say_closed() {
  closed = closed | BIT(n); read = read | knows[n];
  printf("STEP node %d says that it is closed, and has waited\n", n)
}

inline open_node() {       /* open.lua */
  state[n] = VOTES; epoch[n] = 1; member[n] = true; waits[n] = 0;
#ifndef NO_FENCES_TAKEN_OVER
  knows[n] = knows[n] | read;
#endif
  printf("STEP node %d opens for epoch 1\n", n)
}

inline mark() {            /* abort.lua */
  marked[n] = true; marks = marks | BIT(n);
  printf("STEP node %d is marked: it does not open any more\n", n)
}

inline reopen() {          /* reopen.lua */
  state[n] = VOTES; waits[n] = 0;
#ifdef NO_MARKS_STAY
  marked[n] = false;
#else
  marked[n] = true;
#endif
  printf("STEP node %d votes in epoch 0 again\n", n)
}

inline initialize() {      /* initialize.lua, which an operator may run again */
  begun = true;
  for (n : 0 .. N - 1) {
    if
    :: HAS(OLD, n) && state[n] == EMPTY && IS_FIRST(n) ->
       state[n] = VOTES; member[n] = true; waits[n] = 0
    :: else
    fi
  }
  printf("STEP the operator runs init: servers without a view vote at once\n")
}

/* -- Losses of memory ------------------------------------------------------ */

inline forget() {
  state[n] = EMPTY; member[n] = false; changed[n] = false; planned[n] = false; marked[n] = false;
  key[n] = NONE; knows[n] = false; epoch[n] = 0; lost++;
  COUNT_BUSY; waits[n] = busy;
  printf("STEP node %d loses its memory\n", n)
}

inline join(e) {           /* sync.lua; the others confirm it */
  for (c : 0 .. N - 1) {
    if
    :: c != n && state[c] == VOTES && epoch[c] == e && HAS(MEMBERS(e), c) ->
       votes++; knows[n] = knows[n] | knows[c]
    :: else
    fi
  }
  if
  :: votes >= SOURCES_OF(e) ->
     state[n] = VOTES; epoch[n] = e; member[n] = true;
     for (c : 0 .. N - 1) {
       if :: e == 0 && state[c] == VOTES && epoch[c] == 0 -> changed[c] = true :: else fi
     }
     printf("STEP node %d joins epoch %d, as enough others confirm\n", n, e)
  :: else -> knows[n] = false
  fi;
  c = 0
}

/* -- The steps ------------------------------------------------------------- */

#define CLIENT(C) \
  :: d_step { phase[C] == ASKING && SIZE(yes[C]) >= MAJORITY_OF(in_epoch[C]) -> \
     c = C; phase[c] = HELD; \
     printf("STEP %c has the lock in epoch %d\n", NAME(c), in_epoch[c]); check(); \
     if :: in_epoch[C] == 0 -> granted = true :: else fi } \
  :: d_step { phase[C] == HELD && !renews[C] -> renews[C] = true; \
     printf("STEP %c begins a renewal\n", NAME(C)) } \
  :: d_step { renews[C] && SIZE(again[C]) >= MAJORITY_OF(in_epoch[C]) -> \
     c = C; renewed(); check() } \
  :: d_step { phase[C] != IDLE -> c = C; end_lease(); check() }
#define MESSAGE(C, X) \
  :: d_step { begun && phase[C] == IDLE && state[X] == VOTES && key[X] == NONE && \
     HAS(MEMBERS(epoch[X]), X) -> c = C; n = X; phase[c] = ASKING; \
     in_epoch[c] = epoch[n]; acquire(); check() } \
  :: d_step { phase[C] == ASKING && MAY_VOTE(C, X) && key[X] == NONE -> \
     c = C; n = X; acquire(); check() } \
  :: d_step { renews[C] && !HAS(again[C], X) && MAY_RENEW(C, X) && \
     (key[X] == C || key[X] == NONE) -> c = C; n = X; extend(); check() }
#define NODE(X) \
  :: d_step { begun && HAS(OLD, X) && state[X] == VOTES && epoch[X] == 0 && \
     !marked[X] && IS_PLANS_VIEW(X) -> n = X; close_node(); check() } \
  :: d_step { begun && !HAS(OLD, X) && state[X] == EMPTY && planned[X] && \
     !marked[X] -> n = X; close_node(); check() } \
  :: d_step { HAS(OLD, X) && state[X] == CLOSED && member[X] && !HAS(closed, X) && \
     HAS_WAITED(X) -> n = X; say_closed(); check() } \
  :: d_step { HAS(NEW, X) && ALL_CLOSED && MAY_OPEN(X) -> n = X; open_node(); check() } \
  :: d_step { begun && HAS(NEW, X) && planned[X] && !marked[X] && \
     !(state[X] == VOTES && epoch[X] == 1) -> n = X; mark(); check() } \
  :: d_step { HAS(OLD, X) && state[X] == CLOSED && member[X] && ABORTED -> \
     n = X; reopen(); check() } \
  :: d_step { begun && lost < LOSSES && state[X] != EMPTY -> n = X; forget(); check() } \
  JOIN(X, 0) JOIN(X, 1)
#define JOIN(X, e) \
  :: d_step { begun && HAS(MEMBERS(e), X) && state[X] == EMPTY && waits[X] == 0 && \
     lost > 0 && !planned[X] -> n = X; join(e); check() }

active proctype World() {
  d_step {
    for (n : 0 .. N - 1) { planned[n] = true }
    n = 0
  }
  do
  :: d_step { !begun || lost > 0 -> initialize(); check() }
  CLIENT(0) CLIENT(1)
  MESSAGE(0, 0) MESSAGE(0, 1) MESSAGE(0, 2) MESSAGE(0, 3)
  MESSAGE(1, 0) MESSAGE(1, 1) MESSAGE(1, 2) MESSAGE(1, 3)
  NODE(0) NODE(1) NODE(2) NODE(3)
#if N > 4
  MESSAGE(0, 4) MESSAGE(1, 4) NODE(4)
#endif
  od
}
