//! Writes pcapng, the format of tcpdump and Wireshark: a section, an interface for each net, and a
//! packet for each frame with its time and direction. Only these blocks are written
//! (draft-ietf-opsawg-pcapng, sections 4.1 to 4.3). This is own code, as the crate `pcap-file`
//! would bring an older syn and an older thiserror along.

const ETHERNET: u16 = 1;

/// The head of a file: the section, and an interface of each name, numbered from 0.
pub fn head(interfaces: &[&str], snap: u32) -> Vec<u8> {
    let mut out = Vec::new();
    block(&mut out, 0x0a0d_0d0a, |body| {
        body.extend(0x1a2b_3c4du32.to_le_bytes());
        body.extend(1u16.to_le_bytes());
        body.extend(0u16.to_le_bytes());
        body.extend(u64::MAX.to_le_bytes());
        option(body, 4, concat!("shunt ", env!("CARGO_PKG_VERSION")).as_bytes());
        option(body, 0, &[]);
    });
    for name in interfaces {
        block(&mut out, 1, |body| {
            body.extend(ETHERNET.to_le_bytes());
            body.extend(0u16.to_le_bytes());
            body.extend(snap.to_le_bytes());
            option(body, 2, name.as_bytes());
            option(body, 9, &[9]); // time in nanoseconds
            option(body, 0, &[]);
        });
    }
    out
}

/// A frame of `whole` bytes, of which `frame` is the captured part.
pub fn packet(out: &mut Vec<u8>, interface: u32, nanos: u64, inbound: bool, frame: &[u8], whole: usize) {
    block(out, 6, |body| {
        body.extend(interface.to_le_bytes());
        body.extend(((nanos >> 32) as u32).to_le_bytes());
        body.extend((nanos as u32).to_le_bytes());
        body.extend((frame.len() as u32).to_le_bytes());
        body.extend((whole as u32).to_le_bytes());
        body.extend(frame);
        pad(body);
        option(body, 2, &(if inbound { 1u32 } else { 2 }).to_le_bytes());
        option(body, 0, &[]);
    });
}

fn block(out: &mut Vec<u8>, kind: u32, fill: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend(kind.to_le_bytes());
    out.extend(0u32.to_le_bytes());
    let mut body = Vec::new();
    fill(&mut body);
    out.extend(body);
    let len = (out.len() - start + 4) as u32;
    out[start + 4..start + 8].copy_from_slice(&len.to_le_bytes());
    out.extend(len.to_le_bytes());
}

fn option(body: &mut Vec<u8>, code: u16, value: &[u8]) {
    body.extend(code.to_le_bytes());
    body.extend((value.len() as u16).to_le_bytes());
    body.extend(value);
    pad(body);
}

fn pad(body: &mut Vec<u8>) {
    body.resize(body.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_say_their_length_at_both_ends() {
        let mut file = head(&["ethos0", "mem"], 65_535);
        for len in 0..9 {
            packet(&mut file, 1, 1 << 40, len % 2 == 0, &[7; 9][..len], 100);
        }
        let mut kinds = Vec::new();
        let mut rest = &file[..];
        while let Some(length) = rest.get(4..8) {
            let length = u32::from_le_bytes(length.try_into().unwrap()) as usize;
            assert_eq!(length % 4, 0);
            assert_eq!(rest[length - 4..length], rest[4..8]);
            kinds.push(u32::from_le_bytes(rest[..4].try_into().unwrap()));
            rest = &rest[length..];
        }
        assert_eq!(kinds, [&[0x0a0d_0d0a, 1, 1][..], &[6; 9]].concat());
    }
}
