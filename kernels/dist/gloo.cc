// kernels/dist/gloo.cc - Gloo as an implementation for fl_dist.h; the only C++ file of fl
//
// Gloo's own connections are not authenticated. It gets a custom transport: sockets whose ends have proved
// that they belong to this job (fl_dist_connect_ranks), and which transfer bytes while a caller waits. No
// exception leaves this file.
#include "../../fl/distributed/group.h"

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/broadcast.h>
#include <gloo/context.h>
#include <gloo/transport/address.h>
#include <gloo/transport/buffer.h>
#include <gloo/transport/context.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/unbound_buffer.h>

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using milliseconds = std::chrono::milliseconds;

milliseconds left(double deadline) {
    const double s = deadline - fl_dist_now();
    return milliseconds(s < 0.001 ? 1 : (int64_t)(1000 * s));
}

class Buffer;

// Placeholder for a connection: collectives check that it exists, but do not use it.
class Pair : public gloo::transport::Pair {
  public:
    const gloo::transport::Address &address() const override {
        none();
    }
    void connect(const std::vector<char> &) override {
        none();
    }
    void close() override {
    }
    void setSync(bool, bool) override {
        none();
    }
    std::unique_ptr<gloo::transport::Buffer> createSendBuffer(int, void *, size_t) override {
        none();
    }
    std::unique_ptr<gloo::transport::Buffer> createRecvBuffer(int, void *, size_t) override {
        none();
    }
    void send(gloo::transport::UnboundBuffer *, uint64_t, size_t, size_t) override {
        none();
    }
    void recv(gloo::transport::UnboundBuffer *, uint64_t, size_t, size_t) override {
        none();
    }

  private:
    [[noreturn]] static void none() {
        throw std::logic_error("pairs are not supported, expected unbound buffers");
    }
};

// A message in transfer: a header, then bytes.
struct Message {
    Buffer *buffer; // counts it when done
    char *bytes;
    struct {
        uint64_t slot, n;
    } head;         // received header, if receiving
    uint64_t slot;  // expected slot
    size_t n, done; // expected bytes; bytes of header and data transferred
};

// Messages between two ranks are received in the order in which they are sent; the next one must have the
// expected slot and length.
class Sockets : public gloo::transport::Context {
  public:
    explicit Sockets(const fl_dist_rendezvous &place)
        : Context(place.rank, place.size), fd_((size_t)place.size, -1), out_((size_t)place.size),
          in_((size_t)place.size) {
        if (!fl_dist_connect_ranks(&place, fd_.data())) {
            const std::string text = fl_error() ? fl_error() : "the ranks could not be connected";
            fl_error_clear();
            throw std::runtime_error(text);
        }
        for (int k = 0; k < size; k++)
            if (k != rank) createPair(k);
    }

    ~Sockets() override {
        for (int fd : fd_) fl_dist_socket_close(fd);
    }

    // May be called from any thread: ends all waits, current and future.
    void abort() {
        aborted_ = true;
        for (int fd : fd_)
            if (fd >= 0) shutdown(fd, SHUT_RDWR);
    }

    void add(bool out, int rank, const Message &m) {
        queue(out, rank).push_back(m);
        if (out && out_[(size_t)rank].size() == 1) move(out, rank);
    }

    void forget(const Buffer *b) {
        for (auto *queues : {&out_, &in_})
            for (auto &q : *queues)
                for (size_t i = q.size(); i-- > 0;)
                    if (q[i].buffer == b) q.erase(q.begin() + (ptrdiff_t)i);
    }

    // Transfers messages of all ranks until *count is above 0, then decrements it.
    void wait(int *count, milliseconds timeout) {
        if (timeout.count() < 0) timeout = getTimeout();
        const double deadline = fl_dist_now() + 1e-3 * (double)timeout.count();
        while (*count == 0) {
            if (aborted_) throw std::runtime_error("the group has failed");
            bool moved = false;
            for (int k = 0; k < size; k++)
                for (bool out : {true, false})
                    while (!queue(out, k).empty() && move(out, k)) moved = true;
            if (!moved && *count == 0) sleep(deadline);
        }
        --*count;
    }

    std::unique_ptr<gloo::transport::UnboundBuffer> createUnboundBuffer(void *ptr, size_t bytes) override;

    std::unique_ptr<gloo::transport::Pair> &createPair(int k) override {
        return pairs_[(size_t)k] = std::unique_ptr<gloo::transport::Pair>(new Pair);
    }

  private:
    std::deque<Message> &queue(bool out, int rank) {
        return (out ? out_ : in_)[(size_t)rank];
    }

    // Transfers as much of the first message as possible without blocking; true if it is complete.
    bool move(bool out, int rank);

    // Waits until a socket is ready, at most a second.
    void sleep(double deadline) {
        const double seconds = deadline - fl_dist_now();
        if (seconds <= 0) throw std::runtime_error("timeout");
        std::vector<struct pollfd> f;
        for (int k = 0; k < size; k++) {
            const int events =
                (queue(true, k).empty() ? 0 : POLLOUT) | (queue(false, k).empty() ? 0 : POLLIN);
            if (events) f.push_back({fd_[(size_t)k], (short)events, 0});
        }
        poll(f.data(), (nfds_t)f.size(), seconds < 1 ? (int)(1000 * seconds) + 1 : 1000);
    }

    std::vector<int> fd_;
    std::vector<std::deque<Message>> out_, in_; // to and from each rank
    std::atomic<bool> aborted_{false};
};

class Buffer : public gloo::transport::UnboundBuffer {
  public:
    Buffer(Sockets *sockets, void *bytes, size_t n) : UnboundBuffer(bytes, n), sockets_(sockets) {
    }

    ~Buffer() override {
        sockets_->forget(this);
    }

    void send(int rank, uint64_t slot, size_t offset, size_t n) override {
        sockets_->add(true, rank, message(slot, offset, n));
    }

    void recv(int rank, uint64_t slot, size_t offset, size_t n) override {
        sockets_->add(false, rank, message(slot, offset, n));
    }

    void recv(std::vector<int>, uint64_t, size_t, size_t) override {
        throw std::logic_error("receiving from any of several ranks is not supported");
    }

    bool waitSend(int *, milliseconds timeout) override {
        sockets_->wait(&sent, timeout);
        return true;
    }

    bool waitRecv(int *, milliseconds timeout) override {
        sockets_->wait(&received, timeout);
        return true;
    }

    void abortWaitSend() override {
        sockets_->abort();
    }

    void abortWaitRecv() override {
        sockets_->abort();
    }

    int sent = 0, received = 0; // completed messages that have not been waited for

  private:
    Message message(uint64_t slot, size_t offset, size_t n) {
        if (n == kUnspecifiedByteCount) n = size - offset;
        return {this, (char *)ptr + offset, {slot, n}, slot, n, 0};
    }

    Sockets *sockets_;
};

std::unique_ptr<gloo::transport::UnboundBuffer> Sockets::createUnboundBuffer(void *ptr, size_t bytes) {
    return std::unique_ptr<gloo::transport::UnboundBuffer>(new Buffer(this, ptr, bytes));
}

bool Sockets::move(bool out, int rank) {
    Message &m = queue(out, rank).front();
    constexpr size_t head = sizeof m.head;
    for (;;) {
        // receive data only after the header has been checked
        const size_t all = head + (out || m.done >= head ? m.n : 0);
        if (m.done < head || m.n) {
            struct iovec part[2] = {{(char *)&m.head + m.done, head - m.done}, {m.bytes, m.n}};
            struct msghdr h = {};
            h.msg_iov = part;
            h.msg_iovlen = out ? 2 : 1;
            if (m.done >= head) {
                part[0] = {m.bytes + (m.done - head), all - m.done};
                h.msg_iovlen = 1;
            }
            const int fd = fd_[(size_t)rank];
            const ssize_t k = out ? sendmsg(fd, &h, MSG_NOSIGNAL) : recvmsg(fd, &h, 0);
            if (k < 0 && errno == EINTR) continue;
            if (k < 0 && errno == EAGAIN) return false;
            if (k <= 0)
                throw std::runtime_error("the connection to rank " + std::to_string(rank) + " closed after " +
                                         std::to_string(m.done) + " of " + std::to_string(head + m.n) +
                                         " bytes");
            m.done += (size_t)k;
            if (!out && m.done >= head && (m.head.slot != m.slot || m.head.n != m.n))
                throw std::runtime_error("rank " + std::to_string(rank) + " sent " +
                                         std::to_string(m.head.n) + " bytes of another call, expected " +
                                         std::to_string(m.n));
        }
        if (m.done < head + m.n) continue;
        ++(out ? m.buffer->sent : m.buffer->received);
        queue(out, rank).pop_front();
        return true;
    }
}

// The context of Gloo's collectives.
struct Context : public gloo::Context {
    Context(int rank, int size, std::shared_ptr<Sockets> sockets) : gloo::Context(rank, size) {
        transportContext_ = std::move(sockets);
    }
};

struct Group {
    std::shared_ptr<Sockets> sockets;
    std::shared_ptr<gloo::Context> context;
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

void *open(const fl_dist_rendezvous *place) {
    std::unique_ptr<Group> g;
    const bool ok = guarded([&] {
        g.reset(new Group);
        g->sockets = std::make_shared<Sockets>(*place);
        g->context = std::make_shared<Context>(place->rank, place->size, g->sockets);
        return true;
    });
    return ok ? g.release() : nullptr;
}

void close(void *self) {
    delete (Group *)self;
}

void abort(void *self) {
    ((Group *)self)->sockets->abort();
}

bool exchange(void *self, int to, const void *out, size_t out_bytes, int from, void *in, size_t in_bytes,
              uint64_t tag, double deadline) {
    Sockets *s = ((Group *)self)->sockets.get();
    return guarded([&] {
        Buffer o(s, const_cast<void *>(out), out_bytes), i(s, in, in_bytes);
        if (from >= 0) i.recv(from, tag, 0, in_bytes);
        if (to >= 0) o.send(to, tag, 0, out_bytes);
        if (from >= 0) i.waitRecv(nullptr, left(deadline));
        if (to >= 0) o.waitSend(nullptr, left(deadline));
        return true;
    });
}

// T: any type of the element's size, which is all that Gloo uses it for.
template <typename T> void all_reduce(Group *g, const fl_dist_call *c) {
    gloo::AllreduceOptions o(g->context);
    o.setOutput((T *)c->out, (size_t)c->count);
    o.setReduceFunction([c](void *sum, const void *a, const void *b, size_t n) {
        if (sum == b)
            std::swap(a, b); // reductions are commutative
        else if (sum != a)
            std::memcpy(sum, a, n * sizeof(T));
        fl_dist_accumulate(c->reduction, c->dtype, sum, b, (int64_t)n);
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
            o.setOutput((char *)c->out, bytes * (size_t)g->context->size);
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
extern "C" const fl_dist_impl fl_dist_gloo = {"gloo", open, exchange, abort, close, run, true, nullptr};

// MIT licence: see LICENSE.
