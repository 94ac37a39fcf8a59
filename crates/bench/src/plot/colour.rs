//! The colour of each contender.

use crate::results::Side;
use plotters::style::RGBColor;

/// Colours that people with red-green blindness can tell apart.
pub fn colour(side: Side) -> RGBColor {
    match side {
        Side::Tcp => RGBColor(127, 127, 127),
        Side::Shunt => RGBColor(213, 94, 0),
        Side::Beside => RGBColor(170, 51, 119),
        Side::HostTcp => RGBColor(60, 60, 60),
        Side::HostShunt => RGBColor(230, 171, 2),
        Side::Unix => RGBColor(86, 160, 211),
        Side::Ofi => RGBColor(213, 94, 0),
        Side::FiPingpong => RGBColor(0, 60, 150),
        Side::FiWrites => RGBColor(0, 120, 90),
        Side::FiMessages => RGBColor(170, 51, 119),
        Side::Raw | Side::Copy => RGBColor(0, 120, 90),
        Side::Futex => RGBColor(0, 120, 90),
        Side::Eventfd => RGBColor(0, 60, 150),
        Side::Via => RGBColor(170, 51, 119),
        Side::Sovia => RGBColor(230, 171, 2),
        Side::Filters | Side::OnDemand => RGBColor(213, 94, 0),
        Side::FiltersShunt => RGBColor(230, 171, 2),
        Side::FiltersTcp | Side::RoundRobin => RGBColor(127, 127, 127),
        Side::ZmqTcp => RGBColor(86, 160, 211),
        Side::ZmqIpc => RGBColor(0, 60, 150),
        Side::Dask => RGBColor(170, 51, 119),
        Side::Ray => RGBColor(0, 120, 90),
        Side::Ethom => RGBColor(213, 94, 0),
        Side::Ethos => RGBColor(230, 171, 2),
        Side::Veth => RGBColor(127, 127, 127),
        Side::Vxlan => RGBColor(60, 60, 60),
        Side::Tinc => RGBColor(86, 160, 211),
        Side::Fastd => RGBColor(0, 120, 90),
        Side::Vde => RGBColor(170, 51, 119),
        Side::Socat => RGBColor(0, 60, 150),
    }
}
