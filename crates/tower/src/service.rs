//! The service of a layer: one check for each request.
//!
//! A verdict that is there at once costs no allocation beside its own: the inner service is called
//! in place, and the fields of the verdict wait for its response in the future. Only a verdict that
//! has to be waited for, or a request that a queue holds, needs a clone of the inner service.

use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::HeaderMap;
use http::{Request, Response};
use http_body_util::{Either, Full};
use pin_project_lite::pin_project;
use tower::Service;

use crate::check::{Answer, CheckError};
use crate::refusal::{self, Form};
use crate::settings::{Descriptors, OnUnavailable, Settings};
use crate::verdict::Verdict;

/// A service with limits, made by [`RateLimitLayer`](crate::RateLimitLayer).
#[derive(Clone, Debug)]
pub struct RateLimit<S> {
    pub(crate) inner: S,
    pub(crate) settings: Arc<Settings>,
}

/// The response of the inner service, or of the layer.
type Limited<R> = Response<Either<R, Full<Bytes>>>;
/// Fields for a response.
type Fields = HeaderMap;

pin_project! {
    /// The response to a request, in time.
    #[project = Projected]
    pub enum ResponseFuture<F, R, E> {
        /// It passed.
        Passed { #[pin] response: F, fields: Fields },
        /// It was refused.
        Refused { response: Option<Box<Response<Full<Bytes>>>> },
        /// Its verdict, or its turn, is waited for.
        Waiting { response: BoxFuture<'static, Result<Limited<R>, E>> },
    }
}

/// What becomes of a request.
enum Outcome {
    Pass(Verdict),
    Refuse(Box<Response<Full<Bytes>>>),
    /// The queue holds it for longer than it may wait: its hits go back.
    Return(Verdict),
}

impl<S, B, R> Service<Request<B>> for RateLimit<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    B: Send + 'static,
    R: Send + 'static,
{
    type Response = Limited<R>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future, R, S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let settings = &self.settings;
        if settings.is_exempt(request.method(), request.headers()) {
            return ResponseFuture::Passed {
                response: self.inner.call(request),
                fields: Fields::new(),
            };
        }
        let form = refusal::form(request.headers());
        let mut request = request;
        // It is taken apart only for those who read the whole head: it is large.
        let descriptors = if let Some(describe) = &settings.describe {
            let (head, body) = request.into_parts();
            let descriptors = settings.by_head(&**describe, &head);
            request = Request::from_parts(head, body);
            descriptors
        } else {
            settings.by_client(request.headers(), request.extensions())
        };
        let answer = match &descriptors {
            None => {
                let text = "the request cannot be described: is its client's address known?";
                Answer::Now(Err(CheckError::Undecided(text.to_owned())))
            }
            Some(none) if none.is_empty() => Answer::Now(Ok(Verdict::unlimited())),
            Some(descriptors) => settings.check(descriptors, 1),
        };
        let outcome = match answer {
            // Most requests: the fields are all that is kept of the verdict.
            Answer::Now(Ok(verdict)) if verdict.allowed && verdict.delay.is_zero() => {
                return ResponseFuture::Passed {
                    response: self.inner.call(request),
                    fields: verdict.fields,
                };
            }
            Answer::Now(result) => match settings.outcome(result, form) {
                Outcome::Refuse(response) => {
                    return ResponseFuture::Refused { response: Some(response) };
                }
                Outcome::Pass(verdict) if verdict.delay.is_zero() => {
                    return ResponseFuture::Passed {
                        response: self.inner.call(request),
                        fields: verdict.fields,
                    };
                }
                waiting => Ok(waiting),
            },
            Answer::Later(answer) => Err(answer),
        };
        // The clone has not been polled, so the one that is ready goes along.
        let clone = self.inner.clone();
        let mut inner = mem::replace(&mut self.inner, clone);
        let settings = Arc::clone(settings);
        ResponseFuture::Waiting {
            response: Box::pin(async move {
                let outcome = match outcome {
                    Ok(outcome) => outcome,
                    Err(answer) => settings.outcome(settings.within_deadline(answer).await, form),
                };
                let verdict = match outcome {
                    Outcome::Pass(verdict) => verdict,
                    Outcome::Refuse(response) => return Ok(response.map(Either::Right)),
                    Outcome::Return(verdict) => {
                        settings.give_back(descriptors.unwrap_or_default(), &verdict).await;
                        let response = refusal::queue_too_long(verdict, form);
                        return Ok(response.map(Either::Right));
                    }
                };
                if !verdict.delay.is_zero() {
                    tokio::time::sleep(verdict.delay).await;
                }
                let mut response = inner.call(request).await?.map(Either::Left);
                refusal::add_fields(response.headers_mut(), verdict.fields);
                Ok(response)
            }),
        }
    }
}

impl<F, R, E> Future for ResponseFuture<F, R, E>
where
    F: Future<Output = Result<Response<R>, E>>,
{
    type Output = Result<Limited<R>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project() {
            Projected::Passed { response, fields } => {
                let mut response = ready!(response.poll(context))?.map(Either::Left);
                refusal::add_fields(response.headers_mut(), mem::take(fields));
                Poll::Ready(Ok(response))
            }
            Projected::Refused { response } => {
                let response = response.take().expect("polled after it was ready");
                Poll::Ready(Ok(response.map(Either::Right)))
            }
            Projected::Waiting { response } => response.as_mut().poll(context),
        }
    }
}

impl<F, R, E> std::fmt::Debug for ResponseFuture<F, R, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}

impl Settings {
    async fn within_deadline(
        &self,
        answer: BoxFuture<'static, Result<Verdict, CheckError>>,
    ) -> Result<Verdict, CheckError> {
        let text = || format!("no answer within {:?}", self.deadline);
        let answer = tokio::time::timeout(self.deadline, answer).await;
        answer.unwrap_or_else(|_| Err(CheckError::Undecided(text())))
    }

    /// Decides what becomes of a request, and counts it if nobody else has.
    fn outcome(&self, result: Result<Verdict, CheckError>, form: Form) -> Outcome {
        let verdict = match result {
            Ok(verdict) => verdict,
            Err(CheckError::Invalid(text)) => {
                self.counts.add_invalid();
                tracing::debug!(%text, "check not taken by the rate limiter");
                let detail = format!("not taken by the rate limiter: {text}");
                return Outcome::Refuse(Box::new(refusal::invalid(&detail, form)));
            }
            Err(error) => {
                self.counts.add_undecided();
                tracing::debug!(%error, "request not decided");
                Verdict::undecided(self.on_unavailable == OnUnavailable::Allow)
            }
        };
        if !verdict.allowed {
            Outcome::Refuse(Box::new(refusal::refused(verdict, form)))
        } else if verdict.delay > self.hold_max {
            Outcome::Return(verdict)
        } else {
            Outcome::Pass(verdict)
        }
    }

    /// Returns the hits of a request that does not wait for its turn, where they were counted: a
    /// quota that refused, or a rule that was replaced, would have more left than before.
    async fn give_back(&self, descriptors: Descriptors, verdict: &Verdict) {
        let counted: Descriptors = match &verdict.counted {
            Some(counted) => {
                counted.iter().filter_map(|at| descriptors.get(*at)).cloned().collect()
            }
            // It has the turn.
            None if descriptors.len() == 1 => descriptors,
            None => return,
        };
        let result = match self.check(&counted, -1) {
            Answer::Now(result) => result,
            Answer::Later(answer) => self.within_deadline(answer).await,
        };
        if let Err(error) = result {
            // The queue stays longer than it is, by one.
            tracing::debug!(%error, "hits not given back");
        }
    }
}
