//! The language of rules: which ends of connections may use memory, and which stay on TCP. One rule
//! a line in a file, or between semicolons in the value of an option; the first that matches
//! decides. If none does, memory may be used.
//!
//! ```text
//! use shunt|tcp  client|server|*  PROGRAM  ADDR[/BITS]:PORT[-PORT]
//! ```
//!
//! The end that called connect() is a client, and its rules are about the peer's address; the end
//! that accept() gave is a server, and its rules are about its own. IPv4 addresses are kept as IPv6
//! has them (`::ffff:a.b.c.d`), so an IPv4 connection through an IPv6 socket is one of IPv4.

use core::fmt;
use core::net::{Ipv4Addr, Ipv6Addr};
use core::ops::RangeInclusive;
use core::str::FromStr;

use crate::settings::PathMode;
use crate::text::{Shown, Text, without_comment};

/// The rules in the content of a file, one a line. A line that is not understood gives an error in
/// its place.
pub fn in_file(content: &[u8]) -> Rules<'_> {
    Rules {
        rest: Some(content.strip_prefix(b"\xef\xbb\xbf").unwrap_or(content)),
        semicolons: false,
        number: 0,
    }
}

/// The rules in the value of an option, between semicolons or line ends.
pub fn inline(value: &[u8]) -> Rules<'_> {
    Rules { rest: Some(value), semicolons: true, number: 0 }
}

/// See [`in_file`] and [`inline`].
#[derive(Clone)]
pub struct Rules<'a> {
    rest: Option<&'a [u8]>,
    semicolons: bool,
    number: u32,
}

/// One rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule<'a> {
    /// Its line in the file, or its place in the value, counted from 1.
    pub number: u32,
    /// As it is written, without the comment.
    pub text: &'a [u8],
    /// The ends that it is about, in the programs that it is for.
    pub ends: Ends,
    program: &'a [u8],
}

/// The path that a rule allows, and the ends of connections that it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// The path that it allows them.
    pub path: PathMode,
    /// `None`: both.
    role: Option<Role>,
    /// `None`: all.
    net: Option<Net>,
    first_port: u16,
    last_port: u16,
}

/// Which end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It called connect().
    Client,
    /// accept() gave it.
    Server,
}

/// The addresses that begin with the first `bits` of `ip`; the others of `ip` are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Net {
    ip: u128,
    bits: u32,
}

/// A line that is not a valid rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleFault<'a> {
    /// As [`Rule::number`].
    pub number: u32,
    /// The word that should stand where `got` does.
    pub expected: Expected,
    /// The word that was not understood; empty if there is none.
    pub got: &'a [u8],
}

/// The word that is missing in a line that is not a valid rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// The word with which each rule begins.
    Use,
    /// The path: `shunt` or `tcp`.
    Path,
    /// A [`Role`].
    Role,
    /// The name of a program.
    Program,
    /// The name of a program, and not its path.
    BaseName,
    /// Addresses and ports.
    Place,
    /// The brackets of an IPv6 address.
    Brackets,
    /// An address.
    Address,
    /// The bits that count of an address of so many.
    Bits(u32),
    /// A port or a range of them.
    Ports,
    /// A range of ports that is not empty.
    Ascending,
    /// Nothing more.
    End,
}

/// The longest file of rules that is read, in bytes.
pub const FILE_MAX: usize = 1 << 20;

/// Why the rules cannot be used: then every connection stays on TCP.
#[derive(Clone, Copy, Debug)]
pub enum Unusable<'a> {
    /// The option's value is not understood; the reader of the options has reported why.
    Value,
    /// This file has a line that is not a valid rule.
    Line(&'a Text, RuleFault<'a>),
    /// This file cannot be read; the error number says why.
    Unreadable(&'a Text, i32),
    /// This is a pipe or a terminal: after one process has read it, no other finds its content.
    NoFile(&'a Text),
    /// This file is longer than [`FILE_MAX`].
    TooLong(&'a Text),
}

impl<'a> Iterator for Rules<'a> {
    type Item = Result<Rule<'a>, RuleFault<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let rest = self.rest?;
            let ends = |byte: &u8| *byte == b'\n' || self.semicolons && *byte == b';';
            let (line, rest) = match rest.iter().position(ends) {
                Some(end) => (&rest[..end], Some(&rest[end + 1..])),
                None => (rest, None),
            };
            self.rest = rest;
            self.number = self.number.saturating_add(1);
            let text = without_comment(line).trim_ascii();
            if !text.is_empty() {
                return Some(parse(self.number, text));
            }
        }
    }
}

impl Rule<'_> {
    /// Whether the rule is for programs of this name.
    pub fn is_for(&self, program: &[u8]) -> bool {
        matches(self.program, program)
    }
}

impl Ends {
    /// Whether the rule is about an end of this role, with the address that counts for the role.
    pub fn include(&self, role: Role, ip: &[u8; 16], port: u16) -> bool {
        self.role.is_none_or(|only| only == role)
            && (self.first_port..=self.last_port).contains(&port)
            && self.net.is_none_or(|net| net.has(u128::from_be_bytes(*ip)))
    }
}

/// The name by which rules know a program that was called as `path`: what follows the last slash.
pub fn program_name(path: &[u8]) -> &[u8] {
    path.rsplit(|&byte| byte == b'/').next().unwrap_or(path)
}

impl Net {
    fn has(&self, ip: u128) -> bool {
        // [::]/0 does not match IPv4 addresses, although they are a corner of IPv6's.
        same_bits(self.ip, ip, self.bits) && (self.bits >= IPV4.bits || !same_bits(IPV4.ip, ip, IPV4.bits))
    }
}

/// All addresses of IPv4.
const IPV4: Net = Net { ip: 0xffff << 32, bits: 96 };

/// Whether two addresses begin with the same `bits`, at most 128.
fn same_bits(a: u128, b: u128, bits: u32) -> bool {
    (a ^ b).checked_shr(128 - bits).unwrap_or(0) == 0
}

fn parse(number: u32, text: &[u8]) -> Result<Rule<'_>, RuleFault<'_>> {
    let mut words = text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let mut word = || words.next().unwrap_or_default();
    let fault = |expected, got| RuleFault { number, expected, got };

    let got = word();
    if got != b"use" {
        return Err(fault(Expected::Use, got));
    }
    let path = match word() {
        b"shunt" => PathMode::Auto,
        b"tcp" => PathMode::Tcp,
        got => return Err(fault(Expected::Path, got)),
    };
    let role = match word() {
        b"client" => Some(Role::Client),
        b"server" => Some(Role::Server),
        b"*" => None,
        got => return Err(fault(Expected::Role, got)),
    };
    let program = word();
    if program.is_empty() {
        return Err(fault(Expected::Program, program));
    }
    if program.contains(&b'/') {
        return Err(fault(Expected::BaseName, program));
    }
    let got = word();
    let (net, ports) = place(got).map_err(|expected| fault(expected, got))?;
    let got = word();
    if !got.is_empty() {
        return Err(fault(Expected::End, got));
    }
    let ends = Ends { path, role, net, first_port: *ports.start(), last_port: *ports.end() };
    Ok(Rule { number, text, ends, program })
}

/// `ADDR[/BITS]:PORT[-PORT]`.
fn place(word: &[u8]) -> Result<(Option<Net>, RangeInclusive<u16>), Expected> {
    let colon = word.iter().rposition(|&byte| byte == b':').ok_or(Expected::Place)?;
    let (addresses, port) = (&word[..colon], &word[colon + 1..]);
    Ok((net(addresses)?, ports(port)?))
}

fn net(word: &[u8]) -> Result<Option<Net>, Expected> {
    if word == b"*" {
        return Ok(None);
    }
    let (address, bits) = match word.iter().position(|&byte| byte == b'/') {
        Some(slash) => (&word[..slash], Some(&word[slash + 1..])),
        None => (word, None),
    };
    let (ip, most) = match address.strip_prefix(b"[") {
        Some(rest) => {
            let inner = rest.strip_suffix(b"]").ok_or(Expected::Address)?;
            (address_of::<Ipv6Addr>(inner)?.to_bits(), 128)
        }
        None if address.contains(&b':') => return Err(Expected::Brackets),
        None => (address_of::<Ipv4Addr>(address)?.to_ipv6_mapped().to_bits(), 32),
    };
    let bits = match bits {
        Some(bits) => number(bits).filter(|&bits| bits <= most).ok_or(Expected::Bits(most))?,
        None => most,
    };
    let bits = bits + (128 - most);
    let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
    Ok(Some(Net { ip: ip & mask, bits }))
}

fn address_of<T: FromStr>(word: &[u8]) -> Result<T, Expected> {
    core::str::from_utf8(word).ok().and_then(|text| text.parse().ok()).ok_or(Expected::Address)
}

fn ports(word: &[u8]) -> Result<RangeInclusive<u16>, Expected> {
    if word == b"*" {
        return Ok(0..=u16::MAX);
    }
    let (first, last) = match word.iter().position(|&byte| byte == b'-') {
        Some(dash) => (&word[..dash], &word[dash + 1..]),
        None => (word, word),
    };
    let port = |word| number(word).and_then(|port| u16::try_from(port).ok()).filter(|&port| port != 0);
    match (port(first), port(last)) {
        (Some(first), Some(last)) if first <= last => Ok(first..=last),
        (Some(_), Some(_)) => Err(Expected::Ascending),
        _ => Err(Expected::Ports),
    }
}

/// A number in decimal digits and nothing else.
fn number(word: &[u8]) -> Option<u32> {
    let digits = !word.is_empty() && word.iter().all(u8::is_ascii_digit);
    digits.then(|| core::str::from_utf8(word).ok()?.parse().ok()).flatten()
}

/// Whether `pattern` matches `name`: `*` is any bytes or none, `?` is any byte.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    // The pattern behind the last `*`, and the rest of the name that is left to match it.
    let mut star = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                p += 1;
                star = Some((p, n));
            }
            Some(&byte) if byte == b'?' || byte == name[n] => (p, n) = (p + 1, n + 1),
            _ => match star {
                Some((behind, from)) => {
                    (p, n) = (behind, from + 1);
                    star = Some((p, n));
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&byte| byte == b'*')
}

impl fmt::Display for RuleFault<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected {}; got ", self.expected)?;
        match self.got {
            b"" => f.write_str("nothing more"),
            got => write!(f, "\"{}\"", Shown(got)),
        }
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Expected::Use => "use",
            Expected::Path => "shunt or tcp",
            Expected::Role => "client, server or *",
            Expected::Program => "the name of a program, such as nginx, redis-* or *",
            Expected::BaseName => "the name of a program without its folder, such as nginx, redis-* or *",
            Expected::Place => {
                "ADDR[/BITS]:PORT[-PORT], such as 127.0.0.1:80, 10.0.0.0/8:80-90, [::1]:80 or *:*"
            }
            Expected::Brackets => "an IPv6 address in brackets, such as [::1]:80",
            Expected::Address => "an IPv4 address, an IPv6 address in brackets, or *, before the port",
            Expected::Bits(32) => "0 to 32 bits behind the / of an IPv4 address",
            Expected::Bits(_) => "0 to 128 bits behind the / of an IPv6 address",
            Expected::Ports => "a port from 1 to 65535, two of them such as 80-90, or *, behind the :",
            Expected::Ascending => "a range of ports that begins with the lower one",
            Expected::End => "the end of the rule",
        })
    }
}

impl fmt::Display for Unusable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unusable::Value => f.write_str("the option rules is set wrongly"),
            Unusable::Line(path, fault) => write!(f, "{path}:{}: {fault}", fault.number),
            Unusable::Unreadable(path, errno) => {
                write!(f, "{path}: the rules cannot be read (error {errno})")
            }
            Unusable::NoFile(path) => {
                write!(f, "{path}: the rules must be in a file, not a pipe or a terminal")
            }
            Unusable::TooLong(path) => write!(f, "{path}: longer than {FILE_MAX} bytes"),
        }
    }
}
