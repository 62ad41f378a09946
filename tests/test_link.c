/* tests/test_link.c - proofs of the token on new connections, and messages of ranks to rank 0, one at a time

   The control channel is here without its thread: the tests are the other end, and the clock is theirs where
   something is to be late. */
#include "test.h"
#define FL_IMPL_ONLY
#define FL_IMPL_ONLY_DISTRIBUTED_MEET
#define FL_IMPL_ONLY_DISTRIBUTED_LINK
#include "../fl/distributed/meet.h"
#include "../fl/distributed/link.h"

static const uint8_t key[FL__DIST_SECRET] = "0123456789abcde", other_key[FL__DIST_SECRET] = "0123456789abcdf";

/* ---- the hash ---- */

/* Appendix A of the paper on SipHash, and its reference implementation's first vectors. */
TEST(siphash_has_its_published_values) {
    static const struct {
        int n;
        uint64_t hash;
    } known[] = {{0, 0x726fdb47dd0e0e31}, {1, 0x74f839c593dc67fd}, {7, 0xab0200f58b01d137},
                 {8, 0x93f5f5799a932462}, {15, 0xa129ca6149be45e5}};
    uint8_t count[16];
    for (int i = 0; i < 16; i++) count[i] = (uint8_t)i;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        CHECK(fl__dist_mac(count, count, (size_t)known[i].n) == known[i].hash);
}

TEST(secrets_are_random) {
    uint8_t a[FL__DIST_SECRET] = {0}, b[FL__DIST_SECRET] = {0}, c[FL__DIST_SECRET];
    REQUIRE(fl__dist_random(a) && fl__dist_random(b));
    CHECK(memcmp(a, b, sizeof a));
    fl__dist_token_key("one", a);
    fl__dist_token_key("two", b);
    fl__dist_token_key("one", c);
    CHECK(memcmp(a, b, 8) && memcmp(a + 8, b + 8, 8) && memcmp(a, a + 8, 8) && !memcmp(a, c, sizeof a));
}

/* ---- who may come in ---- */

/* A door that listens at this host, and what a test needs of it. */
static fl__dist_listener door;
static int door_port;
static void open_door(int rank, int size) {
    test_errors_return();
    fl_log_set_sink(NULL, NULL, FL_LOG_OFF);
    door_port = 0;
    fl__dist_listener_open(&door, fl_dist_listen("127.0.0.1", &door_port), rank, size, "test", key, 5);
    memset(door.secret, 7, sizeof door.secret);
    CHECK(door.listen_fd >= 0);
}
/* Connects, and waits until the door has greeted it. */
static int connect_to_door(fl__dist_challenge *g) {
    fl__dist_challenge unused;
    const double end = fl_dist_now() + 60;
    const int fd = fl_dist_connect("127.0.0.1", door_port, end);
    size_t n = 0;
    if (!g) g = &unused;
    while (fd >= 0 && n < sizeof *g && fl_dist_now() < end) {
        CHECK(!fl__dist_listener_next(&door, fl_dist_now()));
        const ssize_t k = recv(fd, (char *)g + n, sizeof *g - n, 0);
        if (k > 0) n += (size_t)k;
        if (!k) break;
    }
    CHECK(n == sizeof *g);
    return fd;
}
/* The claim is sent whole; who comes in, or NULL when the door has closed the connection. */
static fl__dist_pending *claim_at_door(int fd, const void *claim, size_t n) {
    const double end = fl_dist_now() + 60;
    fl__dist_pending *c = NULL;
    char byte;
    CHECK(send(fd, claim, n, MSG_NOSIGNAL) == (ssize_t)n);
    while (!(c = fl__dist_listener_next(&door, fl_dist_now())) && fl_dist_now() < end) {
        const ssize_t k = recv(fd, &byte, 1, MSG_PEEK);
        if (k >= 0 || errno != EAGAIN) break; /* a verdict, or the end */
    }
    return c;
}
static fl__dist_claim claim_of(int rank, int size, const fl__dist_challenge *g, const uint8_t *with) {
    fl__dist_claim c = {FL__DIST_VERSION, fl__dist_layout(), rank, size, {1, 2, 3}, 0};
    c.proof = fl__dist_proof(with, "test", door.rank, g->nonce, &c, NULL);
    return c;
}
static bool hung_up(int fd) {
    char bytes[256];
    for (const double end = fl_dist_now() + 60; fl_dist_now() < end;) {
        const ssize_t k = recv(fd, bytes, sizeof bytes, 0);
        if (k == 0 || (k < 0 && errno != EAGAIN && errno != EINTR)) return true;
        if (k < 0) fl__dist_ready(fd, POLLIN, fl_dist_now() + 0.01);
    }
    return false;
}

TEST(only_the_key_opens_the_door) {
    fl__dist_challenge g;
    fl__dist_reply v;
    open_door(0, 3);
    int fd = connect_to_door(&g);
    fl__dist_claim c = claim_of(2, 3, &g, key);
    fl__dist_pending *in = claim_at_door(fd, &c, sizeof c);
    REQUIRE(in && in->claim.rank == 2);
    const int accepted = fl__dist_listener_answer(&door, in, "");
    CHECK(accepted >= 0 && fl_dist_socket_io(fd, false, &v, sizeof v, fl_dist_now() + 60));
    CHECK(!*v.reason && v.secret[0] == 7);
    CHECK(v.proof == fl__dist_proof(key, "test", 0, g.nonce, &c, &v));
    fl_dist_socket_close(accepted);
    fl_dist_socket_close(fd);

    const fl__dist_claim again = c; /* recorded, and sent again */
    for (int attack = 0; attack < 7; attack++) {
        fd = connect_to_door(&g);
        c = claim_of(1, 3, &g, attack == 0 ? other_key : key);
        if (attack == 1) c = again;
        if (attack == 2) c.rank = 2; /* proved to be another rank */
        if (attack == 3) c = claim_of(3, 3, &g, key);
        if (attack == 4) c = claim_of(0, 3, &g, key);
        if (attack == 5) c = claim_of(1, 2, &g, key);
        if (attack == 6) c.version++;
        if (!CHECK(!claim_at_door(fd, &c, sizeof c))) printf("attack %d\n", attack);
        CHECK(fl_dist_socket_io(fd, false, &v, sizeof v, fl_dist_now() + 60));
        CHECK(*v.reason && !v.secret[0] && hung_up(fd));
        const bool proved = attack >= 3 && attack <= 5; /* the others get no hash to guess tokens by */
        CHECK(proved ? v.proof == fl__dist_proof(key, "test", 0, g.nonce, &c, &v) : v.proof == 0);
        fl_dist_socket_close(fd);
    }
    CHECK_EQ_INT(door.refused, 7);
    fl__dist_listener_close(&door);
}

/* A hash that went one way is none for the other, other ranks, or another group. */
TEST(proofs_are_of_one_connection) {
    const fl__dist_claim c = {1, 1, 2, 3, {1}, 0};
    const fl__dist_reply v = {.proof = 0};
    const uint8_t nonce[FL__DIST_SECRET] = {5}, other[FL__DIST_SECRET] = {6};
    const uint64_t proof = fl__dist_proof(key, "all", 0, nonce, &c, NULL);
    fl__dist_claim d = c;
    CHECK(proof != fl__dist_proof(key, "all", 0, nonce, &c, &v));
    CHECK(proof != fl__dist_proof(key, "all", 1, nonce, &c, NULL));
    CHECK(proof != fl__dist_proof(key, "half", 0, nonce, &c, NULL));
    CHECK(proof != fl__dist_proof(key, "all", 0, other, &c, NULL));
    d.rank = 1;
    CHECK(proof != fl__dist_proof(key, "all", 0, nonce, &d, NULL));
    d = c, d.size = 4;
    CHECK(proof != fl__dist_proof(key, "all", 0, nonce, &d, NULL));
    d = c, d.nonce[15] = 1;
    CHECK(proof != fl__dist_proof(key, "all", 0, nonce, &d, NULL));
    fl__dist_reply with = v;
    with.secret[15] = 1;
    CHECK(fl__dist_proof(key, "all", 0, nonce, &c, &v) != fl__dist_proof(key, "all", 0, nonce, &c, &with));
}

/* Who listens in a rank's place, and does not know the key, gets a claim and no more. */
TEST(who_listens_proves_the_key_too) {
    const fl__dist_claim who = {.rank = 1, .size = 2};
    const fl__dist_challenge g = {FL__DIST_VERSION, fl__dist_layout(), {9}};
    test_errors_return();
    for (int attack = 0; attack < 3; attack++) {
        fl__dist_reply v = {.proof = 0};
        uint8_t secret[FL__DIST_SECRET] = {0};
        int pair[2];
        bool refused = false;
        const double end = fl_dist_now() + 60;
        REQUIRE(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair));
        memset(v.secret, 8, sizeof v.secret);
        if (attack == 1) v.proof = 12345;
        if (attack == 2) snprintf(v.reason, sizeof v.reason, "go away"); /* may be a lie: try again */
        CHECK(send(pair[1], &g, sizeof g, 0) == sizeof g && send(pair[1], &v, sizeof v, 0) == sizeof v);
        CHECK(!fl__dist_authenticate(pair[0], &who, 0, "test", key, secret, end, end, &refused));
        CHECK_ERROR(attack == 2 ? "refused this connection: go away" : "does not know the token");
        CHECK(!refused && !secret[0]);
        close(pair[0]);
        close(pair[1]);
    }
}

TEST(a_silent_connection_is_sent_away) {
    open_door(0, 2);
    const int fd = connect_to_door(NULL), half = connect_to_door(NULL);
    const uint32_t cut = FL__DIST_VERSION;
    CHECK(send(half, &cut, sizeof cut, MSG_NOSIGNAL) == sizeof cut);
    CHECK(!fl__dist_listener_next(&door, fl_dist_now() + 4));
    CHECK(door.pending[0].fd >= 0 && door.pending[1].fd >= 0);
    CHECK(!fl__dist_listener_next(&door, fl_dist_now() + 6));
    CHECK(door.pending[0].fd < 0 && door.pending[1].fd < 0);
    CHECK(hung_up(fd) && hung_up(half));
    fl_dist_socket_close(fd);
    fl_dist_socket_close(half);
    fl__dist_listener_close(&door);
}

/* What a stranger costs is small, and as many as like may come: the oldest go. */
TEST(unauthenticated_connections_do_not_keep_a_rank_out) {
    enum { STRANGERS = 3 * FL__DIST_PENDING };
    static int fd[STRANGERS];
    fl__dist_challenge g;
    open_door(0, 2);
    CHECK(sizeof door.pending[0] <= 128);
    for (int i = 0; i < STRANGERS; i++) fd[i] = connect_to_door(NULL);
    for (int i = 0; i < STRANGERS - FL__DIST_PENDING; i++) CHECK(hung_up(fd[i]));
    const int rank = connect_to_door(&g);
    const fl__dist_claim c = claim_of(1, 2, &g, key);
    fl__dist_pending *in = claim_at_door(rank, &c, sizeof c);
    CHECK(in && hung_up(fd[STRANGERS - FL__DIST_PENDING]));
    char byte;
    CHECK(recv(fd[STRANGERS - 1], &byte, 1, 0) < 0 && errno == EAGAIN); /* the newest stay */
    for (int i = 0; i < STRANGERS; i++) fl_dist_socket_close(fd[i]);
    fl_dist_socket_close(rank);
    fl__dist_listener_close(&door);
}

/* ---- messages of ranks ---- */

static int ends[3];
/* Rank `rank` of 3, all of which have come; ends[i] is the other end of peer i. */
static fl__dist_link *link_of(int rank) {
    const fl__dist_world w = {.rank = rank, .size = 3};
    test_errors_return();
    fl__dist_link *l = fl__dist_link_new(&w, 5);
    if (!CHECK(l)) return NULL;
    for (int i = rank ? 0 : 1; i < l->n_peers; i++) {
        int pair[2];
        CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair));
        l->peer[i].fd = pair[0], ends[i] = pair[1];
        l->peer[i].in = fl_heap_alloc(sizeof(fl__dist_header) + FL__DIST_BODY_MAX);
        CHECK(l->peer[i].in);
        l->peer[i].last_heard = fl_dist_now();
    }
    l->n_connected = 3;
    l->ready = true;
    return l;
}
static void free_link(fl__dist_link *l, int rank) {
    for (int i = rank ? 0 : 1; i < l->n_peers; i++) close(ends[i]);
    fl__dist_link_free(l);
}
static void says(fl__dist_link *l, int i, fl__dist_message_type word, const void *body, size_t n) {
    const fl__dist_header head = {word, (uint32_t)n};
    char bytes[sizeof head + 1024];
    memcpy(bytes, &head, sizeof head);
    if (n) memcpy(bytes + sizeof head, body, n);
    CHECK(send(ends[i], bytes, sizeof head + n, 0) == (ssize_t)(sizeof head + n));
    errno = 0;
    if (!fl__dist_receive(l, i)) fl__dist_disconnected(l, i);
}

TEST(a_message_without_a_body_is_taken_at_once) {
    fl__dist_link *l = link_of(1);
    REQUIRE(l);
    l->ready = false;
    says(l, 0, FL__DIST_READY, NULL, 0);
    CHECK(l->ready && !l->failure.kind && !l->peer->n_in);
    free_link(l, 1);
}

TEST(messages_that_a_rank_may_not_send_end_the_group) {
    const fl__dist_goodbye other = {0, 2, 0}, own = {0, 1, 0}, nobody = {0, 3, 0};
    const char long_key[FL__DIST_KEY_SIZE] = {0}, endless[FL__DIST_KEY_SIZE + 1] = {1};
    char unended[FL__DIST_KEY_SIZE];
    memset(unended, 'x', sizeof unended);
    const struct {
        const char *what;
        fl__dist_message_type word;
        const void *body;
        size_t n;
    } bad[] = {{"the goodbye of another rank", FL__DIST_GOODBYE, &other, sizeof other},
               {"the goodbye of no rank", FL__DIST_GOODBYE, &nobody, sizeof nobody},
               {"half a goodbye", FL__DIST_GOODBYE, &own, sizeof own - 1},
               {"what rank 0 alone says", FL__DIST_READY, NULL, 0},
               {"a value that nobody asked for", FL__DIST_VALUE, long_key, sizeof long_key},
               {"a key without an end", FL__DIST_SET, unended, sizeof unended},
               {"a cut key", FL__DIST_GET, endless, FL__DIST_KEY_SIZE - 1},
               {"half a record", FL__DIST_HEARTBEAT, endless, sizeof(fl__dist_record) - 1},
               {"another word", (fl__dist_message_type)0x4c465d00, NULL, 0}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        fl__dist_link *l = link_of(0);
        REQUIRE(l);
        says(l, 1, bad[i].word, bad[i].body, bad[i].n);
        if (!CHECK(l->failure.kind == FL_DIST_BROKEN && l->failure.rank == 1)) printf("%s\n", bad[i].what);
        CHECK_STR(l->failure.text, "rank 1 sent an invalid message");
        CHECK(!l->peer[2].goodbye && !l->left);
        free_link(l, 0);
    }
    fl__dist_link *l = link_of(0);
    REQUIRE(l);
    says(l, 1, FL__DIST_GOODBYE, &own, sizeof own);
    CHECK(!l->failure.kind && l->peer[1].goodbye && !l->peer[2].goodbye && l->left && l->left_rank == 1);
    free_link(l, 0);
}

TEST(a_message_that_is_too_long_ends_the_group) {
    fl__dist_link *l = link_of(0);
    const fl__dist_header head = {FL__DIST_SET, FL__DIST_BODY_MAX + 1};
    REQUIRE(l);
    CHECK(send(ends[1], &head, sizeof head, 0) == sizeof head);
    errno = 0;
    CHECK(!fl__dist_receive(l, 1));
    fl__dist_disconnected(l, 1);
    CHECK_STR(l->failure.text, "rank 1 sent an invalid message");
    free_link(l, 0);
}

/* Values of all ranks take 64 MiB of rank 0's memory and no more; whose value was too much is told. */
TEST(the_store_is_bounded) {
    enum { VALUE = FL__DIST_BODY_MAX - FL__DIST_KEY_SIZE };
    fl__dist_link *l = link_of(0);
    char *body = calloc(1, FL__DIST_BODY_MAX);
    REQUIRE(l && body);
    int kept = 0;
    while (!l->failure.kind && kept < 2000) {
        snprintf(body, FL__DIST_KEY_SIZE, "key%d", kept);
        CHECK(fl__dist_handle_message(l, 1, &l->peer[1], FL__DIST_SET, body, FL__DIST_BODY_MAX));
        kept += !l->failure.kind;
        if (l->item_bytes > 1 << 26) break;
    }
    CHECK_EQ_INT(kept, (1 << 26) / (int)(sizeof(fl__dist_store_item) + VALUE));
    CHECK(l->item_bytes <= 1 << 26 && l->failure.kind == FL_DIST_ERROR && l->failure.rank == 1);
    CHECK_STR(l->failure.text, "67108864 bytes");
    CHECK(!l->store.set(&l->store, "mine", body, VALUE));
    CHECK_ERROR("67108864 bytes");
    free(body);
    free_link(l, 0);
}

TEST(silence_of_a_rank_is_its_stall) {
    fl__dist_link *l = link_of(0);
    REQUIRE(l);
    fl_log_set_sink(NULL, NULL, FL_LOG_OFF);
    const double now = fl_dist_now();
    l->peer[2].last_heard = now + 4;
    for (int i = 0; i < 5; i++) fl__dist_check_heartbeats(l, l->last_run = now + i);
    CHECK(!l->failure.kind);
    l->last_run = now + 6;
    fl__dist_check_heartbeats(l, now + 6);
    CHECK(l->failure.kind == FL_DIST_STALL && l->failure.rank == 1);
    free_link(l, 0);
}

/* ---- where rank 0 is ---- */

static bool final;
static bool read_folder(const fl__dist_world *w) {
    char host[256], token[64];
    int port;
    return fl__dist_find_rank0(w, host, &port, token, 0, &final);
}

TEST(folders_that_others_may_write_are_refused) {
    char file[600], base[] = "/tmp/fl-test-XXXXXX", link_name[64];
    fl__dist_world w = {.rank = 1, .size = 2};
    struct stat s;
    test_errors_return();
    REQUIRE(mkdtemp(base));
    snprintf(w.folder, sizeof w.folder, "%s/folder", base);
    fl__dist_folder_file(&w, file, sizeof file);
    CHECK(!read_folder(&w) && !final); /* not there yet */
    CHECK_ERROR("No such file");
    CHECK(fl__dist_publish(&w, "127.0.0.1", 5, "token"));
    CHECK(!stat(file, &s) && (s.st_mode & 0777) == 0600);
    CHECK(!stat(w.folder, &s) && (s.st_mode & 0777) == 0700);
    CHECK(read_folder(&w));

    static const mode_t open_to[] = {0777, 0770, 0702};
    for (int i = 0; i < 3; i++) {
        CHECK(!chmod(w.folder, open_to[i]));
        CHECK(!read_folder(&w) && final);
        CHECK_ERROR("is writable by others");
        CHECK(!fl__dist_publish(&w, "127.0.0.1", 5, "token"));
        CHECK_ERROR("is writable by others");
    }
    CHECK(!chmod(w.folder, 01777) && read_folder(&w)); /* as /tmp: none removes what is another's */
    CHECK(!chmod(file, 0666) && !read_folder(&w) && final);
    CHECK_ERROR("is writable by others");
    CHECK(!chmod(file, 0600) && !chmod(w.folder, 0700));

    snprintf(link_name, sizeof link_name, "%s/link", base);
    CHECK(!symlink(w.folder, link_name));
    fl__dist_world by_link = w;
    snprintf(by_link.folder, sizeof by_link.folder, "%s", link_name);
    CHECK(read_folder(&by_link));
    if (!geteuid()) { /* of another user */
        CHECK(!lchown(link_name, 12345, 12345) && !read_folder(&by_link) && final);
        CHECK_ERROR("belongs to user 12345");
        CHECK(!chown(file, 12345, 12345) && !read_folder(&w) && final);
        CHECK_ERROR("belongs to user 12345");
        CHECK(!chown(file, 0, 0) && !chown(w.folder, 12345, 12345) && !read_folder(&w) && final);
        CHECK_ERROR("belongs to user 12345");
        CHECK(!fl__dist_publish(&w, "127.0.0.1", 5, "token"));
        CHECK_ERROR("belongs to user 12345");
    }
    unlink(link_name);
    unlink(file);
    CHECK(!symlink("/etc/hostname", file)); /* planted: not followed */
    CHECK(!geteuid() ? !chown(w.folder, 0, 0) : true);
    CHECK(!read_folder(&w) && final);
    fl_error_clear();
    unlink(file);
    CHECK(!mkdir(file, 0700) && !read_folder(&w) && final);
    CHECK_ERROR("is not a regular file");
    rmdir(file);
    rmdir(w.folder);
    rmdir(base);
}

int main(int argc, char **argv) {
    return test_main(argc, argv);
}
/* MIT licence: see LICENSE. */
