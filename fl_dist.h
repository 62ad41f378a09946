/* fl_dist.h - one program on one rank and on many: collectives on tensors, and how they fail

   A rank is a process. Ranks find each other by what started them, call the same functions in the same
   order, and hear within seconds when one of them dies, stands still or calls something else.

   >>example
    #define FL_IMPLEMENTATION
    #if defined(FL_CALLS_H) && !defined(FL_DIST_DECLARED)
#error "fl: with FL_TRACE_CALLS include fl_dist.h before fl.h, or fl_all.h: functions are macros now"
#endif
#define FL_DIST_DECLARED
#include "fl_dist.h"
    int main(void) {
        fl_dist_group *d = fl_dist_init(); // alone: one rank; examples/launch 2 ./program: two
        fl_scope s = fl_scope_begin();
        fl_tensor *t = fl_full(FL_SHAPE(3), 1 + fl_dist_rank(d), FL_F32);
        if (d && fl_dist_all_reduce(d, t, .op = FL_DIST_AVG)) fl_print(t);
        fl_scope_end(&s);
        fl_dist_close(d);
        return 0;
    }
   <<example

   Contents: one room of fl/distributed/ each.
     group.h   groups, collectives, failures: what programs use
     impl.h    what carries bytes: the table of an implementation; yours too
     meet.h    how ranks find each other: environments, folders, sockets
     link.h    the control channel: who lives, who called what
   Data-parallel training stands on fl_optim.h as well: fl/distributed/train.h.

   Macros, all optional
     FL_USE_GLOO                    Gloo carries the data (kernels/dist/gloo.cc, -lgloo -lstdc++)
     FL_DIST_IMPL=ring              the default implementation: fl_dist_ring must exist
     FL_DIST_IMPL_H='"x"'           header that brings it, included by the implementation

   Concepts
     Start     Arguments of fl_dist_init, or the environment of torchrun, Slurm, Open MPI or MPICH; without
               any of them the program is alone, and all is as if there were no ranks. FL_DIST_STORE
               ("host:port" or a folder), FL_DIST_TOKEN, FL_DIST_PORT and FL_DIST (an implementation) of the
               environment help.
     Order     All ranks make the same calls in the same order. Which they made is compared; calls that
               differ never take each other's data.
     Failure   The first one ends the group for good: a rank that died, stands still, left, called something
               else, or had an error. fl_dist_failure says which, every further call fails, nothing hangs and
               nothing stops: what was computed can be saved.
     Trust     A rank takes part if it knows the token (.token, FL_DIST_TOKEN); rank 0 proves that it knows it
               too, and hands out a random secret of the job, which the ends of each data connection prove to
               each other. Proofs are keyed hashes (SipHash-2-4) of fresh random numbers: token and secret are
               not guessed, replayed or sent back by who connects to a port, and connections without a proof
               only take one of 64 places for 5 seconds. Without a token, a folder holds a random one, which
               this user alone may read; with "host:port", whoever reaches the port may take part.
               Nothing is encrypted: who reads the network's traffic reads gradients and the secret, and can
               test guesses of a short token; who changes traffic on its way can change gradients. NCCL makes
               its own connections, without these proofs. Such networks need a tunnel. */
#include "fl_optim.h"
#include "fl/distributed/impl.h"
#include "fl/distributed/meet.h"
#include "fl/distributed/link.h"
#include "fl/distributed/group.h"
#include "fl/distributed/train.h"

/* MIT licence: see LICENSE. */
