//! The proto3 JSON form of the rate limit service: text to `RateLimitRequest`, `RateLimitResponse`
//! to text. The form of each message is generated (`tidegate_proto`).

use tidegate_proto::rls::{RateLimitRequest, RateLimitResponse};

/// Why a body is not a request.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The first invalid byte.
    #[error("the body is not UTF-8 (byte {0}); send JSON")]
    Utf8(usize),
    /// Not JSON, or not this message.
    #[error("the body is not a RateLimitRequest in JSON: {0}")]
    Json(String),
}

/// Reads a body.
///
/// As in protojson, fields are in camel case or as in the `.proto` file, integers are numbers or
/// strings, and `null` is the default. Unknown and duplicate fields are errors. Nesting that no
/// message has ends at its first byte and costs no stack.
///
/// ```
/// use tidegate::front::http::json;
///
/// let body =
///     br#"{"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "ann"}]}]}"#;
/// let request = json::request(body)?;
/// assert_eq!(request.descriptors[0].entries[0].value, "ann");
/// # Ok::<(), json::ReadError>(())
/// ```
///
/// # Errors
///
/// If the body is not UTF-8 or not a request. The text has the path of the field, line and column.
pub fn request(body: &[u8]) -> Result<RateLimitRequest, ReadError> {
    let text = std::str::from_utf8(body).map_err(|error| ReadError::Utf8(error.valid_up_to()))?;
    serde_json::from_str(text).map_err(|error| {
        // Read again, because to keep track of the path costs an allocation per field.
        let mut json = serde_json::Deserializer::from_str(text);
        let again = serde_path_to_error::deserialize::<_, RateLimitRequest>(&mut json);
        ReadError::Json(again.map_or_else(|error| error.to_string(), |_| error.to_string()))
    })
}

/// The response as one line of JSON. Fields at their default are left out, so `limitRemaining` is
/// absent if nothing remains.
///
/// ```json
/// {"overallCode":"OVER_LIMIT","statuses":[{"code":"OVER_LIMIT",
///  "currentLimit":{"requestsPerUnit":10,"unit":"MINUTE"},"durationUntilReset":"12s"}]}
/// ```
pub fn response(response: &RateLimitResponse) -> String {
    // Fails for enum values that have no name only, and this server sends none.
    serde_json::to_string(response).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_field_and_its_position() {
        for (body, expected) in [
            (r#"{"domain":"d"} x"#, "JSON: trailing characters at line 1 column 16"),
            (
                r#"{"descriptors":[{},{"entries":[{"key":7}]}]}"#,
                "JSON: descriptors[1].entries[0].key: invalid type: integer `7`, expected a string \
                 at line 1 column 39",
            ),
            (
                r#"{"descriptors":[{"limit":{"unit":"FORTNIGHT"}}]}"#,
                "JSON: descriptors[0].limit.unit: unknown variant `FORTNIGHT`",
            ),
        ] {
            let error = request(body.as_bytes()).expect_err(body).to_string();
            assert!(error.contains(expected), "{body}\nis: {error}\nnot: {expected}");
        }
        let error = request(b"{\"domain\":\"\xff\"}").expect_err("not text").to_string();
        assert_eq!(error, "the body is not UTF-8 (byte 11); send JSON");
    }
}
