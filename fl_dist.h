/* fl_dist.h - distributed programs: ranks, collectives on tensors, failure detection

   A rank is a process. Ranks find each other through their launcher, call the same collectives in the same
   order, and detect within seconds if one of them dies, hangs or calls a different one.

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

   Contents: the files of fl/distributed/.
     group.h   groups, collectives, failures: the API for programs
     impl.h    transport: the table of an implementation, built-in or custom
     meet.h    rendezvous of ranks: environment, folder, sockets
     link.h    control channel: heartbeats, comparison of calls
   Data-parallel training also uses fl_optim.h: fl/distributed/train.h.

   Macros, all optional
     FL_USE_GLOO                    transport by Gloo (kernels/dist/gloo.cc, -lgloo -lstdc++)
     FL_DIST_IMPL=ring              default transport: fl_dist_ring must exist
     FL_DIST_IMPL_H='"x"'           header that defines it, included by the implementation

   Concepts
     Start     Configured by arguments of fl_dist_init, or by the environment of torchrun, Slurm, Open MPI
               or MPICH; without either there is one rank, and programs work unchanged. Environment
               variables: FL_DIST_STORE ("host:port" or a folder), FL_DIST_TOKEN, FL_DIST_PORT, FL_DIST
               (transport).
     Order     All ranks must make the same calls in the same order. This is checked; mismatched calls never
               exchange data.
     Failure   The first failure (a rank died, hangs, left, made a different call, or had an error) ends the
               group permanently. fl_dist_failure tells which; all further calls fail. Nothing hangs or
               aborts, so results can still be saved.
     GPUs      With NCCL (FL_DIST=nccl, backend cuda) tensors are on the rank's device: that of the default
               backend, for which fl_dist_init chooses the local rank's if it is "cuda" and there are
               several. fl_dist_wait waits until a call is on the device's stream, and later work on its
               tensors comes after it; fl_sync and fl_dist_barrier wait for the device. So a failure may be
               reported by a call after the one that it spoiled: what was computed since the last barrier
               is undefined, and fl_dist_save_checkpoint has one.
     Trust     A rank may join if it knows the token (.token, FL_DIST_TOKEN); rank 0 proves to it that it
               knows the token too, and distributes a random secret of the job, which both ends of each data
               connection prove to each other. Proofs are keyed hashes (SipHash-2-4) of fresh random
               numbers, so token and secret cannot be guessed, replayed or reflected by a client that connects
               to a port; connections without a proof occupy one of 64 slots for at most 5 seconds. Without a
               token, a store folder holds a random one, readable by this user only; with "host:port",
               anyone who can reach the port may join. Nothing is encrypted: anyone who can read the network
               traffic can read gradients and the secret, and test guesses of a short token; anyone who can
               modify traffic can modify gradients. NCCL opens its own connections, without these proofs.
               Untrusted networks need a tunnel. */
#if defined(FL_CALLS_H) && !defined(FL_DIST_DECLARED)
#error "fl: with FL_TRACE_CALLS include fl_dist.h before fl.h, or fl_all.h: functions are macros now"
#endif
#define FL_DIST_DECLARED
#include "fl_optim.h"
#include "fl/distributed/impl.h"
#include "fl/distributed/meet.h"
#include "fl/distributed/link.h"
#include "fl/distributed/group.h"
#include "fl/distributed/train.h"

/* MIT licence: see LICENSE. */
