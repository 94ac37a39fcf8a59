/* Hooks that stable Rust cannot define: variadic functions. exec*l gather their arguments and go on to the exec*v hooks; dprintf
 * prints to memory and writes through the write hook, because libc's own dprintf writes past it. */
#define _GNU_SOURCE
#include <alloca.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int shunt_write_all(int fd, const char *buffer, size_t len);
int shunt_follows(int fd);

extern char **environ;

#define GATHER(first, list, argv)                                              \
    size_t count_ = 1;                                                         \
    va_start(list, first);                                                     \
    while (va_arg(list, char *) != NULL)                                       \
        count_++;                                                              \
    va_end(list);                                                              \
    char **argv = alloca((count_ + 1) * sizeof(char *));                       \
    argv[0] = (char *)first;                                                   \
    va_start(list, first);                                                     \
    for (size_t i_ = 1; i_ <= count_; i_++)                                    \
        argv[i_] = va_arg(list, char *);

int shunt_execl(const char *path, const char *arg, ...) {
    va_list list;
    GATHER(arg, list, argv)
    va_end(list);
    return execve(path, argv, environ);
}

int shunt_execlp(const char *file, const char *arg, ...) {
    va_list list;
    GATHER(arg, list, argv)
    va_end(list);
    return execvp(file, argv);
}

int shunt_execle(const char *path, const char *arg, ...) {
    va_list list;
    GATHER(arg, list, argv)
    char **envp = va_arg(list, char **);
    va_end(list);
    return execve(path, argv, envp);
}

int shunt_vdprintf(int fd, const char *format, va_list list) {
    if (!shunt_follows(fd)) {
        static int (*next)(int, const char *, va_list);
        if (next == NULL)
            next = (int (*)(int, const char *, va_list))dlsym(RTLD_NEXT, "vdprintf");
        return next(fd, format, list);
    }
    char *text;
    int len = vasprintf(&text, format, list);
    if (len < 0)
        return -1;
    int failed = shunt_write_all(fd, text, (size_t)len);
    int error = errno;
    free(text);
    errno = error;
    return failed ? -1 : len;
}

int shunt_dprintf(int fd, const char *format, ...) {
    va_list list;
    va_start(list, format);
    int len = shunt_vdprintf(fd, format, list);
    va_end(list);
    return len;
}

/* What _FORTIFY_SOURCE makes of them. */
int shunt_vdprintf_chk(int fd, int flag, const char *format, va_list list) {
    (void)flag;
    return shunt_vdprintf(fd, format, list);
}

int shunt_dprintf_chk(int fd, int flag, const char *format, ...) {
    (void)flag;
    va_list list;
    va_start(list, format);
    int len = shunt_vdprintf(fd, format, list);
    va_end(list);
    return len;
}
