//! Streams in a library that a program loads with dlopen() and does not know otherwise, as Python
//! does with extension modules: tests/python.rs loads it with ctypes. Handles are addresses; -1 and
//! null are errors.

use std::ffi::{CStr, CString, c_char, c_int};
use std::io::{Read, Write};
use std::ptr;

use native::{Listener, Path, Stream};

fn boxed<T>(made: std::io::Result<T>) -> *mut T {
    made.map_or(ptr::null_mut(), |made| Box::into_raw(Box::new(made)))
}

/// Loads the libshunt.so at this path; returns the status in words.
///
/// # Safety
/// `path` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extension_load(path: *const c_char) -> *mut c_char {
    // SAFETY: the caller vouches for it.
    let path = unsafe { CStr::from_ptr(path) }.to_string_lossy().into_owned();
    let said = native::load(path.as_ref()).to_string();
    CString::new(said).map_or(ptr::null_mut(), CString::into_raw)
}

/// A listener on a free port, whose number is written to `port`.
///
/// # Safety
/// `port` is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extension_listen(port: *mut u16) -> *mut Listener {
    let made = Listener::bind("127.0.0.1:0", Path::Auto);
    if let Ok(address) = made.as_ref().map_err(drop).and_then(|listener| listener.local_addr().map_err(drop))
    {
        // SAFETY: the caller vouches for it.
        unsafe { *port = address.port() };
    }
    boxed(made)
}

/// # Safety
/// `listener` is one of ours.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extension_accept(listener: *const Listener) -> *mut Stream {
    // SAFETY: the caller vouches for it.
    boxed(unsafe { &*listener }.accept().map(|(stream, _)| stream))
}

/// A stream to a port of this host.
#[unsafe(no_mangle)]
pub extern "C" fn extension_connect(port: u16) -> *mut Stream {
    boxed(Stream::connect(("127.0.0.1", port), Path::Auto, None))
}

/// # Safety
/// `stream` is one of ours, `to` is valid for a write of `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extension_read(stream: *const Stream, to: *mut u8, len: usize) -> isize {
    // SAFETY: the caller vouches for both.
    let (mut stream, to) = unsafe { (&*stream, std::slice::from_raw_parts_mut(to, len)) };
    stream.read(to).map_or(-1, |count| count as isize)
}

/// # Safety
/// `stream` is one of ours, `from` is valid for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extension_write(stream: *const Stream, from: *const u8, len: usize) -> c_int {
    // SAFETY: the caller vouches for both.
    let (mut stream, from) = unsafe { (&*stream, std::slice::from_raw_parts(from, len)) };
    stream.write_all(from).map_or(-1, |()| 0)
}

/// # Safety
/// `stream` is one of ours.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extension_promoted(stream: *const Stream) -> c_int {
    // SAFETY: the caller vouches for it.
    unsafe { &*stream }.is_promoted().into()
}

/// # Safety
/// `stream` is one of ours, and not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extension_close(stream: *mut Stream) {
    // SAFETY: the caller vouches for it.
    drop(unsafe { Box::from_raw(stream) });
}
