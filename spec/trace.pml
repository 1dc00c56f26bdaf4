/* Take the steps of a recorded history, each by the guard and the text of lock.pml.
 *
 * A step that is not possible fails its assertion. So does a client that counts on its
 * lease for longer than it may. All steps together must end with "ACCEPTED".
 *
 * A history tells more than the model: that a node has found a key ended, for example.
 * Such a step is taken only if the model allows that by now.
 */
#define PASS 0
#define START 1
#define ACQUIRE 2
#define GRANT 3
#define BEGIN_RENEWAL 4
#define EXTEND 5
#define RENEW 6
#define GIVE_UP 7
#define FINISH 8
#define TAKE_LATE 9
#define RELEASE 10
#define FORGET 11
#define RESTART 12
#define VOTE 13
#define GONE 14
#define JUMP 15
#define NO_VOTE 16

int at, it;
byte holders;
bool any_jumped;

/* A node finds that the key that it had has ended. */
inline find_ended() {
  if
  :: holder[n] == FREE -> skip
  :: holder[n] == OLD -> assert(CAN_RELEASE_LATE(n)); release_late()
  :: else -> assert(JUMPS_AT(n) || CAN_BE_FAST(n)); end_early()
  fi
}

/* A node carries out a release. Its key may have ended before. */
inline carry_out_release() {
  if
  :: holder[n] == FREE -> skip
  :: else -> assert(CAN_RELEASE_LATE(n)); release_late()
  fi
}

/* A jump may end keys and waits too early, so that there may be two holders. */
inline check() {
  holders = 0;
  for (c : 0 .. CLIENTS - 1) {
    if :: HOLDS(c) -> holders++; assert(!ended[c]) :: else fi
  };
  assert(any_jumped || holders <= 1)
}

inline take() {
  c = who[at]; n = where[at]; it = much[at];
  if
  :: op[at] == PASS -> pass(it)
  :: op[at] == START -> assert(CAN_START(c)); ttl[c] = it; start()
  :: op[at] == ACQUIRE -> assert(CAN_ACQUIRE(c, n)); acquire()
  :: op[at] == GRANT -> assert(CAN_GRANT(c)); assert(it <= valid[c]);
     grant(); valid[c] = it
  :: op[at] == BEGIN_RENEWAL -> assert(CAN_BEGIN_RENEWAL(c)); begin_renewal()
  :: op[at] == EXTEND -> assert(CAN_EXTEND(c, n)); extend()
  :: op[at] == RENEW -> assert(CAN_RENEW(c)); assert(it <= fresh[c]);
     fresh[c] = it; renew()
  :: op[at] == GIVE_UP -> assert(CAN_GIVE_UP(c)); give_up()
  :: op[at] == FINISH -> assert(CAN_FINISH(c)); finish()
  :: op[at] == TAKE_LATE -> assert(CAN_TAKE_LATE(n)); take_late()
  :: op[at] == RELEASE -> carry_out_release()
  :: op[at] == FORGET -> forget()
  :: op[at] == RESTART -> restart()
  :: op[at] == VOTE -> assert(votes[n] || JUMPS_AT(n) || CAN_VOTE(n) || CAN_HAVE_WAITED(n));
     vote()
  :: op[at] == GONE -> find_ended()
  :: op[at] == JUMP -> jumped[n] = true; any_jumped = true
  :: op[at] == NO_VOTE -> votes[n] = false
  fi;
  check()
}

active proctype Trace() {
  do
  :: at < LENGTH -> d_step { take(); at++ }
  :: else -> break
  od;
  printf("ACCEPTED\n")
}
