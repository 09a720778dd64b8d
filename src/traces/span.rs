//! Spans while they are recorded.

use std::fmt;
use std::sync::Arc;

use http::HeaderMap;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, ArrayValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{Span as Record, Status};
use parking_lot::Mutex;
use tidegate_cluster::environment::Clock;
use tidegate_cluster::mesh::wire::TraceContext;

use super::propagation::Incoming;
use super::queue::{Entrance, Queue};
use super::{Counters, Kind};

tokio::task_local! {
    /// The span of the request that the task answers.
    static CURRENT: Arc<Span>;
}

/// Begins spans; cheap to clone. By default nothing is recorded.
#[derive(Clone, Debug, Default)]
pub struct Traces(Option<Arc<Recorder>>);

#[derive(Debug)]
struct Recorder {
    clock: Arc<dyn Clock>,
    sampling_rate: f64,
    finished: Entrance,
}

/// A span that is recorded. It ends when it is dropped.
pub struct Span {
    recorder: Arc<Recorder>,
    context: Arc<TraceContext>,
    record: Mutex<Record>,
}

impl Traces {
    /// Records requests from now on; what ends is in the queue. `sampling_rate` is the part of the
    /// requests without a trace that begin one, 0 to 1.
    pub fn new(sampling_rate: f64, clock: Arc<dyn Clock>) -> (Self, Queue) {
        let (finished, queue) = Queue::new();
        (Self(Some(Arc::new(Recorder { clock, sampling_rate, finished }))), queue)
    }

    /// Whether any request is recorded.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// The span of a request with these headers, if it is recorded.
    pub fn request(&self, name: impl FnOnce() -> String, headers: &HeaderMap) -> Option<Span> {
        let recorder = self.0.as_ref()?;
        let parent = match Incoming::of(headers) {
            Incoming::Sampled(parent) => Some(parent),
            Incoming::Unsampled => return None,
            Incoming::Undecided(parent) => {
                is_in(recorder.sampling_rate, &parent.trace).then_some(())?;
                Some(parent)
            }
            Incoming::None => {
                let rate = recorder.sampling_rate;
                (rate >= 1.0 || rate > 0.0 && fastrand::f64() < rate).then_some(())?;
                None
            }
        };
        Some(recorder.begin(parent.as_ref(), name(), Kind::Server))
    }

    /// A span below that of `parent`, which is recorded.
    pub fn below(&self, parent: &TraceContext, name: &'static str, kind: Kind) -> Option<Span> {
        Some(self.0.as_ref()?.begin(Some(parent), name.to_owned(), kind))
    }

    /// The span of the request that this task answers.
    #[inline]
    pub fn current(&self) -> Option<Arc<Span>> {
        self.0.as_ref().and_then(|_| CURRENT.try_with(Arc::clone).ok())
    }

    /// `None` where nothing is ever recorded.
    pub fn counters(&self) -> Option<&Counters> {
        self.0.as_ref().map(|recorder| recorder.finished.counters())
    }
}

/// Runs a part of what answers a request, with its span as [`Traces::current`].
#[inline]
pub fn within<T>(span: Option<&Arc<Span>>, run: impl FnOnce() -> T) -> T {
    match span {
        Some(span) => CURRENT.sync_scope(span.clone(), run),
        None => run(),
    }
}

/// Whether a trace is among the part `rate`: by its id, so that all that ask agree.
fn is_in(rate: f64, trace: &[u8; 16]) -> bool {
    const BITS: u32 = 56;
    let low = u128::from_be_bytes(*trace) & ((1 << BITS) - 1);
    // They fit a double but for three of them, which do not matter.
    #[expect(clippy::cast_precision_loss, reason = "three bits of 56")]
    let place = low as f64 / (1_u64 << BITS) as f64;
    rate >= 1.0 || place < rate
}

impl Recorder {
    fn begin(self: &Arc<Self>, parent: Option<&TraceContext>, name: String, kind: Kind) -> Span {
        let span = fastrand::u64(1..).to_be_bytes();
        let (trace, state) = match parent {
            Some(parent) => (parent.trace, parent.state.clone()),
            None => (fastrand::u128(1..).to_be_bytes(), String::new()),
        };
        let kind = match kind {
            Kind::Server => SpanKind::Server,
            Kind::Client => SpanKind::Client,
        };
        let record = Record {
            trace_id: trace.to_vec(),
            span_id: span.to_vec(),
            trace_state: state.clone(),
            parent_span_id: parent.map(|parent| parent.span.to_vec()).unwrap_or_default(),
            // Sampled.
            flags: 1,
            name,
            kind: kind.into(),
            start_time_unix_nano: self.clock.system().as_nanos(),
            ..Record::default()
        };
        let context = Arc::new(TraceContext { trace, span, state });
        Span { recorder: self.clone(), context, record: Mutex::new(record) }
    }
}

impl Span {
    /// Where what happens during it belongs.
    pub fn context(&self) -> &Arc<TraceContext> {
        &self.context
    }

    /// Sets an attribute, or replaces it.
    pub fn set_text(&self, key: &'static str, value: impl Into<String>) {
        self.set(key, Value::StringValue(value.into()));
    }

    pub fn set_number(&self, key: &'static str, value: usize) {
        self.set(key, Value::IntValue(i64::try_from(value).unwrap_or(i64::MAX)));
    }

    pub fn set_texts(&self, key: &'static str, values: impl IntoIterator<Item = String>) {
        let text = |value| AnyValue { value: Some(Value::StringValue(value)) };
        let values = values.into_iter().map(text).collect();
        self.set(key, Value::ArrayValue(ArrayValue { values }));
    }

    /// Whether it has this attribute.
    pub fn has(&self, key: &'static str) -> bool {
        self.record.lock().attributes.iter().any(|attribute| attribute.key == key)
    }

    /// What it stands for failed.
    pub fn fails(&self) {
        let status = Status { code: StatusCode::Error.into(), ..Status::default() };
        self.record.lock().status = Some(status);
    }

    fn set(&self, key: &'static str, value: Value) {
        let value = Some(AnyValue { value: Some(value) });
        let attributes = &mut self.record.lock().attributes;
        match attributes.iter_mut().find(|attribute| attribute.key == key) {
            Some(attribute) => attribute.value = value,
            None => attributes.push(KeyValue { key: key.to_owned(), value, ..KeyValue::default() }),
        }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        let mut record = std::mem::take(self.record.get_mut());
        record.end_time_unix_nano = self.recorder.clock.system().as_nanos();
        self.recorder.finished.put(record);
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Span").field(&self.context).finish()
    }
}
