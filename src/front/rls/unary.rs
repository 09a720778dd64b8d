//! The framing of a unary gRPC call: one message in, one out.
//!
//! A message is preceded by a byte that flags compression and four bytes of length; the status of
//! the call follows in the trailers. Most requests arrive as one chunk, and their message is
//! decoded in place.
//!
//! Source: `doc/PROTOCOL-HTTP2.md` of grpc/grpc; the codes and texts of errors are those of tonic.

use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::Response;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http_body_util::BodyExt;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use prost::Message;
use tonic::Status;

/// The body of a response: a message and its status, or the body of another service.
#[derive(Debug)]
pub struct Body(Kind);

#[derive(Debug)]
enum Kind {
    /// The message is to be sent; the status `OK` follows.
    Message(Bytes),
    /// The status `OK` is to be sent.
    Trailers,
    Done,
    Other(tonic::body::Body),
}

/// The compression flag and the length.
const PREFIX_BYTES: usize = 5;
const ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const OK: HeaderValue = HeaderValue::from_static("0");

/// Why a request has no message.
#[derive(Debug)]
pub(in crate::front) enum ReadError {
    TooLarge { bytes: usize, max: usize },
    Status(Box<Status>),
}

/// Reads the message of a request, of at most `bytes_max` bytes. The rest of the body is read and
/// ignored.
pub(super) async fn read<M, B>(headers: &HeaderMap, body: B, bytes_max: usize) -> Result<M, Status>
where
    M: Message + Default,
    B: HttpBody<Data = Bytes>,
    B::Error: std::fmt::Display,
{
    let bytes = read_bytes(headers, body, bytes_max).await?;
    M::decode(bytes).map_err(|error| Status::internal(error.to_string()))
}

/// As [`read`], without reading what is in the message.
pub(in crate::front) async fn read_bytes<B>(
    headers: &HeaderMap,
    body: B,
    bytes_max: usize,
) -> Result<Bytes, ReadError>
where
    B: HttpBody<Data = Bytes>,
    B::Error: std::fmt::Display,
{
    if let Some(encoding) = headers.get(ENCODING)
        && encoding != "identity"
    {
        let text = format!("Content is compressed with {encoding:?} which isn't supported");
        return Err(Status::unimplemented(text).into());
    }
    let mut body = pin!(body);
    let mut bytes = Bytes::new();
    let mut length = None;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Status::unknown(format!("read the body: {error}")))?;
        let Ok(chunk) = frame.into_data() else { continue };
        let is_whole = length.is_some_and(|length| bytes.len() >= PREFIX_BYTES + length);
        if is_whole {
            continue;
        }
        bytes = if bytes.is_empty() { chunk } else { joined(bytes, &chunk) };
        if let (None, Some(prefix)) = (length, bytes.first_chunk()) {
            length = Some(message_length(*prefix, bytes_max)?);
        }
    }
    match length {
        None if bytes.is_empty() => Err(Status::internal("Missing request message.").into()),
        Some(length) if bytes.len() >= PREFIX_BYTES + length => {
            bytes.advance(PREFIX_BYTES);
            bytes.truncate(length);
            Ok(bytes)
        }
        _ => Err(Status::internal("Unexpected EOF decoding stream.").into()),
    }
}

pub(in crate::front) fn response<M: Message>(outcome: Result<M, Status>) -> Response<Body> {
    match outcome {
        Err(status) => status.into_http::<tonic::body::Body>().map(Body::from),
        Ok(message) => {
            let mut response = Response::new(Body(Kind::Message(framed(&message))));
            response.headers_mut().insert(CONTENT_TYPE, GRPC);
            response
        }
    }
}

/// Appends a chunk. `before` is at most as long as a message and its prefix.
fn joined(before: Bytes, chunk: &Bytes) -> Bytes {
    let mut both = BytesMut::from(before);
    both.extend_from_slice(chunk);
    both.freeze()
}

fn message_length(prefix: [u8; PREFIX_BYTES], bytes_max: usize) -> Result<usize, ReadError> {
    let [compressed, length @ ..] = prefix;
    if compressed != 0 {
        let text = format!("protocol error: compression flag {compressed} without an encoding");
        return Err(Status::internal(text).into());
    }
    let length = u32::from_be_bytes(length) as usize;
    if length > bytes_max {
        return Err(ReadError::TooLarge { bytes: length, max: bytes_max });
    }
    Ok(length)
}

fn framed<M: Message>(message: &M) -> Bytes {
    let length = message.encoded_len();
    let mut bytes = BytesMut::with_capacity(PREFIX_BYTES + length);
    bytes.put_u8(0);
    // A response has a few bytes per descriptor, and their number is bounded.
    bytes.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    message.encode_raw(&mut bytes);
    bytes.freeze()
}

impl From<Status> for ReadError {
    fn from(status: Status) -> Self {
        Self::Status(Box::new(status))
    }
}

impl From<ReadError> for Status {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::TooLarge { bytes, max } => Self::out_of_range(format!(
                "Error, decoded message length too large: found {bytes} bytes, the limit is: {max} \
                 bytes"
            )),
            ReadError::Status(status) => *status,
        }
    }
}

// === impl Body ===

impl From<tonic::body::Body> for Body {
    fn from(body: tonic::body::Body) -> Self {
        Self(Kind::Other(body))
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        match &mut self.0 {
            Kind::Message(message) => {
                let message = std::mem::take(message);
                self.0 = Kind::Trailers;
                Poll::Ready(Some(Ok(Frame::data(message))))
            }
            Kind::Trailers => {
                self.0 = Kind::Done;
                let mut trailers = HeaderMap::with_capacity(1);
                trailers.insert(Status::GRPC_STATUS, OK);
                Poll::Ready(Some(Ok(Frame::trailers(trailers))))
            }
            Kind::Done => Poll::Ready(None),
            Kind::Other(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Message(_) | Kind::Trailers => false,
            Kind::Done => true,
            Kind::Other(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            // No exact length: it would become a `content-length`, which gRPC does not have.
            Kind::Message(_) | Kind::Trailers | Kind::Done => SizeHint::default(),
            Kind::Other(body) => body.size_hint(),
        }
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::StreamBody;
    use tidegate_proto::rls::{Code, RateLimitRequest, RateLimitResponse};

    use super::*;

    fn message() -> RateLimitRequest {
        RateLimitRequest { domain: "d".repeat(40), descriptors: vec![], hits_addend: 7 }
    }

    async fn read_chunks(chunks: Vec<&[u8]>) -> Result<RateLimitRequest, Status> {
        let frames = chunks
            .into_iter()
            .map(|chunk| Ok::<_, Status>(Frame::data(Bytes::copy_from_slice(chunk))));
        let body = StreamBody::new(futures_util::stream::iter(frames.collect::<Vec<_>>()));
        read(&HeaderMap::new(), body, 64).await
    }

    #[tokio::test]
    async fn a_message_may_arrive_in_any_chunks() {
        let bytes = framed(&message());
        for size in 1..=bytes.len() {
            let read = read_chunks(bytes.chunks(size).collect()).await;
            assert_eq!(read.expect("a message"), message(), "chunks of {size}");
        }
        let followed = read_chunks(vec![&bytes, &bytes, b"noise"]).await;
        assert_eq!(followed.expect("a message"), message());
    }

    #[tokio::test]
    async fn a_malformed_body_is_a_status() {
        let bytes = framed(&message());
        let cut = &bytes[..bytes.len() - 1];
        let compressed = [&[1][..], &bytes[1..]].concat();
        let large = [&[0][..], &65u32.to_be_bytes(), &[0; 65]].concat();
        for (chunks, code) in [
            (vec![], tonic::Code::Internal),
            (vec![&bytes[..3]], tonic::Code::Internal),
            (vec![cut], tonic::Code::Internal),
            (vec![&compressed[..]], tonic::Code::Internal),
            (vec![&large[..5]], tonic::Code::OutOfRange),
            (vec![&large[..3], &large[3..]], tonic::Code::OutOfRange),
        ] {
            assert_eq!(read_chunks(chunks).await.expect_err("a status").code(), code);
        }
        let headers = HeaderMap::from_iter([(ENCODING, HeaderValue::from_static("gzip"))]);
        let refused =
            read::<RateLimitRequest, _>(&headers, http_body_util::Full::new(bytes), 64).await;
        assert_eq!(refused.expect_err("a status").code(), tonic::Code::Unimplemented);
    }

    #[tokio::test]
    async fn a_response_is_its_message_and_a_status() {
        let message = RateLimitResponse { overall_code: Code::Ok.into(), ..Default::default() };
        let body = response(Ok(message)).into_body();
        assert!(!body.is_end_stream());
        assert_eq!(body.size_hint().exact(), None);
        let collected = body.collect().await.expect("a body");
        assert_eq!(collected.trailers().map(|it| it[Status::GRPC_STATUS].clone()), Some(OK));
        assert_eq!(collected.to_bytes(), &[0, 0, 0, 0, 2, 8, 1][..]);

        let refused = response::<RateLimitResponse>(Err(Status::internal("no")));
        assert_eq!(refused.headers()[Status::GRPC_STATUS], "13");
        assert!(refused.body().is_end_stream());
    }
}
