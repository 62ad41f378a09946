/* fl_dist.h - one program on one rank and on many: collectives on tensors, and how they fail

   A rank is a process. Ranks find each other by what started them, call the same functions in the same
   order, and hear within seconds when one of them dies, stands still or calls something else.

   >>example
    #define FL_IMPLEMENTATION
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

   Contents: one room of fl/dist/ each.
     group.h   groups, collectives, failures: what programs use
     impl.h    what carries bytes: the table of an implementation; yours too
     meet.h    how ranks find each other: environments, folders, sockets
     link.h    the control channel: who lives, who called what
   Data-parallel training stands on fl_optim.h as well: fl/dist/train.h.

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
     Trust     Those who know the token and reach the port may take part; nothing is encrypted. */
#include "fl_tensor.h"
#include "fl/dist/impl.h"
#include "fl/dist/meet.h"
#include "fl/dist/link.h"
#include "fl/dist/group.h"

/* MIT licence: see LICENSE. */
