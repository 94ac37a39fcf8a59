/*
 * rawmem: what the memory itself can do between two processes, the limit for everything built on it.
 *
 *   rawmem latency   [--cpu A --peer-cpu B] [--seconds 1] [--warmup 0.2] [--payload 0] [--asleep futex | --asleep eventfd]
 *   rawmem bandwidth [--cpu A --peer-cpu B] [--seconds 1] [--warmup 0.1] [--size 65536] [--ring 65536] [--piece 0]
 *   rawmem put       [--cpu A --peer-cpu B] [--seconds 1] [--warmup 0.1] [--size 65536] [--buffers 4] [--touch]
 *
 * latency: a counter in a cache line of its own goes there, and one in another line comes back; --payload bytes are put
 * right behind the counter, and copied out by the other side, which sends as many back. With --asleep each side sleeps
 * until the other wakes it: what programs that never spin can have of the memory.
 * bandwidth: a two-copy pipe, as a byte stream through shared memory must be: the writer copies each message from its
 * buffer into a ring, the reader copies what it finds into its own (same sizes as in `stream`). Large messages go in
 * pieces (--piece, an eighth of the ring where 0), so that both sides copy at the same time.
 * put: one copy only, as an adapter writes into posted buffers: each message straight into the next of the reader's
 * --buffers, then a counter; the reader looks at nothing but the counter, or, with --touch, reads what came, and says how
 * far it is.
 * But for --asleep both sides only ever spin.
 */
#include "common.h"

#include <linux/futex.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define LINE 128 /* two lines, since processors fetch them in pairs */

struct shared {
	_Alignas(LINE) _Atomic uint64_t there; /* bandwidth: bytes written; put: messages */
	_Alignas(LINE) _Atomic uint64_t back;  /* bandwidth: bytes read; put: messages */
	_Alignas(LINE) _Atomic uint64_t end;   /* bandwidth: all bytes there will be, plus one */
	_Alignas(4096) unsigned char ring[];   /* latency: both notes; put: the buffers */
};

/* How who waits for a note does so. */
enum wait { SPINS, ON_FUTEX, ON_EVENTFD };

/* One message of `latency`, there or back. */
struct note {
	_Alignas(LINE) _Atomic uint32_t turn;
	enum wait wait;
	int bell; /* an eventfd */
	unsigned char payload[];
};

static void put(struct note *note, uint32_t turn, const unsigned char *from, size_t payload)
{
	memcpy(note->payload, from, payload);
	atomic_store_explicit(&note->turn, turn, memory_order_release);
	if (note->wait == ON_FUTEX)
		syscall(SYS_futex, &note->turn, FUTEX_WAKE, 1, NULL, NULL, 0);
	else if (note->wait == ON_EVENTFD && write(note->bell, &(uint64_t){1}, 8) != 8)
		die("write to an eventfd");
}

static void poll_for(struct note *note, uint32_t turn, unsigned char *to, size_t payload)
{
	uint64_t rung;

	if (note->wait == ON_EVENTFD && read(note->bell, &rung, 8) != 8)
		die("read from an eventfd");
	while (atomic_load_explicit(&note->turn, memory_order_acquire) != turn)
		if (note->wait == ON_FUTEX)
			syscall(SYS_futex, &note->turn, FUTEX_WAIT, turn - 1, NULL, NULL, 0);
		else
			relax();
	memcpy(to, note->payload, payload);
}

static void begin(struct note *note, const char *wait)
{
	note->wait = !wait ? SPINS : strcmp(wait, "futex") == 0 ? ON_FUTEX : ON_EVENTFD;
	if (note->wait == ON_EVENTFD && (note->bell = eventfd(0, EFD_CLOEXEC)) < 0)
		die("eventfd");
}

static void latency_peer(struct note *there, struct note *back, size_t payload)
{
	unsigned char *buffer = allocate(payload + 1);

	for (uint32_t turn = 1;; turn++) {
		poll_for(there, turn, buffer, payload);
		put(back, turn, buffer, payload);
	}
}

static void latency(struct note *there, struct note *back, size_t payload, uint64_t warm, uint64_t measure)
{
	static struct histogram times;
	unsigned char *buffer = allocate(payload + 1);
	uint64_t start = now_ns(), before = start;

	for (uint32_t turn = 1;; turn++) {
		uint64_t after;

		put(there, turn, buffer, payload);
		poll_for(back, turn, buffer, payload);
		after = now_ns();
		if (after - start >= warm)
			histogram_add(&times, after - before);
		if (after - start >= warm + measure)
			break;
		before = after;
	}
	printf("{");
	histogram_print(&times);
	printf("}\n");
}

/* A copy into or out of the ring, which wraps at most once. */
static void copy_in(struct shared *shared, size_t ring, uint64_t at, const unsigned char *from, size_t size)
{
	size_t offset = at % ring, first = size < ring - offset ? size : ring - offset;

	memcpy(shared->ring + offset, from, first);
	memcpy(shared->ring, from + first, size - first);
}

static void copy_out(struct shared *shared, size_t ring, uint64_t at, unsigned char *to, size_t size)
{
	size_t offset = at % ring, first = size < ring - offset ? size : ring - offset;

	memcpy(to, shared->ring + offset, first);
	memcpy(to + first, shared->ring, size - first);
}

static void bandwidth_peer(struct shared *shared, size_t ring, size_t room, size_t piece)
{
	unsigned char *buffer = allocate(room);
	uint64_t read = 0, written = 0;

	for (;;) {
		size_t got = 0;

		while ((written = atomic_load_explicit(&shared->there, memory_order_acquire)) == read) {
			if (atomic_load_explicit(&shared->end, memory_order_acquire) == read + 1)
				exit(0);
			relax();
		}
		/* One recv(): what is there, but room given back in pieces so that the writer goes on meanwhile. */
		while (got < room && read < written) {
			size_t n = written - read < piece ? (size_t)(written - read) : piece;

			n = n < room - got ? n : room - got;
			copy_out(shared, ring, read, buffer + got, n);
			got += n;
			read += n;
			atomic_store_explicit(&shared->back, read, memory_order_release);
		}
	}
}

static void bandwidth(struct shared *shared, size_t ring, size_t size, size_t piece, uint64_t warm, uint64_t measure)
{
	unsigned char *buffer = allocate(size);
	uint64_t stride = size >= 65536 ? 1 : 65536 / size;
	uint64_t begin = now_ns(), start = 0, written = 0, before = 0, read = 0, now;
	double seconds;

	for (;;) {
		for (uint64_t i = 0; i < stride; i++)
			for (size_t done = 0; done < size;) {
				size_t n = size - done < piece ? size - done : piece, free;

				while ((free = ring - (size_t)(written - read)) < n) {
					read = atomic_load_explicit(&shared->back, memory_order_acquire);
					if (ring - (size_t)(written - read) < n)
						relax();
				}
				copy_in(shared, ring, written, buffer + done, n);
				written += n;
				done += n;
				atomic_store_explicit(&shared->there, written, memory_order_release);
			}
		now = now_ns();
		if (!start && now - begin >= warm) {
			start = now;
			before = written;
		} else if (start && now - start >= measure) {
			break;
		}
	}
	atomic_store_explicit(&shared->end, written + 1, memory_order_release);
	while (atomic_load_explicit(&shared->back, memory_order_acquire) != written)
		relax();
	seconds = (double)(now_ns() - start) / 1e9;
	printf("{\"size\": %zu, \"seconds\": %.6f, \"bytes\": %llu, \"bytes_per_second\": %.0f, "
	       "\"messages_per_second\": %.1f}\n",
	       size, seconds, (unsigned long long)(written - before), (double)(written - before) / seconds,
	       (double)(written - before) / (double)size / seconds);
}

static void put_peer(struct shared *shared, size_t buffers, size_t size, bool touches)
{
	uint64_t read = 0, written;

	for (;;) {
		while ((written = atomic_load_explicit(&shared->there, memory_order_acquire)) == read)
			relax();
		while (read < written) {
			if (touches)
				touch(shared->ring + read % buffers * size, size);
			atomic_store_explicit(&shared->back, ++read, memory_order_release);
		}
	}
}

static void put_all(struct shared *shared, size_t buffers, size_t size, uint64_t warm, uint64_t measure)
{
	unsigned char *buffer = allocate(size);
	uint64_t stride = size >= 65536 ? 1 : 65536 / size;
	uint64_t begin = now_ns(), start = 0, written = 0, before = 0, read = 0, now;
	double seconds;

	for (;;) {
		for (uint64_t i = 0; i < stride; i++) {
			while (written - read == buffers) {
				read = atomic_load_explicit(&shared->back, memory_order_acquire);
				if (written - read == buffers)
					relax();
			}
			memcpy(shared->ring + written % buffers * size, buffer, size);
			atomic_store_explicit(&shared->there, ++written, memory_order_release);
		}
		now = now_ns();
		if (!start && now - begin >= warm) {
			start = now;
			before = written;
		} else if (start && now - start >= measure) {
			break;
		}
	}
	while (atomic_load_explicit(&shared->back, memory_order_acquire) != written)
		relax();
	seconds = (double)(now_ns() - start) / 1e9;
	printf("{\"size\": %zu, \"seconds\": %.6f, \"bytes_per_second\": %.0f, \"messages_per_second\": %.1f}\n", size, seconds,
	       (double)((written - before) * size) / seconds, (double)(written - before) / seconds);
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "";
	bool is_latency = strcmp(mode, "latency") == 0, is_put = strcmp(mode, "put") == 0;
	uint64_t warm = (uint64_t)(number(argc, argv, "warmup", 0.1) * 1e9);
	uint64_t measure = (uint64_t)(number(argc, argv, "seconds", 1) * 1e9);
	size_t ring = (size_t)number(argc, argv, "ring", 65536);
	size_t size = (size_t)number(argc, argv, "size", 65536);
	size_t piece = (size_t)number(argc, argv, "piece", 0);
	size_t payload = (size_t)number(argc, argv, "payload", 0);
	size_t buffers = (size_t)number(argc, argv, "buffers", 4);
	size_t room = size > 65536 ? size : 65536;
	size_t note = (sizeof(struct note) + payload + 4095) / 4096 * 4096, shares;
	struct shared *shared;
	pid_t peer;

	if (!is_latency && !is_put && strcmp(mode, "bandwidth") != 0) {
		fprintf(stderr, "usage: rawmem (latency | bandwidth | put) [--cpu A] [--peer-cpu B] [--seconds S] [--warmup S]"
				" [--payload N] [--asleep futex | --asleep eventfd] [--size N] [--ring N] [--piece N] [--buffers N] [--touch]\n");
		return 2;
	}
	if (!piece)
		piece = ring / 8;
	errno = 0;
	if (!size || !ring || piece > ring || !buffers)
		die("sizes must be positive and a piece at most the ring");
	shares = is_latency ? 2 * note : is_put ? buffers * size : ring;
	shared = mmap(NULL, sizeof *shared + shares, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED)
		die("mmap");
	if (is_latency) {
		begin((struct note *)shared->ring, option(argc, argv, "asleep"));
		begin((struct note *)(shared->ring + note), option(argc, argv, "asleep"));
	}
	peer = fork();
	if (peer < 0)
		die("fork");
	if (peer == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		pin((int)number(argc, argv, "peer-cpu", -1));
		if (is_latency)
			latency_peer((struct note *)shared->ring, (struct note *)(shared->ring + note), payload);
		else if (is_put)
			put_peer(shared, buffers, size, flag(argc, argv, "touch"));
		else
			bandwidth_peer(shared, ring, room, piece);
	}
	pin_by_option(argc, argv);
	if (is_latency)
		latency((struct note *)shared->ring, (struct note *)(shared->ring + note), payload, warm, measure);
	else if (is_put)
		put_all(shared, buffers, size, warm, measure);
	else
		bandwidth(shared, ring, size, piece, warm, measure);
	kill(peer, SIGKILL);
	waitpid(peer, NULL, 0);
	return 0;
}
