/*
 * vipl: what a program that is written for the Virtual Interface Architecture gets from libvipl.
 *
 *   vipl server --via NAME --measure WHAT [--size 64] [--buffers 2] [--vis 1] [--wait | --handler] [--touch] [--allocate]
 *               [--pio N] [--cpu N]
 *   vipl client --via NAME --measure WHAT [--size 64] [--buffers 2] [--vis 1] [--wait | --handler] [--pio N] [--cpu N]
 *               [--memory kept] [--seconds 1] [--warmup 0.2]
 *
 *   latency     one message under way at a time, there and back ("VIA over the CLAN network", section 4.1)
 *   bandwidth   messages one way into --buffers posted ones, credits the other way (section 4.2)
 *   load        requests over --vis connections, one under way on each; each end has them all on one completion queue,
 *               and the server echoes what comes (section 4.3)
 *
 * Both ends poll, or, with --wait, sleep in VipRecvWait() and VipCQWait(), or, with --handler, are woken by a notify function
 * that another thread runs, as SOVIA's first version was (section 3.1.2 of its paper). NAME is the discriminator; reliable delivery, as in
 * the paper. --pio: messages of more bytes than that go by DMA.
 * --memory: where the sender of `bandwidth` has its bytes: in registered memory that it keeps (kept), in memory that is not
 * registered, from where they are copied to such (copy), or which is registered for each send (register; section 3.1.3).
 * --touch: the receiver of `bandwidth` reads what it gets; --allocate: it has its buffers of
 * VipAllocateMem(), so that the sender maps them, and not of malloc(). In `load` the client polls always: the server is what is measured.
 */
#include "common.h"

#include <pthread.h>
#include <vipl.h>

enum { MOST_VIS = 256 };

/* A descriptor with its bytes right behind it. */
struct message {
	VIP_DESCRIPTOR descriptor;
	char data[];
};

struct run {
	const char *name;
	size_t size, buffers, vis;
	bool server, wait, handler, touch, allocate, copy, registers;
	uint64_t warm, measure;
	VIP_NIC_HANDLE nic;
	VIP_MEM_HANDLE memory;
	char *messages; /* room for --buffers receives and one send of every connection */
	size_t stride;
	char *source; /* for --memory copy and register */
	pthread_mutex_t lock; /* for --handler: what came, and guards it */
	pthread_cond_t came;
	VIP_DESCRIPTOR *mail;
};

#define DO(call) check((call), #call)

static inline void check(VIP_RETURN result, const char *call)
{
	errno = 0;
	if (result != VIP_SUCCESS)
		die("%s returned %d", call, (int)result);
}

static struct message *message(struct run *run, size_t vi, size_t index)
{
	return (struct message *)(run->messages + (vi * (run->buffers + 1) + index) * run->stride);
}

/* The connection that a message belongs to. */
static size_t owner(struct run *run, VIP_DESCRIPTOR *descriptor)
{
	return (size_t)((char *)descriptor - run->messages) / run->stride / (run->buffers + 1);
}

static void describe(struct run *run, struct message *m)
{
	m->descriptor.CS.SegCount = run->size ? 1 : 0;
	m->descriptor.DS[0].Local.Data.Address = m->data;
	m->descriptor.DS[0].Local.Handle = run->memory;
	m->descriptor.DS[0].Local.Length = (VIP_UINT32)run->size;
}

/* Posts a message that was described before. */
static inline void post_receive(struct run *run, VIP_VI_HANDLE vi, VIP_DESCRIPTOR *descriptor)
{
	descriptor->CS.Control = 0;
	descriptor->CS.Status = 0;
	DO(VipPostRecv(vi, descriptor, run->memory));
}

static inline void send_message(struct run *run, VIP_VI_HANDLE vi, VIP_DESCRIPTOR *descriptor, size_t size)
{
	VIP_DESCRIPTOR *done;
	VIP_RETURN result;

	descriptor->CS.Control = 0;
	descriptor->CS.Status = 0;
	descriptor->CS.Length = (VIP_UINT32)size;
	DO(VipPostSend(vi, descriptor, run->memory));
	while ((result = VipSendDone(vi, &done)) == VIP_NOT_DONE)
		relax();
	check(result, "VipSendDone");
}

/* The handler thread's: leaves what came to the one that waits. */
static void arrived(VIP_PVOID context, VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi, VIP_DESCRIPTOR *descriptor)
{
	struct run *run = context;

	(void)nic, (void)vi;
	pthread_mutex_lock(&run->lock);
	run->mail = descriptor;
	pthread_cond_signal(&run->came);
	pthread_mutex_unlock(&run->lock);
}

static VIP_DESCRIPTOR *from_handler(struct run *run, VIP_VI_HANDLE vi)
{
	VIP_DESCRIPTOR *done;

	DO(VipRecvNotify(vi, run, arrived));
	pthread_mutex_lock(&run->lock);
	while (!run->mail)
		pthread_cond_wait(&run->came, &run->lock);
	done = run->mail;
	run->mail = NULL;
	pthread_mutex_unlock(&run->lock);
	return done;
}

/* The next message of a connection; NULL where the other end has disconnected. */
static inline VIP_DESCRIPTOR *receive(struct run *run, VIP_VI_HANDLE vi)
{
	VIP_DESCRIPTOR *done;
	VIP_RETURN result;

	if (run->handler) {
		done = from_handler(run, vi);
		if (done->CS.Status & VIP_STATUS_DESC_FLUSHED_ERROR)
			return NULL;
		if (done->CS.Status & VIP_STATUS_ERROR_MASK)
			die("receiving: status %x", done->CS.Status);
		return done;
	}
	if (run->wait)
		result = VipRecvWait(vi, VIP_INFINITE, &done);
	else
		while ((result = VipRecvDone(vi, &done)) == VIP_NOT_DONE)
			relax();
	if (result == VIP_DESCRIPTOR_ERROR && done->CS.Status & VIP_STATUS_DESC_FLUSHED_ERROR)
		return NULL;
	check(result, "receiving");
	return done;
}

/* ---- connections ---- */

static VIP_NET_ADDRESS *net_address(const char *name)
{
	static char room[2][sizeof(VIP_NET_ADDRESS) + 256];
	static unsigned turn;
	VIP_NET_ADDRESS *address = (VIP_NET_ADDRESS *)room[turn++ % 2];

	/* The host's address is left out: any of this one. */
	address->HostAddressLen = 0;
	address->DiscriminatorLen = (VIP_UINT16)strlen(name);
	memcpy(address->HostAddress, name, strlen(name));
	return address;
}

static VIP_VI_HANDLE connected(struct run *run, size_t index, VIP_CQ_HANDLE queue)
{
	VIP_VI_ATTRIBUTES attributes = {
		.ReliabilityLevel = VIP_SERVICE_RELIABLE_DELIVERY,
		.MaxTransferSize = run->size > 4096 ? run->size : 4096,
	}, theirs;
	VIP_VI_HANDLE vi;

	DO(VipCreateVi(run->nic, &attributes, NULL, queue, &vi));
	for (size_t i = 0; i <= run->buffers; i++) {
		struct message *m = message(run, index, i);

		describe(run, m);
		if (i < run->buffers)
			post_receive(run, vi, &m->descriptor);
	}
	if (run->server) {
		VIP_CONN_HANDLE request;

		DO(VipConnectWait(run->nic, net_address(run->name), VIP_INFINITE, net_address(""), &theirs, &request));
		DO(VipConnectAccept(request, vi));
	} else {
		VIP_RETURN result;
		int tries = 0;

		while ((result = VipConnectRequest(vi, net_address(""), net_address(run->name), 10000, &theirs)) ==
			       VIP_NO_MATCH &&
		       tries++ < 200)
			usleep(10000);
		check(result, "VipConnectRequest");
	}
	return vi;
}

/* ---- latency ---- */

static void echo(struct run *run)
{
	VIP_VI_HANDLE vi = connected(run, 0, NULL);
	struct message *out = message(run, 0, run->buffers);
	unsigned long long count = 0;
	VIP_DESCRIPTOR *in;

	while ((in = receive(run, vi))) {
		memcpy(out->data, ((struct message *)in)->data, run->size);
		send_message(run, vi, &out->descriptor, run->size);
		post_receive(run, vi, in);
		count++;
	}
	printf("{\"count\": %llu, \"cpu_ns\": %llu}\n", count, (unsigned long long)cpu_ns());
}

static void latency(struct run *run)
{
	static struct histogram times;
	VIP_VI_HANDLE vi = connected(run, 0, NULL);
	struct message *out = message(run, 0, run->buffers);
	uint64_t start = now_ns(), before = start, began = start, cpu = 0;
	VIP_DESCRIPTOR *in = NULL;
	uint32_t serial = 0;
	bool measuring = false;

	for (;;) {
		uint64_t after;

		serial++;
		memcpy(out->data, &serial, run->size < sizeof serial ? run->size : sizeof serial);
		send_message(run, vi, &out->descriptor, run->size);
		/* Another buffer is posted for the answer, so this can wait until the message is on its way. */
		if (in)
			post_receive(run, vi, in);
		in = receive(run, vi);
		errno = 0;
		if (!in)
			die("the server has disconnected");
		if (memcmp(((struct message *)in)->data, out->data, run->size) != 0)
			die("message %u came back changed", serial);
		after = now_ns();
		if (measuring)
			histogram_add(&times, after - before);
		if (!measuring && after - start >= run->warm) {
			measuring = true;
			began = after;
			cpu = cpu_ns();
		} else if (measuring && after - began >= run->measure) {
			break;
		}
		before = after;
	}
	cpu = cpu_ns() - cpu;
	printf("{");
	histogram_print(&times);
	printf(", \"seconds\": %.6f, \"cpu_ns\": %llu}\n", (double)(now_ns() - began) / 1e9, (unsigned long long)cpu);
	DO(VipDisconnect(vi));
}

/* ---- bandwidth ---- */

/* How many messages a credit stands for. */
static size_t credit(struct run *run)
{
	return run->buffers > 1 ? run->buffers / 2 : 1;
}

static void drain(struct run *run)
{
	VIP_VI_HANDLE vi = connected(run, 0, NULL);
	struct message *out = message(run, 0, run->buffers);
	unsigned long long count = 0;
	size_t taken = 0;
	VIP_DESCRIPTOR *in;

	out->descriptor.CS.SegCount = 0;
	while ((in = receive(run, vi))) {
		if (in->CS.Length != run->size)
			die("a message of %u bytes came", in->CS.Length);
		if (run->touch)
			touch(((struct message *)in)->data, run->size);
		post_receive(run, vi, in);
		count++;
		if (++taken == credit(run)) {
			taken = 0;
			send_message(run, vi, &out->descriptor, 0);
		}
	}
	printf("{\"bytes\": %llu, \"cpu_ns\": %llu}\n", count * run->size, (unsigned long long)cpu_ns());
}

/* Sends from where --memory says. */
static inline void send_from(struct run *run, VIP_VI_HANDLE vi, struct message *out)
{
	if (run->copy)
		memcpy(out->data, run->source, run->size);
	if (!run->registers) {
		send_message(run, vi, &out->descriptor, run->size);
		return;
	}
	out->descriptor.DS[0].Local.Data.Address = run->source;
	DO(VipRegisterMem(run->nic, run->source, run->size, NULL, &out->descriptor.DS[0].Local.Handle));
	send_message(run, vi, &out->descriptor, run->size);
	DO(VipDeregisterMem(run->nic, run->source, out->descriptor.DS[0].Local.Handle));
}

static void bandwidth(struct run *run)
{
	VIP_VI_HANDLE vi = connected(run, 0, NULL);
	struct message *out = message(run, 0, run->buffers);
	/* Looking at the clock costs as much as a small send: look once in 64 KiB. */
	uint64_t stride = run->size >= 65536 ? 1 : run->size ? 65536 / run->size : 1000;
	uint64_t begin = now_ns(), start = 0, sent = 0, before = 0, now, cpu = 0;
	size_t credits = run->buffers;
	double seconds;

	for (;;) {
		for (uint64_t i = 0; i < stride; i++) {
			while (credits == 0) {
				VIP_DESCRIPTOR *in = receive(run, vi);

				if (!in)
					die("the server has disconnected");
				post_receive(run, vi, in);
				credits += credit(run);
			}
			send_from(run, vi, out);
			credits--;
			sent++;
		}
		now = now_ns();
		if (!start && now - begin >= run->warm) {
			start = now;
			before = sent;
			cpu = cpu_ns();
		} else if (start && now - start >= run->measure) {
			break;
		}
	}
	/* What was sent last is part of it. */
	for (; credits < run->buffers - sent % credit(run); credits += credit(run)) {
		VIP_DESCRIPTOR *in = receive(run, vi);

		if (!in)
			die("the server has disconnected");
		post_receive(run, vi, in);
	}
	seconds = (double)(now_ns() - start) / 1e9;
	cpu = cpu_ns() - cpu;
	printf("{\"size\": %zu, \"seconds\": %.6f, \"bytes\": %llu, \"bytes_per_second\": %.0f, \"messages_per_second\": %.1f, "
	       "\"cpu_ns\": %llu}\n",
	       run->size, seconds, (unsigned long long)((sent - before) * run->size),
	       (double)((sent - before) * run->size) / seconds, (double)(sent - before) / seconds,
	       (unsigned long long)cpu);
	DO(VipDisconnect(vi));
}

/* ---- load ---- */

static void serve_load(struct run *run)
{
	VIP_VI_HANDLE vis[MOST_VIS];
	VIP_CQ_HANDLE queue;
	unsigned long long count = 0;
	size_t left = run->vis;

	DO(VipCreateCQ(run->nic, run->vis * run->buffers, &queue));
	for (size_t i = 0; i < run->vis; i++)
		vis[i] = connected(run, i, queue);
	while (left) {
		struct message *out = message(run, 0, run->buffers);
		VIP_DESCRIPTOR *in;
		VIP_BOOLEAN is_receive;
		VIP_VI_HANDLE vi;
		VIP_RETURN result;

		if (run->wait)
			result = VipCQWait(queue, VIP_INFINITE, &vi, &is_receive);
		else
			while ((result = VipCQDone(queue, &vi, &is_receive)) == VIP_NOT_DONE)
				relax();
		check(result, "the completion queue");
		result = VipRecvDone(vi, &in);
		if (result == VIP_DESCRIPTOR_ERROR) {
			/* Flushed: as many times as there were buffers, but the connection has gone once. */
			VIP_VI_STATE state;
			VIP_VI_ATTRIBUTES attributes;
			VIP_BOOLEAN send_empty, receive_empty;

			DO(VipQueryVi(vi, &state, &attributes, &send_empty, &receive_empty));
			left -= receive_empty;
			continue;
		}
		check(result, "VipRecvDone");
		memcpy(out->data, ((struct message *)in)->data, run->size);
		post_receive(run, vi, in);
		send_message(run, vi, &out->descriptor, run->size);
		count++;
	}
	(void)vis;
	printf("{\"count\": %llu, \"cpu_ns\": %llu}\n", count, (unsigned long long)cpu_ns());
}

/* A sequence in which the connections get their requests: a fresh one each time, without the cost of drawing it. */
static uint32_t scatter(uint32_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 17;
	*state ^= *state << 5;
	return *state;
}

static void load(struct run *run)
{
	VIP_VI_HANDLE vis[MOST_VIS];
	size_t order[MOST_VIS], under_way = run->vis;
	uint64_t begin, start = 0, count = 0, before = 0, now = 0;
	uint32_t random = 88172645;
	VIP_CQ_HANDLE queue;
	bool over = false;
	double seconds;

	DO(VipCreateCQ(run->nic, run->vis * run->buffers, &queue));
	for (size_t i = 0; i < run->vis; i++) {
		vis[i] = connected(run, i, queue);
		order[i] = i;
	}
	for (size_t i = run->vis; i > 1; i--) {
		size_t j = scatter(&random) % i, swapped = order[i - 1];

		order[i - 1] = order[j];
		order[j] = swapped;
	}
	begin = now_ns();
	for (size_t i = 0; i < run->vis; i++)
		send_message(run, vis[order[i]], &message(run, order[i], run->buffers)->descriptor, run->size);
	/* At the end the answers that are to come are waited for: the server could not send them any more if the connections were gone. */
	while (under_way) {
		VIP_BOOLEAN is_receive;
		VIP_DESCRIPTOR *in;
		VIP_VI_HANDLE vi;
		VIP_RETURN result;

		while ((result = VipCQDone(queue, &vi, &is_receive)) == VIP_NOT_DONE)
			relax();
		check(result, "VipCQDone");
		DO(VipRecvDone(vi, &in));
		count++;
		if (over) {
			under_way--;
			continue;
		}
		post_receive(run, vi, in);
		send_message(run, vi, &message(run, owner(run, in), run->buffers)->descriptor, run->size);
		if (count % 64)
			continue;
		now = now_ns();
		if (!start && now - begin >= run->warm) {
			start = now;
			before = count;
		} else if (start && now - start >= run->measure) {
			over = true;
			seconds = (double)(now - start) / 1e9;
			printf("{\"vis\": %zu, \"seconds\": %.6f, \"requests_per_second\": %.1f}\n", run->vis, seconds,
			       (double)(count - before) / seconds);
		}
	}
	for (size_t i = 0; i < run->vis; i++)
		DO(VipDisconnect(vis[i]));
}

int main(int argc, char **argv)
{
	const char *what = option(argc, argv, "measure"), *memory = option(argc, argv, "memory");
	struct run run = {
		.name = option(argc, argv, "via"),
		.size = (size_t)number(argc, argv, "size", 64),
		.buffers = (size_t)number(argc, argv, "buffers", 2),
		.vis = (size_t)number(argc, argv, "vis", 1),
		.server = argc > 1 && strcmp(argv[1], "server") == 0,
		.wait = flag(argc, argv, "wait"),
		.handler = flag(argc, argv, "handler"),
		.touch = flag(argc, argv, "touch"),
		.allocate = flag(argc, argv, "allocate"),
		.lock = PTHREAD_MUTEX_INITIALIZER,
		.came = PTHREAD_COND_INITIALIZER,
		.warm = (uint64_t)(number(argc, argv, "warmup", 0.2) * 1e9),
		.measure = (uint64_t)(number(argc, argv, "seconds", 1) * 1e9),
	};
	bool client = argc > 1 && strcmp(argv[1], "client") == 0;
	size_t bytes;

	if (!(run.server || client) || !what || !run.name || !run.buffers || !run.vis || run.vis > MOST_VIS) {
		fprintf(stderr, "usage: vipl (server | client) --via NAME --measure (latency | bandwidth | load) [--size N]"
				" [--buffers N] [--vis 1-256] [--wait | --handler] [--touch] [--allocate] [--memory (kept | copy | register)]"
				" [--pio N] [--cpu N] [--seconds S] [--warmup S]\n");
		return 2;
	}
	run.copy = memory && strcmp(memory, "copy") == 0;
	run.registers = memory && strcmp(memory, "register") == 0;
	if (memory && !run.copy && !run.registers && strcmp(memory, "kept") != 0)
		die("--memory is kept, copy or register");
	if (option(argc, argv, "pio"))
		setenv("VIPL_PIO_BYTES", option(argc, argv, "pio"), 1);
	raise_descriptor_limit();
	pin_by_option(argc, argv);
	run.stride = sizeof(struct message) + (run.size + 63) / 64 * 64;
	bytes = run.vis * (run.buffers + 1) * run.stride;
	run.source = allocate(run.size + 1);
	memset(run.source, 0, run.size + 1);
	DO(VipOpenNic("nic0", &run.nic));
	if (run.allocate) {
		VIP_PVOID messages;

		DO(VipAllocateMem(run.nic, bytes, &messages));
		run.messages = messages;
	} else {
		run.messages = allocate(bytes);
	}
	memset(run.messages, 0, bytes);
	DO(VipRegisterMem(run.nic, run.messages, bytes, NULL, &run.memory));
	if (run.server) {
		printf("{\"ready\": \"%s\"}\n", run.name);
		fflush(stdout);
	}
	if (strcmp(what, "latency") == 0)
		(run.server ? echo : latency)(&run);
	else if (strcmp(what, "bandwidth") == 0)
		(run.server ? drain : bandwidth)(&run);
	else if (strcmp(what, "load") == 0)
		(run.server ? serve_load : load)(&run);
	else
		die("--measure %s is not known", what);
	DO(VipCloseNic(run.nic));
	return 0;
}
