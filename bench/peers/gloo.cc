// gloo.cc - Gloo as its own benchmark runs it, one context and no framework around: the peer of bench/dist.c
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

static std::shared_ptr<gloo::rendezvous::Context> context;

extern "C" int peer_open(int rank, int size, const char *folder) try {
    gloo::transport::tcp::attr at("127.0.0.1");
    auto device = gloo::transport::tcp::CreateDevice(at);
    gloo::rendezvous::FileStore store(folder);
    context = std::make_shared<gloo::rendezvous::Context>(rank, size);
    context->connectFullMesh(store, device);
    return 1;
} catch (const std::exception &) {
    return 0;
}

extern "C" void peer_all_reduce(float *p, size_t n, unsigned tag) {
    gloo::AllreduceOptions o(context);
    o.setOutput(p, n);
    o.setReduceFunction(
        [](void *c, const void *a, const void *b, size_t k) { gloo::sum<float>(c, a, b, k); });
    o.setTag(tag);
    gloo::allreduce(o);
}

extern "C" void peer_all_gather(float *out, float *in, size_t n, unsigned tag) {
    gloo::AllgatherOptions o(context);
    o.setInput(in, n);
    o.setOutput(out, n * (size_t)context->size);
    o.setTag(tag);
    gloo::allgather(o);
}

extern "C" void peer_broadcast(float *p, size_t n, unsigned tag) {
    gloo::BroadcastOptions o(context);
    o.setOutput(p, n);
    o.setRoot(0);
    o.setTag(tag);
    gloo::broadcast(o);
}
/* MIT licence: see LICENSE. */
