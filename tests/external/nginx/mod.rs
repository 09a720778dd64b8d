//! Debian's nginx in front of three nodes, with `auth_request`.

mod exact_limits;
