//! The encoding of messages between hosts: some bytes that name their kind and version, and the
//! rest by `postcard` (postcard.jamesmunns.com/wire-format). Each message has one valid form only:
//! numbers with more bytes than they need, and bytes behind the end, are errors. Parts of variable
//! length have bounds, which are checked before memory is allocated.

use std::fmt;

use serde::de::{DeserializeOwned, Error, Visitor};
use serde::{Deserializer, Serialize};

/// The most bytes of a provider's name.
const PROVIDER: usize = 16;

/// A message behind its beginning.
///
/// # Panics
/// If the type of the message cannot be encoded: a list of unknown length, for example.
pub fn encode(start: &[u8], message: &impl Serialize) -> Vec<u8> {
    postcard::to_extend(message, start.to_vec()).expect("all that is said has a form")
}

/// The message behind that beginning; None if it is malformed.
pub fn decode<T: DeserializeOwned + Serialize>(start: &[u8], bytes: &[u8]) -> Option<T> {
    let message = postcard::from_bytes(bytes.strip_prefix(start)?).ok()?;
    (encode(start, &message) == bytes).then_some(message)
}

/// For serde: the name of libfabric's provider, in visible ASCII, as it is written to logs.
pub fn provider<'a, D: Deserializer<'a>>(from: D) -> Result<String, D::Error> {
    let name = text::<D, 1, PROVIDER>(from)?;
    let plain = name.bytes().all(|byte| byte.is_ascii_graphic());
    plain.then_some(name).ok_or_else(|| Error::custom("a provider's name has other letters"))
}

/// For serde: text of at least and at most so many bytes.
pub fn text<'a, D: Deserializer<'a>, const LEAST: usize, const MOST: usize>(
    from: D,
) -> Result<String, D::Error> {
    String::from_utf8(bytes::<D, LEAST, MOST>(from)?).map_err(Error::custom)
}

/// For serde: bytes, at least and at most so many.
pub fn bytes<'a, D: Deserializer<'a>, const LEAST: usize, const MOST: usize>(
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
