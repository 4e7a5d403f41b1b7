package main

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

// The part of an in-toto statement about SLSA provenance that Weir's releases need.
type (
	statement struct {
		Type      string     `json:"_type"`
		Subject   []subject  `json:"subject"`
		Kind      string     `json:"predicateType"`
		Predicate provenance `json:"predicate"`
	}
	subject struct {
		Name   string            `json:"name,omitempty"`
		URI    string            `json:"uri,omitempty"`
		Digest map[string]string `json:"digest"`
	}
	provenance struct {
		Definition buildDefinition `json:"buildDefinition"`
		Details    runDetails      `json:"runDetails"`
	}
	buildDefinition struct {
		Type       string            `json:"buildType"`
		Parameters map[string]string `json:"externalParameters"`
		Tools      map[string]string `json:"internalParameters"`
		Sources    []subject         `json:"resolvedDependencies"`
	}
	runDetails struct {
		Builder  map[string]string `json:"builder"`
		Metadata map[string]string `json:"metadata"`
	}
)

const projectURL = "https://github.com/weir-proxy/weir"

// provenanceOf returns the statement that says from which commit, and with which compilers, the
// files of a release were built. It is the same for two builds of a commit.
func provenanceOf(s settings, subjects []subject) ([]byte, error) {
	goVersion, err := exec.Command("go", "env", "GOVERSION").Output()
	if err != nil {
		return nil, err
	}
	tinygo, err := tinygoVersion(s.Root)
	if err != nil {
		return nil, err
	}
	if s.Commit == "" {
		return nil, fmt.Errorf("-commit is needed: the commit that the release is built from")
	}
	text, err := json.MarshalIndent(statement{
		Type: "https://in-toto.io/Statement/v1", Subject: subjects, Kind: "https://slsa.dev/provenance/v1",
		Predicate: provenance{
			Definition: buildDefinition{
				Type:       projectURL + "/blob/main/docs/run/releases.md#provenance",
				Parameters: map[string]string{"version": s.Version},
				Tools:      map[string]string{"go": strings.TrimSpace(string(goVersion)), "tinygo": tinygo},
				Sources: []subject{{URI: "git+" + projectURL + "@" + s.Commit,
					Digest: map[string]string{"gitCommit": s.Commit}}},
			},
			Details: runDetails{Builder: map[string]string{"id": projectURL + "/tree/main/tools/images"},
				Metadata: map[string]string{"startedOn": made().Format(time.RFC3339)}},
		},
	}, "", "  ")
	return append(text, '\n'), err
}
