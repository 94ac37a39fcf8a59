#include "two.h"

#include <sched.h>

bool is_server;
pid_t other;
bool far;
VIP_NIC_HANDLE nic;
VIP_NIC_ATTRIBUTES nic_attributes;
const VIP_RELIABILITY_LEVEL levels[3] = {VIP_SERVICE_UNRELIABLE, VIP_SERVICE_RELIABLE_DELIVERY, VIP_SERVICE_RELIABLE_RECEPTION};
static const struct example *example;
static int channel;
static char other_host[8];

_Noreturn void fail(const char *file, int line, const char *what, long long got, long long wanted) {
    fprintf(stderr, "%s:%d: %s of '%s' (pid %d): not true: %s", file, line, is_server ? "server" : "client", example->name, getpid(), what);
    if (got != wanted) fprintf(stderr, ": got %lld, wanted %lld", got, wanted);
    fprintf(stderr, " (errno %d %s)\n", errno, strerror(errno));
    _exit(1);
}

void tell(int64_t value) {
    EQUAL(write(channel, &value, sizeof value), sizeof value);
}

int64_t hear(void) {
    int64_t value;
    EQUAL(read(channel, &value, sizeof value), sizeof value);
    return value;
}

void meet(void) {
    tell(4711);
    EQUAL(hear(), 4711);
}

double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

bool allocates(void) {
    return getenv("POOLS") && strcmp(getenv("POOLS"), "allocated") == 0;
}

struct pool make_pool(size_t count, size_t room, VIP_PROTECTION_HANDLE ptag) {
    struct pool pool = {.count = count, .room = room, .stride = (sizeof(VIP_DESCRIPTOR) + room + 63) & ~(size_t)63};
    if (allocates()) {
        VIP_PVOID base;
        OK(VipAllocateMem(nic, count * pool.stride, &base));
        pool.base = base;
    } else {
        pool.base = aligned_alloc(64, count * pool.stride);
    }
    CHECK(pool.base);
    memset(pool.base, 0, count * pool.stride);
    VIP_MEM_ATTRIBUTES with = {ptag, VIP_TRUE, VIP_TRUE};
    OK(VipRegisterMem(nic, pool.base, count * pool.stride, &with, &pool.handle));
    CHECK(pool.handle != 0);
    return pool;
}

void drop_pool(struct pool *pool) {
    OK(VipDeregisterMem(nic, pool->base, pool->handle));
    if (allocates()) OK(VipFreeMem(nic, pool->base));
    else free(pool->base);
}

VIP_DESCRIPTOR *posted(struct pool *pool, size_t index) {
    return (VIP_DESCRIPTOR *)(pool->base + index * pool->stride);
}

char *data(struct pool *pool, size_t index) {
    return pool->base + index * pool->stride + sizeof(VIP_DESCRIPTOR);
}

VIP_DESCRIPTOR *descriptor(struct pool *pool, size_t index) {
    VIP_DESCRIPTOR *d = posted(pool, index);
    memset(d, 0, sizeof *d);
    d->CS.SegCount = 1;
    d->CS.Length = pool->room;
    d->DS[0].Local.Data.Address = data(pool, index);
    d->DS[0].Local.Handle = pool->handle;
    d->DS[0].Local.Length = pool->room;
    return d;
}

void post_recv(VIP_VI_HANDLE vi, struct pool *pool, size_t index, size_t length) {
    VIP_DESCRIPTOR *d = descriptor(pool, index);
    d->DS[0].Local.Length = length;
    OK(VipPostRecv(vi, d, pool->handle));
}

void post_send(VIP_VI_HANDLE vi, struct pool *pool, size_t index, size_t length) {
    VIP_DESCRIPTOR *d = descriptor(pool, index);
    d->CS.Length = d->DS[0].Local.Length = length;
    OK(VipPostSend(vi, d, pool->handle));
}

static VIP_RETURN take(VIP_VI_HANDLE vi, enum how how, VIP_DESCRIPTOR **done, VIP_RETURN (*poll_it)(VIP_VI_HANDLE, VIP_DESCRIPTOR **),
                       VIP_RETURN (*wait_for)(VIP_VI_HANDLE, VIP_ULONG, VIP_DESCRIPTOR **)) {
    if (how == WAIT) return wait_for(vi, 5000 * patience(), done);
    double end = now() + 5 * patience();
    for (;;) {
        VIP_RETURN result = poll_it(vi, done);
        if (result != VIP_NOT_DONE) return result;
        CHECK(*done == NULL);
        CHECK(now() < end);
    }
}

VIP_RETURN take_recv(VIP_VI_HANDLE vi, enum how how, VIP_DESCRIPTOR **done) {
    return take(vi, how, done, VipRecvDone, VipRecvWait);
}

VIP_RETURN take_send(VIP_VI_HANDLE vi, enum how how, VIP_DESCRIPTOR **done) {
    return take(vi, how, done, VipSendDone, VipSendWait);
}

void drain(VIP_VI_HANDLE vi, unsigned flushed) {
    for (int receive = 0; receive < 2; receive++) {
        for (;;) {
            VIP_DESCRIPTOR *d = (void *)1;
            VIP_RETURN result = receive ? VipRecvDone(vi, &d) : VipSendDone(vi, &d);
            if (d == NULL) {
                EQUAL(result, VIP_DESCRIPTOR_ERROR);
                break;
            }
            if (d->CS.Status & VIP_STATUS_DESC_FLUSHED_ERROR) {
                EQUAL(result, VIP_DESCRIPTOR_ERROR);
                CHECK(flushed > 0);
                flushed--;
            }
        }
    }
    EQUAL(flushed, 0);
}

VIP_VI_ATTRIBUTES attributes(VIP_RELIABILITY_LEVEL level) {
    VIP_VI_ATTRIBUTES made = {level, nic_attributes.MaxTransferSize, 0, NULL, VIP_TRUE, !(level & VIP_SERVICE_UNRELIABLE)};
    return made;
}

VIP_VI_HANDLE make_vi(VIP_RELIABILITY_LEVEL level, VIP_CQ_HANDLE send_cq, VIP_CQ_HANDLE receive_cq) {
    VIP_VI_ATTRIBUTES with = attributes(level);
    VIP_VI_HANDLE vi;
    OK(VipCreateVi(nic, &with, send_cq, receive_cq, &vi));
    return vi;
}

VIP_VI_STATE state(VIP_VI_HANDLE vi) {
    VIP_VI_STATE found;
    VIP_VI_ATTRIBUTES with;
    VIP_BOOLEAN send_empty, receive_empty;
    OK(VipQueryVi(vi, &found, &with, &send_empty, &receive_empty));
    return found;
}

void wait_state(VIP_VI_HANDLE vi, VIP_VI_STATE wanted) {
    for (double end = now() + patience(); state(vi) != wanted && now() < end;) usleep(100);
    EQUAL(state(vi), wanted);
}

struct address address(const char *discriminator) {
    struct address made = {{0}};
    VIP_NET_ADDRESS *net = NET(made);
    net->HostAddressLen = nic_attributes.NicAddressLen;
    net->DiscriminatorLen = strlen(discriminator);
    memcpy(net->HostAddress, nic_attributes.LocalNicAddress, nic_attributes.NicAddressLen);
    memcpy(net->HostAddress + nic_attributes.NicAddressLen, discriminator, strlen(discriminator));
    return made;
}

struct address there(const char *discriminator) {
    struct address made = address(discriminator);
    if (far) memcpy(NET(made)->HostAddress, other_host, nic_attributes.NicAddressLen);
    return made;
}

VIP_CONN_HANDLE wait_request(const char *discriminator) {
    struct address at = address(discriminator), from = {{0}};
    VIP_VI_ATTRIBUTES theirs;
    VIP_CONN_HANDLE asked;
    OK(VipConnectWait(nic, NET(at), 5000 * patience(), NET(from), &theirs, &asked));
    return asked;
}

double patience(void) {
    const char *times = getenv("PATIENCE");
    return times ? atof(times) : 1;
}

VIP_RETURN request(VIP_VI_HANDLE vi, const char *discriminator, VIP_ULONG timeout) {
    struct address from = address("me"), to = there(discriminator);
    VIP_VI_ATTRIBUTES theirs;
    double end = now() + 5 * patience();
    for (;;) {
        VIP_RETURN result = VipConnectRequest(vi, NET(from), NET(to), timeout, &theirs);
        if (result != VIP_NO_MATCH) return result;
        CHECK(now() < end);
    }
}

void connect_at(VIP_VI_HANDLE vi, const char *discriminator) {
    if (is_server) OK(VipConnectAccept(wait_request(discriminator), vi));
    else OK(request(vi, discriminator, 5000 * patience()));
    EQUAL(state(vi), VIP_STATE_CONNECTED);
}

/* Errors go from the library's thread to the example's through a pipe, in their order. */
static int errors[2];

static void caught(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *error) {
    struct error told;
    memset(&told, 0, sizeof told); /* also what lies between its members: valgrind looks at all that is written */
    told.code = error->ErrorCode;
    told.vi = error->ViHandle;
    told.descriptor = error->DescriptorPtr;
    CHECK(context == errors && error->NicHandle == nic);
    EQUAL(write(errors[1], &told, sizeof told), sizeof told);
}

void catch_errors(void) {
    EQUAL(pipe(errors), 0);
    OK(VipErrorCallback(nic, errors, caught));
}

unsigned errors_left(void) {
    struct pollfd poll_it = {.fd = errors[0], .events = POLLIN};
    return poll(&poll_it, 1, 0);
}

struct error next_error(void) {
    struct error told;
    struct pollfd poll_it = {.fd = errors[0], .events = POLLIN};
    EQUAL(poll(&poll_it, 1, 2000 * patience()), 1);
    EQUAL(read(errors[0], &told, sizeof told), sizeof told);
    return told;
}

static int run(void (*part)(void)) {
    if (far) {
        char first[100], *second = strchr(strncpy(first, getenv("HOSTS"), 99), ':');
        CHECK(second);
        *second++ = 0;
        int host = open(is_server ? first : second, O_RDONLY | O_CLOEXEC);
        EQUAL(setns(host, CLONE_NEWNET), 0);
        close(host);
    }
    OK(VipOpenNic(far ? "/dev/nic0" : "/dev/via_lo", &nic));
    OK(VipQueryNic(nic, &nic_attributes));
    if (far) {
        int64_t host = 0;
        memcpy(&host, nic_attributes.LocalNicAddress, nic_attributes.NicAddressLen);
        tell(host);
        host = hear();
        memcpy(other_host, &host, sizeof other_host);
    }
    part();
    OK(VipCloseNic(nic));
    return 0;
}

int main(int count, char **words) {
    for (example = examples; example->name; example++)
        if (count == 2 && strcmp(words[1], example->name) == 0) break;
    if (!example->name) {
        fprintf(stderr, "usage: %s EXAMPLE\n", words[0]);
        return 2;
    }
    if (example->flags & ALONE) return run(example->client);
    far = getenv("HOSTS");
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends)) return 3;
    pid_t parent = getpid(), child = fork();
    if (child < 0) return 3;
    is_server = child != 0;
    other = is_server ? child : parent;
    channel = ends[is_server];
    close(ends[!is_server]);
    if (!is_server) return run(example->client);
    run(example->server);
    int status;
    if (waitpid(child, &status, 0) != child) return 3;
    if (example->flags & DIES) return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL ? 0 : 1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
