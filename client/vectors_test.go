package client

import (
	"encoding/json"
	"io"
	"math"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// readVectors reads a file of test vectors. The clients in Python and TypeScript read the same
// files.
func readVectors[T any](t *testing.T, name string) (all []T) {
	t.Helper()
	content, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(strings.NewReader(string(content)))
	d.DisallowUnknownFields()
	if err := d.Decode(&all); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return all
}

func headerOf(values map[string]string) http.Header {
	h := http.Header{}
	for name, value := range values {
		h.Set(name, value)
	}
	return h
}

func TestHeaders(t *testing.T) {
	type vector struct {
		Name    string
		Headers map[string]string
		// The vectors of answers.json also have the policy and the number of requests: the tests of
		// the servers that write these answers use them.
		Set, Policy   any
		Requests      int
		Body, Message string
		Want          struct {
			RetryAfter *float64 `json:"retry_after"`
			Policies   [][4]any
		}
	}
	vectors := append(readVectors[vector](t, "headers.json"), readVectors[vector](t, "answers.json")...)
	for _, v := range vectors {
		got := Read(headerOf(v.Headers), today)
		if got.HasRetryAfter != (v.Want.RetryAfter != nil) ||
			got.HasRetryAfter && got.RetryAfter.Seconds() != *v.Want.RetryAfter {
			t.Errorf("%s: Retry-After is %v %s", v.Name, got.HasRetryAfter, got.RetryAfter)
		}
		if len(got.Policies) != len(v.Want.Policies) {
			t.Errorf("%s: %+v, want %v", v.Name, got.Policies, v.Want.Policies)
			continue
		}
		for i, want := range v.Want.Policies {
			p := got.Policies[i]
			if is := [4]any{p.Name, float64(p.Quota), float64(p.Left), p.Reset.Seconds()}; is != want {
				t.Errorf("%s: %v, want %v", v.Name, is, want)
			}
		}
	}
}

type timeline struct {
	Name    string
	Options struct {
		MaxWait float64 `json:"max_wait"`
		Spread  float64
		Retries int
	}
	Requests []timelineRequest
}

type timelineRequest struct {
	At         float64
	Method     string
	Path       string
	Key        bool
	Body       string
	Answers    [][2]json.RawMessage
	Sent       []float64
	Status     int
	RetryAfter int `json:"retry_after"`
}

// newRequest returns the request of a vector. Its body can be read again if Body is "again".
func (r timelineRequest) newRequest(t *testing.T) *http.Request {
	t.Helper()
	var body io.Reader
	switch r.Body {
	case "again":
		body = strings.NewReader("body")
	case "once":
		body = io.NopCloser(strings.NewReader("body"))
	}
	path := r.Path
	if path == "" {
		path = "/v1/things"
	}
	request, err := http.NewRequestWithContext(t.Context(), r.Method, "http://api.example"+path, body)
	if err != nil {
		t.Fatal(err)
	}
	if r.Key {
		request.Header.Set("Idempotency-Key", "1")
	}
	return request
}

// newAnswer returns the i-th answer of a vector.
func (r timelineRequest) newAnswer(t *testing.T, i int) *http.Response {
	t.Helper()
	var status int
	var headers map[string]string
	if err := json.Unmarshal(r.Answers[i][0], &status); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(r.Answers[i][1], &headers); err != nil {
		t.Fatal(err)
	}
	return answer(status, headerOf(headers))
}

// Each random number in the timelines is 0.5.
func TestTimelines(t *testing.T) {
	for _, v := range readVectors[timeline](t, "timelines.json") {
		inVirtualTime(t, v.Name, func(t *testing.T) {
			start := time.Now()
			var now timelineRequest
			var sent []float64
			transport := New(roundTrip(func(r *http.Request) (*http.Response, error) {
				if r.Body != nil {
					if body, err := io.ReadAll(r.Body); err != nil || string(body) != "body" {
						t.Errorf("the body is %q, %v", body, err)
					}
				}
				sent = append(sent, time.Since(start).Seconds())
				if len(sent) > len(now.Answers) {
					t.Fatalf("request %d is sent too often", len(sent))
				}
				return now.newAnswer(t, len(sent)-1), nil
			}), Options{
				MaxWait: time.Duration(v.Options.MaxWait * float64(time.Second)),
				Spread:  time.Duration(v.Options.Spread * float64(time.Second)), Retries: v.Options.Retries,
			})
			transport.random = func() float64 { return 0.5 }
			for i, r := range v.Requests {
				time.Sleep(time.Duration(r.At*float64(time.Second)) - time.Since(start))
				now, sent = r, nil
				got, err := transport.RoundTrip(r.newRequest(t))
				if err != nil {
					t.Fatalf("request %d: %v", i, err)
				}
				if got.StatusCode != r.Status ||
					r.RetryAfter > 0 && got.Header.Get("Retry-After") != strconv.Itoa(r.RetryAfter) {
					t.Errorf("request %d: %d %v, want %d", i, got.StatusCode, got.Header, r.Status)
				}
				if !near(sent, r.Sent) {
					t.Errorf("request %d is sent at %v, want %v", i, sent, r.Sent)
				}
			}
		})
	}
}

// near reports whether two lists of times differ by at most a millisecond.
func near(a, b []float64) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if math.Abs(a[i]-b[i]) > 0.001 {
			return false
		}
	}
	return true
}
