//! Descriptors that messages pass to other processes (SCM_RIGHTS).

use core::ffi::c_int;
use libc::{cmsghdr, msghdr};
use sockets::reason::Reason;
use sockets::{faults, relay, table};

/// Hands over the connections whose descriptors a message passes.
///
/// # Safety
/// `message` is null or a valid msghdr.
pub unsafe fn passing(message: *const msghdr) {
    // SAFETY: the caller vouches for the message; the macros walk its control part as the kernel
    // does.
    unsafe {
        if faults::low(message) || (*message).msg_controllen == 0 || faults::low((*message).msg_control) {
            return;
        }
        let mut part: *const cmsghdr = libc::CMSG_FIRSTHDR(message);
        while !part.is_null() {
            if (*part).cmsg_level == libc::SOL_SOCKET && (*part).cmsg_type == libc::SCM_RIGHTS {
                let data = libc::CMSG_DATA(part);
                let bytes = ((*part).cmsg_len as usize).saturating_sub(data as usize - part as usize);
                for index in 0..bytes / 4 {
                    let fd = data.cast::<c_int>().add(index).read_unaligned();
                    if let Some(conn) = table::conn(fd) {
                        relay::hand_over(conn, fd, Reason::Passed, true);
                    }
                }
            }
            part = libc::CMSG_NXTHDR(message, part);
        }
    }
}
