// Command reference writes docs/reference/fields.md, every field of the policy language, from the
// schemas in api/openapi.yaml.
package main

import (
	"fmt"
	"os"
)

//go:generate go run .

// The description and the page, relative to this folder.
const (
	descriptionPath = "../../../../../api/openapi.yaml"
	pagePath        = "../../../../../docs/reference/fields.md"
)

func main() {
	page, err := generate(descriptionPath)
	if err == nil {
		err = os.WriteFile(pagePath, []byte(page), 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "reference:", err)
		os.Exit(1)
	}
}

func generate(path string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	all, err := readSchemas(text)
	if err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	return page(all)
}
