// Package answertest has the vectors of answers. The filter, the rate limit service, explanations,
// /v1/usage and the clients in all languages keep to them.
package answertest

import (
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

// Vector is the answer to the last of some equal requests at Wall.
type Vector struct {
	Name string
	// Set is its policy set without the policy, and Policy the policy without its name.
	Set, Policy map[string]any
	Requests    int
	// Headers are the answer's headers. Body is the body of a refusal over HTTP, Message over gRPC.
	// The body has no status.
	Headers       map[string]string
	Body, Message string
	// Want has the values that clients read.
	Want json.RawMessage
}

// Wall is the Unix time of all answers in seconds.
const Wall = 1795348800

// Read returns the vectors in a file.
func Read(t *testing.T, file string) (all []Vector) {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(content, &all); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return all
}

// Document is the vector's policy set, with its policy in a mode.
func (v *Vector) Document(mode string) string {
	set := map[string]any{"version": "weir/v1"}
	p := map[string]any{"name": "users", "mode": mode, "partition": []string{}}
	maps.Copy(set, v.Set)
	maps.Copy(p, v.Policy)
	set["policies"] = []any{p}
	text, err := json.Marshal(set)
	if err != nil {
		panic(err) // It was JSON.
	}
	return string(text)
}

// Lines returns the headers in order, of the vector or of an answer. The name of a bucket follows
// from the secret, so only its length counts.
func Lines(headers map[string]string) string {
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		value := headers[name]
		if name == "x-ratelimit-bucket" {
			value = strings.Repeat("x", len(value))
		}
		lines = append(lines, name+": "+value)
	}
	return strings.Join(lines, "\n")
}
