//! What two processes say to each other when both have proved that they have the key: what `via` has to say, and where the link is to be had. Everything has bounds, and is
//! checked before it is used (rule F2).

use cluster::wire::{self, ADDRESS, Ticket};

/// What begins each: "vipl", between hosts, and the version of everything that two ends share.
const MAGIC: &[u8; 8] = b"vipl-f\0\x01";
/// What begins a request for a link.
const REQUEST: &[u8; 8] = b"SHUNTVI\x01";
/// The greatest lengths of a provider's name, and of what `via` says.
const PROVIDER: usize = 16;
const HELLO: usize = 128;

/// One thing that is said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    /// What the link will be known by; drawn by who calls.
    pub ticket: Ticket,
    /// libfabric's provider.
    pub provider: String,
    /// Where the fabric is reached, in the provider's own form.
    pub address: Vec<u8>,
    /// What `via` says.
    pub hello: Vec<u8>,
}

impl wire::Said for Said {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.ticket);
        for text in [self.provider.as_bytes(), &self.address, &self.hello] {
            bytes.push(text.len() as u8); // at most 128, see `parse`
            bytes.extend(text);
        }
        bytes
    }

    fn parse(bytes: &[u8]) -> Option<Said> {
        fn text(bytes: &mut &[u8], most: usize) -> Option<Vec<u8>> {
            let (&len, rest) = bytes.split_first()?;
            let (text, rest) =
                rest.split_at_checked(usize::from(len)).filter(|(text, _)| text.len() <= most)?;
            *bytes = rest;
            Some(text.to_vec())
        }
        let (ticket, mut rest) = bytes.strip_prefix(MAGIC)?.split_first_chunk()?;
        let provider = String::from_utf8(text(&mut rest, PROVIDER)?).ok()?;
        let address = text(&mut rest, ADDRESS)?;
        let hello = text(&mut rest, HELLO)?;
        let plain = provider.bytes().all(|byte| byte.is_ascii_graphic());
        let whole = rest.is_empty() && plain && !provider.is_empty() && !address.is_empty();
        whole.then_some(Said { ticket: *ticket, provider, address, hello })
    }
}

/// The words of a request for a link.
pub(crate) fn words(ticket: &Ticket) -> Vec<u8> {
    [&REQUEST[..], ticket].concat()
}

/// The ticket in them. Some providers fill up what they carry.
pub(crate) fn ticket_of(words: &[u8]) -> Option<Ticket> {
    words.strip_prefix(REQUEST)?.first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::wire::Said as _;
    use proptest::prelude::*;

    fn said() -> Said {
        Said {
            ticket: [7; 16],
            provider: "verbs;ofi_rxm".into(),
            address: vec![2; ADDRESS],
            hello: vec![3; HELLO],
        }
    }

    #[test]
    fn what_is_said_is_understood_and_nothing_else_is() {
        let bytes = said().bytes();
        assert!(bytes.len() <= wire::MOST);
        assert_eq!(Said::parse(&bytes), Some(said()));
        for len in 0..bytes.len() {
            assert_eq!(Said::parse(&bytes[..len]), None);
        }
        assert_eq!(Said::parse(&[&bytes[..], &[0]].concat()), None);
        for wrong in [
            Said { provider: String::new(), ..said() },
            Said { provider: "a b".into(), ..said() },
            Said { provider: "p".repeat(17), ..said() },
            Said { address: vec![], ..said() },
            Said { address: vec![0; 129], ..said() },
            Said { hello: vec![0; 129], ..said() },
        ] {
            assert_eq!(Said::parse(&wrong.bytes()), None, "{wrong:?}");
        }
        assert_eq!(ticket_of(&[&words(&[7; 16])[..], &[0; 32]].concat()), Some([7; 16]), "filled up");
        assert_eq!(ticket_of(&words(&[7; 16])[1..]), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_understood_or_not(noise in prop::collection::vec(any::<u8>(), 0..300), keep in 0..60usize) {
            let mut bytes = said().bytes();
            bytes.truncate(keep);
            bytes.extend(noise);
            if let Some(said) = Said::parse(&bytes) {
                prop_assert_eq!(said.bytes(), bytes);
            }
        }
    }
}
