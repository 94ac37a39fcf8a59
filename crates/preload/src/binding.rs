//! Binds a library that was loaded with RTLD_DEEPBIND to our hooks. The dynamic linker has looked
//! its symbols up in the library itself and in what it needs, libc among them, before it came to
//! us. So wherever a slot of its tables has libc's function, ours is put there.
//!
//! Slots that are bound when they are first called have no function yet; ours is put there, too. A
//! function that the library, or one that it needs, defines itself stays.

use core::ffi::{CStr, c_int, c_void};
use core::{mem, ptr};

use crate::loaded::{DT_RPATH, DT_RUNPATH, Library, file_of};
use crate::next::behind;

/// Something cannot be bound to us.
pub struct Past;

/// Binds a library that dlopen() has returned, and those that it needs. A thread that is about to
/// bind a slot itself may undo ours.
///
/// # Safety
/// The handle is dlopen()'s, and open.
pub unsafe fn bind(handle: *mut c_void) -> Result<(), Past> {
    let mut found = [ptr::null_mut(); LIBRARIES];
    found[0] = handle;
    let (mut begun, mut len) = (0, 1);
    let mut done = Ok(());
    // SAFETY: the caller vouches for the handle; what a library needs is there as long as it is.
    unsafe {
        let ours = Library::with(bind as *const c_void).ok_or(Past)?;
        let binder =
            Binder { handle, ours, libc: [behind(c"gnu_get_libc_version"), behind(c"send")].map(file_with) };
        while begun < len {
            let library = Library::of(found[begun]);
            begun += 1;
            let Some(library) = library else {
                done = Err(Past);
                break;
            };
            if binder.libc.contains(&library.base) || library.base == binder.ours.base {
                continue;
            }
            done = done.and(binder.bind(&library));
            for name in library.needed() {
                // It is loaded, so nothing is searched for.
                let needed = libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
                let known = found[..len].contains(&needed);
                if needed.is_null() || !known && len == LIBRARIES {
                    done = Err(Past);
                } else if !known {
                    found[len] = needed;
                    len += 1;
                    continue;
                }
                if !needed.is_null() {
                    libc::dlclose(needed);
                }
            }
        }
        for needed in &found[1..len] {
            libc::dlclose(*needed);
        }
        // There is none to be told of, as behind a dlopen() that has succeeded.
        libc::dlerror();
    }
    done
}

/// As many libraries as one may need.
const LIBRARIES: usize = 512;

/// Whether where a library is searched depends on who loads it, even by a path: whether one that is
/// loaded has the old kind of search path (DT_RPATH), which holds for what it loads and for what
/// that needs. The program's own holds in any case.
pub fn depends_on_caller() -> bool {
    unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _: usize, program: *mut c_void) -> c_int {
        // SAFETY: dl_iterate_phdr() gives what describes a library, and our argument.
        unsafe {
            let (info, first) = (&*info, &mut *program.cast::<bool>());
            let is_program = mem::take(first);
            let library = Library::described(info);
            let old =
                |library: Library| library.entry(DT_RPATH).is_some() && library.entry(DT_RUNPATH).is_none();
            c_int::from(!is_program && library.is_some_and(old))
        }
    }
    let mut first = true;
    // SAFETY: the function only looks at what it is given.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut first).cast()) != 0 }
}

fn file_with(function: usize) -> usize {
    file_of(function as *const c_void)
}

struct Binder {
    handle: *mut c_void,
    ours: Library,
    /// The files of libc, and of libpthread, which before glibc 2.34 had many of its functions as
    /// well. If it is not loaded, libc's twice.
    libc: [usize; 2],
}

impl Binder {
    /// Binds one library.
    ///
    /// # Safety
    /// It is relocated.
    unsafe fn bind(&self, library: &Library) -> Result<(), Past> {
        let mut writable = false;
        let mut done = Ok(());
        // SAFETY: the dynamic linker has used these tables for the same slots.
        unsafe {
            for relocation in library.relocations() {
                if !FUNCTIONS.contains(&(relocation.info as u32)) {
                    continue;
                }
                let name = library.name((relocation.info >> 32) as usize);
                let Some(ours) = self.ours.defined(name) else { continue };
                let slot = (library.address + relocation.offset) as *mut usize;
                let new = ours.wrapping_add_signed(relocation.addend);
                match self.goes_past(library, name, *slot, new, relocation.addend) {
                    Slot::Stays => continue,
                    Slot::Past => {}
                    Slot::Unknown => {
                        done = Err(Past);
                        break;
                    }
                }
                if library.readonly.contains(&(slot as usize)) && !mem::replace(&mut writable, true) {
                    done = library.protect(libc::PROT_READ | libc::PROT_WRITE).map_err(|_| Past);
                    if done.is_err() {
                        break;
                    }
                }
                // A thread that calls it reads the one or the other.
                fabric::sync::AtomicUsize::from_ptr(slot).store(new, fabric::sync::Ordering::Relaxed);
            }
            if writable {
                done = done.and(library.protect(libc::PROT_READ).map_err(|_| Past));
            }
        }
        done
    }

    /// What a slot has for a function that we define.
    fn goes_past(&self, library: &Library, name: &CStr, value: usize, ours: usize, addend: isize) -> Slot {
        if value == ours {
            return Slot::Stays;
        }
        let function = value.wrapping_add_signed(-addend);
        let next = behind(name);
        // SAFETY: the handle is open, and the name is a C string.
        let (found, seen) = unsafe {
            (
                libc::dlsym(self.handle, name.as_ptr()) as usize,
                libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) as usize,
            )
        };
        if next == 0 || found != next && !self.libc.contains(&file_with(found)) {
            return Slot::Stays; // Its own, or none.
        }
        if [next, found].contains(&function) {
            return Slot::Past;
        }
        if library.mapped.contains(&value) {
            // Nobody knows for which of the two it would be bound, if the program has its own.
            return if seen == ours { Slot::Past } else { Slot::Unknown };
        }
        // Another version of libc's, perhaps.
        let file = file_with(function);
        if file == file_with(next) || self.libc.contains(&file) { Slot::Unknown } else { Slot::Stays }
    }
}

enum Slot {
    Stays,
    Past,
    Unknown,
}

/// The types of relocations that are the address of a function: as a value, in a table, in the
/// table of calls.
#[cfg(target_arch = "x86_64")]
const FUNCTIONS: [u32; 3] = [1, 6, 7];
#[cfg(target_arch = "aarch64")]
const FUNCTIONS: [u32; 3] = [257, 1025, 1026];
