/*
 * zmq: buffers from one process to another by ZeroMQ's PUSH and PULL.
 *
 *   zmq (tcp | ipc) [--size 65536] [--seconds 1] [--warmup 0.1]
 *
 * The program forks: the child pushes buffers of --size bytes, each with its number in front, as fast as it can; the parent
 * pulls them and reads them where ZeroMQ has them (zmq_msg_recv, no copy). The clock is the parent's, as everywhere in
 * `shunt bench filters`. ZeroMQ's queues are as long as it makes them (1000 buffers), but 32 where buffers have 64 KiB or more,
 * lest a gigabyte be under way.
 */
#include "common.h"
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <zmq.h>

static void *endpoint(void *context, int kind, size_t size)
{
	void *socket = zmq_socket(context, kind);
	int most = size < 65536 ? 1000 : 32;

	if (!socket || zmq_setsockopt(socket, kind == ZMQ_PUSH ? ZMQ_SNDHWM : ZMQ_RCVHWM, &most, sizeof most) < 0)
		die("zmq_socket");
	return socket;
}

/* In how many buffers the clock is looked at, which costs as much as a small one. */
static uint64_t how_often(size_t size)
{
	return size >= 65536 ? 1 : size > 256 ? 65536 / size : 256;
}

/* Pushes for so long, and goes when `until` has an end: what a peer that has gone by ipc:// left in its socket is lost. */
static void push(const char *to, size_t size, uint64_t nanos, int until)
{
	uint64_t stride = how_often(size), begin = now_ns(), count = 0;
	unsigned char *buffer = allocate(size);
	void *context = zmq_ctx_new(), *socket = endpoint(context, ZMQ_PUSH, size);

	if (zmq_connect(socket, to) < 0)
		die("zmq_connect %s", to);
	while (now_ns() - begin < nanos) {
		for (uint64_t i = 0; i < stride; i++, count++) {
			memcpy(buffer, &count, sizeof count);
			if (zmq_send(socket, buffer, size, 0) < 0)
				die("zmq_send");
		}
	}
	/* Nothing: the end. */
	if (zmq_send(socket, "", 0, 0) < 0)
		die("zmq_send");
	while (read(until, buffer, 1) > 0)
		;
	zmq_close(socket);
	zmq_ctx_term(context);
}

static void pull(void *socket, size_t size, uint64_t warm)
{
	uint64_t stride = how_often(size);
	uint64_t count = 0, begin = 0, start = 0, before = 0, last = 0, at = 0;

	for (;;) {
		zmq_msg_t message;
		uint64_t number;

		zmq_msg_init(&message);
		if (zmq_msg_recv(&message, socket, 0) < 0)
			die("zmq_msg_recv");
		if (zmq_msg_size(&message) == 0)
			break;
		memcpy(&number, zmq_msg_data(&message), sizeof number);
		errno = 0;
		if (zmq_msg_size(&message) != size || number != count)
			die("buffer %llu is wrong", (unsigned long long)count);
		touch(zmq_msg_data(&message), size);
		zmq_msg_close(&message);
		if (!count++)
			begin = now_ns();
		if (count % stride)
			continue;
		last = now_ns();
		at = count;
		if (!start && last - begin >= warm) {
			start = last;
			before = count;
		}
	}
	errno = 0;
	if (!start || at == before)
		die("nothing came in the time that was measured");
	printf("{\"size\": %zu, \"buffers\": %llu, \"ns_per_buffer\": %.2f, \"bytes_per_second\": %.0f}\n", size,
	       (unsigned long long)(at - before), (double)(last - start) / (double)(at - before),
	       (double)size * (double)(at - before) * 1e9 / (double)(last - start));
}

int main(int argc, char **argv)
{
	size_t size = (size_t)number(argc, argv, "size", 65536);
	double warmup = number(argc, argv, "warmup", 0.1), seconds = number(argc, argv, "seconds", 1);
	bool by_tcp = argc > 1 && strcmp(argv[1], "tcp") == 0;
	char to[256];
	size_t room = sizeof to;
	int ways[2], status;
	void *context, *socket;
	pid_t child;

	if (argc < 2 || (!by_tcp && strcmp(argv[1], "ipc") != 0) || size < sizeof(uint64_t)) {
		fprintf(stderr, "usage: zmq (tcp | ipc) [--size N] [--seconds S] [--warmup S]\n");
		return 2;
	}
	/* ZeroMQ has threads, which a fork would not take along: so first the fork, then each its own context. */
	if (pipe(ways) < 0 || (child = fork()) < 0)
		die("fork");
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(ways[1]);
		if (read(ways[0], to, sizeof to) != sizeof to)
			return 1;
		push(to, size, (uint64_t)((warmup + seconds) * 1e9), ways[0]);
		return 0;
	}
	close(ways[0]);
	context = zmq_ctx_new();
	socket = endpoint(context, ZMQ_PULL, size);
	/* An abstract name, which leaves no file behind; ZMQ_LAST_ENDPOINT gives others only. */
	snprintf(to, sizeof to, "ipc://@shunt-bench-zmq-%d", (int)getpid());
	if (zmq_bind(socket, by_tcp ? "tcp://127.0.0.1:*" : to) < 0)
		die("zmq_bind");
	if (by_tcp && zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, to, &room) < 0)
		die("ZMQ_LAST_ENDPOINT");
	if (write(ways[1], to, sizeof to) < 0)
		die("write");
	pull(socket, size, (uint64_t)(warmup * 1e9));
	close(ways[1]);
	if (waitpid(child, &status, 0) < 0 || status != 0)
		die("the one that pushes has failed");
	zmq_close(socket);
	zmq_ctx_term(context);
	return 0;
}
