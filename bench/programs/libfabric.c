/*
 * libfabric: what libfabric does by itself, with remote writes and with messages, as fabtests' fi_rma_pingpong, fi_rma_bw and fi_msg_bw
 * measure it, which Debian does not have.
 *
 *   libfabric server --ofi any [--provider tcp] [--host ADDRESS] [--measure latency | bandwidth] [--how write | message] [--size 64] [--cpu N]
 *   libfabric client --ofi HEX [the same] [--seconds 1] [--warmup 0.1]
 *
 * Both ends poll one completion queue. Latency: a remote write with 32 bits of completion data there, and one back, so each end looks at its queue and at
 * nothing else; or messages. Bandwidth: at most 64 operations of --size bytes are under way, from one buffer into one; at the end a message says that all has been
 * sent, and the clock stops when its answer is in. What fits goes by fi_inject_*(), as in fabtests.
 */
#include "common.h"

#include <netdb.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#define WINDOW 64u
#define SMALL 64u /* room for what the ends say besides */
#define PATIENCE_MS 20000

/* Where the peer's memory is. */
struct cookie {
	uint64_t address, key;
};

struct end {
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_eq *eq;
	struct fid_cq *cq;
	struct fid_ep *ep;
	struct fid_mr *mr;
	/* One region: what is sent, what is written into, receive buffers. */
	char *memory;
	size_t size, slot;
	struct cookie peer;
	struct fi_context sent[WINDOW], posted[WINDOW];
	size_t under_way;
	bool write;
	bool greeted;
	/* Messages, or writes with data, that have come and were not taken; bytes of the last message. */
	size_t come, length;
};

static void check(const char *what, long result)
{
	if (result < 0) {
		errno = 0;
		die("%s: %s", what, fi_strerror((int)-result));
	}
}

static struct fi_info *describe(int argc, char **argv, const char *node, const char *service, uint64_t flags)
{
	struct fi_info *hints = fi_allocinfo(), *found;

	if (!hints)
		die("no memory");
	hints->caps = FI_MSG | FI_RMA;
	hints->mode = FI_CONTEXT | FI_RX_CQ_DATA;
	hints->ep_attr->type = FI_EP_MSG;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->domain_attr->threading = FI_THREAD_DOMAIN;
	hints->fabric_attr->prov_name = strdup(option(argc, argv, "provider") ? option(argc, argv, "provider") : "tcp");
	check("fi_getinfo", fi_getinfo(FI_VERSION(1, 17), node, service, flags, hints, &found));
	fi_freeinfo(hints);
	return found;
}

/* Where a receive buffer is: all share one, as in fabtests, but for the first, which gets the cookie. */
static char *buffer(const struct end *end, size_t place)
{
	return end->memory + 2 * end->size + (place ? end->slot : 0);
}

static void post(struct end *end, size_t place)
{
	char *at = buffer(end, place);

	check("fi_recv", fi_recv(end->ep, at, end->slot, fi_mr_desc(end->mr), 0, &end->posted[place]));
}

static void open_domain(struct end *end)
{
	struct fi_eq_attr eq = {.wait_obj = FI_WAIT_UNSPEC};

	check("fi_fabric", fi_fabric(end->info->fabric_attr, &end->fabric, NULL));
	check("fi_eq_open", fi_eq_open(end->fabric, &eq, &end->eq, NULL));
}

static void open_endpoint(struct end *end)
{
	struct fi_cq_attr cq = {.size = 4 * WINDOW, .format = FI_CQ_FORMAT_DATA, .wait_obj = FI_WAIT_NONE};
	size_t length = 2 * (end->size + end->slot);
	uint64_t access = FI_SEND | FI_RECV | FI_WRITE | FI_REMOTE_WRITE;

	check("fi_domain", fi_domain(end->fabric, end->info, &end->domain, NULL));
	check("fi_cq_open", fi_cq_open(end->domain, &cq, &end->cq, NULL));
	check("fi_endpoint", fi_endpoint(end->domain, end->info, &end->ep, NULL));
	check("fi_ep_bind", fi_ep_bind(end->ep, &end->eq->fid, 0));
	check("fi_ep_bind", fi_ep_bind(end->ep, &end->cq->fid, FI_TRANSMIT | FI_RECV));
	end->memory = allocate(length);
	check("fi_mr_reg", fi_mr_reg(end->domain, end->memory, length, access, 0, 1, 0, &end->mr, NULL));
	check("fi_enable", fi_enable(end->ep));
	for (size_t place = 0; place < WINDOW; place++)
		post(end, place);
}

static void expect(struct end *end, uint32_t wanted, struct fi_eq_cm_entry *entry)
{
	uint32_t event;
	ssize_t got = fi_eq_sread(end->eq, &event, entry, sizeof *entry, PATIENCE_MS, 0);

	if (got == -FI_EAVAIL) {
		struct fi_eq_err_entry error = {0};

		fi_eq_readerr(end->eq, &error, 0);
		check("no connection", -error.err);
	}
	check("no connection", got);
	if (event != wanted) {
		errno = 0;
		die("another event than was expected");
	}
}

/* Looks at the queue once; false where the peer has gone. */
static bool progress(struct end *end)
{
	struct fi_cq_data_entry entries[16];
	ssize_t got = fi_cq_read(end->cq, entries, 16);

	if (got == -FI_EAGAIN)
		return true;
	if (got < 0)
		return false;
	for (ssize_t i = 0; i < got; i++) {
		struct fi_context *context = entries[i].op_context;

		if (entries[i].flags & FI_REMOTE_CQ_DATA) {
			end->come++;
		} else if (entries[i].flags & FI_RECV) {
			end->come++;
			end->length = entries[i].len;
			if (!end->greeted && end->length == sizeof end->peer) {
				memcpy(&end->peer, buffer(end, (size_t)(context - end->posted)), sizeof end->peer);
				end->greeted = true;
			}
		} else {
			end->under_way--;
			continue;
		}
		/* A write with data takes a receive buffer with some providers. */
		if (context >= end->posted && context < end->posted + WINDOW)
			post(end, (size_t)(context - end->posted));
	}
	return true;
}

static void must_progress(struct end *end)
{
	if (!progress(end)) {
		errno = 0;
		die("the peer has gone");
	}
}

static bool take(struct end *end)
{
	while (!end->come)
		if (!progress(end))
			return false;
	end->come--;
	return true;
}

/* A message, sent at once. */
static void say(struct end *end, const void *what, size_t length)
{
	while (true) {
		ssize_t result = fi_inject(end->ep, what, length, 0);

		if (result == 0)
			return;
		if (result != -FI_EAGAIN)
			check("fi_inject", result);
		must_progress(end);
	}
}

/* One more operation of the size that is measured. `data`: the peer is told of a write. */
static void give(struct end *end, bool data)
{
	static size_t turn;
	void *context = &end->sent[turn++ % WINDOW], *desc = fi_mr_desc(end->mr);
	struct cookie to = end->peer;
	bool inject = end->size <= end->info->tx_attr->inject_size;
	ssize_t result;

	while (end->under_way >= WINDOW)
		must_progress(end);
	do {
		if (!end->write)
			result = inject ? fi_inject(end->ep, end->memory, end->size, 0)
					: fi_send(end->ep, end->memory, end->size, desc, 0, context);
		else if (data)
			result = inject ? fi_inject_writedata(end->ep, end->memory, end->size, 1, 0, to.address, to.key)
					: fi_writedata(end->ep, end->memory, end->size, desc, 1, 0, to.address, to.key, context);
		else
			result = inject ? fi_inject_write(end->ep, end->memory, end->size, 0, to.address, to.key)
					: fi_write(end->ep, end->memory, end->size, desc, 0, to.address, to.key, context);
		if (result == -FI_EAGAIN)
			must_progress(end);
	} while (result == -FI_EAGAIN);
	check("sending", result);
	end->under_way += !inject;
}

static void greet(struct end *end)
{
	bool by_address = end->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR;
	struct cookie mine = {.key = fi_mr_key(end->mr)};

	mine.address = (by_address ? (uint64_t)(uintptr_t)end->memory : 0) + end->size;
	say(end, &mine, sizeof mine);
	if (!take(end) || !end->greeted) {
		errno = 0;
		die("the peer does not say where its memory is");
	}
}

static void server(int argc, char **argv, struct end *end, bool latency)
{
	struct fid_pep *listener;
	struct fi_eq_cm_entry entry;
	unsigned char name[128];
	size_t length = sizeof name;

	end->info = describe(argc, argv, option(argc, argv, "host"), "0", FI_SOURCE);
	open_domain(end);
	check("fi_passive_ep", fi_passive_ep(end->fabric, end->info, &listener, NULL));
	check("fi_pep_bind", fi_pep_bind(listener, &end->eq->fid, 0));
	check("fi_listen", fi_listen(listener));
	check("fi_getname", fi_getname(&listener->fid, name, &length));
	printf("{\"ready\": \"");
	for (size_t i = 0; i < length && i < sizeof name; i++)
		printf("%02x", name[i]);
	printf("\"}\n");
	fflush(stdout);
	expect(end, FI_CONNREQ, &entry);
	end->info = entry.info;
	open_endpoint(end);
	check("fi_accept", fi_accept(end->ep, NULL, 0));
	expect(end, FI_CONNECTED, &entry);
	greet(end);
	while (take(end)) {
		if (latency)
			give(end, true);
		else if (end->length == 1) {
			say(end, "", 1);
			end->length = 0;
		}
	}
	printf("{\"cpu_ns\": %llu}\n", (unsigned long long)cpu_ns());
}

static void measure_latency(struct end *end, uint64_t warm, uint64_t measure)
{
	static struct histogram times;
	uint64_t start = now_ns(), before = start, cpu = 0, after;

	do {
		give(end, true);
		if (!take(end)) {
			errno = 0;
			die("the peer has gone");
		}
		after = now_ns();
		if (before - start >= warm)
			histogram_add(&times, after - before);
		else
			cpu = cpu_ns();
		before = after;
	} while (after - start < warm + measure);
	printf("{\"size\": %zu, ", end->size);
	histogram_print(&times);
	printf(", \"cpu_ns\": %llu}\n", (unsigned long long)(cpu_ns() - cpu));
}

/* All that was given has come. */
static void settle(struct end *end)
{
	say(end, "", 1);
	if (!take(end)) {
		errno = 0;
		die("no answer");
	}
}

static void measure_bandwidth(struct end *end, uint64_t warm, uint64_t measure)
{
	uint64_t stride = end->size >= 65536 ? 1 : 65536 / end->size, start = now_ns(), count = 0, cpu;
	double seconds;

	while (now_ns() - start < warm)
		give(end, false);
	settle(end);
	cpu = cpu_ns();
	start = now_ns();
	while (now_ns() - start < measure)
		for (uint64_t i = 0; i < stride; i++, count++)
			give(end, false);
	settle(end);
	seconds = (double)(now_ns() - start) / 1e9;
	printf("{\"size\": %zu, \"seconds\": %.6f, \"bytes\": %llu, \"bytes_per_second\": %.0f, "
	       "\"messages_per_second\": %.1f, \"cpu_ns\": %llu}\n",
	       end->size, seconds, (unsigned long long)(count * end->size), (double)(count * end->size) / seconds,
	       (double)count / seconds, (unsigned long long)(cpu_ns() - cpu));
}

static void client(int argc, char **argv, struct end *end, bool latency)
{
	uint64_t warm = (uint64_t)(number(argc, argv, "warmup", 0.1) * 1e9);
	uint64_t measure = (uint64_t)(number(argc, argv, "seconds", 1) * 1e9);
	const char *hex = option(argc, argv, "ofi");
	struct sockaddr_storage to;
	struct fi_eq_cm_entry entry;
	char host[128], port[16];
	size_t length = hex ? strlen(hex) / 2 : 0;

	memset(&to, 0, sizeof to);
	for (size_t i = 0; i < length && i < sizeof to; i++)
		if (sscanf(hex + 2 * i, "%2hhx", (unsigned char *)&to + i) != 1)
			die("--ofi %s is not an address", hex);
	if (getnameinfo((struct sockaddr *)&to, (socklen_t)length, host, sizeof host, port, sizeof port,
			NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
		errno = 0;
		die("--ofi: this provider's kind of address is not known here");
	}
	end->info = describe(argc, argv, host, port, 0);
	open_domain(end);
	open_endpoint(end);
	check("fi_connect", fi_connect(end->ep, end->info->dest_addr, NULL, 0));
	expect(end, FI_CONNECTED, &entry);
	greet(end);
	if (latency)
		measure_latency(end, warm, measure);
	else
		measure_bandwidth(end, warm, measure);
	fflush(stdout);
	fi_shutdown(end->ep, 0);
}

int main(int argc, char **argv)
{
	static struct end end;
	const char *measure = option(argc, argv, "measure"), *how = option(argc, argv, "how");
	bool latency = !measure || strcmp(measure, "latency") == 0;

	end.size = (size_t)number(argc, argv, "size", 64);
	end.write = !how || strcmp(how, "write") == 0;
	end.slot = !end.write && end.size > SMALL ? end.size : SMALL;
	pin_by_option(argc, argv);
	if (argc > 1 && strcmp(argv[1], "server") == 0 && end.size > 1)
		server(argc, argv, &end, latency);
	else if (argc > 1 && strcmp(argv[1], "client") == 0 && end.size > 1)
		client(argc, argv, &end, latency);
	else {
		fprintf(stderr, "usage: libfabric (server | client) --ofi (any | HEX) [--provider P] [--host ADDRESS] [--measure latency | bandwidth]"
				" [--how write | message] [--size N] [--cpu N] [--seconds S] [--warmup S]\n");
		return 2;
	}
	return 0;
}
