//! Symbols of a copy of libshunt.so, read from its file. Asking it after dlopen() would be too
//! late, as its constructor has run by then. Everything unexpected is an error, never a panic.

use std::fs;
use std::path::Path;

use object::read::elf::ElfFile64;
use object::{Architecture, LittleEndian, Object as _, ObjectKind, ObjectSection as _, ObjectSymbol as _};

/// The dynamic symbols of a library.
pub struct Image {
    bytes: Vec<u8>,
}

/// The architecture in files for this machine.
const MACHINE: Architecture = if cfg!(target_arch = "x86_64") {
    Architecture::X86_64
} else if cfg!(target_arch = "aarch64") {
    Architecture::Aarch64
} else {
    Architecture::Unknown
};

impl Image {
    /// Reads a shared library for this machine. The error says what the file is instead.
    pub fn read(path: &Path) -> Result<Image, String> {
        let bytes = fs::read(path).map_err(|error| error.to_string())?;
        Image::parse(bytes).ok_or_else(|| "is no shared library for this machine".to_string())
    }

    fn parse(bytes: Vec<u8>) -> Option<Image> {
        let image = Image { bytes };
        let file = image.file()?;
        let ours = file.architecture() == MACHINE && file.kind() == ObjectKind::Dynamic;
        ours.then_some(image)
    }

    fn file(&self) -> Option<ElfFile64<'_, LittleEndian>> {
        ElfFile64::parse(&*self.bytes).ok()
    }

    /// The C string at a symbol.
    pub fn text(&self, name: &str) -> Option<&str> {
        let file = self.file()?;
        let symbol = file.dynamic_symbols().find(|symbol| symbol.name() == Ok(name))?;
        let section = file.section_by_index(symbol.section_index()?).ok()?;
        let text = section.data_range(symbol.address(), symbol.size()).ok()??;
        std::str::from_utf8(text.strip_suffix(b"\0")?).ok()
    }

    /// Whether the library defines a symbol.
    pub fn defines(&self, name: &str) -> bool {
        self.file().is_some_and(|file| {
            file.dynamic_symbols().any(|symbol| symbol.name() == Ok(name) && !symbol.is_undefined())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The libc that this test runs with: a shared library that certainly exists.
    fn libc_file() -> Vec<u8> {
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let line = maps.lines().find(|line| line.contains("libc.so.6")).unwrap();
        fs::read(&line[line.find('/').unwrap()..]).unwrap()
    }

    #[test]
    fn symbols_are_found_by_their_whole_names() {
        let image = Image::parse(libc_file()).unwrap();
        assert!(image.defines("recv") && image.defines("poll"));
        assert!(!image.defines("rec") && !image.defines("shunt_path"));
        assert_eq!(image.text("SHUNT_VERSION"), None);
    }

    #[test]
    fn a_damaged_file_is_not_read_past_its_end() {
        let whole = libc_file();
        assert!(Image::parse(b"#!/bin/sh\n".to_vec()).is_none());
        for end in (0..whole.len()).step_by(whole.len() / 97) {
            if let Some(image) = Image::parse(whole[..end].to_vec()) {
                image.text("recv");
            }
        }
        for at in 16..64 {
            for value in [0x00, 0x7f, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] = value;
                if let Some(image) = Image::parse(bytes) {
                    image.text("recv");
                }
            }
        }
    }
}
