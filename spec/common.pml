/* What all models of this folder share.
 *
 * N nodes store locks. A client that wants one asks all of them, and has it when a
 * majority, QUORUM, has granted it. SOURCES others must confirm a node that lost its
 * memory: every majority has a member among so many (r = N - q + 1).
 *
 * A model is one process that picks any possible step, again and again: a message
 * arrives at a node, a client decides, a clock ticks, a fault happens. A node executes
 * a message in one step, because the real one is one Lua script. A message may arrive
 * at any time or never, so no channels are needed: the step is possible as long as the
 * message may be on its way.
 *
 * Every rule of the protocol can be taken away: spin -DNO_<RULE>. Then an assertion or
 * an LTL formula must fail. `printf` lines are the sentences of a counterexample.
 */
#ifndef N
#define N 3
#endif
#define QUORUM (N / 2 + 1)
#define SOURCES (N - QUORUM + 1)

#define BIT(i) (1 << (i))
#define HAS(set, i) (((set) >> (i)) & 1)
/* How many of the (at most five) nodes are in a set. */
#define SIZE(set) (HAS(set, 0) + HAS(set, 1) + HAS(set, 2) + HAS(set, 3) + HAS(set, 4))
#define NAME(c) (65 + (c)) /* clients and attempts are called A, B, C */
#define MAX(a, b) ((a) > (b) -> (a) : (b))
