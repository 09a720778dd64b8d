//! One scenario of `sequence_cases.json`.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use serde_json::{Value, json};
use tidegate::config::Envoy;
use tidegate::front::rls;
use tidegate::front::rls::message::{
    Entry, RateLimitDescriptor, RateLimitOverride, RateLimitRequest, Unit,
};
use tidegate_limiter::units::Span;

/// A scenario.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) steps: Vec<Step>,
    json: Value,
}

/// One request of a scenario, and its answer.
pub(crate) struct Step(Value);

/// What a case shows of the reference that is not to be repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// A request ends the process.
    Crash,
    /// Two counters have one name, because keys, values and windows are joined.
    SharedName,
    /// The Redis of the reference failed.
    NoBackend,
}

impl Bug {
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::Crash => "the reference's process crashes; here the request is answered",
            Self::SharedName => "two counters share a name there; here each counts by itself",
            Self::NoBackend => "the reference's backend failed; here there is none",
        }
    }
}

/// All scenarios of the collection.
pub(crate) fn all() -> Vec<Case> {
    let file = folder().join("sequence_cases.json");
    let text = std::fs::read_to_string(&file)
        .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let cases: Vec<Value> = serde_json::from_str(&text).expect("a list of cases");
    cases.into_iter().map(Case::new).collect()
}

/// Whether the collection is the one in the repository.
pub(crate) fn is_our_collection() -> bool {
    named_folder().is_none()
}

fn folder() -> PathBuf {
    named_folder().unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden"))
}

#[allow(clippy::disallowed_methods, reason = "a test reads its environment itself")]
fn named_folder() -> Option<PathBuf> {
    std::env::var_os("GOLDEN_DIR").map(PathBuf::from)
}

impl Case {
    fn new(json: Value) -> Self {
        let name = json["name"].as_str().expect("a name").to_owned();
        let steps = json["steps"].as_array().cloned().unwrap_or_default();
        Self { name, steps: steps.into_iter().map(Step).collect(), json }
    }

    /// Its rule files.
    pub(crate) fn files(&self) -> Vec<&str> {
        ["yaml", "yaml2"].iter().filter_map(|key| self.json[*key].as_str()).collect()
    }

    /// A setting of the process; empty when it is not given.
    pub(crate) fn setting(&self, name: &str) -> &str {
        self.json["env"][name].as_str().unwrap_or_default()
    }

    fn is_set(&self, name: &str) -> bool {
        matches!(self.setting(name), "1" | "t" | "T" | "true" | "TRUE" | "True")
    }

    pub(crate) fn merges_domains(&self) -> bool {
        self.is_set("MERGE_DOMAIN_CONFIG") || self.json["merge_domain_config"] == true
    }

    /// The settings by our names.
    pub(crate) fn envoy(&self) -> Envoy {
        let text = |name: &str, usual: String| match self.setting(name) {
            "" => usual,
            given => given.to_owned(),
        };
        let usual = Envoy::default();
        let cache_bytes = self.setting("LOCAL_CACHE_SIZE_IN_BYTES").parse().unwrap_or(0);
        Envoy {
            shadow_mode: self.is_set("SHADOW_MODE"),
            quota_mode: self.is_set("QUOTA_MODE"),
            overrides: true,
            all_or_nothing: self.json["stop_flag"] == true
                || self.is_set("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT"),
            local_cache: self.json["local_cache"] == true || cache_bytes > 0,
            near_limit_ratio: self
                .setting("NEAR_LIMIT_RATIO")
                .parse()
                .unwrap_or(usual.near_limit_ratio),
            response_headers: self.is_set("LIMIT_RESPONSE_HEADERS_ENABLED"),
            limit_header: text("LIMIT_LIMIT_HEADER", usual.limit_header),
            remaining_header: text("LIMIT_REMAINING_HEADER", usual.remaining_header),
            reset_header: text("LIMIT_RESET_HEADER", usual.reset_header),
            dynamic_metadata: self.is_set("RESPONSE_DYNAMIC_METADATA"),
        }
    }

    /// Whether each hit is counted, refused or not, under the entries of its own descriptor, and
    /// each refusal shown.
    pub(crate) fn counts_plainly(&self) -> bool {
        let envoy = self.envoy();
        let sharing = ["share_threshold", "shadow_mode"];
        let is_shared = |file: &&str| sharing.iter().any(|key| file.contains(key));
        !envoy.all_or_nothing && !envoy.local_cache && !self.files().iter().any(is_shared)
    }

    /// What was counted at the end, without what stayed zero.
    pub(crate) fn statistics(&self) -> BTreeMap<String, u64> {
        let counted = self.json["final_stats"].as_object().into_iter().flatten();
        counted
            .filter_map(|(name, count)| Some((name.clone(), count.as_u64()?)))
            .filter(|(_, count)| *count > 0)
            .collect()
    }

    /// The bug that the case shows, recognised by its form.
    pub(crate) fn bug(&self) -> Option<Bug> {
        if self.steps.iter().any(|step| !step.0["process_crash"].is_null()) {
            return Some(Bug::Crash);
        }
        if self.statistics().contains_key("call.redis_error") {
            return Some(Bug::NoBackend);
        }
        self.has_shared_names().then_some(Bug::SharedName)
    }

    /// Whether two counters that differ get the same joined name.
    fn has_shared_names(&self) -> bool {
        let mut names: HashMap<String, String> = HashMap::new();
        self.steps.iter().any(|step| {
            let statuses = step.0["statuses"].as_array().cloned().unwrap_or_default();
            statuses.iter().enumerate().any(|(number, status)| {
                if status["unit"].is_null() || number >= step.descriptors().len() {
                    return false;
                }
                let unit = &status["unit"];
                let name = format!("{} {}", step.joined_key(number), step.window(unit));
                let own = format!("{} {unit}", step.structured_key(number));
                *names.entry(name).or_insert_with(|| own.clone()) != own
            })
        })
    }
}

impl Step {
    /// When the request was sent.
    pub(crate) fn seconds(&self) -> u64 {
        self.0["t"].as_u64().expect("a time")
    }

    /// A rule file that is loaded before the request.
    pub(crate) fn reload(&self) -> Option<&str> {
        self.0["yaml"].as_str()
    }

    pub(crate) fn descriptors(&self) -> &[Value] {
        self.0["req"]["descriptors"].as_array().map(Vec::as_slice).unwrap_or_default()
    }

    /// Whether the reference answered.
    pub(crate) fn has_answer(&self) -> bool {
        self.0["statuses"].is_array()
    }

    /// The statuses of the reference.
    pub(crate) fn statuses(&self) -> &[Value] {
        self.0["statuses"].as_array().map(Vec::as_slice).unwrap_or_default()
    }

    /// Entries of a descriptor.
    pub(crate) fn entries(&self, number: usize) -> Vec<(&str, &str)> {
        let entries = self.descriptors()[number]["E"].as_array().into_iter().flatten();
        entries.filter_map(|pair| Some((pair[0].as_str()?, pair[1].as_str()?))).collect()
    }

    /// The request as a message.
    pub(crate) fn request(&self) -> RateLimitRequest {
        let req = &self.0["req"];
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        let descriptor = |(index, it): (usize, &Value)| RateLimitDescriptor {
            entries: self
                .entries(index)
                .into_iter()
                .map(|(key, value)| Entry { key: key.into(), value: value.into() })
                .collect(),
            limit: it["Limit"].is_object().then(|| RateLimitOverride {
                requests_per_unit: u32::try_from(number(&it["Limit"]["Rpu"])).expect("32 bits"),
                unit: i32::try_from(it["Limit"]["Unit"].as_i64().unwrap_or(0)).expect("32 bits"),
            }),
            hits_addend: it["Hits"].as_u64(),
            is_negative_hits: false,
        };
        RateLimitRequest {
            domain: req["domain"].as_str().unwrap_or_default().into(),
            descriptors: self.descriptors().iter().enumerate().map(descriptor).collect(),
            hits_addend: u32::try_from(number(&req["hits_addend"])).expect("32 bits"),
        }
    }

    /// What the reference answered, in the form of [`super::render`].
    pub(crate) fn expected(&self) -> Value {
        if let Some(error) = self.0["grpc_error"].as_str() {
            return json!({ "grpc_error": error });
        }
        let mut expected = json!({ "overall": self.0["overall"], "statuses": self.0["statuses"] });
        let headers = super::render::pairs(&self.0["response_headers"]);
        if !headers.is_empty() {
            expected["response_headers"] = json!(headers);
        }
        if self.0["dynamic_metadata"].is_object() {
            expected["dynamic_metadata"] = super::render::numbers(&self.0["dynamic_metadata"]);
        }
        expected
    }

    /// Hits of a descriptor.
    pub(crate) fn hits(&self, number: usize) -> u64 {
        let of_all = self.0["req"]["hits_addend"].as_u64().unwrap_or(0).max(1);
        self.descriptors()[number]["Hits"].as_u64().unwrap_or(of_all)
    }

    /// A descriptor as what it is.
    pub(crate) fn structured_key(&self, number: usize) -> String {
        format!("{} {:?}", self.0["req"]["domain"], self.entries(number))
    }

    /// A descriptor as the reference joins it.
    fn joined_key(&self, number: usize) -> String {
        let mut joined = format!("{}_", self.0["req"]["domain"].as_str().unwrap_or_default());
        for (key, value) in self.entries(number) {
            joined.extend([key, "_", value, "_"]);
        }
        joined
    }

    /// When the window of a unit began.
    pub(crate) fn window(&self, unit: &Value) -> u64 {
        let unit = unit.as_str().and_then(Unit::from_str_name);
        let window = unit.and_then(rls::window).map_or(1, Span::as_secs_ceil);
        self.seconds() / window * window
    }
}
