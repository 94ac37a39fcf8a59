//! The rules of this process: from the option, or from the file that it or the environment leads
//! to. If they cannot be used, every connection stays on tcp.

use core::ffi::{CStr, c_char};
use fabric::sys::Errno;
use options::rules::{self, FILE_MAX, Unusable};
use options::{LongText, Options, RuleSource, Text};

use crate::content::Content;
use crate::options_of::Entries;

/// The rules, as they were found. (Large, and on the stack once, at the start.)
#[allow(clippy::large_enum_variant)] // there is nothing to allocate from
pub enum Found {
    None,
    Inline(LongText),
    File(Text, Result<Content, Errno>),
    Wrong,
}

impl Found {
    /// Looks for them.
    pub fn find(options: &Options, env: Entries) -> Found {
        match options.rules {
            RuleSource::Inline(text) => Found::Inline(text),
            RuleSource::File(path) => Found::File(path, read(&path)),
            RuleSource::Wrong => Found::Wrong,
            RuleSource::Usual => {
                let [user, system] = options::rule_files(env);
                // Many a daemon runs with the HOME of another user, whose file it is not meant to
                // see.
                let usual = [(user, Some(Errno::EACCES)), (system, None)];
                for (path, passed_over) in usual {
                    let Some(path) = path else { continue };
                    match read(&path) {
                        Err(Errno::ENOENT | Errno::ENOTDIR) => {}
                        Err(errno) if Some(errno) == passed_over => {}
                        content => return Found::File(path, content),
                    }
                }
                Found::None
            }
        }
    }

    /// Makes them count, in this program.
    pub fn start(&self, program: &[u8]) -> Result<(), Unusable<'_>> {
        match self {
            Found::None => Ok(()),
            Found::Inline(text) => {
                sockets::rules::start(rules::inline(text.as_bytes()), program).map_err(|_| Unusable::Value)
            }
            Found::File(path, Ok(content)) if content.bytes().len() > FILE_MAX => {
                Err(Unusable::TooLong(path))
            }
            Found::File(path, Ok(content)) => sockets::rules::start(rules::in_file(content.bytes()), program)
                .map_err(|fault| Unusable::Line(path, fault)),
            Found::File(path, Err(Errno::ESPIPE)) => Err(Unusable::NoFile(path)),
            Found::File(path, Err(errno)) => Err(Unusable::Unreadable(path, errno.into_raw())),
            Found::Wrong => Err(Unusable::Value),
        }
    }
}

fn read(path: &Text) -> Result<Content, Errno> {
    Content::read(path.as_c_str(), FILE_MAX + 1)
}

/// The name of this program, for rules, from how it was called.
///
/// # Safety
/// `called` is null or a C string.
pub unsafe fn program<'a>(called: *const c_char) -> &'a [u8] {
    if called.is_null() {
        return b"";
    }
    // SAFETY: the caller vouches for it.
    rules::program_name(unsafe { CStr::from_ptr(called) }.to_bytes())
}
