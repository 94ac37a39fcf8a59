//! The twin of `python/examples/zoom.py`: three copies read tiles, three make them smaller, and one
//! sums them up. `zoom threads`, or `zoom processes`.

use filters::flow::Policy;
use filters::{
    Layout, Next, Options, Place, Placement, Registry, StreamOptions, Unit, UnitOptions, With, spec,
};

pub fn main() {
    let mut registry = Registry::default();
    registry
        .function("read", |context| {
            let tiles = u64::from_le_bytes(context.uow().params[..].try_into().expect("it is a number"));
            for tile in (context.rank() as u64..tiles).step_by(context.copies()) {
                let mut draft = context.reserve(0)?;
                draft.bytes().fill((tile % 251) as u8);
                let size = draft.bytes().len();
                context.send(0, draft, size, With::default())?;
            }
            Ok(())
        })
        .function("zoom", |context| {
            while let Some(buffer) = context.read()? {
                let smaller: Vec<u8> = buffer.iter().copied().step_by(4).collect();
                context.write(&smaller)?;
            }
            Ok(())
        })
        .function("collect", |context| {
            while let Some(buffer) = context.read()? {
                context.emit(buffer.iter().map(|&byte| u64::from(byte)).sum::<u64>().to_le_bytes())?;
            }
            Ok(())
        });
    // A process of the group ends here.
    let registry = registry.serve_if_asked();
    let processes = std::env::args().nth(1).is_some_and(|how| how == "processes");

    let mut layout = Layout::default();
    let options = StreamOptions {
        policy: Policy::DemandDriven,
        buffer_size: 16 << 10,
        credits: 32,
        ..StreamOptions::default()
    };
    for name in ["read", "zoom", "collect"] {
        layout.filter(name, spec(name, b"")).expect("the name is good");
    }
    for (from, to) in [("read", "zoom"), ("zoom", "collect")] {
        layout.stream(from, to, options.clone()).expect("both are there");
    }
    let mut placement = Placement::default();
    for name in ["read", "zoom"] {
        placement.0.insert(name.into(), Place { copies: 3, processes, ..Place::default() });
    }
    let options = Options::local(placement).expect("this program has a path");
    let group = registry.start_with(&layout, options).expect("the group starts");
    let unit = group.append(1000u64.to_le_bytes(), UnitOptions::default());
    let (mut sum, mut parts) = (0, 0);
    loop {
        match unit.next_part(None) {
            Next::Part(part) => sum += u64::from_le_bytes(part.data[..].try_into().expect("it is a number")),
            Next::Failed(failure) => panic!("{failure}"),
            Next::Done | Next::NotYet => break,
        }
        parts += 1;
        show(parts, &unit);
    }
    show(parts, &unit);
    eprintln!();
    println!("{sum}\n{}", group.status());
}

fn show(parts: usize, unit: &Unit) {
    let (done, of) = unit.progress();
    eprint!("\r{parts} partial results, {done} of {of} copies done");
}
