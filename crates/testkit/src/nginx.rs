//! nginx in front of the upstream, with `auth_request` to the nodes.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::ports;
use crate::process::{Cluster, Process};
use crate::wait::{until, whole_lines};

/// A running nginx.
pub struct Nginx {
    pub addr: SocketAddr,
    access: PathBuf,
    _process: Process,
}

/// One line of its access log.
#[derive(Clone, Debug)]
pub struct Request {
    pub status: u16,
    pub user: String,
    /// When it was read, and when the response was sent: milliseconds since the epoch by nginx's
    /// clock.
    pub start_ms: u64,
    pub end_ms: u64,
}

/// Where Debian's packages put it: `sbin` is not in the path of every user.
const PROGRAM: &str = "/usr/sbin/nginx";

impl Nginx {
    /// Starts it in front of `upstream`, with the HTTP listeners of `cluster` round robin.
    pub async fn start(cluster: &Cluster, upstream: SocketAddr) -> Self {
        assert!(
            Path::new(PROGRAM).exists(),
            "install nginx: apt-get install nginx-light (scripts/test does it)"
        );
        let dir = cluster.dir.path().join("nginx");
        fs::create_dir(&dir).unwrap();
        let addr = ports::free();
        let listeners: Vec<SocketAddr> = cluster.nodes.iter().map(|node| node.http).collect();
        let file = dir.join("nginx.conf");
        fs::write(&file, config(&dir, addr, &listeners, upstream)).unwrap();

        let mut command = Command::new(PROGRAM);
        command.arg("-p").arg(&dir).arg("-e").arg(dir.join("error.log")).arg("-c").arg(&file);
        let mut process = Process::spawn("nginx", &mut command, &dir.join("error.log"));
        let accepts = async || {
            if let Some(status) = process.exit() {
                panic!("nginx ended with {status}\n{}", process.tail());
            }
            let connected = tokio::net::TcpStream::connect(addr).await;
            connected.map(drop).map_err(|error| error.to_string())
        };
        until("nginx accepts", Duration::from_secs(10), accepts).await;
        Self { addr, access: dir.join("access.log"), _process: process }
    }

    /// All requests of the users that `is_meant`, in the order of their responses, once there are
    /// `count` of them: a line is written after the response is sent.
    pub async fn requests(&self, count: usize, is_meant: impl Fn(&str) -> bool) -> Vec<Request> {
        let complete = async || {
            let lines = whole_lines(&self.access);
            let requests =
                lines.iter().map(|line| parse(line)).filter(|request| is_meant(&request.user));
            let requests: Vec<Request> = requests.collect();
            if requests.len() == count { Ok(requests) } else { Err(requests.len().to_string()) }
        };
        until(&format!("{count} lines of the access log"), Duration::from_secs(10), complete)
            .await
            .0
    }
}

fn parse(line: &str) -> Request {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [status, user, end, took] = fields[..] else { panic!("a line of four fields: {line:?}") };
    // Both are seconds with three digits after the point.
    let ms = |seconds: &str| seconds.replace('.', "").parse::<u64>().unwrap();
    let end_ms = ms(end);
    Request {
        status: status.parse().unwrap(),
        user: user.to_owned(),
        start_ms: end_ms - ms(took),
        end_ms,
    }
}

/// The configuration that the module documentation of `/auth` gives to nginx users, with a log.
fn config(dir: &Path, addr: SocketAddr, listeners: &[SocketAddr], upstream: SocketAddr) -> String {
    let user = if fs::metadata(dir).unwrap().uid() == 0 { "user root;" } else { "" };
    let servers: Vec<String> =
        listeners.iter().map(|listener| format!("server {listener};")).collect();
    let servers = servers.join(" ");
    format!(
        r#"
daemon off;
# One process, so that killing it ends all of it: a worker outlives a master that is killed.
master_process off;
{user}
pid nginx.pid;
events {{ worker_connections 256; }}
http {{
    log_format verdicts '$status $http_x_user $msec $request_time';
    access_log access.log verdicts;
    client_body_temp_path tmp-body;
    proxy_temp_path tmp-proxy;
    fastcgi_temp_path tmp-fastcgi;
    uwsgi_temp_path tmp-uwsgi;
    scgi_temp_path tmp-scgi;
    keepalive_requests 1000000;
    upstream tidegate {{ {servers} keepalive 32; keepalive_requests 1000000; }}
    upstream application {{ server {upstream}; keepalive 32; keepalive_requests 1000000; }}
    proxy_http_version 1.1;
    proxy_set_header Connection "";
    server {{
        listen {addr};
        location / {{
            auth_request /_limit;
            auth_request_set $retry_after $upstream_http_retry_after;
            error_page 403 = @limited;
            proxy_pass http://application;
        }}
        location = /_limit {{
            internal;
            proxy_pass http://tidegate/auth?denied=403;
            proxy_pass_request_body off;
            proxy_set_header Connection "";
            proxy_set_header Content-Length "";
            proxy_set_header Host $host;
            proxy_set_header X-Original-URI $request_uri;
            proxy_set_header X-Original-Method $request_method;
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
        }}
        location @limited {{
            add_header Retry-After $retry_after always;
            return 429;
        }}
    }}
}}
"#
    )
}
