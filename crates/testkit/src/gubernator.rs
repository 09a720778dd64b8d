//! Responses of Gubernator's API in their JSON form.

use serde_json::Value;
use tidegate_proto::gubernator::{RateLimitResp, Status};

/// Reads one: integers are texts, a status is its name, and no field may be missing.
pub fn response_of_json(json: &Value) -> RateLimitResp {
    let number = |name: &str| json[name].as_str().expect("a text").parse().expect("a number");
    let mut response = RateLimitResp {
        limit: number("limit"),
        remaining: number("remaining"),
        reset_time: number("reset_time"),
        error: json["error"].as_str().expect("a text").to_owned(),
        ..RateLimitResp::default()
    };
    let status = json["status"].as_str().expect("a name");
    let status = Status::from_str_name(status);
    response.set_status(status.expect("a status"));
    response
}
