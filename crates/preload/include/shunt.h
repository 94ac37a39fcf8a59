/*
 * What Shunt offers to programs that know of it. None needs to: this is for those who would save the last copy.
 *
 * The functions are in libshunt.so, which is there when the program runs under Shunt, and nowhere else. They are weak, so
 * nothing has to be linked, and a program asks whether they are there:
 *
 *	const void *data;
 *	ssize_t n;
 *
 *	if (shunt_recv_zc) {
 *		while ((n = shunt_recv_zc(fd, &data, SIZE_MAX, 0)) > 0) {
 *			use(data, n);
 *			shunt_release(fd, n);
 *		}
 *	}
 */
#ifndef SHUNT_H
#define SHUNT_H

#include <stddef.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Lends the next bytes of a connected stream socket, at most len: *data is where they lie, the result how many. They may be
 * read, not written, until shunt_release() gives them back, the descriptor is closed or handed to another process or program,
 * or the thread calls this again. It waits as recv() does; 0 is the end, -1 an error in errno. Of flags, MSG_DONTWAIT and
 * MSG_ZEROCOPY count. On any connection: where bytes come by TCP they are copied once, into a buffer of the thread, or, with
 * MSG_ZEROCOPY, not at all: EOPNOTSUPP. Nothing is taken: recv() would
 * still read these bytes. Where they come through memory the peer may change them: look once at what decides something.
 */
extern ssize_t shunt_recv_zc(int fd, const void **data, size_t len, int flags) __attribute__((weak));

/*
 * Gives back len of the lent bytes, from the first on: what comes after them is read next. 0, or -1 and errno if there are not
 * as many (EAGAIN, or EINVAL at the end of the stream); those that there are have been given back then.
 */
extern int shunt_release(int fd, size_t len) __attribute__((weak));

/*
 * Which way the bytes of a connected socket go now: SHUNT_READ if those that are read come through memory, SHUNT_WRITTEN if those
 * that are written go through it, or both; 0 if TCP carries them. It may change with every call on the socket.
 */
#define SHUNT_READ 1
#define SHUNT_WRITTEN 2
extern int shunt_path(int fd) __attribute__((weak));

#ifdef __cplusplus
}
#endif

#endif
