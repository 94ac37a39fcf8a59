//! Binds a library that was loaded with RTLD_DEEPBIND to our hooks. The dynamic linker has looked
//! its symbols up in the library itself and in what it needs, libc among them, before it came to
//! us. So wherever a slot of its tables has libc's function, ours is put there.
//!
//! Slots that are bound when they are first called have no function yet; ours is put there, too. A
//! function that the library, or one that it needs, defines itself stays.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ops::Range;
use core::{mem, ptr};
use fabric::sys;

use crate::next::behind;
use crate::start::file_of;

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
        let binder = Binder { handle, ours: Library::with(bind as *const c_void).ok_or(Past)? };
        let libc = file_of(behind(c"send") as *const c_void);
        while begun < len {
            let library = Library::of(found[begun]);
            begun += 1;
            let Some(library) = library else {
                done = Err(Past);
                break;
            };
            if library.base == libc || library.base == binder.ours.base {
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

struct Binder {
    handle: *mut c_void,
    ours: Library,
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
                    done = library.protect(libc::PROT_READ | libc::PROT_WRITE);
                    if done.is_err() {
                        break;
                    }
                }
                // A thread that calls it reads the one or the other.
                fabric::sync::AtomicUsize::from_ptr(slot).store(new, fabric::sync::Ordering::Relaxed);
            }
            if writable {
                done = done.and(library.protect(libc::PROT_READ));
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
        if next == 0 || found != next {
            return Slot::Stays; // Its own, or none.
        }
        if function == next {
            return Slot::Past;
        }
        if library.mapped.contains(&value) {
            // Nobody knows for which of the two it would be bound, if the program has its own.
            return if seen == ours { Slot::Past } else { Slot::Unknown };
        }
        // Another version of libc's, perhaps.
        let [file, libc] = [function, next].map(|it| file_of(it as *const c_void));
        if file == libc { Slot::Unknown } else { Slot::Stays }
    }
}

enum Slot {
    Stays,
    Past,
    Unknown,
}

/// A library that is loaded.
struct Library {
    /// What its own addresses are relative to.
    address: usize,
    /// Where its file begins.
    base: usize,
    mapped: Range<usize>,
    /// What the dynamic linker has made read-only when it had written it.
    readonly: Range<usize>,
    dynamic: *const Dynamic,
}

impl Library {
    /// The one that a handle of dlopen() stands for.
    ///
    /// # Safety
    /// The handle is open.
    unsafe fn of(handle: *mut c_void) -> Option<Library> {
        let mut map: *const LinkMap = ptr::null();
        // SAFETY: the caller vouches for the handle; the library's description lives as long.
        unsafe {
            if libc::dlinfo(handle, libc::RTLD_DI_LINKMAP, (&raw mut map).cast()) != 0 {
                return None;
            }
            Library::with((*map).dynamic.cast())
        }
    }

    /// The one that has this address.
    fn with(address: *const c_void) -> Option<Library> {
        struct Wanted {
            address: usize,
            library: Option<Library>,
        }
        unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _: usize, wanted: *mut c_void) -> c_int {
            // SAFETY: dl_iterate_phdr() gives what describes a library, and our argument.
            unsafe {
                let wanted = &mut *wanted.cast::<Wanted>();
                wanted.library = Library::described(&*info).filter(|it| it.mapped.contains(&wanted.address));
                c_int::from(wanted.library.is_some())
            }
        }
        let mut wanted = Wanted { address: address as usize, library: None };
        // SAFETY: the function only looks at what it is given.
        unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut wanted).cast()) };
        wanted.library
    }

    /// # Safety
    /// As dl_iterate_phdr() describes it.
    unsafe fn described(info: &libc::dl_phdr_info) -> Option<Library> {
        let address = info.dlpi_addr as usize;
        // SAFETY: the program headers are there.
        let headers = unsafe { core::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
        let range = |header: &libc::Elf64_Phdr| {
            let begin = address + header.p_vaddr as usize;
            begin..begin + header.p_memsz as usize
        };
        let first = |kind| headers.iter().find(|header| header.p_type == kind).map(range);
        let loaded = || headers.iter().filter(|header| header.p_type == libc::PT_LOAD).map(range);
        let mapped = loaded().map(|it| it.start).min()?..loaded().map(|it| it.end).max()?;
        // SAFETY: asks for a number.
        let page = unsafe { libc::getauxval(libc::AT_PAGESZ) } as usize;
        Some(Library {
            address,
            base: mapped.start / page * page,
            mapped,
            readonly: first(libc::PT_GNU_RELRO)
                .map_or(0..0, |it| it.start / page * page..it.end / page * page),
            dynamic: first(libc::PT_DYNAMIC)?.start as *const Dynamic,
        })
    }

    fn entries(&self) -> impl Iterator<Item = Dynamic> {
        // SAFETY: a library's entries, which end with one of zeroes, are mapped as long as it is.
        (0..).map(|i| unsafe { *self.dynamic.add(i) }).take_while(|entry| entry.tag != 0)
    }

    fn entry(&self, tag: i64) -> Option<usize> {
        self.entries().find(|entry| entry.tag == tag).map(|entry| entry.value)
    }

    /// An entry that is an address: the dynamic linker has made it absolute, on most machines.
    fn table(&self, tag: i64) -> Option<usize> {
        self.entry(tag).map(|at| if at < self.address { at + self.address } else { at })
    }

    fn relocations(&self) -> impl Iterator<Item = &Relocation> {
        let table = |tag, size| {
            let begin = self.table(tag).unwrap_or(0) as *const Relocation;
            let len = self.entry(size).unwrap_or(0) / size_of::<Relocation>();
            // SAFETY: the library's own words say where they are, and how many.
            (0..if begin.is_null() { 0 } else { len }).map(move |i| unsafe { &*begin.add(i) })
        };
        table(DT_RELA, DT_RELASZ).chain(table(DT_JMPREL, DT_PLTRELSZ))
    }

    fn symbol(&self, index: usize) -> Symbol {
        // SAFETY: the library's own words say where its symbols are.
        unsafe { *(self.table(DT_SYMTAB).unwrap_or(0) as *const Symbol).add(index) }
    }

    /// The name of a symbol.
    fn name(&self, symbol: usize) -> &CStr {
        self.string(self.symbol(symbol).name as usize)
    }

    fn string(&self, offset: usize) -> &CStr {
        // SAFETY: the library's own words say where its strings are, each of which ends.
        unsafe { CStr::from_ptr((self.table(DT_STRTAB).unwrap_or(0) + offset) as *const c_char) }
    }

    fn needed(&self) -> impl Iterator<Item = &CStr> {
        self.entries().filter(|entry| entry.tag == DT_NEEDED).map(|entry| self.string(entry.value))
    }

    /// The address of a function that it defines, by its hash table (DT_GNU_HASH).
    fn defined(&self, name: &CStr) -> Option<usize> {
        let hash = name
            .to_bytes()
            .iter()
            .fold(5381_u32, |hash, byte| hash.wrapping_mul(33).wrapping_add(u32::from(*byte)));
        let table = self.table(DT_GNU_HASH)? as *const u32;
        // SAFETY: words as the linker has made them: the number of buckets, the first symbol that
        // is in one, the number of words (of 8 bytes) of the filter; filter, buckets, hashes.
        unsafe {
            let [buckets, first, filter] = [0, 1, 2].map(|i| *table.add(i) as usize);
            let bucket = table.add(4 + 2 * filter);
            let hashes = bucket.add(buckets);
            let mut index = *bucket.add(hash as usize % buckets.max(1)) as usize;
            while index >= first {
                let other = *hashes.add(index - first);
                let symbol = self.symbol(index);
                if other | 1 == hash | 1 && self.string(symbol.name as usize) == name {
                    return Some(self.address + symbol.value as usize);
                }
                if other & 1 != 0 {
                    break;
                }
                index += 1;
            }
        }
        None
    }

    /// Changes the protection of what is read-only.
    ///
    /// # Safety
    /// Nothing writes there afterwards that needs it writable.
    unsafe fn protect(&self, protection: c_int) -> Result<(), Past> {
        sys::mprotect(self.readonly.start as *mut u8, self.readonly.len(), protection).map_err(|_| Past)
    }
}

/// What the dynamic linker says of a library (<link.h>).
#[repr(C)]
struct LinkMap {
    address: usize,
    name: *const c_char,
    dynamic: *const Dynamic,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Dynamic {
    tag: i64,
    value: usize,
}

#[repr(C)]
struct Relocation {
    offset: usize,
    info: u64,
    addend: isize,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Symbol {
    name: u32,
    kind: u8,
    visibility: u8,
    section: u16,
    value: u64,
    size: u64,
}

const DT_NEEDED: i64 = 1;
const DT_PLTRELSZ: i64 = 2;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_RELA: i64 = 7;
const DT_RELASZ: i64 = 8;
const DT_RPATH: i64 = 15;
const DT_JMPREL: i64 = 23;
const DT_RUNPATH: i64 = 29;
const DT_GNU_HASH: i64 = 0x6fff_fef5;

/// The types of relocations that are the address of a function: as a value, in a table, in the
/// table of calls.
#[cfg(target_arch = "x86_64")]
const FUNCTIONS: [u32; 3] = [1, 6, 7];
#[cfg(target_arch = "aarch64")]
const FUNCTIONS: [u32; 3] = [257, 1025, 1026];
