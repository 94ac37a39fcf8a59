//! The abstract UNIX sockets at which Virtual Interfaces of a host wait for others. The crate `via`
//! listens there, and the agent connects there for programs of other hosts; both use these names.

use fabric::text::Text;

/// The most bytes that the name of a place may have among the places of a user.
pub const LONGEST: usize = 86;

/// The message by which an agent hands a connection over.
pub const HANDED_OVER: &[u8; 8] = b"VIA-FAR\x01";

/// The most bytes of the address of a UNIX socket, without the zero that makes it abstract.
const NAME: usize = 107;

/// The abstract name of a place. Each user has places of its own.
pub struct Name(Text<{ NAME + 1 }>);

impl Name {
    /// The name of a user's place. None if `place` has more than [`LONGEST`] bytes.
    pub fn of(uid: u32, place: &[u8]) -> Option<Name> {
        let mut name = Text::of(format_args!("shunt-via-{uid}-"));
        name.push(place);
        (place.len() <= LONGEST).then_some(Name(name))
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_place_of_the_greatest_user_has_a_name() {
        let name = Name::of(u32::MAX, &[b'p'; LONGEST]).unwrap();
        assert!(name.as_bytes().starts_with(b"shunt-via-4294967295-ppp"));
        assert_eq!(name.as_bytes().len(), NAME);
        assert_eq!(Name::of(7, b"d\x02ab").unwrap().as_bytes(), b"shunt-via-7-d\x02ab");
        assert!(Name::of(0, &[b'p'; LONGEST + 1]).is_none());
    }
}
