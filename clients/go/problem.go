package tidegate

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

// Problem is the body of a refusal: problem details (RFC 9457).
type Problem struct {
	Type             string   `json:"type"`
	Title            string   `json:"title"`
	Status           int      `json:"status"`
	Detail           string   `json:"detail"`
	ViolatedPolicies []string `json:"violated-policies,omitempty"`
}

// Problem is the body of a refusal.
func (v Verdict) Problem() Problem {
	if !v.IsDecided {
		return plainProblem(http.StatusServiceUnavailable, "The rate limiter is not available.")
	}
	detail := "over the limit"
	if v.RetryAfter != nil {
		detail = fmt.Sprintf("over the limit; try again in %d s", *v.RetryAfter/time.Second)
	}
	return Problem{
		Type:             "https://iana.org/assignments/http-problem-types#quota-exceeded",
		Title:            "Request cannot be satisfied as assigned quota has been exceeded",
		Status:           http.StatusTooManyRequests,
		Detail:           detail,
		ViolatedPolicies: v.Violated,
	}
}

func plainProblem(status int, detail string) Problem {
	return Problem{Type: "about:blank", Title: http.StatusText(status), Status: status, Detail: detail}
}

// Write responds with the problem.
func (p Problem) Write(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(p.Status)
	// The client may be gone.
	_ = json.NewEncoder(w).Encode(p)
}
