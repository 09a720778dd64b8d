//! What can go wrong between the proxy and the application.

use std::error::Error as _;
use std::io;
use std::sync::OnceLock;

use http::StatusCode;
use hyper_util::client::legacy::Error as ClientError;

use super::adaptive_limit::AdaptiveLimit;
use crate::front::stats::Counter;

/// Why there is no response of the application.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("the application cannot be reached")]
    Unreachable,
    #[error("the application did not accept the connection in time")]
    ConnectTimeout,
    #[error("the application closed the connection, or sent what is no HTTP")]
    Broken,
    #[error("the application has not responded in time")]
    ResponseTimeout,
    #[error("too many requests are at the application; try again later")]
    Full,
    #[error("the application has as many requests as it can take; try again later")]
    Overloaded,
    #[error("the body of the request stopped arriving")]
    ClientTimeout,
    #[error("the body of the request is incomplete")]
    ClientBody,
}

/// Requests that got no response of the application, or not the whole, since the start.
#[derive(Debug, Default)]
pub struct UpstreamStats {
    /// No connection.
    pub unreachable: Counter,
    /// The connection ended before the end of a response, or what came was none.
    pub broken: Counter,
    /// The server took too long.
    pub slow: Counter,
    /// Too many were at the servers.
    pub full: Counter,
    /// A server had as many as its response times allow.
    pub overloaded: Counter,
    /// The client sent no body, or not the whole.
    pub client: Counter,
    /// Times that a server was left out, for failures in a row or a failed check.
    pub ejections: Counter,
    /// Those of the servers, if they are adapted.
    pub(super) limits: OnceLock<Vec<AdaptiveLimit>>,
}

impl Failure {
    /// What hyper-util says about a request.
    pub(super) fn of(error: &ClientError) -> Self {
        let mut cause = error.source();
        let mut is_timeout = false;
        while let Some(error) = cause {
            let io = error.downcast_ref::<io::Error>();
            is_timeout |= io.is_some_and(|error| error.kind() == io::ErrorKind::TimedOut);
            if error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_user) {
                return Self::ClientBody;
            }
            cause = error.source();
        }
        match (error.is_connect(), is_timeout) {
            (true, true) => Self::ConnectTimeout,
            (true, false) => Self::Unreachable,
            (false, _) => Self::Broken,
        }
    }

    /// The label of the metric, and the word in the access log.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Unreachable | Self::ConnectTimeout => "unreachable",
            Self::Broken => "broken",
            Self::ResponseTimeout => "slow",
            Self::Full => "full",
            Self::Overloaded => "overloaded",
            Self::ClientTimeout | Self::ClientBody => "client",
        }
    }

    /// Whether no server has the request.
    pub(super) fn is_unsent(&self) -> bool {
        match self {
            Self::Unreachable | Self::ConnectTimeout | Self::Full | Self::Overloaded => true,
            Self::Broken | Self::ResponseTimeout | Self::ClientTimeout | Self::ClientBody => false,
        }
    }

    /// Whether it says something about the server.
    pub(super) fn is_of_server(&self) -> bool {
        match self {
            Self::Unreachable | Self::ConnectTimeout | Self::Broken | Self::ResponseTimeout => true,
            Self::Full | Self::Overloaded | Self::ClientTimeout | Self::ClientBody => false,
        }
    }

    pub(super) fn status(&self) -> StatusCode {
        match self {
            Self::Unreachable | Self::Broken => StatusCode::BAD_GATEWAY,
            Self::ConnectTimeout | Self::ResponseTimeout => StatusCode::GATEWAY_TIMEOUT,
            Self::Full | Self::Overloaded => StatusCode::SERVICE_UNAVAILABLE,
            Self::ClientTimeout => StatusCode::REQUEST_TIMEOUT,
            Self::ClientBody => StatusCode::BAD_REQUEST,
        }
    }
}

impl UpstreamStats {
    pub(super) fn count(&self, failure: &Failure) {
        let counter = match failure {
            Failure::Unreachable | Failure::ConnectTimeout => &self.unreachable,
            Failure::Broken => &self.broken,
            Failure::ResponseTimeout => &self.slow,
            Failure::Full => &self.full,
            Failure::Overloaded => &self.overloaded,
            Failure::ClientTimeout | Failure::ClientBody => &self.client,
        };
        counter.add(1);
    }

    /// Requests that the servers may have at a time, together, if these limits are adapted.
    pub fn concurrency_limit(&self) -> Option<u64> {
        let limits = self.limits.get()?;
        Some(limits.iter().map(|limit| u64::from(limit.get())).sum())
    }
}
