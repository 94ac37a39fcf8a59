//! Mistakes in options, and their messages: where the mistake is, what is written there, and what
//! would be right.

use core::fmt;

use crate::kind::Kind;
use crate::rules::RuleFault;
use crate::table::{Opt, TABLE};
use crate::text::{LongText, Shown, Text};

/// Something in the environment or in a file that was not understood. The option keeps the value it
/// had before.
#[derive(Clone, Copy, Debug)]
pub struct Problem<'a> {
    /// Where it stands.
    pub source: Source,
    /// The name as written.
    pub name: &'a [u8],
    /// The value as written; empty if there is none.
    pub value: &'a [u8],
    /// The mistake.
    pub fault: Fault<'a>,
}

/// Where an option was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The environment.
    Env,
    /// A line, counted from 1, of a configuration file.
    File {
        /// The file's path, if it is known.
        path: Option<Text>,
        /// The line.
        line: u32,
    },
    /// A flag of the command.
    Flag,
}

/// A mistake in a name or a value.
#[derive(Clone, Copy, Debug)]
pub enum Fault<'a> {
    /// There is no option of this name.
    Unknown,
    /// The value is not of this kind.
    Value(Kind),
    /// There is no value; one of this kind is needed.
    Empty(Kind),
    /// A path longer than [`Text::MAX`].
    TooLong,
    /// Rules longer than [`LongText::MAX`].
    TooManyRules,
    /// A line that is not a valid rule.
    Rule(RuleFault<'a>),
    /// A line that is neither a comment nor `name = value`.
    Syntax,
    /// An option that makes no sense in a file.
    NotInFile,
    /// The configuration file cannot be read; the error number says why.
    Unreadable(i32),
}

impl Problem<'_> {
    /// For callers that read the files: this file exists, or `SHUNT_CONFIG` names it, and it cannot
    /// be read because of `errno`.
    pub fn unreadable(path: &Text, errno: i32) -> Problem<'_> {
        Problem { source: Source::Env, name: path.as_bytes(), value: b"", fault: Fault::Unreadable(errno) }
    }
}

impl fmt::Display for Problem<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.source {
            Source::Env => {}
            Source::File { path: Some(path), line } => write!(f, "{path}:{line}: ")?,
            Source::File { path: None, line } => write!(f, "configuration file, line {line}: ")?,
            Source::Flag => f.write_str("--")?,
        }
        let (name, value) = (Shown(self.name), Shown(self.value));
        match self.fault {
            Fault::Unknown => {
                write!(f, "{name}: there is no such option")?;
                match suggestion(self.source, self.name) {
                    Some(near) => write!(f, "; did you mean {near}?"),
                    None => Ok(()),
                }
            }
            Fault::Value(kind) => write!(f, "{name}={value}: must be {kind}"),
            Fault::Empty(kind) => write!(f, "{name}: has no value; must be {kind}"),
            Fault::TooLong => write!(f, "{name}={value}: the path is longer than {} bytes", Text::MAX),
            Fault::TooManyRules => {
                write!(
                    f,
                    "{name}: longer than {} bytes; put the rules in a file, and name that",
                    LongText::MAX
                )
            }
            Fault::Rule(fault) => write!(f, "{name}: rule {}: {fault}", fault.number),
            Fault::Syntax => write!(f, "\"{name}\": must be `name = value` or a # comment"),
            Fault::NotInFile => {
                write!(f, "{name}: cannot be set in a file, only in the environment or by flag")
            }
            Fault::Unreadable(errno) => {
                write!(f, "{name}: the configuration file cannot be read (error {errno})")
            }
        }
    }
}

/// The option that `name` was probably meant to be, spelled as options are spelled at `source`.
fn suggestion(source: Source, name: &[u8]) -> Option<&'static str> {
    let prefix = if source == Source::Env { "SHUNT_" } else { "" };
    let written = name.strip_prefix(prefix.as_bytes()).unwrap_or(name);
    let spelled = |opt: &'static Opt| if source == Source::Env { opt.env } else { opt.name };
    let mut nearest: Option<(usize, &'static str)> = None;
    for known in TABLE.iter().filter(|opt| opt.is_public()).map(spelled) {
        let letters = &known.as_bytes()[prefix.len()..];
        let begun = written.len() >= 3 && letters.starts_with(written);
        let far = if begun { 0 } else { distance(written, letters) };
        if far <= letters.len() / 3 && nearest.is_none_or(|(best, _)| far < best) {
            nearest = Some((far, known));
        }
    }
    nearest.map(|(_, known)| known)
}

/// How many letters must be added, dropped or replaced to turn one name into the other; large if
/// either name is long.
fn distance(a: &[u8], b: &[u8]) -> usize {
    const LONGEST: usize = 40;
    if a.len() > LONGEST || b.len() > LONGEST {
        return usize::MAX;
    }
    let mut row: [usize; LONGEST + 1] = core::array::from_fn(|i| i);
    for (i, from) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(from != to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}
