/* Is a history linearizable? Spin looks for an order of its operations that explains it.
 *
 * The events of a history are invocations and returns, by their time. Between both, an
 * operation takes effect at one instant. When an operation returns, it must have taken
 * effect: now, or before. If it has not, Spin tries all orders of operations that run.
 * An order that leads to the last event violates the assertion: "errors: 1" means that
 * the history is linearizable. Without an error, no order explains it.
 *
 * The file "history" has the events and operations, which are read into C: they are not
 * part of a state. An event is the number of its slot and operation. Each operation has
 * a slot while it runs.
 *
 * Source: J. Wing and C. Gong, Testing and verifying concurrent objects, 1993; G. Lowe,
 * Testing for linearizability, 2017 (operations take effect only when one must return).
 */
c_decl {
  enum { ACQUIRE, RELEASE, READ, WRITE, REFUSED, MAYBE };
  enum { FREE, HELD };   /* the values of a lock; FREE is also an empty register */

  int EVENTS, kinds[MOST], fences[MOST], values[MOST];
  int returns[2 * MOST], operations[2 * MOST], slots[2 * MOST];

  void read_history() {
    int i, count;
    FILE *file = fopen("history", "r");
    fscanf(file, "%d %d", &count, &EVENTS);
    for (i = 0; i < count; i++)
      fscanf(file, "%d %d %d", kinds + i, fences + i, values + i);
    for (i = 0; i < EVENTS; i++)
      fscanf(file, "%d %d %d", returns + i, operations + i, slots + i);
    fclose(file);
  }

  int farthest = -1;   /* the last event that an order has explained */
}

int at;                /* the next event */
int runs[SLOTS] = -1;  /* the operation in each slot; -1: none */
bool done[SLOTS];      /* whether it has taken effect */
byte slot;             /* whose operation takes effect */

int fence;             /* the object: a lock or a register */
int value;

c_decl {
  /* May an operation take effect on this object? */
  int is_possible(int o, int fence, int value) {
    switch (kinds[o]) {
    case ACQUIRE: return value == FREE && fences[o] > fence;
    case RELEASE: return value == HELD && fences[o] == fence;
    case READ:    return values[o] == value && fences[o] == fence;
    case WRITE:
    case MAYBE:   return fences[o] >= fence;   /* MAYBE: a write without an answer */
    case REFUSED: return fences[o] < fence;
    }
    return 0;
  }

  #define IS_OVER     (now.at == EVENTS)
  #define IS_INVOKED  (!IS_OVER && !returns[now.at])
  #define IS_RETURN   (!IS_OVER && returns[now.at])
  #define HAS_EFFECT  now.done[slots[now.at]]
  #define IS_OPTIONAL (kinds[operations[now.at]] == MAYBE)
  #define CAN_TAKE_EFFECT (now.runs[now.slot] >= 0 && !now.done[now.slot] \
    && is_possible(now.runs[now.slot], now.fence, now.value))
}

inline next_event() {
  c_code {
    if (now.at > farthest) printf("EXPLAINED %d\n", farthest = now.at);
    now.at++;
  }
}

active proctype Order() {
  c_code { read_history(); };
  do
  :: c_expr { IS_OVER } -> assert(false)
  :: c_expr { IS_INVOKED } -> d_step {
       c_code { now.runs[slots[now.at]] = operations[now.at]; };
       next_event()
     }
  :: c_expr { IS_RETURN && (HAS_EFFECT || IS_OPTIONAL) } -> d_step {
       c_code { now.runs[slots[now.at]] = -1; now.done[slots[now.at]] = 0; };
       next_event()
     }
  :: c_expr { IS_RETURN && !HAS_EFFECT } -> atomic {
       select (slot : 0 .. SLOTS - 1);
       c_expr { CAN_TAKE_EFFECT };
       c_code {
         int o = now.runs[now.slot];
         if (kinds[o] != REFUSED) { now.fence = fences[o]; now.value = values[o]; }
         now.done[now.slot] = 1;
         now.slot = 0;
       }
     }
  od
}
