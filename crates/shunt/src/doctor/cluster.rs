//! What connections to other hosts need: the cluster's networks, libfabric and a network that it
//! drives, an agent, and its key.

use options::Fabric;

use super::check::Check;
use crate::settings;

const FABRIC: &str = "fabric";
const AGENT: &str = "agent";

pub fn checks() -> Vec<Check> {
    let options = settings::read(std::env::vars_os()).options;
    if options.cluster.is_empty() {
        return vec![Check::ok("cluster", "none is set: connections to other hosts stay on TCP")];
    }
    vec![fabric(options.fabric), agent()]
}

fn fabric(wanted: Fabric) -> Check {
    let found = match ofi::find(wanted.provider(), None) {
        Ok(found) => found,
        Err(error) => {
            return Check::warn(
                FABRIC,
                format!("{error}: connections to other hosts stay on TCP"),
                "install libfabric.so.1, 1.17 or later (Debian: libfabric1)",
            );
        }
    };
    let used = found.iter().find(|found| wanted != Fabric::Auto || found.provider != ofi::TEST_PROVIDER);
    match used {
        Some(used) => Check::ok(FABRIC, format!("{} on {}", used.provider, used.domain)),
        None => Check::warn(
            FABRIC,
            "libfabric finds no such network: connections to other hosts stay on TCP",
            "see whether `fi_info` lists it (verbs wants ibverbs-providers), or set SHUNT_FABRIC=tcp to try things out",
        ),
    }
}

fn agent() -> Check {
    match agent::status::ask() {
        Ok(report) => {
            let (processes, introduced) = (report.processes, report.counts.introduced);
            Check::ok(AGENT, format!("port {}, {processes} processes, introduced {introduced}", report.port))
        }
        Err(_) => match crate::agent::key() {
            Ok(path) => Check::ok(
                AGENT,
                format!("none runs; `shunt run` starts one, with the key in {}", path.display()),
            ),
            Err(why) => Check::warn(AGENT, why, "docs/cluster.md says how to make a key"),
        },
    }
}
