//! Finds the library, the measuring programs, and the applications: on PATH, in the directories
//! around this executable, and where Debian keeps programs that are not on every user's PATH.

use crate::error::{Error, Result};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

pub const NO_LIBRARY: &str =
    "there is no libshunt.so beside this command or where SHUNT_LIB says: build it, or set SHUNT_LIB";

/// libshunt.so: named by SHUNT_LIB, or near this executable.
pub fn library() -> Option<PathBuf> {
    if let Some(path) = env("SHUNT_LIB") {
        return path.canonicalize().ok();
    }
    let near = around_executable();
    let candidates = near
        .iter()
        .flat_map(|d| ["libshunt.so", "lib/shunt/libshunt.so", "lib/libshunt.so"].map(|name| d.join(name)));
    candidates.filter(|c| c.is_file()).find_map(|c| c.canonicalize().ok())
}

/// The command `shunt`: this executable, or near it.
pub fn command() -> Result<PathBuf> {
    let mut candidates = std::env::current_exe()
        .into_iter()
        .chain(around_executable().iter().map(|d| d.join("shunt")).collect::<Vec<_>>());
    candidates.find(|c| c.file_name().is_some_and(|name| name == "shunt") && is_executable(c)).ok_or_else(
        || Error::Failed("there is no command `shunt` beside this one: build it with `make build`".into()),
    )
}

/// The directory of the measuring programs: named by SHUNT_LIBEXEC, or near this executable.
pub fn libexec() -> Result<PathBuf> {
    let has_programs = |d: &PathBuf| d.join("pingpong").is_file();
    let found = match env("SHUNT_LIBEXEC") {
        Some(path) => Some(path).filter(has_programs),
        None => {
            let near = around_executable();
            let mut candidates = near.iter().flat_map(|d| [d.join("libexec/shunt"), d.join("libexec")]);
            candidates.find(has_programs)
        }
    };
    let found = found.and_then(|d| d.canonicalize().ok());
    found.ok_or_else(|| {
        Error::Failed(
            "the measuring programs are not there: build them with `make -C bench/programs`, \
             or say where they are with SHUNT_LIBEXEC"
                .into(),
        )
    })
}

/// A Python that has the contenders of filters: named by SHUNT_BENCH_PYTHON, or made by
/// scripts/bootstrap.sh in a workspace around this executable, or the one on PATH.
pub fn bench_python() -> Result<PathBuf> {
    if let Some(path) = env("SHUNT_BENCH_PYTHON") {
        return Ok(path);
    }
    let near = around_executable().into_iter().map(|dir| dir.join("build/bench-venv/bin/python"));
    match near.into_iter().find(|path| is_executable(path)) {
        Some(path) => Ok(path),
        None => program("python3", "python3"),
    }
}

/// A program on PATH, or where Debian keeps system programs.
pub fn program(name: &str, package: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places: Vec<PathBuf> = std::env::split_paths(&path).collect();
    places.extend(["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from));
    places.extend(postgres_places());
    let found = places.into_iter().map(|d| d.join(name)).find(|p| is_executable(p));
    found.ok_or_else(|| Error::Missing { program: name.into(), package: package.into() })
}

/// Debian keeps PostgreSQL's server programs by version; the newest first.
fn postgres_places() -> Vec<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut versions: Vec<(u32, PathBuf)> = versions
        .filter_map(|v| Some((v.file_name().to_str()?.parse().ok()?, v.path().join("bin"))))
        .collect();
    versions.sort();
    versions.into_iter().rev().map(|(_, path)| path).collect()
}

fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

/// The executable's directory and two above it: bin/ and its prefix, or target/debug/examples and
/// target/.
fn around_executable() -> Vec<PathBuf> {
    let exe = std::env::current_exe().unwrap_or_default();
    exe.ancestors().skip(1).take(3).map(Path::to_path_buf).collect()
}

fn env(name: impl AsRef<OsStr>) -> Option<PathBuf> {
    std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_names_its_package() {
        let error = program("no-such-program-anywhere", "no-such-package").unwrap_err();
        assert!(error.to_string().contains("apt-get install no-such-package"), "{error}");
        assert!(program("sh", "dash").is_ok());
    }
}
