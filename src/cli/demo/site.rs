//! Where the demo keeps what it makes: certificates, rules, and each node's configuration and log.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use tidegate_cluster::pki::{self, Overwrite};

use super::super::{Failure, ca};
use crate::config::UserError;

/// The rules of the demo's nodes.
const RULES: &str = include_str!("rules.yaml");

/// How long its certificates are good: nobody leaves a demo running for longer.
const DAYS: u32 = 30;

/// How long a key's owner may take to answer another node. A cluster's default is 10 ms; here one
/// machine plays three and all their clients, and the answers should not depend on what else it
/// does.
pub(super) const DEADLINE_MS: u64 = 100;

/// The folder of one demo.
pub(super) struct Site {
    folder: TempDir,
}

impl Site {
    /// Makes the folder, an authority and the rules.
    pub(super) fn make() -> Result<Self, Failure> {
        let folder = tempfile::Builder::new().prefix("tidegate-demo-").tempdir();
        let folder = folder.map_err(|error| cannot("make a temporary folder", &error))?;
        let site = Self { folder };
        ca::init(&site.pki())?;
        let rules = site.path().join("rules");
        fs::create_dir(&rules)
            .and_then(|()| fs::write(rules.join("demo.yaml"), RULES))
            .map_err(|error| cannot(&format!("write {}", rules.display()), &error))?;
        Ok(site)
    }

    /// The folder.
    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Issues a node's certificate and writes its configuration, whose path is returned.
    pub(super) fn prepare(
        &self,
        id: &str,
        region: &str,
        seed: Option<SocketAddr>,
    ) -> Result<PathBuf, Failure> {
        pki::issue(&self.pki(), id, ca::validity(DAYS), Overwrite::Never)?;
        let file = self.path().join(format!("{id}.toml"));
        fs::write(&file, configuration(id, region, seed))
            .map_err(|error| cannot(&format!("write {}", file.display()), &error))?;
        Ok(file)
    }

    /// Where a node's log goes.
    pub(super) fn log(&self, id: &str) -> PathBuf {
        self.path().join(format!("{id}.log"))
    }

    /// Removes the folder and all in it.
    pub(super) fn remove(self) -> io::Result<()> {
        self.folder.close()
    }

    fn pki(&self) -> PathBuf {
        self.path().join("pki")
    }
}

/// Port 0 throughout: the system gives free ports, and the node's log says which.
fn configuration(id: &str, region: &str, seed: Option<SocketAddr>) -> String {
    let seeds = seed.map_or_else(String::new, |seed| format!("\"{seed}\""));
    format!(
        r#"[node]
id = "{id}"
region = "{region}"

[cluster]
name = "demo"
listen = "127.0.0.1:0"
seeds = [{seeds}]
deadline = "{DEADLINE_MS}ms"

[tls]
ca = "pki/ca.pem"
cert = "pki/{id}.pem"
key = "pki/{id}.key"
secret = "pki/cluster.secret"

[http]
listen = "127.0.0.1:0"

[grpc]
listen = "127.0.0.1:0"

[admin]
listen = "127.0.0.1:0"

[rules]
path = "rules"

[limits]
drain_timeout = "1s"

# What the load balancer's /auth requests are limited by: the headers that are there.
[auth]
domain = "demo"
original = "x-original"

[[auth.descriptors]]
entries = [{{ key = "user", header = "x-user" }}]
[[auth.descriptors]]
entries = [{{ key = "login", header = "x-login" }}]
[[auth.descriptors]]
entries = [{{ key = "licence", header = "x-licence" }}]
[[auth.descriptors]]
entries = [{{ key = "page", header = "x-page" }}]
[[auth.descriptors]]
entries = [{{ key = "visitor", header = "x-visitor" }}]
"#
    )
}

fn cannot(what: &str, error: &io::Error) -> UserError {
    UserError::new(format!("{what}: {error}"), "set TMPDIR to a folder with some space")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    #[test]
    fn a_nodes_configuration_is_one_that_a_node_takes() {
        let site = Site::make().unwrap();
        let file = site.prepare("eu-1", "eu", "127.0.0.1:7600".parse().ok()).unwrap();
        let config = config::load(Some(&file), &[]).unwrap();
        assert_eq!(config.node.region, "eu");
        assert_eq!(config.auth.descriptors.len(), 5);
        assert!(config.tls.key.is_some_and(|key| key.exists()));
        let folder = site.path().to_owned();
        site.remove().unwrap();
        assert!(!folder.exists());
    }
}
