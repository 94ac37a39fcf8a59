//! What processes, agents, and agents among each other say. Everything has bounds, and is checked before it is used (rule F2): an end that says what cannot be understood is
//! shut out.
//!
//! A message is the version, two bytes, little-endian, and what `postcard` makes of it (postcard.jamesmunns.com/wire-format). Those of another version are not understood: whoever
//! changes the types here counts [`VERSION`] up. What is understood has one form only: numbers with more bytes than they need, and bytes behind the end, are not.

use std::fmt;

use host::addr::Addr;
use host::place;
use serde::de::{DeserializeOwned, Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// The version of all messages, which each begins with. Version 1 had a form of its own.
pub const VERSION: u16 = 2;
/// The most bytes of a message, but for a report.
pub const MOST: usize = 512;
/// The most bytes of a message with a report.
pub const REPORT: usize = 1 << 20;
/// The most bytes of an address of a fabric, and of a provider's name.
pub const ADDRESS: usize = 128;
const PROVIDER: usize = 16;

/// What an introduction is known by at both ends.
pub type Ticket = [u8; 16];

/// Where a process can be reached: its name, and its fabric's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reach {
    /// Names the process; drawn at random, and never 0.
    #[serde(deserialize_with = "process")]
    pub process: u64,
    /// libfabric's provider: letters that can be seen, as it goes into logs.
    #[serde(deserialize_with = "provider")]
    pub provider: String,
    /// The address, in the provider's own form.
    #[serde(deserialize_with = "bytes::<_, 1, ADDRESS>")]
    pub address: Vec<u8>,
}

/// A process to its agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToAgent {
    /// First of all: who it is.
    Enrol(Reach),
    /// It has an end of this connection, and wants to know the other's. `index` and `cookie` (SO_COOKIE) name the end.
    Post {
        /// Its place among those that the process has posted.
        index: u32,
        /// The kernel's name of the socket.
        cookie: u64,
        /// The addresses.
        #[serde(with = "AddrForm")]
        own: Addr,
        /// As this host sees it.
        #[serde(with = "AddrForm")]
        peer: Addr,
    },
    /// It does not want to know any more.
    Withdraw {
        /// As it was posted.
        index: u32,
        /// Likewise.
        cookie: u64,
    },
    /// Not a process, but somebody who wants to know how the agent is ([`FromAgent::Status`]).
    Status,
}

/// Why there will be no introduction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Why {
    /// The other end is not in the cluster's networks.
    NotInCluster,
    /// No agent answers there.
    NoAgent,
    /// The agent there has another key.
    WrongKey,
    /// The kernel does not confirm the end that was posted.
    Unproved,
    /// The other end is by another provider, or another version.
    Other,
    /// Too much is asked at once.
    TooMany,
    /// Nobody waits at that address for a Virtual Interface.
    Nobody,
}

impl Why {
    /// All, in order.
    pub const ALL: [Why; 7] = [
        Why::NotInCluster,
        Why::NoAgent,
        Why::WrongKey,
        Why::Unproved,
        Why::Other,
        Why::TooMany,
        Why::Nobody,
    ];

    /// In words.
    pub fn text(self) -> &'static str {
        match self {
            Why::NotInCluster => "not in the cluster's networks",
            Why::NoAgent => "no agent answers there",
            Why::WrongKey => "the agent there has another key",
            Why::Unproved => "the kernel does not confirm the end",
            Why::Other => "another provider or version there",
            Why::TooMany => "too many at once",
            Why::Nobody => "nobody waits there",
        }
    }
}

/// An agent to a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromAgent {
    /// It may post.
    Enrolled,
    /// The other end of a connection that was posted.
    Introduced {
        /// As it was posted.
        index: u32,
        /// Likewise.
        cookie: u64,
        /// The process there.
        reach: Reach,
        /// Its user, on its host.
        uid: u32,
        /// As the other end was posted.
        peer_index: u32,
        /// Likewise.
        peer_cookie: u64,
        /// Both are told the same.
        ticket: Ticket,
    },
    /// There will be none.
    Refused {
        /// As it was posted.
        index: u32,
        /// Likewise.
        cookie: u64,
        /// Why.
        why: Why,
    },
    /// A report, in JSON.
    Status(#[serde(deserialize_with = "bytes::<_, 0, REPORT>")] Vec<u8>),
}

/// What can be said, by an encrypted connection for one.
pub trait Said: Sized {
    /// As it goes: at most [`MOST`] bytes, by an encrypted connection.
    fn bytes(&self) -> Vec<u8>;
    /// What came; nothing if it cannot be.
    fn parse(bytes: &[u8]) -> Option<Self>;
}

/// An agent to another one, over the encrypted connection between them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Between {
    /// Who has this end's other half? The addresses are as the asking host sees them.
    Ask {
        /// Names the question.
        id: u64,
        /// The end that was posted.
        #[serde(with = "AddrForm")]
        own: Addr,
        /// The one that is looked for.
        #[serde(with = "AddrForm")]
        peer: Addr,
        /// The process that posted it.
        reach: Reach,
        /// Its user.
        uid: u32,
        /// As it was posted.
        index: u32,
        /// Likewise.
        cookie: u64,
        /// What both processes are told.
        ticket: Ticket,
    },
    /// This one has.
    Found {
        /// The question.
        id: u64,
        /// The process.
        reach: Reach,
        /// Its user.
        uid: u32,
        /// As it was posted there.
        index: u32,
        /// Likewise.
        cookie: u64,
    },
    /// The process that the other agent serves has been told of what was found.
    Told {
        /// The question.
        id: u64,
    },
    /// Nobody will.
    Not {
        /// The question.
        id: u64,
        /// Why.
        why: Why,
    },
    /// Not an agent, but a program that wants a Virtual Interface of this host: its connection is to be handed over to who waits there.
    Meet {
        /// The user who is to be met.
        uid: u32,
        /// The place, as the crate `via` names it.
        #[serde(deserialize_with = "bytes::<_, 0, { place::LONGEST }>")]
        place: Vec<u8>,
    },
    /// It is handed over; what comes next does not come from the agent.
    Met,
}

fn encode(message: &impl Serialize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(MOST);
    bytes.extend(VERSION.to_le_bytes());
    postcard::to_extend(message, bytes).expect("all that is said has a form")
}

fn decode<T: DeserializeOwned + Serialize>(bytes: &[u8]) -> Option<T> {
    let message = bytes.strip_prefix(&VERSION.to_le_bytes())?;
    let message = postcard::from_bytes(message).ok()?;
    (encode(&message) == bytes).then_some(message)
}

impl Said for ToAgent {
    fn bytes(&self) -> Vec<u8> {
        encode(self)
    }
    fn parse(bytes: &[u8]) -> Option<ToAgent> {
        decode(bytes)
    }
}

impl Said for FromAgent {
    fn bytes(&self) -> Vec<u8> {
        encode(self)
    }
    fn parse(bytes: &[u8]) -> Option<FromAgent> {
        decode(bytes)
    }
}

impl Said for Between {
    fn bytes(&self) -> Vec<u8> {
        encode(self)
    }
    fn parse(bytes: &[u8]) -> Option<Between> {
        decode(bytes)
    }
}

/// The form of an [`Addr`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "Addr")]
struct AddrForm {
    ip: [u8; 16],
    port: u16,
}

fn process<'a, D: Deserializer<'a>>(from: D) -> Result<u64, D::Error> {
    match u64::deserialize(from)? {
        0 => Err(Error::invalid_value(Unexpected::Unsigned(0), &"a process's name")),
        process => Ok(process),
    }
}

fn provider<'a, D: Deserializer<'a>>(from: D) -> Result<String, D::Error> {
    let name = String::from_utf8(bytes::<D, 1, PROVIDER>(from)?).map_err(Error::custom)?;
    let plain = name.bytes().all(|byte| byte.is_ascii_graphic());
    plain.then_some(name).ok_or_else(|| Error::custom("a provider's name has other letters"))
}

/// Bytes, so many at least and at most. The length is looked at before there is memory for them.
fn bytes<'a, D: Deserializer<'a>, const LEAST: usize, const MOST: usize>(
    from: D,
) -> Result<Vec<u8>, D::Error> {
    struct Bounded<const LEAST: usize, const MOST: usize>;
    impl<const LEAST: usize, const MOST: usize> Visitor<'_> for Bounded<LEAST, MOST> {
        type Value = Vec<u8>;
        fn expecting(&self, to: &mut fmt::Formatter) -> fmt::Result {
            write!(to, "{LEAST} to {MOST} bytes")
        }
        fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
            let fits = (LEAST..=MOST).contains(&bytes.len());
            if fits { Ok(bytes.to_vec()) } else { Err(Error::invalid_length(bytes.len(), &self)) }
        }
    }
    from.deserialize_bytes(Bounded::<LEAST, MOST>)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reach() -> Reach {
        Reach { process: 7, provider: "verbs;ofi_rxm".into(), address: vec![9; ADDRESS] }
    }

    fn addr(port: u16) -> Addr {
        Addr { ip: [port as u8; 16], port }
    }

    /// Whole it is understood; cut short, longer, or of another version it is not.
    fn understood<T: PartialEq + core::fmt::Debug>(message: &T, bytes: &[u8], parse: fn(&[u8]) -> Option<T>) {
        assert!(bytes.len() <= MOST);
        assert_eq!(parse(bytes).as_ref(), Some(message));
        for len in 0..bytes.len() {
            assert_eq!(parse(&bytes[..len]), None, "the first {len} bytes of {message:?}");
        }
        let longer = [bytes, &[0]].concat();
        assert_eq!(parse(&longer), None, "more than {message:?}");
        let mut other = bytes.to_vec();
        other[0] ^= 2;
        assert_eq!(parse(&other), None, "another version");
    }

    #[test]
    fn what_is_said_is_understood() {
        let post = ToAgent::Post { index: 3, cookie: u64::MAX, own: addr(80), peer: addr(40000) };
        for message in
            [ToAgent::Enrol(reach()), post, ToAgent::Withdraw { index: 3, cookie: 5 }, ToAgent::Status]
        {
            understood(&message, &message.bytes(), ToAgent::parse);
        }
        let introduced = FromAgent::Introduced {
            index: 1,
            cookie: 2,
            reach: reach(),
            uid: 1000,
            peer_index: 3,
            peer_cookie: 4,
            ticket: [8; 16],
        };
        let refused = Why::ALL.map(|why| FromAgent::Refused { index: 1, cookie: 2, why });
        for message in [FromAgent::Enrolled, introduced].into_iter().chain(refused) {
            understood(&message, &message.bytes(), FromAgent::parse);
        }
        let status = FromAgent::Status(b"{}".to_vec());
        assert_eq!(FromAgent::parse(&status.bytes()), Some(status));
        let (own, peer) = (addr(1), addr(2));
        let ask =
            Between::Ask { id: 1, own, peer, reach: reach(), uid: 0, index: 2, cookie: 3, ticket: [4; 16] };
        let found = Between::Found { id: 1, reach: reach(), uid: 0, index: 2, cookie: 3 };
        let meet = Between::Meet { uid: 1000, place: vec![b'd'; place::LONGEST] };
        let not = Between::Not { id: 1, why: Why::TooMany };
        for message in [ask, found, not, Between::Told { id: 1 }, meet, Between::Met] {
            understood(&message, &message.bytes(), Between::parse);
        }
    }

    #[test]
    fn what_cannot_be_is_not_understood() {
        let with = |change: fn(&mut Reach)| {
            let mut reach = reach();
            change(&mut reach);
            ToAgent::parse(&ToAgent::Enrol(reach).bytes())
        };
        assert_eq!(with(|reach| reach.process = 0), None);
        assert_eq!(with(|reach| reach.provider.clear()), None);
        assert_eq!(with(|reach| reach.provider = "tcp\n".into()), None, "it goes into logs");
        assert_eq!(with(|reach| reach.provider = "x".repeat(17)), None);
        assert_eq!(with(|reach| reach.address.clear()), None);
        assert_eq!(with(|reach| reach.address = vec![0; ADDRESS + 1]), None);
        let place = vec![0; place::LONGEST + 1];
        assert_eq!(Between::parse(&Between::Meet { uid: 0, place }.bytes()), None);
    }

    #[test]
    fn lengths_and_numbers_that_lie_are_not_understood() {
        let meet = Between::Meet { uid: 5, place: b"door".to_vec() };
        assert_eq!(meet.bytes(), b"\x02\0\x04\x05\x04door");
        // As long as memory, and longer than any number; fewer bytes than there are; a number, and a kind, with a byte too many; no such kind.
        for wrong in [
            &b"\x02\0\x04\x05\xff\xff\xff\xff\xff\xff\xff\xff\x7fdoor"[..],
            b"\x02\0\x04\x05\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01door",
            b"\x02\0\x04\x05\x03door",
            b"\x02\0\x04\x85\0\x04door",
            b"\x02\0\x84\0\x05\x04door",
            b"\x02\0\x06\x05\x04door",
            b"\x02\0",
            b"\x02",
            b"",
        ] {
            assert_eq!(Between::parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn noise_is_understood_or_not_and_never_in_two_forms() {
        let mut seed = 1u64;
        let mut random = || {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            seed >> 33
        };
        let ask = Between::Ask {
            id: 300,
            own: addr(1),
            peer: addr(2),
            reach: reach(),
            uid: 0,
            index: 2,
            cookie: 3,
            ticket: [4; 16],
        };
        for round in 0..20_000 {
            let mut bytes = if round % 2 == 0 { ask.bytes() } else { ToAgent::Enrol(reach()).bytes() };
            for _ in 0..1 + random() % 4 {
                let at = 2 + random() as usize % (bytes.len() - 2);
                bytes[at] = random() as u8;
            }
            bytes.truncate(2 + random() as usize % (2 * bytes.len()));
            assert!(Between::parse(&bytes).is_none_or(|said| said.bytes() == bytes));
            assert!(ToAgent::parse(&bytes).is_none_or(|said| said.bytes() == bytes));
            assert!(FromAgent::parse(&bytes).is_none_or(|said| said.bytes() == bytes));
        }
    }
}
