package api

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"net/http"

	"github.com/labstack/echo/v4"

	description "github.com/weir-proxy/weir/api"
)

//go:embed docs.html
var docsPage string

//go:embed docs.css
var docsStyle string

// serveDescription serves the description of the interface: as it is, as JSON, and as a page. All
// three are made once.
func (s *server) serveDescription(e *echo.Echo) error {
	asJSON, err := s.contract.doc.MarshalJSON()
	if err != nil {
		return fmt.Errorf("api/openapi.yaml as JSON: %w", err)
	}
	page, err := renderDocs(s.contract)
	if err != nil {
		return fmt.Errorf("the page of api/openapi.yaml: %w", err)
	}
	sum := sha256.Sum256([]byte(docsStyle))
	styled := "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
		"'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
	e.GET("/openapi.yaml", serveStatic("application/yaml", bare, description.YAML))
	e.GET("/openapi.json", serveStatic("application/json", bare, asJSON))
	e.GET("/docs", serveStatic("text/html; charset=utf-8", styled, page))
	return nil
}

func serveStatic(contentType, policy string, body []byte) echo.HandlerFunc {
	return func(c echo.Context) error {
		c.Response().Header().Set("Content-Security-Policy", policy)
		return c.Blob(http.StatusOK, contentType, body)
	}
}

func renderDocs(c *contract) ([]byte, error) {
	page, err := template.New("docs").Funcs(template.FuncMap{"prose": proseToHTML}).Parse(docsPage)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	view := docsView{Title: c.doc.Info.Title, Version: c.doc.Info.Version, Text: c.doc.Info.Description,
		Style: template.CSS(docsStyle)}
	for _, tag := range c.doc.Tags {
		group := docsGroup{Name: tag.Name, Text: tag.Description}
		for _, op := range c.listOperations() {
			if len(op.Tags) == 1 && op.Tags[0] == tag.Name {
				described, err := describeOperation(op)
				if err != nil {
					return nil, err
				}
				group.Operations = append(group.Operations, described)
			}
		}
		view.Groups = append(view.Groups, group)
	}
	view.Schemas = describeSchemas(c.doc)
	err = page.Execute(&out, view)
	return out.Bytes(), err
}
