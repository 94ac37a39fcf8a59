//! The messages of processes to agents, of agents to processes, and among agents. Every message has
//! bounds and is checked before it is used (rule F2). A malformed message closes the connection.
//!
//! A message is the version, two bytes, little-endian, and the rest in the encoding of [`form`].
//! Messages of another version are not understood: a change of the types here must increase
//! [`VERSION`].

use host::addr::Addr;
use host::place;
use serde::de::{DeserializeOwned, Error, Unexpected};
use serde::{Deserialize, Deserializer, Serialize};

use crate::form;

/// The version of all messages, which each begins with. Version 1 had another encoding.
pub const VERSION: u16 = 2;
/// The most bytes of a message, but for a report.
pub const MOST: usize = 512;
/// The most bytes of a message with a report.
pub const REPORT: usize = 1 << 20;
/// The most bytes of an address of a fabric.
pub const ADDRESS: usize = 128;

/// Identifies an introduction at both ends.
pub type Ticket = [u8; 16];

/// How a process is reached: its name, and its address in the fabric.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reach {
    /// The name of the process: a random number, never 0.
    #[serde(deserialize_with = "process")]
    pub process: u64,
    /// libfabric's provider: visible ASCII, as it is written to logs.
    #[serde(deserialize_with = "form::provider")]
    pub provider: String,
    /// The address, in the provider's own form.
    #[serde(deserialize_with = "form::bytes::<_, 1, ADDRESS>")]
    pub address: Vec<u8>,
}

/// A message of a process to its agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToAgent {
    /// The first message: who the process is.
    Enrol(Reach),
    /// The process has an end of this connection, and wants to know the process with the other one.
    /// `index` and `cookie` (SO_COOKIE) identify the end.
    Post {
        /// Its place among those that the process has posted.
        index: u32,
        /// The kernel's name of the socket.
        cookie: u64,
        /// The address of this end.
        #[serde(with = "AddrForm")]
        own: Addr,
        /// The address of the other end, as this host sees it.
        #[serde(with = "AddrForm")]
        peer: Addr,
    },
    /// The process does not want to know any more.
    Withdraw {
        /// As it was posted.
        index: u32,
        /// Likewise.
        cookie: u64,
    },
    /// The sender is no process with connections: it asks for the agent's report
    /// ([`FromAgent::Status`]).
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
    /// The other end uses another provider, or another version.
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

/// A message of an agent to a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromAgent {
    /// The process may post.
    Enrolled,
    /// The other end of a connection that the process has posted.
    Introduced {
        /// As it was posted.
        index: u32,
        /// Likewise.
        cookie: u64,
        /// The process that has it.
        reach: Reach,
        /// Its user, on its host.
        uid: u32,
        /// As the other end was posted.
        peer_index: u32,
        /// Likewise.
        peer_cookie: u64,
        /// The same for both processes.
        ticket: Ticket,
    },
    /// There will be no introduction.
    Refused {
        /// As it was posted.
        index: u32,
        /// Likewise.
        cookie: u64,
        /// Why.
        why: Why,
    },
    /// A report, in JSON.
    Status(#[serde(deserialize_with = "form::bytes::<_, 0, REPORT>")] Vec<u8>),
}

/// A message that an encrypted connection can carry.
pub trait Message: Sized {
    /// Its encoding: at most [`MOST`] bytes.
    fn bytes(&self) -> Vec<u8>;
    /// Decodes a message; None if it is malformed.
    fn parse(bytes: &[u8]) -> Option<Self>;
}

/// A message of an agent to another one, over the encrypted connection between them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Between {
    /// Asks which process has the other end of this connection. The addresses are as the asking
    /// host sees them.
    Ask {
        /// Names the question.
        id: u64,
        /// The end that was posted.
        #[serde(with = "AddrForm")]
        own: Addr,
        /// The end that is asked about.
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
        /// The ticket that both processes get.
        ticket: Ticket,
    },
    /// The answer: this process has it.
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
    /// The other agent's process has been told which process was found.
    Told {
        /// The question.
        id: u64,
    },
    /// The answer: there will be no introduction.
    Not {
        /// The question.
        id: u64,
        /// Why.
        why: Why,
    },
    /// The sender is no agent, but a program that wants a Virtual Interface of this host: the agent
    /// hands the connection over to the program that waits there.
    Meet {
        /// The user whose place it is.
        uid: u32,
        /// The place, as the crate `via` names it.
        #[serde(deserialize_with = "form::bytes::<_, 0, { place::LONGEST }>")]
        place: Vec<u8>,
    },
    /// The connection is handed over: all that follows comes from the other program.
    Met,
}

fn encode(message: &impl Serialize) -> Vec<u8> {
    form::encode(&VERSION.to_le_bytes(), message)
}

fn decode<T: DeserializeOwned + Serialize>(bytes: &[u8]) -> Option<T> {
    form::decode(&VERSION.to_le_bytes(), bytes)
}

impl Message for ToAgent {
    fn bytes(&self) -> Vec<u8> {
        encode(self)
    }
    fn parse(bytes: &[u8]) -> Option<ToAgent> {
        decode(bytes)
    }
}

impl Message for FromAgent {
    fn bytes(&self) -> Vec<u8> {
        encode(self)
    }
    fn parse(bytes: &[u8]) -> Option<FromAgent> {
        decode(bytes)
    }
}

impl Message for Between {
    fn bytes(&self) -> Vec<u8> {
        encode(self)
    }
    fn parse(bytes: &[u8]) -> Option<Between> {
        decode(bytes)
    }
}

/// The encoding of an [`Addr`].
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

#[cfg(test)]
mod tests {
    use super::*;

    fn reach() -> Reach {
        Reach { process: 7, provider: "verbs;ofi_rxm".into(), address: vec![9; ADDRESS] }
    }

    fn addr(port: u16) -> Addr {
        Addr { ip: [port as u8; 16], port }
    }

    /// The whole message is understood. Cut short, longer, or of another version it is not.
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
        // A length of all memory, and one longer than any number; fewer bytes than announced; a
        // number, and a kind, with a byte too many; a kind that does not exist.
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
