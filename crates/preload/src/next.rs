//! libc's own functions behind the hooks, found when first needed: another library's constructor
//! may call a hook before ours ran.

use core::ffi::CStr;
use fabric::sync::{AtomicUsize, Ordering};
use fabric::sys::Errno;
use sockets::errno;

use crate::older;

/// The address of the next definition of a symbol.
pub struct Next {
    name: &'static CStr,
    /// Stands for it where there is none.
    missing: unsafe extern "C" fn() -> isize,
    at: AtomicUsize,
}

impl Next {
    pub const fn new(name: &'static CStr) -> Next {
        Next { name, missing: minus_one, at: AtomicUsize::new(0) }
    }

    /// One that returns a pointer, null where it fails.
    pub const fn pointer(name: &'static CStr) -> Next {
        Next { name, missing: null, at: AtomicUsize::new(0) }
    }

    #[inline(always)]
    pub fn get(&self) -> usize {
        let at = self.at.load(Ordering::Relaxed);
        if at != 0 { at } else { self.find() }
    }

    #[cold]
    fn find(&self) -> usize {
        let mut at = behind(self.name);
        if at == 0 {
            at = older::call(self.name).unwrap_or(self.missing as *const () as usize);
        }
        self.at.store(at, Ordering::Relaxed);
        at
    }
}

/// libc's function of this name, or the simulator's; 0 if there is none.
pub fn behind(name: &CStr) -> usize {
    #[cfg(sim)]
    return fabric::sim::next(name) as usize;
    #[cfg(not(sim))]
    // SAFETY: the name is a C string.
    unsafe {
        libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) as usize
    }
}

unsafe extern "C" fn minus_one() -> isize {
    errno::set(libc::ENOSYS);
    -1
}

unsafe extern "C" fn null() -> isize {
    errno::set(libc::ENOSYS);
    0
}

/// What a call returns: the value, or -1 with errno set.
#[inline(always)]
pub fn answer(result: Result<usize, Errno>) -> isize {
    match result {
        Ok(value) => value as isize,
        Err(errno) => {
            errno::set(errno.into_raw());
            -1
        }
    }
}

/// Defines hooks. The first name in the parentheses is libc's own function inside the body.
macro_rules! hooks {
    ($($(#[$attr:meta])* fn $name:ident($next:ident; $($arg:ident: $type:ty),* $(,)?) $(-> $ret:ty)? $body:block)*) => {$(
        $(#[$attr])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($arg: $type),*) $(-> $ret)? {
            static NEXT: $crate::next::Next = $crate::next::Next::new($crate::next::name(
                concat!(stringify!($name), "\0"),
            ));
            // SAFETY: libc's function of this name has this type, and the caller keeps its
            // contract, on which the body relies.
            unsafe {
                #[allow(unused_variables)]
                let $next = core::mem::transmute::<usize, unsafe extern "C-unwind" fn($($type),*) $(-> $ret)?>(NEXT.get());
                $body
            }
        }
    )*};
}
pub(crate) use hooks;

/// A symbol's name as C has it.
pub const fn name(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("no NUL at the end"),
    }
}
