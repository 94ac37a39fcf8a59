//! Finding `libshunt.so`, and seeing that it is one: for this machine, and of this version.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use object::{Object as _, ObjectSection as _, ObjectSymbol as _};

use crate::program;

/// The file name of the library.
pub const NAME: &str = "libshunt.so";

/// The library: `named` if it is set, or else the first that exists of the usual places. An error
/// lists them.
pub fn find(named: Option<&OsStr>) -> Result<PathBuf, String> {
    if let Some(path) = named {
        let path = PathBuf::from(path);
        return match path.is_file() {
            true => Ok(path),
            false => Err(format!("{} (from SHUNT_LIB or --lib) is not there", path.display())),
        };
    }
    let places = places();
    match places.iter().find(|path| path.is_file()) {
        Some(path) => Ok(path.clone()),
        None => {
            let listed: Vec<String> = places.iter().map(|path| path.display().to_string()).collect();
            Err(format!("{NAME} is in none of {}", listed.join(", ")))
        }
    }
}

fn places() -> Vec<PathBuf> {
    let mut places = Vec::new();
    // Beside the command is also where cargo puts both.
    if let Some(dir) = std::env::current_exe().ok().as_deref().and_then(Path::parent) {
        places.push(dir.join(NAME));
        if let Some(up) = dir.parent() {
            places.push(up.join("lib/shunt").join(NAME));
            if dir.ends_with("deps") {
                places.push(up.join(NAME)); // a test run by cargo
            }
        }
    }
    places.push(Path::new("/usr/local/lib/shunt").join(NAME));
    places.push(Path::new("/usr/lib/shunt").join(NAME));
    places
}

/// The version that the library at `path` says it is (its symbol `SHUNT_VERSION`, a C string),
/// `None` if it does not say. An error if it is not a shared library for this machine.
pub fn version(path: &Path) -> Result<Option<String>, String> {
    let bytes = fs::read(path).map_err(|error| error.to_string())?;
    let file = object::File::parse(&*bytes).map_err(|_| "is not an ELF file".to_string())?;
    if !program::is_native(file.architecture(), file.is_64()) {
        return Err(format!("is for another machine ({:?})", file.architecture()));
    }
    let Some(symbol) = file.dynamic_symbols().find(|symbol| symbol.name() == Ok("SHUNT_VERSION")) else {
        return Ok(None);
    };
    let section = symbol.section_index().and_then(|index| file.section_by_index(index).ok());
    let content = section.and_then(|section| section.data_range(symbol.address(), symbol.size()).ok()?);
    Ok(content.map(|bytes| String::from_utf8_lossy(bytes).trim_end_matches('\0').to_string()))
}
