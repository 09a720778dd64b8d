//! A network namespace for the nodes of one test, in which the mesh can be partitioned.
//!
//! The namespace has a loopback and nothing else. Nodes and test are in it: they reach each other
//! as they do elsewhere, and a partition drops the datagrams of the mesh only. It ends with the
//! last thread and process in it, so nothing is left behind, however the test ends. It requires
//! root, iproute2, util-linux and nftables.

use std::fmt::Write as _;
use std::fs::File;
use std::future::Future;
use std::io::{self, Read, Write as _};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Command, Stdio};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::runtime::Builder;

/// The namespace of a test.
#[derive(Debug)]
pub struct Network {
    /// Where `nsenter` finds it.
    path: String,
}

/// Runs `test` in a namespace of its own; processes that it starts are in it too. Without root it
/// says so and does not run.
pub fn run<F: Future<Output = ()>>(test: impl FnOnce(Network) -> F + Send) {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: a network namespace requires root");
        return;
    }
    let namespace = namespace().unwrap_or_else(|error| panic!("{error}"));
    let path = path(&namespace);
    let in_namespace = || {
        enter(&namespace).unwrap();
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(test(Network { path }));
    };
    let ended = std::thread::scope(|scope| scope.spawn(in_namespace).join());
    if let Err(panic) = ended {
        std::panic::resume_unwind(panic);
    }
}

impl Network {
    /// Cuts the mesh between each two of `groups`, given by the addresses of meshes. A node in none
    /// of them reaches all. It replaces an earlier split.
    pub fn split(&self, groups: &[&[SocketAddr]]) {
        let mut rules = String::new();
        for (index, group) in groups.iter().enumerate() {
            let others = groups.iter().enumerate().filter(|(other, _)| *other != index);
            for to in others.flat_map(|(_, group)| group.iter()) {
                for from in *group {
                    // Writing to a `String` cannot fail.
                    let _ =
                        writeln!(rules, "  udp sport {} udp dport {} drop", from.port(), to.port());
                }
            }
        }
        self.filter(&rules);
    }

    pub fn heal(&self) {
        self.filter("");
    }

    fn filter(&self, rules: &str) {
        let rules = format!(
            "table inet split {{}}\nflush table inet split\ntable inet split {{\n chain received \
             {{\n  type filter hook input priority 0;\n{rules} }}\n}}\n"
        );
        let mut nft = Command::new("nsenter")
            .args([&format!("--net={}", self.path), "nft", "-f", "-"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("start nsenter: {error}"));
        nft.stdin.take().unwrap().write_all(rules.as_bytes()).unwrap();
        assert!(nft.wait().unwrap().success(), "nft refused\n{rules}");
    }
}

/// A namespace with a loopback that is up. It ends when this file, and all threads and processes in
/// it, have ended.
///
/// # Errors
///
/// Without root, util-linux or iproute2.
pub fn namespace() -> io::Result<File> {
    let mut holder = Command::new("unshare")
        .args(["--net", "sh", "-c", "ip link set lo up && echo up && read -r _"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut said = [0; 3];
    let is_up = holder.stdout.take().map(|mut output| output.read_exact(&mut said));
    // The open file keeps the namespace. The holder ends when its input does.
    let namespace = File::open(format!("/proc/{}/ns/net", holder.id()));
    drop(holder.stdin.take());
    holder.wait()?;
    match is_up {
        Some(Ok(())) => namespace,
        _ => Err(io::Error::other("failed to create a network namespace; is iproute2 installed?")),
    }
}

/// Where other processes find it, while this one has the file open.
pub fn path(namespace: &File) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), namespace.as_raw_fd())
}

/// Moves the calling thread into it, with the threads and processes that it starts later.
///
/// # Errors
///
/// Without root.
pub fn enter(namespace: &File) -> io::Result<()> {
    Ok(move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?)
}
