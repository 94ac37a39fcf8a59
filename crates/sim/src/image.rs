//! Copies of the library: each simulated process has one, so what is static in it is that process's
//! own.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io;
use std::path::{Path, PathBuf};

use crate::seam::Host;

/// How the library begins in a process: the host, arguments and environment.
pub type Start = unsafe extern "C" fn(*const Host, *const *const c_char, *const *const c_char);

/// A copy of `libshunt.so` (built with `--cfg sim`) in this address space.
pub struct Image {
    /// Where its variables lie, and what they held before anything of it ran.
    variables: (*mut u8, usize),
    fresh: Vec<u8>,
    pub start: Start,
    pub end: unsafe extern "C" fn(),
    pub fork: unsafe extern "C" fn(c_int),
    counts: unsafe extern "C" fn() -> *const u64,
    pub calls: Calls,
}

impl Image {
    /// Loads one more copy: the loader takes files of different names for different libraries.
    pub fn load(library: &Path, number: usize, libc: Libc) -> io::Result<Image> {
        let copy = copy_of(library, number)?;
        let name = CString::new(copy.as_os_str().as_encoded_bytes())?;
        // SAFETY: the library has no constructor in a build for the simulator.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        std::fs::remove_file(&copy)?;
        if handle.is_null() {
            // SAFETY: dlopen has just failed, so there is a text.
            let why = unsafe { CStr::from_ptr(libc::dlerror()) };
            return Err(io::Error::other(why.to_string_lossy().into_owned()));
        }
        let start = symbol(handle, c"shunt_sim_start")?;
        let variables = variables_around(start as usize)
            .ok_or_else(|| io::Error::other("the library has no writable part"))?;
        // SAFETY: the part is mapped, says the loader, and nothing runs in it now.
        let fresh = unsafe { std::slice::from_raw_parts(variables.0, variables.1) }.to_vec();
        // SAFETY: the symbols of this library have these types.
        unsafe {
            Ok(Image {
                variables,
                fresh,
                start: std::mem::transmute::<*mut c_void, Start>(start),
                end: std::mem::transmute::<*mut c_void, unsafe extern "C" fn()>(symbol(
                    handle,
                    c"shunt_sim_end",
                )?),
                fork: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(c_int)>(symbol(
                    handle,
                    c"shunt_sim_fork",
                )?),
                counts: std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> *const u64>(symbol(
                    handle,
                    c"shunt_sim_counts",
                )?),
                calls: Calls::of(&|name| hook(handle, name, variables.0, libc))?,
            })
        }
    }

    /// What it has counted (`sockets/src/report.rs`): connections in memory, and reasons for TCP.
    pub fn counts(&self) -> [u64; COUNTS] {
        // SAFETY: the function reads nothing that another thread writes, as none runs now; a page
        // is there.
        unsafe { *(self.counts)().cast() }
    }

    /// The variables as they are.
    pub fn variables(&self) -> Vec<u8> {
        // SAFETY: the part is mapped, and no thread of the process runs now.
        unsafe { std::slice::from_raw_parts(self.variables.0, self.variables.1) }.to_vec()
    }

    /// Gives them other values.
    pub fn set_variables(&self, bytes: &[u8]) {
        // SAFETY: no thread of the process runs now; no more is written than there is.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.variables.0, bytes.len().min(self.variables.1))
        }
    }

    /// Puts the variables back to what they were when the copy was loaded.
    pub fn reset(&self) {
        // SAFETY: no thread of the process exists any more; the part is as long as what was copied
        // from it.
        unsafe { std::ptr::copy_nonoverlapping(self.fresh.as_ptr(), self.variables.0, self.variables.1) }
    }
}

/// Finds a function of the simulated libc by its name; null if there is none.
pub type Libc = fn(&CStr) -> *mut c_void;

/// So many words of counts.
pub const COUNTS: usize = 80;

fn copy_of(library: &Path, number: usize) -> io::Result<PathBuf> {
    let copy = std::env::temp_dir().join(format!("shunt-sim-{}-{number}.so", std::process::id()));
    std::fs::copy(library, &copy)?;
    Ok(copy)
}

fn symbol(handle: *mut c_void, name: &CStr) -> io::Result<*mut c_void> {
    // SAFETY: the handle is a library's, the name a C string.
    match unsafe { libc::dlsym(handle, name.as_ptr()) } {
        at if at.is_null() => Err(io::Error::other(format!(
            "{name:?} is missing: the library must be built with --cfg sim (make sim)"
        ))),
        at => Ok(at),
    }
}

/// The library's function of this name or, where it has none, the simulated libc's. The loader
/// looks a name up in the real libc, too.
fn hook(handle: *mut c_void, name: &CStr, inside: *mut u8, libc: Libc) -> io::Result<*mut c_void> {
    let file_of = |address: *mut c_void| {
        // SAFETY: zeroes are a valid Dl_info, which dladdr fills.
        unsafe {
            let mut info: libc::Dl_info = std::mem::zeroed();
            libc::dladdr(address, &raw mut info);
            info.dli_fbase
        }
    };
    let at = symbol(handle, name)?;
    if file_of(at) == file_of(inside.cast()) {
        return Ok(at);
    }
    match libc(name) {
        at if at.is_null() => {
            Err(io::Error::other(format!("neither the library nor the simulated libc has {name:?}")))
        }
        at => Ok(at),
    }
}

/// The writable part, without what the loader makes read-only, of the library that has this
/// address.
fn variables_around(address: usize) -> Option<(*mut u8, usize)> {
    struct Search {
        address: usize,
        found: Option<(usize, usize)>,
    }
    unsafe extern "C" fn each(info: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> c_int {
        // SAFETY: the loader passes a valid info, and our search back to us.
        let (info, search) = unsafe { (&*info, &mut *search.cast::<Search>()) };
        // SAFETY: so many headers are there.
        let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
        let range = |header: &libc::Elf64_Phdr| {
            let start = info.dlpi_addr as usize + header.p_vaddr as usize;
            start..start + header.p_memsz as usize
        };
        let loads = || headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
        if !loads().any(|header| range(header).contains(&search.address)) {
            return 0;
        }
        let sealed = headers.iter().find(|header| header.p_type == libc::PT_GNU_RELRO).map(range);
        search.found = loads()
            .filter(|header| header.p_flags & libc::PF_W != 0)
            .map(range)
            .find(|range| sealed.as_ref().is_none_or(|sealed| !sealed.contains(&range.start)))
            .map(|range| (range.start, range.len()));
        1
    }
    let mut search = Search { address, found: None };
    // SAFETY: the search lives until the call returns.
    unsafe { libc::dl_iterate_phdr(Some(each), (&raw mut search).cast()) };
    search.found.map(|(start, len)| (start as *mut u8, len))
}

macro_rules! calls {
    ($($name:ident($($type:ty),*) -> $result:ty;)*) => {
        /// The functions that simulated programs call: the library's, or the simulator's libc.
        #[derive(Clone, Copy)]
        pub struct Calls {
            $(pub $name: unsafe extern "C-unwind" fn($($type),*) -> $result,)*
        }
        impl Calls {
            /// From what finds a function by its name.
            ///
            /// # Safety
            /// The functions found have libc's types.
            pub unsafe fn of(find: &dyn Fn(&CStr) -> io::Result<*mut c_void>) -> io::Result<Calls> {
                Ok(Calls {
                    $($name: {
                        let name = CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes());
                        let at = find(name.expect("no NUL inside"))?;
                        // SAFETY: the caller vouches for the type.
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn($($type),*) -> $result>(at) }
                    },)*
                })
            }
        }
    };
}

calls! {
    socket(c_int, c_int, c_int) -> c_int;
    bind(c_int, *const libc::sockaddr, libc::socklen_t) -> c_int;
    listen(c_int, c_int) -> c_int;
    accept4(c_int, *mut libc::sockaddr, *mut libc::socklen_t, c_int) -> c_int;
    connect(c_int, *const libc::sockaddr, libc::socklen_t) -> c_int;
    read(c_int, *mut u8, usize) -> isize;
    write(c_int, *const u8, usize) -> isize;
    readv(c_int, *const libc::iovec, c_int) -> isize;
    writev(c_int, *const libc::iovec, c_int) -> isize;
    recv(c_int, *mut u8, usize, c_int) -> isize;
    send(c_int, *const u8, usize, c_int) -> isize;
    recvmsg(c_int, *mut libc::msghdr, c_int) -> isize;
    sendmsg(c_int, *const libc::msghdr, c_int) -> isize;
    close(c_int) -> c_int;
    shutdown(c_int, c_int) -> c_int;
    dup(c_int) -> c_int;
    execve(*const c_char, *const *const c_char, *const *const c_char) -> c_int;
    fcntl(c_int, c_int, usize) -> c_int;
    poll(*mut libc::pollfd, usize, c_int) -> c_int;
    epoll_create1(c_int) -> c_int;
    epoll_ctl(c_int, c_int, c_int, *mut libc::epoll_event) -> c_int;
    epoll_wait(c_int, *mut libc::epoll_event, c_int, c_int) -> c_int;
    setsockopt(c_int, c_int, c_int, *const c_void, libc::socklen_t) -> c_int;
    getsockopt(c_int, c_int, c_int, *mut c_void, *mut libc::socklen_t) -> c_int;
    sigaction(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;
    eventfd(u32, c_int) -> c_int;
    socketpair(c_int, c_int, c_int, *mut c_int) -> c_int;
}

/// The functions for a program that runs without the library.
pub fn plain(libc: Libc) -> io::Result<Calls> {
    let find_or_say = |name: &CStr| match libc(name) {
        at if at.is_null() => Err(io::Error::other(format!("the simulated libc has no {name:?}"))),
        at => Ok(at),
    };
    // SAFETY: the functions above have libc's types, but for pointers' targets.
    unsafe { Calls::of(&find_or_say) }
}
