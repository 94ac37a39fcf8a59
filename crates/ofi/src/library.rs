//! libfabric, opened when it is first needed: where it is missing, nothing of Shunt but this fails.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::net::IpAddr;
use std::sync::OnceLock;
use std::{mem, ptr};

use crate::abi::{self, Fabric, FabricAttr, Info};
use crate::error::{Error, Missing};

/// The oldest version that has all that is used: since then the tcp provider has reliable-connected
/// endpoints that write with completion data.
const OLDEST: u32 = 1 << 16 | 17;
#[cfg(not(sim))]
const NAME: &CStr = c"libfabric.so.1";

type GetInfo =
    unsafe extern "C" fn(u32, *const c_char, *const c_char, u64, *const Info, *mut *mut Info) -> c_int;
type FreeInfo = unsafe extern "C" fn(*mut Info);
type DupInfo = unsafe extern "C" fn(*const Info) -> *mut Info;
type OpenFabric = unsafe extern "C" fn(*mut FabricAttr, *mut *mut Fabric, *mut c_void) -> c_int;
type StrError = unsafe extern "C" fn(c_int) -> *const c_char;
type Version = extern "C" fn() -> u32;

/// The functions of libfabric that are no inline functions in C.
pub struct Library {
    pub(crate) getinfo: GetInfo,
    pub(crate) freeinfo: FreeInfo,
    pub(crate) dupinfo: DupInfo,
    pub(crate) fabric: OpenFabric,
    strerror: StrError,
    version: u32,
}

impl Library {
    /// The library of this process.
    pub fn get() -> Result<&'static Library, Missing> {
        static LIBRARY: OnceLock<Result<Library, Missing>> = OnceLock::new();
        LIBRARY.get_or_init(open).as_ref().map_err(Clone::clone)
    }

    /// Its version: major and minor.
    pub fn version(&self) -> (u32, u32) {
        (self.version >> 16, self.version & 0xffff)
    }

    /// libfabric's text for an error, a positive number.
    pub(crate) fn text(&self, error: c_int) -> String {
        // SAFETY: it has a text for every number, which stays.
        let text = unsafe { CStr::from_ptr((self.strerror)(error)) };
        text.to_string_lossy().into_owned()
    }

    /// The error that this call of it failed.
    pub(crate) fn error(&self, what: &'static str, error: c_int) -> Error {
        Error::Call { what, error, text: self.text(error) }
    }

    /// Checks what a call of it has returned: a count, or an error below zero.
    pub(crate) fn check(&self, what: &'static str, result: isize) -> Result<usize, Error> {
        usize::try_from(result).map_err(|_| self.error(what, -result as c_int))
    }
}

#[cfg(not(sim))]
fn handle() -> Result<*mut c_void, Missing> {
    let flags = libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_NODELETE;
    // SAFETY: a constant name; libfabric's constructors run as in any program that is linked with
    // it.
    let handle = unsafe { libc::dlopen(NAME.as_ptr(), flags) };
    if handle.is_null() {
        return Err(Missing(format!(
            "{}: install libfabric (Debian: apt-get install libfabric1), {}.{} or later",
            last_error(),
            OLDEST >> 16,
            OLDEST & 0xffff
        )));
    }
    Ok(handle)
}

#[cfg(not(sim))]
fn symbol(handle: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: the handle is open and stays so.
    unsafe { libc::dlsym(handle, name.as_ptr()) }
}

/// The simulator has the functions.
#[cfg(sim)]
fn handle() -> Result<*mut c_void, Missing> {
    Ok(ptr::null_mut())
}

#[cfg(sim)]
fn symbol(_: *mut c_void, name: &CStr) -> *mut c_void {
    fabric::sim::next(name).cast_mut()
}

fn open() -> Result<Library, Missing> {
    let handle = handle()?;
    let find = |name: &CStr| {
        let at = symbol(handle, name);
        if at.is_null() { Err(Missing(last_error())) } else { Ok(at) }
    };
    let version = find(c"fi_version")?;
    // SAFETY: libfabric's fi_version() has this type, takes nothing and changes nothing.
    let version = unsafe { mem::transmute::<*mut c_void, Version>(version)() };
    if version < OLDEST {
        return Err(Missing(format!(
            "libfabric here is {}.{}, and links need {}.{} or later",
            version >> 16,
            version & 0xffff,
            OLDEST >> 16,
            OLDEST & 0xffff
        )));
    }
    // SAFETY: the functions have these types in all versions from the oldest on: their symbols are
    // versioned, and structures only grow at their ends.
    unsafe {
        Ok(Library {
            getinfo: mem::transmute::<*mut c_void, GetInfo>(find(c"fi_getinfo")?),
            freeinfo: mem::transmute::<*mut c_void, FreeInfo>(find(c"fi_freeinfo")?),
            dupinfo: mem::transmute::<*mut c_void, DupInfo>(find(c"fi_dupinfo")?),
            fabric: mem::transmute::<*mut c_void, OpenFabric>(find(c"fi_fabric")?),
            strerror: mem::transmute::<*mut c_void, StrError>(find(c"fi_strerror")?),
            version,
        })
    }
}

fn last_error() -> String {
    // SAFETY: the text is this thread's until its next call of these functions.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "the dynamic linker does not say why".into();
    }
    // SAFETY: as above.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// A list of descriptions, which is freed when this is dropped.
pub(crate) struct Infos(&'static Library, *mut Info);

// SAFETY: the list is only read, and libfabric's own threads have no part in it.
unsafe impl Send for Infos {}
// SAFETY: as above.
unsafe impl Sync for Infos {}

impl Infos {
    /// The domains that match the hints, which `wish` writes into an empty description, and that
    /// `source`, an address of this host, can use.
    pub fn ask(
        library: &'static Library,
        source: Option<IpAddr>,
        wish: impl FnOnce(&mut Info),
    ) -> Result<Infos, c_int> {
        // SAFETY: fi_allocinfo() is this call with nothing; the result has all its parts, zeroed.
        let hints = Infos(library, unsafe { (library.dupinfo)(ptr::null()) });
        if hints.1.is_null() {
            return Err(libc::ENOMEM);
        }
        // SAFETY: it was just made, and is nobody else's.
        wish(unsafe { &mut *hints.1 });
        let mut found = ptr::null_mut();
        let source = source.map(|at| CString::new(at.to_string()).expect("no address has a zero in it"));
        let (node, service, flags) = match &source {
            // Any port.
            Some(at) => (at.as_ptr(), c"0".as_ptr(), abi::SOURCE | abi::NUMERICHOST),
            None => (ptr::null(), ptr::null(), 0),
        };
        // SAFETY: hints are as fi_getinfo() wants them, names C strings or null; it writes the head
        // of a list that is ours to free.
        let result = unsafe { (library.getinfo)(abi::VERSION, node, service, flags, hints.1, &mut found) };
        if result == 0 { Ok(Infos(library, found)) } else { Err(-result) }
    }

    /// Takes over a description that libfabric gave.
    pub fn given(library: &'static Library, info: *mut Info) -> Infos {
        Infos(library, info)
    }

    /// A copy of one description of a list.
    pub fn copy(&self, of: *const Info) -> Result<Infos, Error> {
        // SAFETY: `of` is an element of a list that lives.
        let copy = unsafe { (self.0.dupinfo)(of) };
        if copy.is_null() { Err(Error::Memory(libc::ENOMEM)) } else { Ok(Infos(self.0, copy)) }
    }

    pub fn first(&self) -> *mut Info {
        self.1
    }

    /// All descriptions of the list.
    pub fn each(&self) -> impl Iterator<Item = *mut Info> {
        let first = (!self.1.is_null()).then_some(self.1);
        std::iter::successors(first, |&at| {
            // SAFETY: an element of the list, which lives as long as self.
            let next = unsafe { (*at).next };
            (!next.is_null()).then_some(next)
        })
    }
}

impl Drop for Infos {
    fn drop(&mut self) {
        if !self.1.is_null() {
            // SAFETY: ours, and freed once.
            unsafe { (self.0.freeinfo)(self.1) };
        }
    }
}
