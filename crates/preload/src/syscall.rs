//! syscall(): some programs make their socket calls through it (libuv closes that way). Those that
//! we hook go to the hooks, children and io_uring to where they are looked after; everything else
//! is the kernel's.

use core::ffi::{c_int, c_long, c_uint};
use sockets::interface::{self, What};
use sockets::reason::Reason;
use sockets::{errno, faults, relay, table};

use crate::next::hooks;
use crate::{
    aio, end, exec, fds, files, forks, locking, names, rights, sandbox, signals, transfer, uring, waits,
};

hooks! {
    fn syscall(next; number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long {
        match number {
            libc::SYS_read => files::read(a as c_int, b as *mut _, c) as c_long,
            libc::SYS_write => files::write(a as c_int, b as *const _, c) as c_long,
            libc::SYS_readv => files::readv(a as c_int, b as *const _, c as c_int) as c_long,
            libc::SYS_writev => files::writev(a as c_int, b as *const _, c as c_int) as c_long,
            libc::SYS_preadv2 => {
                files::preadv2(a as c_int, b as *const _, c as c_int, d as i64, f as c_int) as c_long
            }
            libc::SYS_pwritev2 => {
                files::pwritev2(a as c_int, b as *const _, c as c_int, d as i64, f as c_int) as c_long
            }
            libc::SYS_recvfrom => files::recvfrom(a as c_int, b as *mut _, c, d as c_int, e as *mut _, f as *mut _) as c_long,
            libc::SYS_sendto => files::sendto(a as c_int, b as *const _, c, d as c_int, e as *const _, f as u32) as c_long,
            libc::SYS_recvmsg => files::recvmsg(a as c_int, b as *mut _, c as c_int) as c_long,
            libc::SYS_sendmsg => files::sendmsg(a as c_int, b as *const _, c as c_int) as c_long,
            libc::SYS_recvmmsg => files::recvmmsg(a as c_int, b as *mut _, c as u32, d as c_int, e as *mut _).into(),
            libc::SYS_sendmmsg => files::sendmmsg(a as c_int, b as *mut _, c as u32, d as c_int).into(),
            libc::SYS_sendfile => transfer::sendfile(a as c_int, b as c_int, c as *mut _, d) as c_long,
            libc::SYS_splice => {
                transfer::splice(a as c_int, b as *mut _, c as c_int, d as *mut _, e, f as c_uint) as c_long
            }
            libc::SYS_tee => transfer::tee(a as c_int, b as c_int, c, d as c_uint) as c_long,
            libc::SYS_vmsplice => transfer::vmsplice(a as c_int, b as *const _, c, d as c_uint) as c_long,
            libc::SYS_copy_file_range => transfer::copy_file_range(
                a as c_int,
                b as *mut _,
                c as c_int,
                d as *mut _,
                e,
                f as c_uint,
            ) as c_long,
            libc::SYS_getsockname => names::getsockname(a as c_int, b as *mut _, c as *mut _).into(),
            libc::SYS_getpeername => names::getpeername(a as c_int, b as *mut _, c as *mut _).into(),
            libc::SYS_connect => fds::connect(a as c_int, b as *const _, c as u32).into(),
            libc::SYS_accept => fds::accept(a as c_int, b as *mut _, c as *mut _).into(),
            libc::SYS_accept4 => fds::accept4(a as c_int, b as *mut _, c as *mut _, d as c_int).into(),
            libc::SYS_setsockopt => {
                fds::setsockopt(a as c_int, b as c_int, c as c_int, d as *const _, e as u32).into()
            }
            libc::SYS_getsockopt => {
                fds::getsockopt(a as c_int, b as c_int, c as c_int, d as *mut _, e as *mut _).into()
            }
            libc::SYS_ioctl => fds::ioctl(a as c_int, b as _, c as *mut _).into(),
            libc::SYS_epoll_create1 => waits::epoll_create1(a as c_int).into(),
            libc::SYS_epoll_ctl => waits::epoll_ctl(a as c_int, b as c_int, c as c_int, d as *mut _).into(),
            libc::SYS_epoll_pwait => {
                waits::epoll_pwait(a as c_int, b as *mut _, c as c_int, d as c_int, e as *const _).into()
            }
            libc::SYS_epoll_pwait2 => waits::epoll_pwait2(
                a as c_int,
                b as *mut _,
                c as c_int,
                d as *const _,
                e as *const _,
            )
            .into(),
            libc::SYS_pselect6 => {
                // The kernel's call has the mask in a structure.
                let mask = (f as *const *const libc::sigset_t).as_ref().map_or(core::ptr::null(), |mask| *mask);
                let (sets, time) = ([b, c, d].map(|set| set as *mut _), e as *const _);
                waits::pselect(a as c_int, sets[0], sets[1], sets[2], time, mask).into()
            }
            libc::SYS_ppoll => waits::ppoll(a as *mut _, b as _, c as *const _, d as *const _).into(),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_create => waits::epoll_create(a as c_int).into(),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_wait => waits::epoll_wait(a as c_int, b as *mut _, c as c_int, d as c_int).into(),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_poll => waits::poll(a as *mut _, b as _, c as c_int).into(),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_select => {
                waits::select(a as c_int, b as *mut _, c as *mut _, d as *mut _, e as *mut _).into()
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_dup2 => fds::dup2(a as c_int, b as c_int).into(),
            libc::SYS_close => fds::close(a as c_int).into(),
            libc::SYS_close_range => fds::close_range(a as c_uint, b as c_uint, c as c_int).into(),
            libc::SYS_dup => fds::dup(a as c_int).into(),
            libc::SYS_dup3 => fds::dup3(a as c_int, b as c_int, c as c_int).into(),
            libc::SYS_fcntl => fds::fcntl(a as c_int, b as c_int, c).into(),
            libc::SYS_shutdown => fds::shutdown(a as c_int, b as c_int).into(),
            libc::SYS_rt_sigaction if faults::low(b as *const usize) && b != 0 || faults::low(c as *const usize) && c != 0 => {
                next(number, a, b, c, d, e, f)
            }
            libc::SYS_rt_sigaction => {
                signals::rt_sigaction(a as c_int, b as *const _, c as *mut _, |new| next(number, a, new.addr(), c, d, e, f))
            }
            libc::SYS_exit_group => {
                end::leave();
                next(number, a, b, c, d, e, f)
            }
            libc::SYS_execve => exec::execve(a as *const _, b as *const _, c as *const _).into(),
            libc::SYS_execveat => {
                exec::execveat(a as c_int, b as *const _, c as *const _, d as *const _, e as c_int).into()
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_fork => forks::around(0, || next(number, a, b, c, d, e, f)),
            libc::SYS_clone if forks::copies(a) => {
                let pid = forks::around(a, || next(number, a, b, c, d, e, f));
                if pid == 0 {
                    rights::born(a as c_int);
                }
                pid
            }
            libc::SYS_clone3 if !faults::low(a as *const u64) && forks::copies(*(a as *const usize)) => {
                let pid = forks::around(*(a as *const usize), || next(number, a, b, c, d, e, f));
                if pid == 0 {
                    rights::born(*(a as *const c_int));
                }
                pid
            }
            libc::SYS_unshare | libc::SYS_setns => {
                let result = next(number, a, b, c, d, e, f);
                let flags = if number == libc::SYS_unshare { a } else { b };
                forks::entered(result, if flags == 0 { forks::ANY } else { flags as c_int });
                result
            }
            libc::SYS_mlockall => locking::mlockall(a as c_int).into(),
            libc::SYS_munlockall => locking::munlockall().into(),
            libc::SYS_prctl => sandbox::prctl(a as c_int, b, c, d, e).into(),
            libc::SYS_seccomp => {
                sandbox::seccomp(a as c_uint, c);
                next(number, a, b, c, d, e, f)
            }
            libc::SYS_io_uring_setup if uring::is_for_set(a as u32, b as *const _) => {
                errno::set(libc::EPERM);
                -1
            }
            libc::SYS_io_uring_setup => {
                let result = next(number, a, b, c, d, e, f);
                uring::made(result < 0);
                result
            }
            // Past liburing, on a ring that it may have made.
            libc::SYS_io_uring_enter | libc::SYS_io_uring_register => {
                uring::past_us();
                next(number, a, b, c, d, e, f)
            }
            libc::SYS_pidfd_getfd => {
                let got = next(number, a, b, c, d, e, f);
                fds::got_from_process(a as c_int, b as c_int, got as c_int).into()
            }
            libc::SYS_io_submit => {
                aio::submitting(b as c_long, c as *const _);
                next(number, a, b, c, d, e, f)
            }
            libc::SYS_bpf => {
                if matches!(a, BPF_MAP_UPDATE_ELEM | BPF_MAP_UPDATE_BATCH) {
                    uring::step_aside(Reason::RawCall);
                }
                next(number, a, b, c, d, e, f)
            }
            _ => {
                rights::by_number(number, a, b, c);
                if interface::calls::of(number) == What::Tcp {
                    never_heard_of([a, b, c, d, e, f]);
                }
                next(number, a, b, c, d, e, f)
            }
        }
    }
}

const BPF_MAP_UPDATE_ELEM: usize = 2;
const BPF_MAP_UPDATE_BATCH: usize = 26;

/// A call that is newer than we are: whatever in it may be the number of a connection is taken for
/// one.
#[cold]
fn never_heard_of(arguments: [usize; 6]) {
    for argument in arguments {
        if let Ok(fd) = c_int::try_from(argument)
            && let Some(conn) = table::conn(fd)
        {
            relay::hand_over(conn, fd, Reason::RawCall, false);
        }
    }
}
