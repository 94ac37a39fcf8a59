/* Handlers: what is asked of them is what was set, by each of the calls that there are; and each of them gets its arguments, its stack and
   its mask. */

#define _GNU_SOURCE
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

#define CHECK(truth)                                                                         \
    do {                                                                                     \
        if (!(truth)) {                                                                      \
            fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #truth, errno);    \
            exit(1);                                                                         \
        }                                                                                    \
    } while (0)

struct kernel_action {
    void (*handler)(int);
    unsigned long flags;
    void (*restorer)(void);
    uint64_t mask;
};

static volatile sig_atomic_t ones, twos, last;
static siginfo_t told;
static char stack[64 << 10] __attribute__((aligned(16)));
static int on_stack, aligned;
static sigjmp_buf out;

static void one(int signal) {
    double wide __attribute__((aligned(16))) = signal; /* an odd stack would end us here */
    char *volatile place = (char *)&wide;
    aligned = (uintptr_t)place % 16 == 0;
    ones++;
    last = signal;
}

static void two(int signal, siginfo_t *info, void *context) {
    char here;
    on_stack = &here >= stack && &here < stack + sizeof stack;
    told = *info;
    CHECK(((ucontext_t *)context)->uc_stack.ss_size == sizeof stack);
    twos++;
    last = signal;
}

static void jumps(int signal) {
    siglongjmp(out, signal);
}

static void *asked(int signal) {
    struct sigaction action;
    CHECK(sigaction(signal, NULL, &action) == 0);
    return (void *)action.sa_handler;
}

/* What the kernel has is what the call by number tells of. */
static void *asked_by_number(int signal) {
    struct kernel_action action;
    CHECK(syscall(SYS_rt_sigaction, signal, NULL, &action, 8) == 0);
    return (void *)action.handler;
}

int main(void) {
    /* signal(), and what the others say of it. */
    CHECK(signal(SIGUSR1, one) == SIG_DFL);
    CHECK(asked(SIGUSR1) == one && asked_by_number(SIGUSR1) == one);
    raise(SIGUSR1);
    CHECK(ones == 1 && last == SIGUSR1 && aligned);
    CHECK(signal(SIGUSR1, SIG_IGN) == one);
    CHECK(asked(SIGUSR1) == (void *)SIG_IGN && signal(SIGUSR1, one) == SIG_IGN);

    /* sigaction(), on a stack of its own, also with one structure for both. */
    stack_t other = {.ss_sp = stack, .ss_size = sizeof stack};
    CHECK(sigaltstack(&other, NULL) == 0);
    struct sigaction action = {.sa_sigaction = two, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
    sigaddset(&action.sa_mask, SIGUSR2);
    struct sigaction *volatile same = &action;
    CHECK(sigaction(SIGUSR1, &action, same) == 0 && action.sa_handler == one);
    CHECK(sigaction(SIGUSR1, NULL, &action) == 0 && action.sa_sigaction == two);
    CHECK((action.sa_flags & ~0x04000000) == (SA_SIGINFO | SA_ONSTACK | SA_RESTART) && /* but for the C library's SA_RESTORER */
           sigismember(&action.sa_mask, SIGUSR2) == 1);
    CHECK(sigqueue(getpid(), SIGUSR1, (union sigval){.sival_int = 17}) == 0);
    CHECK(twos == 1 && on_stack && told.si_value.sival_int == 17 && told.si_pid == getpid());
    CHECK(siginterrupt(SIGUSR1, 1) == 0 && asked(SIGUSR1) == two);

    /* By number. */
    struct kernel_action raw;
    CHECK(syscall(SYS_rt_sigaction, SIGUSR1, NULL, &raw, 8) == 0 && (void *)raw.handler == two);
    raw.handler = one;
    raw.flags &= ~(unsigned long)SA_SIGINFO;
    CHECK(syscall(SYS_rt_sigaction, SIGUSR1, &raw, NULL, 8) == 0 && asked(SIGUSR1) == one);
    raise(SIGUSR1);
    CHECK(ones == 2);

    /* Once, and what is refused changes nothing. */
    action = (struct sigaction){.sa_handler = one, .sa_flags = (int)SA_RESETHAND};
    CHECK(sigaction(SIGUSR2, &action, NULL) == 0);
    raise(SIGUSR2);
    CHECK(ones == 3 && asked(SIGUSR2) == (void *)SIG_DFL);
    CHECK(sigaction(SIGKILL, &action, NULL) == -1 && errno == EINVAL);
    CHECK(sigaction(0, &action, NULL) == -1 && sigaction(65, &action, NULL) == -1 && sigaction(-1, &action, NULL) == -1);
    CHECK(signal(100, one) == SIG_ERR);

    /* sigset() knows one that is none: SIG_HOLD. */
    CHECK(sigset(SIGUSR2, one) == SIG_DFL && sigset(SIGUSR2, SIG_HOLD) == one && sigset(SIGUSR2, one) == SIG_HOLD);

    /* A jump out, and one of real time. */
    CHECK(signal(SIGRTMAX, jumps) == SIG_DFL);
    if (sigsetjmp(out, 1) == 0) {
        raise(SIGRTMAX);
        CHECK(0);
    }
    CHECK(asked(SIGRTMAX) == jumps);

    /* A child of vfork() sets its own. */
    pid_t child = vfork();
    if (child == 0) {
        struct sigaction usual = {.sa_handler = jumps};
        _exit(sigaction(SIGUSR1, &usual, NULL) != 0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(asked(SIGUSR1) == one);
    raise(SIGUSR1);
    CHECK(ones == 4);

    /* One of fork() has those of its parent. */
    child = fork();
    if (child == 0) {
        raise(SIGUSR1);
        _exit(ones != 5);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);

    /* Faults. */
    action = (struct sigaction){.sa_handler = jumps};
    CHECK(sigaction(SIGSEGV, &action, NULL) == 0 && asked(SIGSEGV) == jumps);
    if (sigsetjmp(out, 1) == 0) {
        *(volatile char *)NULL = 1;
        CHECK(0);
    }
    return 0;
}
