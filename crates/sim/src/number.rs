//! How a simulated program's descriptor gets another number, or its connection goes back to the
//! kernel.

use std::ffi::c_int;

use crate::program::{dice, fail, note};
use crate::socket::Socket;
use crate::waiting::{Wait, is_ready};
use crate::world::with;

/// An option that no table has.
const UNKNOWN: c_int = 120;

impl Socket {
    /// The program goes on by a copy of the descriptor, which may get its number: then a set that
    /// has it as a member still has it.
    pub fn exchange(&mut self) {
        let readable = is_ready(&self.calls, self.fd, Wait::In);
        // SAFETY: the calls take numbers.
        unsafe {
            let (old, other) = (self.fd, (self.calls.dup)(self.fd));
            note(|| format!("dup({old}) = {other}"));
            if other < 0 {
                return;
            }
            (self.calls.close)(old);
            self.fd = other;
            let again = if dice(2) == 0 { (self.calls.dup)(other) } else { -1 };
            if again >= 0 {
                (self.calls.close)(other);
                self.fd = again;
                note(|| format!("close({old}), dup({other}) = {again}, close({other})"));
            }
            if again == old {
                self.waiting.look_for_member(&self.calls, old);
            } else {
                self.waiting.end(&self.calls);
            }
        }
        // Between hosts, or from a peer that is stopped, what was recalled may come later than this
        // call waits for it.
        let in_time = with(|world| world.hosts.is_none() && world.stopped.is_empty());
        if readable && in_time && !is_ready(&self.calls, self.fd, Wait::In) {
            fail(|| format!("{} is not readable, and its other number was before it was closed", self.fd));
        }
    }

    /// A call after which the connection is the kernel's for good: what is unread of the ring has
    /// to go by TCP. `passes`: it may get another number by that.
    pub fn leave(&mut self, passes: bool) {
        let readable = is_ready(&self.calls, self.fd, Wait::In);
        let (fd, on) = (self.fd, 1i32);
        let way = dice(if passes { 4 } else { 3 });
        // SAFETY: the calls take numbers, and a buffer and a value that live through them.
        let result = unsafe {
            match way {
                0 => (self.calls.recv)(fd, [0u8; 8].as_mut_ptr(), 8, libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT),
                1 => {
                    (self.calls.setsockopt)(fd, libc::SOL_SOCKET, UNKNOWN, (&raw const on).cast(), 4) as isize
                }
                2 => {
                    let (mut value, mut len) = (0i32, 4);
                    (self.calls.getsockopt)(
                        fd,
                        libc::IPPROTO_TCP,
                        UNKNOWN,
                        (&raw mut value).cast(),
                        &raw mut len,
                    ) as isize
                }
                _ => {
                    with(|world| world.judge.directions[self.into].passed = true);
                    self.pass() as isize
                }
            }
        };
        let name = ["recv of errors", "setsockopt", "getsockopt", "pass to oneself"][way as usize];
        note(|| format!("{name}({fd}) = {result}"));
        // Between hosts, or from a peer that is stopped, what was recalled may come later than this
        // call waits for it.
        let in_time = with(|world| world.hosts.is_none() && world.stopped.is_empty());
        if readable && in_time && !is_ready(&self.calls, self.fd, Wait::In) {
            fail(|| format!("{} is not readable, and was before it was left to the kernel", self.fd));
        }
    }

    /// The descriptor goes by a UNIX socket, and comes back as another one, with which the program
    /// goes on.
    fn pass(&mut self) -> c_int {
        let mut pair = [0; 2];
        let mut byte = 7u8;
        let mut iov = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        let mut control = [0u64; 4];
        // SAFETY: everything that the calls are given lives through them, and the control buffer
        // has room for one descriptor.
        unsafe {
            if (self.calls.socketpair)(libc::AF_UNIX, libc::SOCK_STREAM, 0, pair.as_mut_ptr()) != 0 {
                return -1;
            }
            let mut message: libc::msghdr = std::mem::zeroed();
            (message.msg_iov, message.msg_iovlen) = (&raw mut iov, 1);
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(4) as usize;
            let head = libc::CMSG_FIRSTHDR(&raw const message);
            (*head).cmsg_level = libc::SOL_SOCKET;
            (*head).cmsg_type = libc::SCM_RIGHTS;
            (*head).cmsg_len = libc::CMSG_LEN(4) as usize;
            libc::CMSG_DATA(head).cast::<c_int>().write_unaligned(self.fd);
            (self.calls.sendmsg)(pair[0], &raw const message, 0);
            (self.calls.close)(self.fd);
            self.waiting.end(&self.calls);
            message.msg_controllen = libc::CMSG_SPACE(4) as usize;
            let got = (self.calls.recvmsg)(pair[1], &raw mut message, 0);
            let head = libc::CMSG_FIRSTHDR(&raw const message);
            if got == 1 && !head.is_null() {
                self.fd = libc::CMSG_DATA(head).cast::<c_int>().read_unaligned();
            }
            (self.calls.close)(pair[0]);
            (self.calls.close)(pair[1]);
        }
        self.fd
    }
}
