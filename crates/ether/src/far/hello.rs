//! What two hosts of different machines say to each other before there is a link between them: who they are and where their fabric is reached
//! ([`Hello`]), and the words with which one then asks for the link.

use cluster::wire::{Said, Ticket};

/// What begins a hello: "ethom", between hosts, and the version.
const MAGIC: &[u8; 8] = b"ethom-f\x01";
/// What begins a request for a link.
pub(super) const REQUEST: &[u8; 8] = b"SHUNTET\x01";
/// The greatest lengths of a net's name, a provider's, an address of a fabric.
const NET: usize = 32;
const PROVIDER: usize = 16;
const ADDRESS: usize = 128;

/// What each of two hosts says to the other when both have proved that they have the key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// The net.
    pub net: String,
    /// Who it is.
    pub from: u16,
    /// Whom it means.
    pub to: u16,
    /// Bytes of its own queue.
    pub size: u64,
    /// What the link will be known by; drawn by who calls.
    pub ticket: Ticket,
    /// libfabric's provider.
    pub provider: String,
    /// Where its fabric is reached, in the provider's own form.
    pub address: Vec<u8>,
}

impl Said for Hello {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.from.to_le_bytes());
        bytes.extend(self.to.to_le_bytes());
        bytes.extend(self.size.to_le_bytes());
        bytes.extend(self.ticket);
        for text in [self.net.as_bytes(), self.provider.as_bytes(), &self.address] {
            bytes.push(text.len() as u8); // at most 128, see `parse`
            bytes.extend(text);
        }
        bytes
    }

    fn parse(bytes: &[u8]) -> Option<Hello> {
        fn some<'a, const N: usize>(bytes: &mut &'a [u8]) -> Option<&'a [u8; N]> {
            let (first, rest) = bytes.split_first_chunk::<N>()?;
            *bytes = rest;
            Some(first)
        }
        fn text(bytes: &mut &[u8], most: usize) -> Option<Vec<u8>> {
            let [len] = *some::<1>(bytes)?;
            let (text, rest) =
                bytes.split_at_checked(usize::from(len)).filter(|(text, _)| text.len() <= most)?;
            *bytes = rest;
            Some(text.to_vec())
        }
        let mut rest = bytes.strip_prefix(MAGIC)?;
        let from = u16::from_le_bytes(*some(&mut rest)?);
        let to = u16::from_le_bytes(*some(&mut rest)?);
        let size = u64::from_le_bytes(*some(&mut rest)?);
        let ticket = *some(&mut rest)?;
        let net = String::from_utf8(text(&mut rest, NET)?).ok()?;
        let provider = String::from_utf8(text(&mut rest, PROVIDER)?).ok()?;
        let address = text(&mut rest, ADDRESS)?;
        let plain = provider.bytes().all(|byte| byte.is_ascii_graphic());
        let whole = rest.is_empty() && plain && !provider.is_empty() && !address.is_empty();
        whole.then_some(Hello { net, from, to, size, ticket, provider, address })
    }
}

/// The ticket in a request for a link. Some providers fill up what they carry.
pub(super) fn ticket_of(words: &[u8]) -> Option<Ticket> {
    words.strip_prefix(REQUEST)?.first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hello() -> Hello {
        let (net, provider) = ("mem0".to_string(), "tcp".to_string());
        Hello { net, from: 1, to: 65_534, size: 1 << 20, ticket: [7; 16], provider, address: vec![2; 16] }
    }

    #[test]
    fn a_hello_is_understood_and_nothing_else_is() {
        let bytes = hello().bytes();
        assert!(bytes.len() <= cluster::wire::MOST);
        assert_eq!(Hello::parse(&bytes), Some(hello()));
        for len in 0..bytes.len() {
            assert_eq!(Hello::parse(&bytes[..len]), None);
        }
        assert_eq!(Hello::parse(&[&bytes[..], &[0]].concat()), None);
        for wrong in [
            Hello { net: "n".repeat(33), ..hello() },
            Hello { provider: String::new(), ..hello() },
            Hello { provider: "a b".into(), ..hello() },
            Hello { provider: "p".repeat(17), ..hello() },
            Hello { address: vec![], ..hello() },
            Hello { address: vec![0; 129], ..hello() },
        ] {
            assert_eq!(Hello::parse(&wrong.bytes()), None, "{wrong:?}");
        }
        assert_eq!(ticket_of(&[&REQUEST[..], &[7; 16], &[0; 32]].concat()), Some([7; 16]), "filled up");
        assert_eq!(ticket_of(&[&REQUEST[..], &[7; 15]].concat()), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_hello_or_none(noise in prop::collection::vec(any::<u8>(), 0..300), keep in 0..60usize) {
            let mut bytes = hello().bytes();
            bytes.truncate(keep);
            bytes.extend(noise);
            if let Some(hello) = Hello::parse(&bytes) {
                prop_assert_eq!(hello.bytes(), bytes);
            }
        }
    }
}
