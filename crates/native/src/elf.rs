//! What a copy of libshunt.so says of itself, read from its file: to ask it after dlopen() would be too late, as its constructor has run
//! by then. Only as much of ELF as that takes; whatever is not as expected is an error, never a panic.

use std::fs;
use std::path::Path;

/// What stands in a library's table of symbols.
pub struct Image {
    bytes: Vec<u8>,
    sections: Vec<Section>,
}

struct Section {
    kind: u32,
    address: u64,
    offset: usize,
    size: usize,
    link: usize,
}

struct Symbol {
    section: usize,
    value: u64,
    size: usize,
}

/// Section types: symbols for the dynamic linker.
const SHT_DYNSYM: u32 = 11;
const SYMBOL_BYTES: usize = 24;
/// e_machine of this machine.
const MACHINE: u16 = if cfg!(target_arch = "x86_64") {
    62
} else if cfg!(target_arch = "aarch64") {
    183
} else {
    0
};

impl Image {
    /// Reads a shared library for this machine; in words what else it is.
    pub fn read(path: &Path) -> Result<Image, String> {
        let bytes = fs::read(path).map_err(|error| error.to_string())?;
        Image::parse(bytes).ok_or_else(|| "is no shared library for this machine".to_string())
    }

    fn parse(bytes: Vec<u8>) -> Option<Image> {
        let ours = bytes.starts_with(b"\x7fELF\x02\x01") && half(&bytes, 18)? == MACHINE;
        if !ours || cfg!(target_endian = "big") {
            return None;
        }
        let (at, size, count) =
            (word(&bytes, 40)?, usize::from(half(&bytes, 58)?), usize::from(half(&bytes, 60)?));
        let at = usize::try_from(at).ok()?;
        let section = |index: usize| {
            let header = bytes.get(at.checked_add(index.checked_mul(size)?)?..)?;
            Some(Section {
                kind: long(header, 4)?,
                address: word(header, 16)?,
                offset: word(header, 24)?.try_into().ok()?,
                size: word(header, 32)?.try_into().ok()?,
                link: long(header, 40)? as usize,
            })
        };
        let sections = (0..count).map(section).collect::<Option<Vec<_>>>()?;
        Some(Image { bytes, sections })
    }

    /// The C string that a symbol stands for.
    pub fn text(&self, name: &str) -> Option<&str> {
        let symbol = self.symbol(name)?;
        let section = self.sections.get(symbol.section)?;
        let at = usize::try_from(symbol.value.checked_sub(section.address)?).ok()?;
        let text = self.content(section)?.get(at..at.checked_add(symbol.size)?)?;
        std::str::from_utf8(text.strip_suffix(b"\0")?).ok()
    }

    /// Whether it defines a symbol.
    pub fn defines(&self, name: &str) -> bool {
        self.symbol(name).is_some_and(|symbol| symbol.section != 0)
    }

    fn symbol(&self, name: &str) -> Option<Symbol> {
        let table = self.sections.iter().find(|section| section.kind == SHT_DYNSYM)?;
        let names = self.content(self.sections.get(table.link)?)?;
        let is_it = |at: usize| {
            let rest = names.get(at..)?.strip_prefix(name.as_bytes())?;
            (rest.first() == Some(&0)).then_some(())
        };
        self.content(table)?.chunks_exact(SYMBOL_BYTES).find_map(|entry| {
            is_it(long(entry, 0)? as usize)?;
            Some(Symbol {
                section: half(entry, 6)?.into(),
                value: word(entry, 8)?,
                size: word(entry, 16)?.try_into().ok()?,
            })
        })
    }

    fn content(&self, section: &Section) -> Option<&[u8]> {
        self.bytes.get(section.offset..section.offset.checked_add(section.size)?)
    }
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The libc that this test runs with: a shared library that is there.
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
