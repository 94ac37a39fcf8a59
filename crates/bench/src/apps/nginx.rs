//! nginx with one worker that serves a small file, under wrk: 50 connections that stay open, or a
//! new one for each request.

use super::app::{Address, App, Load, Run, Server, Workload, accepting, free_port, is_root};
use crate::error::{Error, Result, failed};
use crate::find;
use crate::session::Session;

#[derive(Default)]
pub struct Nginx;

/// The length of the page that Debian's nginx greets with.
const FILE_SIZE: usize = 612;

impl App for Nginx {
    fn name(&self) -> &'static str {
        "nginx"
    }

    fn workloads(&self) -> Vec<Workload> {
        vec![Workload { name: "keep-alive", promise: Some(2.0) }]
    }

    fn has_unix(&self) -> bool {
        false // wrk cannot
    }

    fn prepare(&mut self, session: &Session) -> Result<()> {
        find::program("nginx", "nginx-light")?;
        find::program("wrk", "wrk")?;
        let root = session.temp.path().join("nginx");
        std::fs::create_dir_all(&root)
            .and_then(|()| std::fs::write(root.join("index.html"), "x".repeat(FILE_SIZE)))
            .map_err(failed("cannot write the file to serve"))
    }

    fn start(&self, session: &Session, run: &Run) -> Result<Server> {
        let (root, port) = (session.temp.path().join("nginx"), free_port()?);
        let config = root.join("nginx.conf");
        let user = if is_root() { "user root;\n" } else { "" };
        let text = format!("{user}{}", configuration(&root.to_string_lossy(), port));
        std::fs::write(&config, text).map_err(failed("cannot write the configuration of nginx"))?;
        let launch = run.server(session, &find::program("nginx", "nginx-light")?);
        let launch = launch.args(["-p"]).args([&root]).args(["-e", "stderr", "-c"]).args([&config]);
        accepting(launch.stop_with(libc::SIGTERM).start()?, Address::Tcp(port))
    }

    fn load(&mut self, session: &Session, run: &Run, server: &Server, workload: &str) -> Result<Load> {
        let Address::Tcp(port) = server.at else {
            return Err(Error::Failed("wrk cannot use a UNIX socket".into()));
        };
        let launch = run.client(session, &find::program("wrk", "wrk")?);
        let launch = launch.args(["-t1", "-c50", "--latency", &format!("-d{}s", run.seconds.ceil())]);
        let launch = if workload == "close" { launch.args(["-H", "Connection: close"]) } else { launch };
        let output = launch.args([format!("http://127.0.0.1:{port}/index.html")]).run(run.patience())?;
        let load = wrk(&output.lines)
            .ok_or_else(|| Error::Failed(format!("wrk was not understood: {}", output.lines.join(" | "))))?;
        if let Some(line) = output.lines.iter().find(|l| l.contains("Non-2xx")) {
            return Err(Error::Failed(format!("nginx answered with errors: {}", line.trim())));
        }
        Ok(Load { client_cpu_ns: output.cpu_ns, ..load })
    }
}

/// Debian's default settings for sending files, with paths of our own for everything.
fn configuration(root: &str, port: u16) -> String {
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("    {kind}_temp_path {root}/{kind};\n"))
        .concat();
    format!(
        "daemon off;
worker_processes 1;
pid {root}/nginx.pid;
error_log stderr error;
events {{ worker_connections 1024; }}
http {{
{temporary}    sendfile on;
    tcp_nopush on;
    access_log off;
    keepalive_requests 1000000000;
    server {{
        listen 127.0.0.1:{port};
        root {root};
    }}
}}
"
    )
}

/// The lines of `wrk --latency`.
fn wrk(lines: &[String]) -> Option<Load> {
    let after = |prefix: &str| lines.iter().find_map(|l| l.trim().strip_prefix(prefix)).map(str::trim);
    let requests = lines.iter().find_map(|l| l.trim().split_once(" requests in ")?.0.parse::<f64>().ok())?;
    let per_second = after("Requests/sec:")?.parse().ok()?;
    let share = |name: &str| after(name).and_then(time);
    Some(Load { requests, per_second, p50: share("50%"), p99: share("99%"), ..Load::default() })
}

/// "1.03ms" in nanoseconds.
fn time(text: &str) -> Option<f64> {
    let digits = text.find(|c: char| c.is_alphabetic())?;
    let scale = match &text[digits..] {
        "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        "m" => 60e9,
        _ => return None,
    };
    Some(text[..digits].parse::<f64>().ok()? * scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_wrk_is_read() {
        let text = "Running 2s test @ http://127.0.0.1:1/\n  1 threads and 50 connections\n  Latency Distribution\n     \
                    50%  610.00us\n     75%  700.00us\n     90%    0.90ms\n     99%    1.25ms\n  81726 requests in 2.00s, \
                    70.11MB read\nRequests/sec:  40817.50\nTransfer/sec:     35.02MB";
        let lines: Vec<String> = text.lines().map(String::from).collect();
        let load = wrk(&lines).unwrap();
        assert_eq!((load.requests, load.per_second), (81726.0, 40817.5));
        assert_eq!((load.p50, load.p99), (Some(610_000.0), Some(1_250_000.0)));
        assert_eq!(wrk(&["nothing".into()]), None);
    }

    #[test]
    fn times_have_units() {
        assert_eq!(time("2.00s"), Some(2e9));
        assert_eq!(time("2"), None);
    }
}
