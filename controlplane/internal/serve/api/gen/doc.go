// Package gen is the server's side of api/openapi.yaml: types of requests and answers, and the
// interface that handlers implement without knowing the web framework. All but this comment is
// generated; a test fails while it is not as the description says.
package gen

//go:generate go tool oapi-codegen -config config.yaml -o server.go ../../../../../api/openapi.yaml
