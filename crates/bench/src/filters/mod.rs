//! `shunt bench filters`: the experiments of "Impact of High Performance Sockets on Data Intensive
//! Applications", section 5.2. Two processors cannot run ten nodes at the speeds of 2003, so most
//! of it is simulated in virtual time (`filters::sim`), with the paper's constants and with the
//! curves of this machine, which are measured here; what is small enough is measured as it runs.
//! Beside it: the cost of a buffer, compared with others that pass buffers. docs/papers.md has the
//! results.

mod buffers;
mod column;
mod figures;
mod measured;
mod meter;
mod running;
mod unequal;

pub use running::serve_if_asked;

use crate::error::Result;
use crate::session::{Session, progress};
use column::Column;

pub const GROUP: &str = "filters";

/// Measures these parts ([`crate::cli::FILTERS_PARTS`]).
pub fn measure(session: &mut Session, parts: &[String]) -> Result<()> {
    let asked = |part: &str| parts.iter().any(|asked| asked == part);
    let paper = asked("filters-paper");
    if paper {
        measured::curves(session)?;
    }
    if paper || asked(measured::PIPELINE) {
        measured::pipeline(session)?;
    }
    if asked(buffers::NATIVE) {
        buffers::measure(session)?;
    }
    if asked(unequal::GROUP) {
        unequal::measure(session)?;
    }
    if paper {
        progress(format_args!("filters: simulating cLAN 2003"));
        let clan = Column::clan();
        let here = Column::here(session, &clan);
        let ran = Column::measured(session, &clan);
        session.results.figures.extend(figures::all(&[clan, here, ran]));
    }
    if asked(unequal::GROUP) {
        session.results.figures.push(unequal::figure(session));
    }
    Ok(())
}
