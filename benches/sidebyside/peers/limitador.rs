//! Limitador with counters in memory: one node, as its memory is not shared.

use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::{fs, io};

use super::tidegate::{DOMAIN, STRICT};
use crate::processes::{self, Server};

/// Names the program, if it is not in the search path.
pub const VARIABLE: &str = "LIMITADOR_BIN";
/// Its own default is 1,000 counters, beyond which it forgets.
const COUNTERS: &str = "2000000";

/// Starts a server with the limit of the benchmarks, and waits until it listens for gRPC.
pub fn start(folder: &Path) -> io::Result<(Rc<Server>, SocketAddr)> {
    let program = processes::find_peer("limitador-server", VARIABLE)?;
    let limits = folder.join("limitador.yaml");
    let variable = format!("\"descriptors[0].{STRICT}\"");
    fs::write(
        &limits,
        format!(
            "- namespace: {DOMAIN}\n  max_value: 1000000000\n  seconds: 86400\n  conditions: []\n  \
             variables: [{variable}]\n"
        ),
    )?;
    let (grpc, http) = (processes::free_tcp()?, processes::free_tcp()?);
    let mut command = processes::command(program);
    command.args(["--rls-ip", "127.0.0.1", "--rls-port", &grpc.port().to_string()]);
    command.args(["--http-ip", "127.0.0.1", "--http-port", &http.port().to_string()]);
    command.arg(limits).args(["memory", "--cache", COUNTERS]);
    let mut server = Server::start(&mut command, folder, "limitador")?;
    server.wait_for(grpc)?;
    Ok((Rc::new(server), grpc))
}
