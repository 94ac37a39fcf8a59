/* What the parts of `sets` have in common (sets.c says what it is for). */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../moving.h"

#define CHECK(cond) ((cond) ? (void)0 : broken(__FILE__, __LINE__, #cond))
enum { CONNS = 4, CHANNEL = 3 };
/* The data of a member that ends every wait. */
#define BELL 0xffu

/* tools.c */
extern int seed, step;
extern bool is_other;
extern uint64_t dice_state;
_Noreturn void broken(const char *file, int line, const char *what);
void show(const char *format, ...);
uint32_t dice(uint32_t sides);
bool chance(uint32_t percent);
double now(void);
void take(int fd, size_t count);
void put(int fd, size_t count);

/* peer.c: in the other process; and how it is told something, and that it has done it. */
void other(int port);
void begin(char what, int which, int count);
void done(void);
void tell(char what, int which, int count);

/* sets.c: where the other process dials. */
extern int listener;

/* beside.c */
void concurrently(void);
