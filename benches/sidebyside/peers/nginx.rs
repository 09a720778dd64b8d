//! nginx as an application, and in front of it with and without `auth_request`.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::rc::Rc;
use std::{fs, io};

use crate::processes::{self, Server};

/// Debian's is not in the search path of users.
const PROGRAM: &str = "/usr/sbin/nginx";
/// Where files go that it would write to folders of the system.
const PATHS: &str = "client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; \
                     uwsgi_temp_path uwsgi; scgi_temp_path scgi;";

/// Two listeners of one nginx in front of an application.
#[derive(Clone, Debug)]
pub struct Gate {
    /// With `proxy_pass` alone.
    pub bare: SocketAddr,
    /// With `auth_request` before it.
    pub asking: SocketAddr,
    _server: Rc<Server>,
}

/// Starts an application that answers each request with two bytes.
pub fn application(folder: &Path) -> io::Result<(Rc<Server>, SocketAddr)> {
    let addr = processes::free_tcp()?;
    let text = format!("server {{ listen {addr}; location / {{ return 200 ok; }} }}");
    Ok((start(folder, "application", &text, addr)?, addr))
}

/// Starts nginx in front of `application`, with connections that are kept on both ways.
pub fn gate(folder: &Path, application: SocketAddr, http: SocketAddr) -> io::Result<Gate> {
    let (bare, asking) = (processes::free_tcp()?, processes::free_tcp()?);
    let kept = "proxy_http_version 1.1; proxy_set_header Connection \"\";";
    let text = format!(
        "upstream application {{ server {application}; keepalive 64; }}
         upstream tidegate {{ server {http}; keepalive 64; }}
         server {{ listen {bare}; location / {{ proxy_pass http://application; {kept} }} }}
         server {{
           listen {asking};
           location / {{ auth_request /_limit; proxy_pass http://application; {kept} }}
           location = /_limit {{
             internal; proxy_pass http://tidegate/auth; {kept}
             proxy_pass_request_body off; proxy_set_header Content-Length \"\";
             proxy_set_header X-Original-URI $request_uri;
             proxy_set_header X-Original-Method $request_method;
             proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
           }}
         }}"
    );
    let server = start(folder, "gate", &text, asking)?;
    Ok(Gate { bare, asking, _server: server })
}

/// As it says itself.
pub fn version() -> String {
    // To standard error.
    let output = Command::new(PROGRAM).arg("-v").output().map(|output| output.stderr);
    let text = String::from_utf8_lossy(&output.unwrap_or_default()).trim().to_owned();
    if text.is_empty() { "not available".to_owned() } else { text }
}

fn start(folder: &Path, name: &str, servers: &str, addr: SocketAddr) -> io::Result<Rc<Server>> {
    if !Path::new(PROGRAM).exists() {
        return Err(io::Error::other("nginx is not installed"));
    }
    let folder = folder.join(name);
    fs::create_dir_all(&folder)?;
    let file = folder.join("nginx.conf");
    let text = format!(
        "daemon off; pid nginx.pid; error_log error.log; worker_processes auto;\n\
         events {{ worker_connections 1024; }}\n\
         http {{ access_log off; keepalive_requests 1000000; {PATHS}\n{servers} }}\n"
    );
    fs::write(&file, text)?;
    let mut command = processes::command(PROGRAM);
    command.arg("-p").arg(&folder).arg("-e").arg(folder.join("error.log")).arg("-c").arg(&file);
    let mut server = Server::start(&mut command, &folder, name)?;
    server.wait_for(addr)?;
    Ok(Rc::new(server))
}
