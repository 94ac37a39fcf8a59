//! Finding a program as the shell would, and seeing what would keep it from being accelerated: the
//! library gets into a program only through a dynamic linker, glibc's or musl's, so everything that
//! has none, or does not listen to it, runs plain.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use object::Architecture;
use object::elf::{DT_NEEDED, FileHeader64, PT_INTERP};
use object::read::elf::{Dyn as _, ElfFile, ElfFile64, FileHeader as _, ProgramHeader as _};
use object::read::{Object as _, ReadCache, ReadRef};

/// Why a name does not lead to a program.
#[derive(Debug)]
pub enum NotRunnable {
    /// Exit status 127.
    NotFound,
    /// Exit status 126, with what is in the way.
    NotExecutable(PathBuf, &'static str),
}

/// A program, followed through its `#!` lines to the file that the kernel loads.
#[derive(Debug)]
pub struct Program {
    /// The ELF file, or whatever was found in its place.
    pub file: PathBuf,
    /// The scripts on the way to it.
    pub scripts: Vec<PathBuf>,
    /// What keeps it from being accelerated.
    pub obstacle: Option<Obstacle>,
    /// The libraries it names.
    pub needed: Vec<String>,
}

/// What keeps a program from being accelerated.
#[derive(Debug, PartialEq, Eq)]
pub enum Obstacle {
    Setuid,
    Setgid,
    Capabilities,
    NotElf,
    OtherMachine(String),
    Static,
    OtherLoader(String),
    Go,
    Unreadable(String),
    InterpreterMissing(PathBuf),
    ScriptLoop,
}

impl Obstacle {
    /// Ends the sentence "PROGRAM cannot be accelerated: it ...".
    pub fn why(&self) -> String {
        match self {
            Obstacle::Setuid => "is setuid, so the dynamic linker ignores LD_PRELOAD".into(),
            Obstacle::Setgid => "is setgid, so the dynamic linker ignores LD_PRELOAD".into(),
            Obstacle::Capabilities => {
                "has file capabilities, so the dynamic linker ignores LD_PRELOAD".into()
            }
            Obstacle::NotElf => "is neither an ELF program nor a script".into(),
            Obstacle::OtherMachine(what) => {
                format!("is for another machine ({what}) than {}", library_machine())
            }
            Obstacle::Static => "is statically linked, so nothing can be put in front of its libc".into(),
            Obstacle::OtherLoader(loader) => {
                format!("is started by {loader}, not by glibc's or musl's dynamic linker")
            }
            Obstacle::Go => "is written in Go, which makes its system calls without libc".into(),
            Obstacle::Unreadable(error) => format!("cannot be looked at: {error}"),
            Obstacle::InterpreterMissing(path) => format!("needs {}, which is not there", path.display()),
            Obstacle::ScriptLoop => "is a script of a script of a script, without end".into(),
        }
    }

    /// What to do about it.
    pub fn advice(&self) -> &'static str {
        match self {
            Obstacle::Setuid | Obstacle::Setgid => {
                "start it as the user it changes to, from a copy without the bit (chmod u-s,g-s)"
            }
            Obstacle::Capabilities => {
                "take them away (setcap -r) and give them from outside, as systemd's AmbientCapabilities= does"
            }
            Obstacle::Static => "link it dynamically; programs that it starts are accelerated all the same",
            Obstacle::OtherLoader(_) => "use a build of it for glibc or musl",
            Obstacle::OtherMachine(_) => "use a build of it for this machine",
            Obstacle::Go => "nothing; programs that it starts are accelerated all the same",
            Obstacle::NotElf | Obstacle::ScriptLoop => "check that it is the file you mean",
            Obstacle::Unreadable(_) => "allow yourself to read it; it may be accelerated all the same",
            Obstacle::InterpreterMissing(_) => "install that",
        }
    }

    /// Whether the library may still be preloaded, for the sake of the programs that it starts.
    /// Another dynamic linker would complain about a library that is not for it, or refuse to
    /// start.
    pub fn tolerates_preload(&self) -> bool {
        !matches!(self, Obstacle::OtherMachine(_) | Obstacle::OtherLoader(_))
    }
}

/// The file that `name` stands for: itself if it has a slash, or else what `path` (as in PATH)
/// leads to.
pub fn lookup(name: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, NotRunnable> {
    if name.is_empty() {
        return Err(NotRunnable::NotFound);
    }
    if name.as_bytes().contains(&b'/') {
        return runnable(PathBuf::from(name));
    }
    let path = path.unwrap_or(OsStr::new("/usr/local/bin:/bin:/usr/bin"));
    let mut denied = None;
    for dir in std::env::split_paths(path) {
        let dir = if dir.as_os_str().is_empty() { PathBuf::from(".") } else { dir };
        match runnable(dir.join(name)) {
            Ok(found) => return Ok(found),
            Err(error @ NotRunnable::NotExecutable(..)) => denied = denied.or(Some(error)),
            Err(NotRunnable::NotFound) => {}
        }
    }
    Err(denied.unwrap_or(NotRunnable::NotFound))
}

fn runnable(path: PathBuf) -> Result<PathBuf, NotRunnable> {
    match std::fs::metadata(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            Err(NotRunnable::NotExecutable(path, "a directory on the way to it is closed to you"))
        }
        Err(_) => Err(NotRunnable::NotFound),
        Ok(meta) if meta.is_dir() => Err(NotRunnable::NotExecutable(path, "it is a directory")),
        Ok(meta) if !meta.is_file() => Err(NotRunnable::NotExecutable(path, "it is not a regular file")),
        Ok(_) => match rustix::fs::access(&path, rustix::fs::Access::EXEC_OK) {
            Ok(()) => Ok(path),
            Err(_) => Err(NotRunnable::NotExecutable(path, "you may not execute it (chmod +x)")),
        },
    }
}

/// Follows `path` through `#!` lines, and looks at what the kernel will load.
pub fn inspect(path: &Path) -> Program {
    let mut program = Program { file: path.into(), scripts: Vec::new(), obstacle: None, needed: Vec::new() };
    while let Some(next) = interpreter(&program.file) {
        if program.scripts.len() == 5 {
            program.obstacle = Some(Obstacle::ScriptLoop);
            return program;
        }
        program.scripts.push(std::mem::replace(&mut program.file, next.clone()));
        if !next.exists() {
            program.obstacle = Some(Obstacle::InterpreterMissing(next));
            return program;
        }
    }
    let (obstacle, needed) = match File::open(&program.file) {
        Ok(file) => elf(&ReadCache::new(file)),
        Err(error) => (Some(Obstacle::Unreadable(error.to_string())), Vec::new()),
    };
    // A static program is a worse obstacle than a setuid one: name what cannot be put right.
    program.obstacle = obstacle.or_else(|| privileges(&program.file));
    program.needed = needed;
    program
}

/// The interpreter that a script names; `#!/usr/bin/env NAME` leads to NAME.
fn interpreter(path: &Path) -> Option<PathBuf> {
    let mut head = Vec::new();
    File::open(path).ok()?.take(256).read_to_end(&mut head).ok()?;
    if head.starts_with(b"\x7fELF") {
        return None;
    }
    let Some(line) = head.strip_prefix(b"#!") else {
        // Text without #! is run by a shell, as execvp() does. Not so what looks binary.
        let text = !head.is_empty() && !head.contains(&0);
        return text.then(|| PathBuf::from("/bin/sh"));
    };
    let line = line.split(|&byte| byte == b'\n').next()?;
    let mut words = line.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
    let first = Path::new(OsStr::from_bytes(words.next()?));
    if first.file_name() == Some(OsStr::new("env")) {
        let options = |word: &&[u8]| word.starts_with(b"-") || word.contains(&b'=');
        let name = words.find(|word| !options(word));
        let path = std::env::var_os("PATH");
        if let Some(found) = name.and_then(|name| lookup(OsStr::from_bytes(name), path.as_deref()).ok()) {
            return Some(found);
        }
    }
    Some(first.into())
}

fn elf<'data, R: ReadRef<'data>>(data: R) -> (Option<Obstacle>, Vec<String>) {
    if !matches!(data.read_bytes_at(0, 4), Ok(b"\x7fELF")) {
        return (Some(Obstacle::NotElf), Vec::new());
    }
    let any = match object::File::parse(data) {
        Ok(any) => any,
        Err(error) => return (Some(Obstacle::Unreadable(error.to_string())), Vec::new()),
    };
    let machine = any.architecture();
    if !is_native(machine, any.is_64()) {
        let bits = if any.is_64() { 64 } else { 32 };
        return (Some(Obstacle::OtherMachine(format!("{machine:?}, {bits} bits"))), Vec::new());
    }
    match ElfFile64::<object::Endianness, R>::parse(data) {
        Ok(file) => native(&file),
        Err(error) => (Some(Obstacle::Unreadable(error.to_string())), Vec::new()),
    }
}

fn native<'data, R: ReadRef<'data>>(
    file: &ElfFile<'data, FileHeader64<object::Endianness>, R>,
) -> (Option<Obstacle>, Vec<String>) {
    let (needed, loader) = (needed(file).unwrap_or_default(), loader(file));
    let name = loader.as_deref().map(|path| path.rsplit('/').next().unwrap_or(path).to_string());
    let obstacle = match name {
        None => Some(Obstacle::Static),
        Some(name) if !name.starts_with("ld-linux") && !name.starts_with("ld-musl") => {
            Some(Obstacle::OtherLoader(loader.unwrap_or(name)))
        }
        Some(_) if file.section_by_name(".go.buildinfo").is_some() => Some(Obstacle::Go),
        Some(_) => None,
    };
    (obstacle, needed)
}

/// The dynamic linker that the program asks for.
fn loader<'data, R: ReadRef<'data>>(
    file: &ElfFile<'data, FileHeader64<object::Endianness>, R>,
) -> Option<String> {
    let segment =
        file.elf_program_headers().iter().find(|segment| segment.p_type(file.endian()) == PT_INTERP)?;
    let path = segment.interpreter(file.endian(), file.data()).ok()??;
    Some(String::from_utf8_lossy(path).into_owned())
}

/// The libraries that the program names.
fn needed<'data, R: ReadRef<'data>>(
    file: &ElfFile<'data, FileHeader64<object::Endianness>, R>,
) -> object::Result<Vec<String>> {
    let endian = file.endian();
    let sections = file.elf_header().sections(endian, file.data())?;
    let Some((entries, link)) = sections.dynamic(endian, file.data())? else { return Ok(Vec::new()) };
    let strings = sections.strings(endian, file.data(), link)?;
    let mut names = Vec::new();
    for entry in entries.iter().filter(|entry| entry.tag32(endian) == Some(DT_NEEDED)) {
        let offset = entry.d_val(endian);
        if let Some(name) = u32::try_from(offset).ok().and_then(|offset| strings.get(offset).ok()) {
            names.push(String::from_utf8_lossy(name).into_owned());
        }
    }
    Ok(names)
}

/// What makes the kernel start a program in secure mode, in which the linker does not preload. It
/// does not if the bits change nothing, or are switched off for the process or the file system.
fn privileges(path: &Path) -> Option<Obstacle> {
    let meta = std::fs::metadata(path).ok()?;
    let nosuid =
        rustix::fs::statvfs(path).is_ok_and(|fs| fs.f_flag.contains(rustix::fs::StatVfsMountFlags::NOSUID));
    if nosuid || rustix::thread::no_new_privs().unwrap_or(false) {
        return None;
    }
    let (mode, uid) = (meta.permissions().mode(), rustix::process::getuid());
    if mode & 0o4000 != 0 && meta.uid() != uid.as_raw() {
        return Some(Obstacle::Setuid);
    }
    // Without the group's x bit, setgid means something else.
    if mode & 0o2010 == 0o2010 && meta.gid() != rustix::process::getgid().as_raw() {
        return Some(Obstacle::Setgid);
    }
    let caps = rustix::fs::getxattr(path, "security.capability", &mut [0u8; 64]).is_ok();
    (caps && !uid.is_root()).then_some(Obstacle::Capabilities)
}

/// Whether this is the machine that `libshunt.so`, built with this command, is for.
pub fn is_native(machine: Architecture, is_64: bool) -> bool {
    let own = match std::env::consts::ARCH {
        "x86_64" => Architecture::X86_64,
        "aarch64" => Architecture::Aarch64,
        "riscv64" => Architecture::Riscv64,
        _ => return false,
    };
    machine == own && is_64
}

fn library_machine() -> &'static str {
    std::env::consts::ARCH
}
