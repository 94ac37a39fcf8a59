//! `shunt bench filters`: the experiments of "Impact of High Performance Sockets on Data Intensive Applications", section 5.2. Two processors cannot run
//! ten nodes at the speeds of 2003, so most of it is simulated in virtual time (`filters::sim`), with the paper's constants and with
//! the curves of this machine, which are measured here; what is small enough is measured as it runs. docs/papers.md says what came of it.

mod column;
mod figure;
mod figures;
mod measured;

pub use figure::{Claim, Figure, How, Hue, Mark, Panel, Scale};

use crate::bench::{Session, progress};
use crate::error::Result;
use column::Column;

pub const GROUP: &str = "filters";

pub fn measure(session: &mut Session) -> Result<()> {
    measured::curves(session)?;
    progress(format_args!("filters: simulating cLAN 2003"));
    let clan = Column::clan();
    let here = Column::here(session, &clan);
    let ran = Column::measured(session, here.asked)?;
    let columns = [clan, here, ran];
    session.results.figures = figures::all(&columns);
    Ok(())
}
