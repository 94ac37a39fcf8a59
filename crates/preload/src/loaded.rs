//! The libraries that are loaded, as the dynamic linker describes them in memory: found without it,
//! because a program whose libc is older than glibc 2.34 may have no dlsym().

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ops::Range;
use core::{mem, ptr};
use fabric::sys::{self, Errno};

/// A function of this name, of the libraries behind us in the order of symbols, else of any other;
/// 0 if none has it.
pub fn find(name: &CStr) -> usize {
    struct Wanted<'a> {
        name: &'a CStr,
        behind: bool,
        found: [usize; 2],
    }
    unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _: usize, wanted: *mut c_void) -> c_int {
        // SAFETY: dl_iterate_phdr() gives what describes a library, and our argument.
        unsafe {
            let wanted = &mut *wanted.cast::<Wanted>();
            let Some(library) = Library::described(&*info) else { return 0 };
            if library.mapped.contains(&(find as *const () as usize)) {
                wanted.behind = true;
                return 0;
            }
            let found = &mut wanted.found[usize::from(!wanted.behind)];
            if *found == 0 {
                *found = library.defined(wanted.name).unwrap_or(0);
            }
            c_int::from(wanted.found[0] != 0)
        }
    }
    let mut wanted = Wanted { name, behind: false, found: [0; 2] };
    // SAFETY: the function only looks at what it is given.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut wanted).cast()) };
    if wanted.found[0] != 0 { wanted.found[0] } else { wanted.found[1] }
}

/// Where the file begins that this address belongs to; 0 if it belongs to none.
pub fn file_of(address: *const c_void) -> usize {
    Library::with(address).map_or(0, |library| library.base)
}

/// A library that is loaded.
pub struct Library {
    /// What its own addresses are relative to.
    pub address: usize,
    /// Where its file begins.
    pub base: usize,
    pub mapped: Range<usize>,
    /// What the dynamic linker has made read-only when it had written it.
    pub readonly: Range<usize>,
    dynamic: *const Dynamic,
}

impl Library {
    /// The one that a handle of dlopen() stands for.
    ///
    /// # Safety
    /// The handle is open.
    pub unsafe fn of(handle: *mut c_void) -> Option<Library> {
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
    pub fn with(address: *const c_void) -> Option<Library> {
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
    pub unsafe fn described(info: &libc::dl_phdr_info) -> Option<Library> {
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

    pub fn entry(&self, tag: i64) -> Option<usize> {
        self.entries().find(|entry| entry.tag == tag).map(|entry| entry.value)
    }

    /// An entry that is an address: the dynamic linker has made it absolute, on most machines.
    fn table(&self, tag: i64) -> Option<usize> {
        self.entry(tag).map(|at| if at < self.address { at + self.address } else { at })
    }

    pub fn relocations(&self) -> impl Iterator<Item = &Relocation> {
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
    pub fn name(&self, symbol: usize) -> &CStr {
        self.string(self.symbol(symbol).name as usize)
    }

    fn string(&self, offset: usize) -> &CStr {
        // SAFETY: the library's own words say where its strings are, each of which ends.
        unsafe { CStr::from_ptr((self.table(DT_STRTAB).unwrap_or(0) + offset) as *const c_char) }
    }

    pub fn needed(&self) -> impl Iterator<Item = &CStr> {
        self.entries().filter(|entry| entry.tag == DT_NEEDED).map(|entry| self.string(entry.value))
    }

    /// The address of a function that it defines, in the version that is meant if none is named, by
    /// its hash table (DT_GNU_HASH).
    pub fn defined(&self, name: &CStr) -> Option<usize> {
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
                if other | 1 == hash | 1
                    && self.string(symbol.name as usize) == name
                    && self.version(index) & HIDDEN == 0
                {
                    return Some(self.function(symbol));
                }
                if other & 1 != 0 {
                    break;
                }
                index += 1;
            }
        }
        None
    }

    fn version(&self, symbol: usize) -> u16 {
        // SAFETY: where there is a table of versions, it has one of each symbol.
        self.table(DT_VERSYM).map_or(0, |table| unsafe { *(table as *const u16).add(symbol) })
    }

    fn function(&self, symbol: Symbol) -> usize {
        let at = self.address + symbol.value as usize;
        if symbol.kind & 15 != INDIRECT {
            return at;
        }
        // SAFETY: such a symbol is a function of what the processor can do, as the kernel says it.
        unsafe {
            let chooses: unsafe extern "C" fn(u64) -> usize = mem::transmute(at);
            chooses(libc::getauxval(libc::AT_HWCAP))
        }
    }

    /// Changes the protection of what is read-only.
    ///
    /// # Safety
    /// Nothing writes there afterwards that needs it writable.
    pub unsafe fn protect(&self, protection: c_int) -> Result<(), Errno> {
        sys::mprotect(self.readonly.start as *mut u8, self.readonly.len(), protection)
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
pub struct Relocation {
    pub offset: usize,
    pub info: u64,
    pub addend: isize,
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
pub const DT_RPATH: i64 = 15;
const DT_JMPREL: i64 = 23;
pub const DT_RUNPATH: i64 = 29;
const DT_GNU_HASH: i64 = 0x6fff_fef5;
const DT_VERSYM: i64 = 0x6fff_fff0;

/// Of the version of a symbol: who names none does not mean this one.
const HIDDEN: u16 = 0x8000;
/// The type of a symbol whose address is a function that says where the function is.
const INDIRECT: u8 = 10;
