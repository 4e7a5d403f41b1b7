package main

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"time"
)

// made returns the time that all files have: $SOURCE_DATE_EPOCH, in seconds, or the epoch itself.
// So the time does not make two builds differ.
func made() time.Time {
	seconds, _ := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	return time.Unix(seconds, 0).UTC()
}

// The part of SPDX 2.3 that Weir's lists need.
type (
	spdxDocument struct {
		Version       string             `json:"spdxVersion"`
		License       string             `json:"dataLicense"`
		ID            string             `json:"SPDXID"`
		Name          string             `json:"name"`
		Namespace     string             `json:"documentNamespace"`
		Creation      spdxCreation       `json:"creationInfo"`
		Packages      []spdxPackage      `json:"packages"`
		Relationships []spdxRelationship `json:"relationships"`
	}
	spdxCreation struct {
		Created  string   `json:"created"`
		Creators []string `json:"creators"`
	}
	spdxPackage struct {
		ID         string         `json:"SPDXID"`
		Name       string         `json:"name"`
		Version    string         `json:"versionInfo"`
		Download   string         `json:"downloadLocation"`
		Analyzed   bool           `json:"filesAnalyzed"`
		License    string         `json:"licenseDeclared,omitempty"`
		Checksums  []spdxChecksum `json:"checksums,omitempty"`
		References []spdxRef      `json:"externalRefs,omitempty"`
	}
	spdxChecksum struct {
		Algorithm string `json:"algorithm"`
		Value     string `json:"checksumValue"`
	}
	spdxRef struct {
		Category string `json:"referenceCategory"`
		Type     string `json:"referenceType"`
		Locator  string `json:"referenceLocator"`
	}
	spdxRelationship struct {
		Element string `json:"spdxElementId"`
		Type    string `json:"relationshipType"`
		Related string `json:"relatedSpdxElement"`
	}
)

// materials describes an artifact, known by its SHA-256 in hexadecimal, and its parts.
func materials(name, version, sum string, toolchain component, parts []component) ([]byte, error) {
	d := spdxDocument{
		Version: "SPDX-2.3", License: "CC0-1.0", ID: "SPDXRef-DOCUMENT", Name: name + "-" + version,
		Namespace: fmt.Sprintf("https://github.com/weir-proxy/weir/sbom/%s/%s/%s", name, version, sum),
		Creation:  spdxCreation{made().Format(time.RFC3339), []string{"Tool: weir-images"}},
		Packages: []spdxPackage{{ID: "SPDXRef-artifact", Name: name, Version: version, Download: "NOASSERTION",
			License: "Apache-2.0", Checksums: []spdxChecksum{{"SHA256", sum}}}},
		Relationships: []spdxRelationship{{"SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-artifact"}},
	}
	add := func(c component, relation func(id string) spdxRelationship) {
		id := "SPDXRef-" + regexp.MustCompile(`[^a-zA-Z0-9.]+`).ReplaceAllString(c.Path, "-")
		d.Packages = append(d.Packages, spdxPackage{ID: id, Name: c.Path, Version: c.Version, Download: "NOASSERTION",
			References: []spdxRef{{"PACKAGE-MANAGER", "purl", "pkg:golang/" + c.Path + "@" + c.Version}}})
		d.Relationships = append(d.Relationships, relation(id))
	}
	for _, c := range parts {
		add(c, func(id string) spdxRelationship { return spdxRelationship{"SPDXRef-artifact", "DEPENDS_ON", id} })
	}
	add(toolchain, func(id string) spdxRelationship { return spdxRelationship{id, "BUILD_TOOL_OF", "SPDXRef-artifact"} })
	return json.MarshalIndent(d, "", "  ")
}
