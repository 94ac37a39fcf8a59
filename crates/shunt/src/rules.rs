//! The rules as the library will find them: in the option, or in the file that it or the
//! environment leads to. All that is wrong in them is said, not only the first.

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt as _;

use options::rules::{self, FILE_MAX, Unusable};
use options::{Options, Role, Rule, RuleSource, Text};

use crate::path::path_of;

/// The rules that hold in an environment.
pub struct Rules {
    origin: Origin,
    text: Vec<u8>,
}

enum Origin {
    /// There are none.
    Nowhere,
    /// An option, set here.
    Option(String),
    File(String),
}

impl Rules {
    /// `env` has `NAME=VALUE` entries, `set_by` says where the option was set. An error has all
    /// that is wrong.
    pub fn find<'a>(
        options: &Options,
        env: impl Iterator<Item = &'a [u8]>,
        set_by: String,
    ) -> Result<Rules, Vec<String>> {
        let rules = match options.rules {
            RuleSource::Wrong => return Err(Vec::new()),
            RuleSource::Inline(text) => {
                Rules { origin: Origin::Option(set_by), text: text.as_bytes().into() }
            }
            RuleSource::File(path) => Rules::of_file(path, read(&path))?,
            RuleSource::Usual => Rules::usual(options::rule_files(env))?,
        };
        let wrong: Vec<String> = rules
            .iter()
            .filter_map(Result::err)
            .map(|fault| format!("{}: {fault}", rules.place(fault.number)))
            .collect();
        if wrong.is_empty() { Ok(rules) } else { Err(wrong) }
    }

    /// The first of the usual files that is there.
    fn usual([user, system]: [Option<Text>; 2]) -> Result<Rules, Vec<String>> {
        use io::ErrorKind::{NotADirectory, NotFound, PermissionDenied};
        // Many a daemon runs with the HOME of another user, whose file it is not meant to see.
        let places =
            [(user, &[NotFound, NotADirectory, PermissionDenied][..]), (system, &[NotFound, NotADirectory])];
        for (path, passed_over) in places {
            let Some(path) = path else { continue };
            match read(&path) {
                Err(error) if passed_over.contains(&error.kind()) => {}
                content => return Rules::of_file(path, content),
            }
        }
        Ok(Rules { origin: Origin::Nowhere, text: Vec::new() })
    }

    fn of_file(path: Text, content: io::Result<Vec<u8>>) -> Result<Rules, Vec<String>> {
        match content {
            Ok(text) if text.len() > FILE_MAX => Err(vec![Unusable::TooLong(&path).to_string()]),
            Ok(text) => Ok(Rules { origin: Origin::File(path.to_string()), text }),
            Err(error) if error.raw_os_error() == Some(libc::ESPIPE) => {
                Err(vec![Unusable::NoFile(&path).to_string()])
            }
            Err(error) => Err(vec![format!("{path}: the rules cannot be read: {error}")]),
        }
    }

    pub fn iter(&self) -> rules::Rules<'_> {
        match self.origin {
            Origin::Option(_) => rules::inline(&self.text),
            Origin::Nowhere | Origin::File(_) => rules::in_file(&self.text),
        }
    }

    /// Where they are; `None` if there are none.
    pub fn origin(&self) -> Option<&dyn Display> {
        match &self.origin {
            Origin::Nowhere => None,
            Origin::Option(set_by) => Some(set_by),
            Origin::File(path) => Some(path),
        }
    }

    /// Where one of them is.
    pub fn place(&self, number: u32) -> String {
        match &self.origin {
            Origin::Nowhere => number.to_string(),
            Origin::Option(set_by) => format!("{set_by}: rule {number}"),
            Origin::File(path) => format!("{path}:{number}"),
        }
    }

    /// The rule that decides about an end of a connection.
    pub fn first(&self, role: Role, program: &[u8], at: SocketAddr) -> Option<Rule<'_>> {
        let ip = match at.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => ip.octets(),
        };
        self.iter()
            .filter_map(Result::ok)
            .find(|rule| rule.is_for(program) && rule.ends.include(role, &ip, at.port()))
    }
}

/// Not more than shows that it is too much, and, as in the library, neither from a pipe nor from a
/// terminal: ESPIPE.
fn read(path: &Text) -> io::Result<Vec<u8>> {
    let mut file =
        OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path_of(path))?;
    file.seek(SeekFrom::End(0))?;
    file.rewind()?;
    let mut text = Vec::new();
    file.take(FILE_MAX as u64 + 1).read_to_end(&mut text)?;
    Ok(text)
}
