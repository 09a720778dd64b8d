//! A headless Chromium, driven by the W3C's `WebDriver` protocol.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::Method;
use serde_json::{Value, json};
use tempfile::TempDir;
use tidegate_testkit::http_client::Http;
use tidegate_testkit::ports;
use tidegate_testkit::process::Process;
use tidegate_testkit::wait::until;

/// A browser with one window. It and its driver end when this is dropped.
pub(crate) struct Browser {
    http: Http,
    driver: SocketAddr,
    /// The path of its session.
    session: String,
    /// The process of the browser: it would outlive a driver that is killed.
    pid: u64,
    _process: Process,
    _dir: TempDir,
}

impl Browser {
    /// Starts one with a window of this size.
    pub(crate) async fn start(width: u32, height: u32) -> Self {
        let (dir, http, driver) = (tempfile::tempdir().unwrap(), Http::new(), ports::free());
        let mut command = Command::new("chromedriver");
        command.arg(format!("--port={}", driver.port()));
        let process = Process::spawn("chromedriver", &mut command, &dir.path().join("driver.log"));
        let profile = dir.path().join("profile");
        let capabilities = json!({ "capabilities": { "alwaysMatch": {
            "browserName": "chrome",
            "goog:loggingPrefs": { "browser": "ALL" },
            "goog:chromeOptions": { "args": [
                "--headless=new",
                // Where tests run as root, in a container.
                "--no-sandbox",
                "--disable-dev-shm-usage",
                "--disable-gpu",
                "--hide-scrollbars",
                "--no-first-run",
                "--disable-background-networking",
                format!("--user-data-dir={}", profile.display()),
                format!("--window-size={width},{height}"),
            ] },
        } } });
        let is_up = async || http.get(driver, "/status").await.map(drop);
        until("chromedriver (Debian's chromium-driver) answers", Duration::from_secs(30), is_up)
            .await;
        let reply = http.post(driver, "/session", &capabilities).await.unwrap();
        let reply: Value = serde_json::from_str(&reply.body).unwrap();
        let id = reply["value"]["sessionId"].as_str().unwrap_or_else(|| panic!("{reply}"));
        let session = format!("/session/{id}");
        let pid = &reply["value"]["capabilities"]["goog:processID"];
        let pid = pid.as_u64().unwrap_or_else(|| panic!("{reply}"));
        Self { http, driver, session, pid, _process: process, _dir: dir }
    }

    async fn command(&self, path: &str, body: &Value) -> Result<Value, String> {
        let path = format!("{}{path}", self.session);
        let reply = self.http.post(self.driver, &path, body).await?;
        let value: Value = serde_json::from_str(&reply.body).map_err(|error| error.to_string())?;
        match reply.status {
            200 => Ok(value["value"].clone()),
            _ => Err(value["value"]["message"].to_string()),
        }
    }

    pub(crate) async fn open(&self, url: &str) {
        self.command("/url", &json!({ "url": url })).await.unwrap();
    }

    /// The result of a script.
    pub(crate) async fn run(&self, script: &str) -> Result<Value, String> {
        self.command("/execute/sync", &json!({ "script": script, "args": [] })).await
    }

    pub(crate) async fn resize(&self, width: u32, height: u32) {
        // A window has a least width of its own; what it emulates has none.
        let metrics = json!({ "cmd": "Emulation.setDeviceMetricsOverride", "params": {
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600,
        } });
        self.command("/goog/cdp/execute", &metrics).await.unwrap();
    }

    /// Writes what the window shows as PNG.
    pub(crate) async fn screenshot(&self, file: &Path) {
        let path = format!("{}/screenshot", self.session);
        let reply = self.http.send(Method::GET, self.driver, &path, &[], "").await.unwrap();
        let reply: Value = serde_json::from_str(&reply.body).unwrap();
        let image = STANDARD.decode(reply["value"].as_str().unwrap()).unwrap();
        std::fs::write(file, image).unwrap();
    }

    /// What the console has of errors since the last call.
    pub(crate) async fn errors(&self) -> Vec<String> {
        let entries = self.command("/se/log", &json!({ "type": "browser" })).await.unwrap();
        let entries = entries.as_array().cloned().unwrap_or_default();
        let is_error = |entry: &&Value| {
            // The page has no icon.
            entry["level"] == "SEVERE" && !entry["message"].to_string().contains("favicon")
        };
        entries.iter().filter(is_error).map(|entry| entry["message"].to_string()).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg("-KILL").arg(self.pid.to_string()).status();
    }
}
