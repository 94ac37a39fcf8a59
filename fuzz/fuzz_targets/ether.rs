//! What comes by ETHOS's wire and before ETHOM's frames, what ETHOM's hosts of other machines say first, and the table of hosts: any bytes are let in as what they must be, or
//! dropped for a reason; any text is a table or an error; any super-frame is cut up, or refused.
#![no_main]

use cluster::wire::Message as _;
use ether::ethos::Own;
use ether::frame::{EXPERIMENTAL, HEADER, Header};
use ether::remote::Hello;
use ether::table::Table;
use ether::vnet::{self, Segments, Vnet};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((choice, rest)) = input.split_first() else { return };
    if choice % 2 == 0 {
        if let Ok(text) = std::str::from_utf8(rest)
            && let Ok(table) = Table::parse(text, "table")
        {
            assert!(!table.nets.is_empty() && !table.hosts.is_empty());
            assert!(table.hosts.iter().all(|host| (1..=65_534).contains(&host.id) && !host.nets.is_empty()));
            assert!(table.nets.iter().all(|net| net.mtu <= net.driver.most() && net.queue.is_power_of_two()));
        }
        return;
    }
    if let Some(hello) = Hello::parse(rest) {
        assert_eq!(hello.bytes(), rest);
    }
    let me = u16::from(*choice);
    if let Ok(header) = Header::admit(rest, rest.len(), 1472, Some(me + 1), me) {
        assert!((HEADER..=1472).contains(&rest.len()) && !header.from.is_group());
        assert!(header.from.host().is_none_or(|id| id == me + 1));
    }
    if Own::parse(rest).is_some() {
        assert!(Header::parse(rest).is_ok_and(|header| header.ethertype == EXPERIMENTAL));
    }
    if let Some((offload, frame)) = rest.split_first_chunk() {
        let (vnet, mut frame, mut segments) = (Vnet::parse(offload), frame.to_vec(), Segments::default());
        let fits = vnet.fits(frame.len(), 1472);
        assert!(!fits || frame.len() <= vnet::LONGEST);
        if segments.cut(&vnet, &frame, 1472).is_ok() {
            assert!(vnet.is_super() && segments.each() <= 1472);
            let headers = |segment: &&[u8]| segment.len() > HEADER && segment[..HEADER] == frame[..HEADER];
            assert!(
                segments.groups(1, 0).all(|segment| headers(&segment) && segment.len() <= segments.each())
            );
        }
        if fits {
            vnet.complete(&mut frame);
        }
    }
});
