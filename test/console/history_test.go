package console

import (
	"strings"
	"testing"
)

// A policy's graphs show its candidate's refusals beside its own refusals, and its requests in
// flight beside the limit. Before anything is known they say so.
func TestAPolicysGraphsHaveCandidatesAndFlights(t *testing.T) {
	call := func(method, path, body string) {
		t.Helper()
		if _, err := stack.Call(method, path, body); err != nil {
			t.Fatal(err)
		}
	}
	places := func(path string) {
		call("PUT", "/v1/policies/places",
			`{"name": "places", "match": {"paths": ["`+path+`"]}, "partition": [], "limit": {"in_flight": 20}}`)
	}
	call("PATCH", "/v1/policies/resolve-per-ip", `{"candidate": {"limit": {"quota": 1, "window": "1h"}}}`)
	places("/nowhere")
	defer call("DELETE", "/v1/policies/places", "")
	defer call("PATCH", "/v1/policies/resolve-per-ip", `{"candidate": null}`)
	p := open(t, stack.Token)
	p.at("policies/places")
	p.sees("No request of this policy was in flight in this time")
	if strings.Contains(p.text(), "What would another limit do?") {
		t.Error("the slider is there, though it counts tokens and this limit has none")
	}
	places("/**")
	graph := func(name string) string {
		return eval[string](p, `[...document.querySelectorAll("[role=img]")].map(g => g.ariaLabel).find(l => l.startsWith("`+name+`: ")) ?? ""`)
	}
	p.until("draws the requests in flight", func() bool { return strings.Contains(graph("In flight"), "the limit, 20 20") })
	if said := graph("Utilisation"); said == "" || strings.Contains(said, "in percent 0") {
		t.Errorf("the graph of the utilisation is %q", said)
	}
	p.at("policies/shorten-per-ip")
	p.until("draws how full a limit of rates is", func() bool {
		return strings.Contains(graph("Utilisation"), "in use of the fullest limit, in percent 100, all of it 100")
	})
	p.at("policies/resolve-per-ip")
	p.until("draws the candidate", func() bool {
		said := graph("Refusals")
		return strings.Contains(said, "the candidate would refuse ") && !strings.Contains(said, "the candidate would refuse 0")
	})
	dashed := eval[string](p, `[...document.querySelectorAll(".graph figcaption .dashed")].map(i => i.parentElement.textContent.trim()).join()`)
	if dashed != "the candidate would refuse,the candidate: not known" {
		t.Errorf("the dashed lines are %q", dashed)
	}
}
