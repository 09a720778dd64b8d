//! The binary under the name `ratelimit`, in a deployment of envoyproxy/ratelimit.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use http::Method;
use tidegate::front::rls::RlsClient;
use tidegate::front::rls::message::{Code, Entry, RateLimitDescriptor, RateLimitRequest};
use tidegate_testkit::http_client::{Http, Reply, check_body};
use tidegate_testkit::ports;
use tidegate_testkit::process::Process;
use tidegate_testkit::wait::until;
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::TIDEGATE;

const RULES: &str = "\
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 2}
";

/// A process, and where it is.
struct Ratelimit {
    http: SocketAddr,
    grpc: SocketAddr,
    debug: SocketAddr,
    config: PathBuf,
    client: Http,
    process: Process,
    dir: tempfile::TempDir,
}

impl Ratelimit {
    /// Starts the binary through a link, with this rule file and these variables.
    fn start(rules: Option<&str>, variables: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("ratelimit");
        symlink(TIDEGATE, &link).unwrap();
        let config = dir.path().join("data/ratelimit/config");
        fs::create_dir_all(&config).unwrap();
        if let Some(rules) = rules {
            fs::write(config.join("shop.yaml"), rules).unwrap();
        }
        let (http, grpc, debug) = (ports::free(), ports::free(), ports::free());
        let mut command = Command::new(link);
        command
            .env_clear()
            .env("HOST", "127.0.0.1")
            .env("PORT", http.port().to_string())
            .env("GRPC_HOST", "127.0.0.1")
            .env("GRPC_PORT", grpc.port().to_string())
            .env("DEBUG_HOST", "127.0.0.1")
            .env("DEBUG_PORT", debug.port().to_string())
            .env("RUNTIME_ROOT", dir.path().join("data"))
            .env("RUNTIME_SUBDIRECTORY", "ratelimit")
            .envs(variables.iter().copied());
        let process = Process::spawn("ratelimit", &mut command, &dir.path().join("log"));
        Self { http, grpc, debug, config, client: Http::new(), process, dir }
    }

    async fn get(&self, addr: SocketAddr, target: &str) -> Reply {
        self.client.get(addr, target).await.unwrap()
    }

    /// `POST /json` of one hit.
    async fn json(&self, user: &str) -> Reply {
        let body = check_body("shop", "user", user).to_string();
        self.client.send(Method::POST, self.http, "/json", &[], body).await.unwrap()
    }

    /// Waits until `/healthcheck` has this status.
    async fn is_healthy(&mut self, status: u16) -> Reply {
        let (client, http) = (self.client.clone(), self.http);
        let process = &mut self.process;
        let condition = async || {
            if let Some(status) = process.exit() {
                panic!("it ended with {status}\n{}", process.tail());
            }
            let reply = client.get(http, "/healthcheck").await?;
            if reply.status == status { Ok(reply) } else { Err(format!("{reply:?}")) }
        };
        until(&format!("/healthcheck returns {status}"), Duration::from_secs(30), condition).await.0
    }

    fn endpoint(&self) -> Endpoint {
        Endpoint::from_shared(format!("http://{}", self.grpc)).unwrap()
    }

    async fn grpc(&self, user: &str) -> Result<Code, tonic::Status> {
        self.grpc_at(&self.endpoint(), user).await
    }

    async fn grpc_at(&self, endpoint: &Endpoint, user: &str) -> Result<Code, tonic::Status> {
        let entries = vec![Entry { key: "user".into(), value: user.into() }];
        let descriptors = vec![RateLimitDescriptor { entries, ..Default::default() }];
        let request = RateLimitRequest { domain: "shop".into(), descriptors, hits_addend: 1 };
        let response = RlsClient::new(endpoint).should_rate_limit(request).await?;
        Ok(response.overall_code())
    }

    async fn serving(&self) -> ServingStatus {
        let channel = self.endpoint().connect().await.unwrap();
        let request = HealthCheckRequest { service: "ratelimit".into() };
        HealthClient::new(channel).check(request).await.unwrap().into_inner().status()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unix_socket_is_asked_as_the_port_is_and_removed_in_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ratelimit.sock");
    let variables = [("GRPC_UDS", path.to_str().unwrap()), ("USE_STATSD", "false")];
    let mut process = Ratelimit::start(Some(RULES), &variables);
    process.is_healthy(200).await;
    let endpoint = Endpoint::from_shared(format!("unix:{}", path.display())).unwrap();
    for code in [Code::Ok, Code::Ok, Code::OverLimit] {
        assert_eq!(process.grpc_at(&endpoint, "ann").await.unwrap(), code);
    }
    assert!(process.endpoint().connect().await.is_err(), "there is no port");
    process.process.terminate();
    assert!(process.process.ended(Duration::from_secs(30)).await.success());
    assert!(!path.exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_port_responds_as_envoy_ratelimit_does() {
    let variables = [
        ("REDIS_URL", "redis:6379"),
        ("REDIS_SOCKET_TYPE", "tcp"),
        ("LOG_FORMAT", "json"),
        ("USE_STATSD", "false"),
    ];
    let mut process = Ratelimit::start(Some(RULES), &variables);
    assert_eq!(process.is_healthy(200).await.body, "OK");
    assert_eq!(process.serving().await, ServingStatus::Serving);

    assert_eq!(process.grpc("ann").await.unwrap(), Code::Ok);
    let reply = process.json("ann").await;
    assert_eq!(reply.status, 200, "{reply:?}");
    assert!(reply.body.contains(r#""currentLimit":{"requestsPerUnit":2,"unit":"DAY"}"#));
    assert_eq!(process.json("ann").await.status, 429);
    assert_eq!(process.grpc("ann").await.unwrap(), Code::OverLimit);

    let listed = process.get(process.debug, "/").await.body;
    assert!(listed.contains("/rlconfig: print out the currently loaded configuration"), "{listed}");
    assert_eq!(
        process.get(process.debug, "/rlconfig").await.body,
        "shop.user: unit=DAY requests_per_unit=2, shadow_mode: false, quota_mode: false\n"
    );
    let stats = process.get(process.debug, "/stats").await.body;
    for line in [
        "ratelimit.service.config_load_success: 1\n",
        "ratelimit.service.rate_limit.shop.user.total_hits: 4\n",
        "ratelimit.service.rate_limit.shop.user.over_limit: 2\n",
    ] {
        assert!(stats.contains(line), "no {line} in\n{stats}");
    }
    let profile = process.get(process.debug, "/debug/pprof/profile").await;
    assert_eq!(profile.status, 404);
    assert!(profile.body.starts_with("no profiles"), "{}", profile.body);

    // At the level WARN, one line names what is ignored.
    let log = process.log();
    let named: Vec<_> = log.lines().filter(|line| line.contains("REDIS_")).collect();
    assert_eq!(named.len(), 1, "{log}");
    assert!(named[0].starts_with('{') && named[0].contains("REDIS_SOCKET_TYPE, REDIS_URL;"));
    assert_eq!(log.lines().count(), 1, "{log}");

    process.process.terminate();
    let ended = process.process.ended(Duration::from_secs(20)).await;
    assert_eq!(ended.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broken_rules_at_the_start_are_waited_out() {
    let mut process = Ratelimit::start(Some("domain: shop\ndescriptors: [{key: user"), &[]);
    let reply = process.is_healthy(500).await;
    assert!(reply.body.contains("rules: ") && reply.body.contains("shop.yaml"), "{reply:?}");
    assert_eq!(process.serving().await, ServingStatus::NotServing);
    let refusal = process.grpc("ann").await.unwrap_err();
    assert_eq!(refusal.code(), tonic::Code::Unknown);
    assert_eq!(refusal.message(), "no rate limit configuration loaded");
    assert_eq!(process.json("ann").await.status, 400);

    fs::write(process.config.join("shop.yaml"), RULES).unwrap();
    process.is_healthy(200).await;
    assert_eq!(process.grpc("ann").await.unwrap(), Code::Ok);

    // From then on a mistake changes nothing.
    fs::write(process.config.join("shop.yaml"), "domain:").unwrap();
    let reported = async || match process.log() {
        log if log.contains("the current rules stay in force") => Ok(()),
        log => Err(log),
    };
    until("the error is reported", Duration::from_secs(10), reported).await;
    assert_eq!(process.grpc("ann").await.unwrap(), Code::Ok);
    assert_eq!(process.get(process.http, "/healthcheck").await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_folder_is_healthy_unless_rules_are_required() {
    let mut process = Ratelimit::start(None, &[]);
    process.is_healthy(200).await;
    let required = [("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "true")];
    let mut process = Ratelimit::start(None, &required);
    process.is_healthy(500).await;
    fs::write(process.config.join("shop.yaml"), RULES).unwrap();
    process.is_healthy(200).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_of_them_form_a_cluster_with_our_own_variables() {
    let pki = tempfile::tempdir().unwrap();
    let folder = pki.path().to_str().unwrap();
    let tidegate = |args: &[&str]| {
        let status = Command::new(TIDEGATE).args(args).output().unwrap();
        assert!(status.status.success(), "{status:?}");
    };
    tidegate(&["ca", "init", "--dir", folder]);
    let mesh = [ports::free(), ports::free(), ports::free()].map(|addr| addr.to_string());
    let seeds = mesh.join(",");
    let mut processes = Vec::new();
    for (number, listen) in mesh.iter().enumerate() {
        let id = format!("rl-{number}");
        tidegate(&["ca", "issue", "--dir", folder, "--node", &id]);
        let path = |name: String| pki.path().join(name).to_str().unwrap().to_owned();
        processes.push(Ratelimit::start(
            Some(RULES),
            &[
                ("TIDEGATE_NODE__ID", &id),
                ("TIDEGATE_CLUSTER__LISTEN", listen),
                ("TIDEGATE_CLUSTER__SEEDS", &seeds),
                ("TIDEGATE_CLUSTER__FOUNDERS", "rl-0,rl-1,rl-2"),
                ("TIDEGATE_TLS__CA", &path("ca.pem".into())),
                ("TIDEGATE_TLS__CERT", &path(format!("{id}.pem"))),
                ("TIDEGATE_TLS__KEY", &path(format!("{id}.key"))),
                ("TIDEGATE_TLS__SECRET", &path("cluster.secret".into())),
            ],
        ));
    }
    for process in &mut processes {
        process.is_healthy(200).await;
    }
    // One limit of two over three nodes. A node alone would let the third pass.
    let mut codes = Vec::new();
    for process in &processes {
        codes.push(process.grpc("bob").await.unwrap());
    }
    assert_eq!(codes, [Code::Ok, Code::Ok, Code::OverLimit]);
}

#[test]
fn a_wrong_value_ends_the_start_with_one_line_and_code_2() {
    let dir = tempfile::tempdir().unwrap();
    let link = dir.path().join("ratelimit");
    symlink(TIDEGATE, &link).unwrap();
    let run = Command::new(link).env_clear().env("PORT", "http").output().unwrap();
    assert_eq!(run.status.code(), Some(2));
    assert_eq!(
        String::from_utf8(run.stderr).unwrap(),
        "tidegate: PORT: http.listen: \"http\" is not a port; use a number up to 65535\n"
    );
}

#[cfg(feature = "otel")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn its_traces_go_where_its_variables_say() {
    use crate::traces::{Receiver, text_of};

    let receiver = Receiver::start_grpc().await;
    let endpoint = format!("http://{}", receiver.addr);
    let mut node = Ratelimit::start(
        Some(RULES),
        &[
            ("TRACING_ENABLED", "true"),
            ("TRACING_EXPORTER_PROTOCOL", "grpc"),
            ("TRACING_SERVICE_NAMESPACE", "shop"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint),
        ],
    );
    node.is_healthy(200).await;
    for expected in [200, 200, 429] {
        assert_eq!(node.json("ann").await.status, expected);
    }
    node.process.terminate();
    assert_eq!(node.process.ended(Duration::from_secs(30)).await.code(), Some(0));
    // It has ended: all of it was sent before.
    let recorded = receiver.recorded();
    let of = |recorded: &crate::traces::Recorded| {
        assert_eq!(text_of(&recorded.resource, "service.name"), "RateLimit");
        assert_eq!(text_of(&recorded.resource, "service.namespace"), "shop");
        text_of(&recorded.span.attributes, "tidegate.verdict").to_owned()
    };
    assert_eq!(recorded.iter().map(of).collect::<Vec<_>>(), ["allowed", "allowed", "refused"]);
}
