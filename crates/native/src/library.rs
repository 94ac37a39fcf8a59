//! Finds libshunt.so, and decides, once for a process, which functions carry out the calls. A file
//! is examined before it is loaded, as its constructor cannot be undone. A process never gets two
//! libraries, whichever part of it loads the second.

use std::ffi::{CStr, CString, OsStr, OsString, c_int, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{self, PathBuf};
use std::sync::OnceLock;
use std::{env, fmt, ptr};

use crate::calls::{self, Calls, Handle};
use crate::elf::Image;
use crate::path::Path;

/// The functions that carry out the calls on sockets with [`crate::Path::Auto`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Status {
    /// The program runs under Shunt (`shunt run`): its own calls are Shunt's.
    Preloaded,
    /// This libshunt.so, loaded for these sockets alone.
    Loaded(PathBuf),
    /// The kernel alone, for this reason.
    Tcp(String),
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Status::Preloaded => f.write_str("the program runs under Shunt"),
            Status::Loaded(path) => write!(f, "{} is loaded for these sockets", path.display()),
            Status::Tcp(why) => write!(f, "everything goes by TCP: {why}"),
        }
    }
}

/// The functions that carry out the calls. Decides that, if it is not decided yet.
pub fn status() -> Status {
    decided(None).status.clone()
}

/// Decides who carries out the calls; libshunt.so is first looked for at `path`. Call this before
/// the first socket is made. An earlier decision stands, and is returned.
pub fn load(path: &path::Path) -> Status {
    decided(Some(path)).status.clone()
}

/// The functions for sockets of this path. Decided at first use, once.
pub fn calls(path: Path) -> &'static Calls {
    match path {
        Path::Auto => decided(None).calls.as_ref().unwrap_or_else(calls::libc),
        Path::Tcp => calls::libc(),
    }
}

struct Decided {
    status: Status,
    calls: Option<Calls>,
}

fn decided(first: Option<&path::Path>) -> &'static Decided {
    static DECIDED: OnceLock<Decided> = OnceLock::new();
    DECIDED.get_or_init(|| match decide(first) {
        Ok((status, calls)) => Decided { status, calls: Some(calls) },
        Err(why) => Decided { status: Status::Tcp(why), calls: None },
    })
}

/// The file name of the library.
const NAME: &str = "libshunt.so";
const VERSION: &str = env!("CARGO_PKG_VERSION");
const VERSION_SYMBOL: &CStr = c"SHUNT_VERSION";

fn decide(first: Option<&path::Path>) -> Result<(Status, Calls), String> {
    if Handle::PROGRAM.find(VERSION_SYMBOL).is_some()
        && Handle::PROGRAM.find(c"recv") != Some(calls::libc().recv as *mut c_void)
    {
        return Calls::find(Handle::PROGRAM).map(|calls| (Status::Preloaded, calls)).map_err(lacks);
    }
    if let Some(there) = already_there() {
        return take(&there);
    }
    let mut tried = Vec::new();
    for path in places(first) {
        match check(&path).and_then(|()| open(&path)) {
            // Another thread may have loaded another file just now, through another copy of this
            // crate: both use the first.
            Ok(()) => return take(&already_there().unwrap_or(path)),
            Err(why) => tried.push(format!("{} {why}", path.display())),
        }
    }
    match tried.is_empty() {
        true => Err(format!("there is no {NAME}")),
        false => Err(format!("there is no {NAME} to load: {}", tried.join("; "))),
    }
}

fn lacks(name: &CStr) -> String {
    format!("{} is not among its functions", name.to_string_lossy())
}

/// The places where it may be, in order: the one that was named, then those of the `shunt` command.
fn places(first: Option<&path::Path>) -> Vec<PathBuf> {
    let mut places: Vec<PathBuf> = first.map(PathBuf::from).into_iter().collect();
    // A program that runs with more rights than its user (setuid) ignores paths that the user
    // names.
    // SAFETY: asks the kernel's vector that came with the process.
    if unsafe { libc::getauxval(libc::AT_SECURE) } == 0 {
        places.extend(env::var_os("SHUNT_LIB").filter(|named| !named.is_empty()).map(PathBuf::from));
        if let Some(dir) = env::current_exe().ok().as_deref().and_then(path::Path::parent) {
            if let Some(up) = dir.parent() {
                places.push(up.join("lib/shunt").join(NAME));
            }
            places.push(dir.join(NAME));
        }
    }
    places.push(path::Path::new("/usr/lib/shunt").join(NAME));
    places.push(path::Path::new("/usr/local/lib/shunt").join(NAME));
    places
}

/// Whether a file is the library, has this version, and can be a guest (`shunt_is_new` was added
/// for that).
fn check(path: &path::Path) -> Result<(), String> {
    let image = Image::read(path)?;
    match image.text("SHUNT_VERSION") {
        None => Err(format!("is not {NAME}")),
        Some(VERSION) if image.defines("shunt_is_new") => Ok(()),
        Some(VERSION) => Err("is an older build of this version".to_string()),
        Some(other) => Err(format!("is version {other}, this is {VERSION}")),
    }
}

/// Loads it, for good.
fn open(path: &path::Path) -> Result<(), String> {
    let flags = libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_NODELETE;
    dlopen(path, flags).map(drop)
}

/// The functions of a library that is loaded.
fn take(path: &path::Path) -> Result<(Status, Calls), String> {
    let named = |why| format!("{} is loaded, but {why}", path.display());
    let handle = dlopen(path, libc::RTLD_NOW | libc::RTLD_NOLOAD | libc::RTLD_NODELETE).map_err(named)?;
    let version = handle.find(VERSION_SYMBOL).map(|at| {
        // SAFETY: the library defines it as a C string.
        unsafe { CStr::from_ptr(at.cast_const().cast()) }
    });
    if version.is_none_or(|version| version.to_bytes() != VERSION.as_bytes()) {
        return Err(named(format!("is not version {VERSION}, and a process can have only one")));
    }
    let calls = Calls::find(handle).map_err(|name| named(lacks(name)))?;
    if calls.path.is_none() || calls.is_new.is_none() {
        return Err(named("is an older build of this version".to_string()));
    }
    Ok((Status::Loaded(path.to_path_buf()), calls))
}

fn dlopen(path: &path::Path, flags: c_int) -> Result<Handle, String> {
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| "is no file name".to_string())?;
    // SAFETY: the name is a C string; the library's constructor is ours.
    let handle = unsafe { libc::dlopen(name.as_ptr(), flags) };
    if !handle.is_null() {
        return Ok(Handle(handle));
    }
    // SAFETY: dlerror gives null, or a C string that stands until the thread calls it again.
    let why = unsafe { libc::dlerror().as_ref().map(|text| CStr::from_ptr(text)) };
    let why = why.map(|text| text.to_string_lossy().into_owned());
    Err(why.unwrap_or_else(|| "cannot be loaded".to_string()))
}

/// The file of the libshunt.so that was loaded first, by any part of the process, if there is one.
/// Wheels put a hash behind the name.
fn already_there() -> Option<PathBuf> {
    let mut names: Vec<OsString> = Vec::new();
    // SAFETY: `each` gets what dl_iterate_phdr was given, which is `names`.
    unsafe { libc::dl_iterate_phdr(Some(each), (&raw mut names).cast()) };
    names.into_iter().map(PathBuf::from).find(|path| {
        let loaded = dlopen(path, libc::RTLD_NOW | libc::RTLD_NOLOAD | libc::RTLD_NODELETE);
        loaded.is_ok_and(|handle| handle.find(VERSION_SYMBOL).is_some())
    })
}

/// Notes the name of a library if it may be Shunt's.
unsafe extern "C" fn each(info: *mut libc::dl_phdr_info, _size: usize, names: *mut c_void) -> c_int {
    // SAFETY: the loader passes a valid structure, with a C string or null, and what the caller has
    // given.
    let (name, names) = unsafe { ((*info).dlpi_name, &mut *names.cast::<Vec<OsString>>()) };
    if ptr::eq(name, ptr::null()) {
        return 0;
    }
    // SAFETY: as above.
    let name = OsStr::from_bytes(unsafe { CStr::from_ptr(name) }.to_bytes());
    let file = path::Path::new(name).file_name().unwrap_or_default();
    if file.as_bytes().starts_with(b"libshunt") {
        names.push(name.to_os_string());
    }
    0
}
