//! Compares libc's symbols with the hooks: what takes, makes or ends descriptors must be hooked, or
//! stand in symbols.txt with the reason why it is not; and a hook must be for something that libc
//! has. A libc that learns a new call fails this test.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use object::elf::{FileHeader64, SHN_UNDEF, STT_FUNC, STT_GNU_IFUNC};
use object::read::elf::{FileHeader as _, Sym as _};
use object::{Endianness, SymbolIndex};

use library::library;

mod library;

/// What a symbol's name contains if it may touch descriptors, or the signals and children that
/// hooks must know of.
const PATTERNS: &[&str] = &[
    "read",
    "write",
    "send",
    "recv",
    "poll",
    "select",
    "splice",
    "tee",
    "dup",
    "close",
    "exec",
    "spawn",
    "fork",
    "clone",
    "sock",
    "accept",
    "connect",
    "pipe",
    "fcntl",
    "ioctl",
    "shutdown",
    "dprintf",
    "fdopen",
    "popen",
    "system",
    "syscall",
    "aio_",
    "lio_",
    "uring",
    "copy_file",
    "signal",
    "sigaction",
    "sigset",
    "sigvec",
    "longjmp",
    "msg",
];

/// What libshunt.so exports beside hooks.
const OURS: &[&str] = &[
    "SHUNT_VERSION",
    "shunt_follows",
    "shunt_is_new",
    "shunt_path",
    "shunt_recv_zc",
    "shunt_release",
    "shunt_write_all",
];

/// Hooks for what only newer (or older) libcs have, or other libraries.
const ELSEWHERE: &[&str] = &[
    "pidfd_spawn",
    "pidfd_spawnp",
    // libaio's.
    "io_submit",
    // liburing's.
    "__io_uring_get_cqe",
    "io_uring_close_ring_fd",
    "io_uring_enter",
    "io_uring_enter2",
    "io_uring_queue_exit",
    "io_uring_queue_init",
    "io_uring_queue_init_mem",
    "io_uring_queue_init_params",
    "io_uring_queue_mmap",
    "io_uring_register",
    "io_uring_register_files",
    "io_uring_register_files_tags",
    "io_uring_register_files_update",
    "io_uring_register_files_update_tag",
    "io_uring_setup",
    "io_uring_submit",
    "io_uring_submit_and_get_events",
    "io_uring_submit_and_wait",
    "io_uring_submit_and_wait_min_timeout",
    "io_uring_submit_and_wait_reg",
    "io_uring_submit_and_wait_timeout",
    "io_uring_wait_cqe_timeout",
    "io_uring_wait_cqes",
    "io_uring_wait_cqes_min_timeout",
];

#[test]
fn every_call_of_libc_is_hooked_or_explained() {
    let (libc, hooks, list) = (symbols(&libc_path()), symbols(library()), List::read());
    let unexplained: Vec<&str> = libc
        .iter()
        .filter(|name| PATTERNS.iter().any(|pattern| name.contains(pattern)))
        .filter(|name| !hooks.contains(*name) && list.reason(name).is_none())
        .map(String::as_str)
        .collect();
    assert!(
        unexplained.is_empty(),
        "libc has {unexplained:?}, which libshunt.so does not hook. For each: does it read, write, wait for, duplicate, close or \
         pass on descriptors? Then write a hook in the file of its family in crates/preload/src (or demote the connection \
         there). If not, name it in crates/preload/symbols.txt under the reason why not."
    );
}

/// An older libc would load neither the library nor the program: `src/older.rs`.
#[test]
fn it_needs_nothing_that_came_after_glibc_2_17() {
    let newer: Vec<String> = needed(library())
        .into_iter()
        .filter(|(_, version)| !version.is_some_and(|version| version <= (2, 17)))
        .map(|(name, _)| name)
        .collect();
    assert!(
        newer.is_empty(),
        "{newer:?} are bound to later versions: write them in crates/preload/src/older.rs"
    );
}

#[test]
fn what_is_hooked_is_not_excused() {
    let (hooks, list) = (symbols(library()), List::read());
    let both: Vec<_> = hooks.iter().filter_map(|name| list.0.get_key_value(name)).collect();
    assert!(both.is_empty(), "hooked, and yet in crates/preload/symbols.txt; drop them there: {both:?}");
}

#[test]
fn every_hook_is_for_a_call_of_libc() {
    let libc = symbols(&libc_path());
    let known = |name: &str| libc.contains(name) || OURS.contains(&name) || ELSEWHERE.contains(&name);
    let strange: Vec<_> = symbols(library()).into_iter().filter(|name| !known(name)).collect();
    assert!(
        strange.is_empty(),
        "libshunt.so exports {strange:?}, which libc does not have: a slip in a name, or something that should not be exported \
         (it could hide a symbol of the program), or to be named in OURS or ELSEWHERE in this test."
    );
}

#[test]
fn the_list_matches_whole_names() {
    let list = List::parse("# note\nfirst\n    read pre*\n\nsecond\n    write\n    a*z\n");
    assert_eq!(list.reason("read").as_deref(), Some("first"));
    assert_eq!(list.reason("pretend").as_deref(), Some("first"));
    assert_eq!(list.reason("abcz").as_deref(), Some("second"));
    assert_eq!([list.reason("ready"), list.reason("xwrite"), list.reason("az-")], [None, None, None]);
}

/// symbols.txt: patterns of names, and the reason for each.
struct List(BTreeMap<String, String>);

impl List {
    fn read() -> List {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("symbols.txt");
        List::parse(&std::fs::read_to_string(path).expect("symbols.txt is beside Cargo.toml"))
    }

    fn parse(text: &str) -> List {
        let (mut list, mut reason) = (BTreeMap::new(), None);
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            if !line.starts_with(' ') {
                reason = Some(line);
                continue;
            }
            let reason = reason.expect("a reason stands above names");
            for name in line.split_ascii_whitespace() {
                let twice = list.insert(name.to_string(), reason.to_string());
                assert_eq!(twice, None, "symbols.txt names {name} twice");
            }
        }
        List(list)
    }

    fn reason(&self, name: &str) -> Option<String> {
        let fits = |pattern: &str| match pattern.split_once('*') {
            None => pattern == name,
            Some((start, end)) => {
                name.len() >= start.len() + end.len() && name.starts_with(start) && name.ends_with(end)
            }
        };
        self.0.iter().find(|(pattern, _)| fits(pattern)).map(|(_, reason)| reason.clone())
    }
}

/// The names that a library defines for programs: functions and our data, without what libc keeps
/// to its own libraries.
fn symbols(path: &Path) -> BTreeSet<String> {
    let data = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let all = || -> object::Result<BTreeSet<String>> {
        let header = FileHeader64::<Endianness>::parse(&*data)?;
        let endian = header.endian()?;
        let sections = header.sections(endian, &*data)?;
        let table = sections.symbols(endian, &*data, object::elf::SHT_DYNSYM)?;
        let versions = sections.versions(endian, &*data)?;
        let mut names = BTreeSet::new();
        for (index, symbol) in table.enumerate() {
            let defined = symbol.st_shndx(endian) != SHN_UNDEF;
            let function = [STT_FUNC, STT_GNU_IFUNC].contains(&symbol.st_type());
            let name = std::str::from_utf8(symbol.name(endian, table.strings())?).unwrap_or_default();
            let public = match &versions {
                Some(versions) => {
                    let number = versions.version_index(endian, SymbolIndex(index.0));
                    versions.version(number)?.is_none_or(|version| version.name() != b"GLIBC_PRIVATE")
                }
                None => true,
            };
            if defined && public && (function || OURS.contains(&name)) {
                names.insert(name.to_string());
            }
        }
        Ok(names)
    };
    let names = all().unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert!(names.len() > 50, "{} has hardly any symbols: {names:?}", path.display());
    names
}

/// A name, and the version of glibc that it is bound to, 2.17 as (2, 17).
type Needed = (String, Option<(u32, u32)>);

/// The names of libc's that a library needs.
fn needed(path: &Path) -> Vec<Needed> {
    let data = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let all = || -> object::Result<Vec<Needed>> {
        let header = FileHeader64::<Endianness>::parse(&*data)?;
        let endian = header.endian()?;
        let sections = header.sections(endian, &*data)?;
        let table = sections.symbols(endian, &*data, object::elf::SHT_DYNSYM)?;
        let versions = sections.versions(endian, &*data)?.expect("libc's symbols have versions");
        let mut names = Vec::new();
        for (index, symbol) in table.enumerate().filter(|(_, symbol)| symbol.st_shndx(endian) == SHN_UNDEF) {
            let number = versions.version_index(endian, SymbolIndex(index.0));
            let Some(version) = versions.version(number)? else { continue };
            let name = String::from_utf8_lossy(symbol.name(endian, table.strings())?).into_owned();
            names.push((name, release(version.name())));
        }
        Ok(names)
    };
    let names = all().unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert!(names.iter().any(|(name, _)| name == "memcpy"), "{names:?} cannot be all");
    names
}

/// GLIBC_2.17, or 2.2.5, as two numbers.
fn release(version: &[u8]) -> Option<(u32, u32)> {
    let mut parts = std::str::from_utf8(version).ok()?.strip_prefix("GLIBC_")?.split('.');
    let mut part = || parts.next()?.parse().ok();
    Some((part()?, part()?))
}

/// The libc that this test itself runs with.
fn libc_path() -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux has /proc");
    let paths = maps.lines().filter_map(|line| line.find('/').map(|at| PathBuf::from(&line[at..])));
    paths
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libc")))
        .find(|path| {
            path.to_string_lossy().contains("libc.so.6") || path.to_string_lossy().contains("libc-2")
        })
        .expect("this test is linked to glibc")
}
