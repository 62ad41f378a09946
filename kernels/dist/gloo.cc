// gloo.cc - Gloo as an implementation for fl_dist.h; the only C++ of fl
//
// No exception leaves this file. A context is opened on the thread of its group, where all signals are
// blocked: so they are in the thread that Gloo's device starts, whose writes raise SIGPIPE. Exchanges, which
// callers' threads run too, block that one themselves.
#include "../../fl_dist.h"

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/broadcast.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/unbound_buffer.h>

#include <signal.h>

#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

// What a failure needs of a pair: the library exports it, but Debian's package lacks a header that
// gloo/transport/tcp/pair.h includes. transport::Pair is its first base, at the same address.
namespace gloo {
namespace transport {
namespace tcp {
class Pair {
  public:
    std::exception_ptr signalExceptionExternal(const std::string &text);
};
} // namespace tcp
} // namespace transport
} // namespace gloo

namespace {

using milliseconds = std::chrono::milliseconds;

milliseconds left(double deadline) {
    const double s = deadline - fl_dist_now();
    return milliseconds(s < 0.001 ? 1 : (int64_t)(1000 * s));
}

// fl's store with the prefix of the group; a get that fails throws its text.
class Store : public gloo::rendezvous::Store {
  public:
    Store(const fl_dist_place &place) : place_(place) {
    }

    void set(const std::string &key, const std::vector<char> &data) override {
        if (!place_.store->set(place_.store, name(key).c_str(), data.data(), data.size())) fail();
    }

    std::vector<char> get(const std::string &key) override {
        std::vector<char> data(1 << 16);
        const int64_t n =
            place_.store->get(place_.store, name(key).c_str(), data.data(), data.size(), place_.deadline);
        if (n < 0) fail();
        data.resize((size_t)n);
        return data;
    }

    void wait(const std::vector<std::string> &keys) override {
        for (const auto &key : keys) get(key);
    }

    void wait(const std::vector<std::string> &keys, const milliseconds &) override {
        wait(keys);
    }

  private:
    std::string name(const std::string &key) const {
        return std::string("gloo/") + place_.prefix + "/" + key;
    }

    [[noreturn]] void fail() const {
        const std::string text = fl_error() ? fl_error() : "the store failed";
        fl_error_clear();
        throw std::runtime_error(text);
    }

    const fl_dist_place place_;
};

struct Group {
    std::shared_ptr<gloo::rendezvous::Context> context;
    int rank, size;
    std::mutex lock; // of the two buffers on their way, and aborted
    gloo::transport::UnboundBuffer *out = nullptr, *in = nullptr;
    bool aborted = false;
};

// Runs f; false after fl_fail if it throws.
template <typename F> bool guarded(F f) {
    try {
        return f();
    } catch (const std::exception &e) {
        return fl_fail("gloo: %s", e.what());
    } catch (...) {
        return fl_fail("gloo: an unknown exception");
    }
}

void *open(const fl_dist_place *place) {
    std::unique_ptr<Group> g;
    const bool ok = guarded([&] {
        gloo::transport::tcp::attr at(place->address);
        auto device = gloo::transport::tcp::CreateDevice(at);
        Store store(*place);
        g.reset(new Group);
        g->rank = place->rank;
        g->size = place->size;
        g->context = std::make_shared<gloo::rendezvous::Context>(place->rank, place->size);
        g->context->setTimeout(
            std::max(left(place->deadline) / 5, milliseconds(1))); // connecting takes up to five
        g->context->connectFullMesh(store, device);
        return true;
    });
    return ok ? g.release() : nullptr;
}

void close(void *self) {
    Group *g = (Group *)self;
    guarded([&] {
        delete g;
        return true;
    });
}

// Remembers the buffers of an exchange, for abort. False if that has come.
bool show(Group *g, gloo::transport::UnboundBuffer *out, gloo::transport::UnboundBuffer *in) {
    std::lock_guard<std::mutex> hold(g->lock);
    g->out = out;
    g->in = in;
    return !g->aborted;
}

// Ends connections, which wakes what waits for a message, and the waits for one that is half there.
void abort(void *self) {
    Group *g = (Group *)self;
    {
        std::lock_guard<std::mutex> hold(g->lock);
        g->aborted = true;
        if (g->in) g->in->abortWaitRecv();
        if (g->out) g->out->abortWaitSend();
    }
    for (int i = 0; i < g->size; i++)
        guarded([&] {
            auto *pair = reinterpret_cast<gloo::transport::tcp::Pair *>(g->context->getPair(i).get());
            if (i != g->rank && pair) pair->signalExceptionExternal("the group has failed");
            return true;
        });
    fl_error_clear();
}

// While one lives, SIGPIPE does not reach this thread.
struct NoPipe {
    sigset_t pipe, before;
    NoPipe() {
        sigemptyset(&pipe);
        sigaddset(&pipe, SIGPIPE);
        pthread_sigmask(SIG_BLOCK, &pipe, &before);
    }
    ~NoPipe() {
        const struct timespec now = {0, 0};
        if (!sigismember(&before, SIGPIPE)) sigtimedwait(&pipe, nullptr, &now);
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }
};

bool exchange(void *self, int to, const void *out, size_t out_bytes, int from, void *in, size_t in_bytes,
              uint64_t tag, double deadline) {
    Group *g = (Group *)self;
    const NoPipe hold;
    const bool ok = guarded([&] {
        std::unique_ptr<gloo::transport::UnboundBuffer> o, i;
        if (to >= 0) o = g->context->createUnboundBuffer(const_cast<void *>(out), out_bytes);
        if (from >= 0) i = g->context->createUnboundBuffer(in, in_bytes);
        if (!show(g, o.get(), i.get())) return fl_fail("gloo: the group has failed");
        struct Hide {
            Group *g;
            ~Hide() {
                show(g, nullptr, nullptr);
            }
        } hide{g};
        if (i) i->recv(from, tag);
        if (o) o->send(to, tag);
        if ((i && !i->waitRecv(nullptr, left(deadline))) || (o && !o->waitSend(nullptr, left(deadline))))
            return fl_fail("gloo: the group has failed");
        return true;
    });
    return ok;
}

// Gloo counts elements by their C++ type: one of the same size.
template <typename T> void all_reduce(Group *g, const fl_dist_call *c) {
    gloo::AllreduceOptions o(g->context);
    o.setOutput((T *)c->out, (size_t)c->count);
    o.setReduceFunction([c](void *sum, const void *a, const void *b, size_t n) {
        if (sum == b)
            std::swap(a, b); // both orders have one sum
        else if (sum != a)
            std::memcpy(sum, a, n * sizeof(T));
        fl_dist_fold(c->reduction, c->dtype, sum, b, (int64_t)n);
    });
    o.setTag((uint32_t)c->tag);
    o.setTimeout(left(c->deadline));
    gloo::allreduce(o);
}

fl_dist_answer run(void *self, const fl_dist_call *c) {
    Group *g = (Group *)self;
    const size_t element = c->dtype ? fl_dtype_size(c->dtype) : 1, bytes = element * (size_t)c->count;
    if (!c->count) return FL_DIST_DECLINED;
    const bool sum = c->kind == FL_DIST_ALL_REDUCE;
    if (!sum && c->kind != FL_DIST_ALL_GATHER && c->kind != FL_DIST_BROADCAST) return FL_DIST_DECLINED;
    const bool ok = guarded([&] {
        if (sum && element == 1)
            all_reduce<uint8_t>(g, c);
        else if (sum && element == 2)
            all_reduce<uint16_t>(g, c);
        else if (sum && element == 4)
            all_reduce<uint32_t>(g, c);
        else if (sum)
            all_reduce<uint64_t>(g, c);
        else if (c->kind == FL_DIST_ALL_GATHER) {
            gloo::AllgatherOptions o(g->context);
            o.setInput((char *)const_cast<void *>(c->in), bytes);
            o.setOutput((char *)c->out, bytes * (size_t)g->size);
            o.setTag((uint32_t)c->tag);
            o.setTimeout(left(c->deadline));
            gloo::allgather(o);
        } else {
            gloo::BroadcastOptions o(g->context);
            o.setOutput((char *)c->out, bytes);
            o.setRoot(c->root);
            o.setTag((uint32_t)c->tag);
            o.setTimeout(left(c->deadline));
            gloo::broadcast(o);
        }
        return true;
    });
    return ok ? FL_DIST_DONE : FL_DIST_FAILED;
}

} // namespace

extern "C" __attribute__((visibility("hidden"))) const fl_dist_impl fl_dist_gloo;
extern "C" const fl_dist_impl fl_dist_gloo = {"gloo", open, exchange, abort, close, run, true};

// MIT licence: see LICENSE.
