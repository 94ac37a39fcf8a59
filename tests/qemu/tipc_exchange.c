/* Sends messages of all sizes over TIPC and back, and looks at every byte of them at both ends.
 *
 *     tipc_exchange server TYPE                                    until it is killed
 *     tipc_exchange client TYPE seqpacket|rdm [-s SIZES] [-n ROUNDS | -t SECONDS] [-w WINDOW] [-l LIMIT] [-r]
 *
 * The client sends each of SIZES in turn, ROUNDS times or for SECONDS, with WINDOW messages under way, and waits at most LIMIT seconds for all.
 * What is in a message follows from its key (which differs from run to run), its number and the way that it goes. With -r a connection that
 * breaks is made anew, and messages to which nothing comes for 2 s are given up. On success it prints one line of JSON: how many messages and
 * bytes went each way, how often it began anew, and the longest time between two answers. Exit status: 0 good, 1 a wrong
 * payload, a lost, repeated or misplaced message, 2 wrong usage, 3 the time is up or nobody serves, 4 a broken connection or another error,
 * 5 the server is on the client's own node. */
#include "tipc.h"

enum way { REQUEST = 0x51, ANSWER, COMPLAINT, GAP };

struct head {
    uint32_t way, size;
    uint64_t key, number;
};

static _Alignas(8) char buffer[MOST + 8], expected[MOST + 8];

static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

static void fill(char *into, struct head head) {
    uint64_t seed = mix(head.key ^ mix(head.number ^ (uint64_t)head.way << 56));
    memcpy(into, &head, sizeof head);
    for (size_t at = sizeof head; at < head.size; at += 8) {
        seed += 0x9e3779b97f4a7c15;
        uint64_t word = mix(seed);
        memcpy(into + at, &word, head.size - at < 8 ? head.size - at : 8);
    }
}

/* Whether the message in `buffer` is what its own head says. */
static bool sound(size_t length, enum way way) {
    struct head head;
    if (length < sizeof head) return false;
    memcpy(&head, buffer, sizeof head);
    if (head.way != way || head.size != length) return false;
    fill(expected, head);
    return memcmp(buffer, expected, length) == 0;
}

/* Turns the request in `buffer` into its answer; one that is wrong, or is not the one after the last of its key, into what is to be said
 * about it. Returns the size. */
static size_t answer(size_t length, uint64_t *key, uint64_t *next) {
    struct head head = {0};
    if (!sound(length, REQUEST)) {
        fprintf(stderr, "a wrong request of %zu bytes\n", length);
        head.way = COMPLAINT;
    } else {
        memcpy(&head, buffer, sizeof head);
        if (head.key != *key) *key = head.key, *next = 0;
        head.way = head.number == *next ? ANSWER : GAP;
        if (head.way == GAP) fprintf(stderr, "request %lu came, %lu was next\n", head.number, *next);
        *next = head.number + 1;
    }
    if (head.way != ANSWER) head.size = sizeof head;
    fill(buffer, head);
    return head.size;
}

static void serve_connection(int fd) {
    uint64_t key = 0, next = 0;
    for (ssize_t length; (length = recv(fd, buffer, MOST, 0)) > 0;) {
        size_t size = answer(length, &key, &next);
        if (send(fd, buffer, size, 0) != (ssize_t)size) break;
    }
    exit(GOOD);
}

/* One datagram. A client that is not to be reached any more is none of the server's business; its answers come back. */
static void serve_datagram(int fd) {
    static uint64_t key, next;
    struct sockaddr_tipc from;
    struct head head;
    socklen_t known = sizeof from;
    ssize_t length = recvfrom(fd, buffer, MOST, 0, (struct sockaddr *)&from, &known);
    memcpy(&head, buffer, sizeof head);
    if (length < 0 || (length >= (ssize_t)sizeof head && head.way > REQUEST && head.way <= GAP)) return;
    size_t size = answer(length, &key, &next);
    if (sendto(fd, buffer, size, 0, (struct sockaddr *)&from, sizeof from) < 0) perror("an answer");
}

/* How the client goes about it, and what came of it. */
static struct {
    uint32_t type, limit;
    bool stream, resume;
    size_t sizes[SIZES];
    uint64_t count, rounds, window, seconds;
} plan = {.limit = 60, .rounds = 10, .window = 4};
static struct {
    uint64_t messages, bytes, resumed;
    int64_t start, last, longest;
} done;

static void check_answer(size_t length, struct head wanted) {
    struct head head = {0};
    memcpy(&head, buffer, length < sizeof head ? length : sizeof head);
    if (head.way == GAP) end(WRONG_PAYLOAD, "before message %lu one was lost or came twice, says the server", head.number);
    if (head.way == COMPLAINT) end(WRONG_PAYLOAD, "the server says that message %lu came to it wrong", wanted.number);
    fill(expected, wanted);
    if (length != wanted.size || memcmp(buffer, expected, length) != 0)
        end(WRONG_PAYLOAD, "answer %lu of %u bytes is wrong: %zu bytes with number %lu", wanted.number, wanted.size, length, head.number);
}

/* Something went wrong on the way: the end, unless the client is to go on. */
static bool broken(const char *what, uint64_t number) {
    if (!plan.resume) end(FAILED, "%s at message %lu: %s", what, number, strerror(errno));
    fprintf(stderr, "%s at message %lu: %s\n", what, number, strerror(errno));
    return false;
}

/* The exchange by one socket, until there is nothing more to send (true) or it breaks. */
static bool exchange(int fd) {
    struct sockaddr_tipc to = service(plan.stream ? plan.type : plan.type + 1), from;
    socklen_t known = sizeof from;
    uint64_t key = mix(now_ns()), sent = 0, received = 0;
    if (plan.stream) {
        if (connect(fd, (struct sockaddr *)&to, sizeof to) < 0) return broken("cannot connect", 0);
        if (getpeername(fd, (struct sockaddr *)&from, &known) < 0) return broken("the connection is gone", 0);
        want_other_node(fd, from.addr.id.node);
    }
    for (;;) {
        bool more = plan.seconds ? now_ns() - done.start < (int64_t)plan.seconds * 1000000000
                                 : done.messages + sent - received < plan.rounds * plan.count;
        if (more && sent - received < plan.window) {
            struct head head = {REQUEST, plan.sizes[sent % plan.count], key, sent};
            fill(buffer, head);
            ssize_t gone = plan.stream ? send(fd, buffer, head.size, 0)
                                       : sendto(fd, buffer, head.size, 0, (struct sockaddr *)&to, sizeof to);
            if (gone != head.size) return broken("cannot send", sent);
            sent++;
            continue;
        }
        if (received == sent) return true;
        known = sizeof from;
        ssize_t length = recvfrom(fd, buffer, MOST, 0, (struct sockaddr *)&from, &known);
        if (length < 0) return broken("no answer", received);
        if (length == 0) return broken("the server has ended the connection", received);
        uint32_t way = ((struct head *)buffer)->way;
        if (way == GAP && plan.resume) return broken("the server misses a message", received);
        if (way == REQUEST) return broken("this could not be delivered, and came back", received);
        check_answer(length, (struct head){ANSWER, plan.sizes[received % plan.count], key, received});
        if (!plan.stream) want_other_node(fd, from.addr.id.node);
        received++;
        done.messages++;
        done.bytes += length;
        int64_t now = now_ns();
        if (now - done.last > done.longest) done.longest = now - done.last;
        done.last = now;
    }
}

static int client(void) {
    limit_time(plan.limit);
    done.start = done.last = now_ns();
    for (;;) {
        wait_for_service(plan.stream ? plan.type : plan.type + 1, plan.limit * 1000);
        int fd = TRY(socket(AF_TIPC, plan.stream ? SOCK_SEQPACKET : SOCK_RDM, 0));
        struct timeval patience = {2, 0};
        if (plan.resume) TRY(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience));
        if (done.messages == 0) done.last = now_ns();
        bool whole = exchange(fd);
        close(fd);
        if (whole) break;
        done.resumed++;
    }
    printf("{\"socket\": \"%s\", \"messages\": %lu, \"bytes\": %lu, \"resumed\": %lu, \"seconds\": %.3f, \"longest_ms\": %.1f}\n",
           plan.stream ? "seqpacket" : "rdm", done.messages, done.bytes, done.resumed, (now_ns() - done.start) / 1e9, done.longest / 1e6);
    return GOOD;
}

int main(int argc, char **argv) {
    char usual[] = "64,65,100,999,1400,1472,1500,4096,16384,40000,60000";
    plan.count = parse_sizes(usual, sizeof(struct head), plan.sizes);
    if (argc == 3 && !strcmp(argv[1], "server")) serve_both(atoi(argv[2]), serve_connection, serve_datagram);
    if (argc < 4 || strcmp(argv[1], "client")) goto usage;
    plan.type = atoi(argv[2]);
    plan.stream = !strcmp(argv[3], "seqpacket");
    if (!plan.stream && strcmp(argv[3], "rdm")) goto usage;
    optind = 4;
    for (int option; (option = getopt(argc, argv, "s:n:t:w:l:r")) != -1;) switch (option) {
        case 's': plan.count = parse_sizes(optarg, sizeof(struct head), plan.sizes); break;
        case 'n': plan.rounds = strtoul(optarg, NULL, 10); break;
        case 't': plan.seconds = strtoul(optarg, NULL, 10); break;
        case 'w': plan.window = strtoul(optarg, NULL, 10); break;
        case 'l': plan.limit = atoi(optarg); break;
        case 'r': plan.resume = true; break;
        default: goto usage;
    }
    if (optind == argc && plan.count && plan.window) return client();

usage:
    end(USAGE, "usage: tipc_exchange server TYPE\n"
        "       tipc_exchange client TYPE seqpacket|rdm [-s SIZES] [-n ROUNDS | -t SECONDS] [-w WINDOW] [-l LIMIT] [-r]");
}
