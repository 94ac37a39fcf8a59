//! The functions that carry out a socket's calls: libshunt.so's, the program's own if it runs under
//! Shunt, or libc's.

use std::ffi::{CStr, c_int, c_void};
use std::mem;
use std::sync::OnceLock;

use libc::{msghdr, nfds_t, pollfd, sockaddr, socklen_t};

/// Where symbols are looked for: a handle of dlopen(), or RTLD_DEFAULT.
#[derive(Clone, Copy)]
pub struct Handle(pub *mut c_void);

impl Handle {
    /// The symbols that the program itself sees.
    pub const PROGRAM: Handle = Handle(libc::RTLD_DEFAULT);

    /// The address of a symbol.
    pub fn find(self, name: &CStr) -> Option<*mut c_void> {
        // SAFETY: the name ends with a zero; the handle is one of dlopen's that is never closed, or
        // RTLD_DEFAULT.
        let found = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        (!found.is_null()).then_some(found)
    }
}

macro_rules! calls {
    ($($name:ident = $symbol:literal: fn($($arg:ty),*) -> $ret:ty;)*) => {
        /// One function for each call. They may unwind: a thread may be cancelled (pthread_cancel)
        /// where it waits.
        #[derive(Clone, Copy)]
        pub struct Calls {
            $(pub $name: unsafe extern "C-unwind" fn($($arg),*) -> $ret,)*
            /// Reports the path of a connection (`shunt_path`): only libshunt.so has it.
            pub path: Option<unsafe extern "C-unwind" fn(c_int) -> c_int>,
            /// Receives each socket that is made (`shunt_is_new`): only libshunt.so has it.
            pub is_new: Option<unsafe extern "C-unwind" fn(c_int)>,
        }

        impl Calls {
            /// All functions, looked up in `handle`; or the name of the first that is missing.
            pub fn find(handle: Handle) -> Result<Calls, &'static CStr> {
                let path = handle.find(c"shunt_path").map(|at| {
                    // SAFETY: this is the function that shunt.h declares.
                    unsafe { mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn(c_int) -> c_int>(at) }
                });
                let is_new = handle.find(c"shunt_is_new").map(|at| {
                    // SAFETY: libshunt.so defines it with this type.
                    unsafe { mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn(c_int)>(at) }
                });
                Ok(Calls {
                    $($name: {
                        let at = handle.find($symbol).ok_or($symbol)?;
                        // SAFETY: libc's function of this name has this type, and so has a hook of
                        // it.
                        unsafe { mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn($($arg),*) -> $ret>(at) }
                    },)*
                    path,
                    is_new,
                })
            }
        }
    };
}

calls! {
    connect = c"connect": fn(c_int, *const sockaddr, socklen_t) -> c_int;
    accept4 = c"accept4": fn(c_int, *mut sockaddr, *mut socklen_t, c_int) -> c_int;
    recv = c"recv": fn(c_int, *mut c_void, usize, c_int) -> isize;
    recvmsg = c"recvmsg": fn(c_int, *mut msghdr, c_int) -> isize;
    send = c"send": fn(c_int, *const c_void, usize, c_int) -> isize;
    sendmsg = c"sendmsg": fn(c_int, *const msghdr, c_int) -> isize;
    poll = c"poll": fn(*mut pollfd, nfds_t, c_int) -> c_int;
    setsockopt = c"setsockopt": fn(c_int, c_int, c_int, *const c_void, socklen_t) -> c_int;
    shutdown = c"shutdown": fn(c_int, c_int) -> c_int;
    close = c"close": fn(c_int) -> c_int;
}

/// libc's own functions, also where another library stands in front of them.
pub fn libc() -> &'static Calls {
    static LIBC: OnceLock<Calls> = OnceLock::new();
    LIBC.get_or_init(|| {
        // SAFETY: the name is a C string; nothing is loaded that is not there.
        let handle = unsafe { libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
        // There is no handle: a libc of another name.
        Calls::find(Handle(handle)).unwrap_or(LINKED)
    })
}

/// The functions that this program is linked with: libc's, where there is no dynamic linker.
const LINKED: Calls = Calls {
    connect: linked::connect,
    accept4: linked::accept4,
    recv: linked::recv,
    recvmsg: linked::recvmsg,
    send: linked::send,
    sendmsg: linked::sendmsg,
    poll: linked::poll,
    setsockopt: linked::setsockopt,
    shutdown: linked::shutdown,
    close: linked::close,
    path: None,
    is_new: None,
};

mod linked {
    use super::*;

    unsafe extern "C-unwind" {
        pub fn connect(fd: c_int, to: *const sockaddr, len: socklen_t) -> c_int;
        pub fn accept4(fd: c_int, from: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int;
        pub fn recv(fd: c_int, to: *mut c_void, len: usize, flags: c_int) -> isize;
        pub fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> isize;
        pub fn send(fd: c_int, from: *const c_void, len: usize, flags: c_int) -> isize;
        pub fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> isize;
        pub fn poll(fds: *mut pollfd, count: nfds_t, millis: c_int) -> c_int;
        pub fn setsockopt(
            fd: c_int,
            level: c_int,
            name: c_int,
            value: *const c_void,
            len: socklen_t,
        ) -> c_int;
        pub fn shutdown(fd: c_int, how: c_int) -> c_int;
        pub fn close(fd: c_int) -> c_int;
    }
}
