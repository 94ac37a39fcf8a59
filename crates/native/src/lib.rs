//! Shunt's sockets for Rust programs that know of Shunt: a [`Listener`] and a [`Stream`] like
//! std's. Shunt carries a stream through memory if both ends are on one host, and each is in such a
//! program or runs under `shunt run`. Nothing is preloaded: `libshunt.so` is loaded when the first
//! socket is made, for these sockets alone. All other sockets of the program stay as they are, so
//! extension modules and plugins can use this crate, too. Where the library is missing everything
//! goes by TCP, and [`status`] says why.
//!
//! ```no_run
//! use std::io::{Read, Write};
//! use native::{Listener, Path, Stream};
//!
//! let listener = Listener::bind("127.0.0.1:0", Path::Auto)?;
//! let mut stream = Stream::connect(listener.local_addr()?, Path::Auto, None)?;
//! let (mut other, _) = listener.accept()?;
//! stream.write_all(b"hello")?;
//! other.read_exact(&mut [0; 5])?;
//! println!("{}; in memory: {}", native::status(), stream.is_promoted());
//! # std::io::Result::Ok(())
//! ```
//!
//! # Rules
//!
//! * A stream belongs to the process that made it. In a child of fork() it is closed: its calls
//!   fail with EBADF, the parent's end is not touched, and the peer sees the end when the parent
//!   closes. A [`Listener`] stays usable in both; streams that the child makes are its own. (A
//!   child made past libc's fork(), by the system call itself, must not use what it inherited.)
//! * Nothing survives exec(), in this process or in a child: descriptors are close-on-exec.
//! * No other code may use a stream's descriptor, so none is given out. If other code closes it all
//!   the same (a daemon that closes all descriptors), calls fail or see the end, and no stream ever
//!   uses a number that has become another one's.
//! * Do not use a stream in a signal handler, and do not jump out of its calls. A program that
//!   installs a filter of system calls (seccomp) must close its streams before, or make them with
//!   [`Path::Tcp`].
//! * A call that a signal handler interrupts ends with [`std::io::ErrorKind::Interrupted`], as
//!   std's do; `read_exact` and `write_all` go on.

#![warn(missing_docs)]

mod address;
mod calls;
mod elf;
mod library;
mod listener;
mod open;
mod path;
mod stream;

pub use library::{Status, load, status};
pub use listener::Listener;
pub use path::Path;
pub use stream::Stream;
