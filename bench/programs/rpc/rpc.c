/*
 * rpc: how long a remote procedure call takes, with the stubs that rpcgen makes and libtirpc as it is.
 *
 *   rpc server (--tcp PORT | --unix PATH) [--cpu N]
 *   rpc client (--tcp PORT | --unix PATH) [--size 0] [--cpu N] [--seconds 1] [--warmup 0.2]
 *
 * The procedure's argument is a string of --size characters, or none at all for 0; its body is empty and its result an integer.
 * The server runs svc_run(), on a listener of its own, so that no portmapper is needed; it ends when the client says so.
 */
#include "../common.h"
#include "echo.h"

static void refused(CLIENT *client, const char *what)
{
	clnt_perror(client, what);
	exit(1);
}

int *nothing_1_svc(void *argument UNUSED, struct svc_req *request UNUSED)
{
	static int result = 7;

	return &result;
}

int *message_1_svc(char **argument, struct svc_req *request UNUSED)
{
	static int result;

	/* All of it has come and been decoded. */
	result = (*argument)[0];
	return &result;
}

u_quad_t *leave_1_svc(void *argument UNUSED, struct svc_req *request UNUSED)
{
	static u_quad_t result;

	result = cpu_ns();
	svc_exit();
	return &result;
}

/* rpcgen's dispatcher. */
extern void echo_1(struct svc_req *request, SVCXPRT *transport);

static void server(int argc, char **argv)
{
	SVCXPRT *transport = svc_vc_create(serve(argc, argv), 0, 0);

	if (!transport || !svc_register(transport, ECHO, ECHO_VERSION, echo_1, 0))
		die("no RPC service on this socket");
	svc_run();
	printf("{\"cpu_ns\": %llu}\n", (unsigned long long)cpu_ns());
}

static void client(int argc, char **argv, size_t size)
{
	static struct histogram times;
	uint64_t warm = (uint64_t)(number(argc, argv, "warmup", 0.2) * 1e9);
	uint64_t measure = (uint64_t)(number(argc, argv, "seconds", 1) * 1e9);
	struct sockaddr_storage to;
	struct netbuf address = {.maxlen = sizeof to, .buf = &to};
	int fd = connect_to(argc, argv);
	char *argument = allocate(size + 1);
	uint64_t start = now_ns(), before = start, began = start, cpu = 0;
	bool measuring = false;
	CLIENT *rpc;

	address.len = sizeof to;
	if (getpeername(fd, (struct sockaddr *)&to, &address.len) < 0)
		die("getpeername");
	rpc = clnt_vc_create(fd, &address, ECHO, ECHO_VERSION, 0, 0);
	if (!rpc) {
		clnt_pcreateerror("rpc");
		exit(1);
	}
	argument[size] = 0;
	for (;;) {
		int *result = size ? message_1(&argument, rpc) : nothing_1(NULL, rpc);
		uint64_t after = now_ns();

		if (!result)
			refused(rpc, "rpc");
		errno = 0;
		if (*result != (size ? argument[0] : 7))
			die("the result is %d", *result);
		if (measuring)
			histogram_add(&times, after - before);
		if (!measuring && after - start >= warm) {
			measuring = true;
			began = after;
			cpu = cpu_ns();
		} else if (measuring && after - began >= measure) {
			break;
		}
		before = now_ns();
	}
	cpu = cpu_ns() - cpu;
	printf("{");
	histogram_print(&times);
	printf(", \"seconds\": %.6f, \"cpu_ns\": %llu}\n", (double)(now_ns() - began) / 1e9, (unsigned long long)cpu);
	if (!leave_1(NULL, rpc))
		refused(rpc, "rpc: the server does not end");
	clnt_destroy(rpc);
	close(fd);
}

int main(int argc, char **argv)
{
	size_t size = (size_t)number(argc, argv, "size", 0);

	pin_by_option(argc, argv);
	if (argc > 1 && strcmp(argv[1], "server") == 0)
		server(argc, argv);
	else if (argc > 1 && strcmp(argv[1], "client") == 0)
		client(argc, argv, size);
	else {
		fprintf(stderr, "usage: rpc (server | client) (--tcp PORT | --unix PATH) [--size N] [--cpu N] [--seconds S]"
				" [--warmup S]\n");
		return 2;
	}
	return 0;
}
