package api

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"net/http"
	"sync"

	"github.com/labstack/echo/v4"

	description "github.com/weir-proxy/weir/api"
)

//go:embed docs.html
var docsPage string

//go:embed docs.css
var docsStyle string

// rendered is the description of the interface in the two forms that are made from it.
type rendered struct{ json, page []byte }

// renderDescription renders the description once in a process, since it takes a while and never
// changes.
var renderDescription = sync.OnceValues(func() (rendered, error) {
	contract, err := loadContract()
	if err != nil {
		return rendered{}, err
	}
	asJSON, err := contract.doc.MarshalJSON()
	if err != nil {
		return rendered{}, fmt.Errorf("cannot write api/openapi.yaml as JSON: %w", err)
	}
	page, err := renderDocs(contract)
	if err != nil {
		return rendered{}, fmt.Errorf("cannot write the page of api/openapi.yaml: %w", err)
	}
	return rendered{asJSON, page}, nil
})

// serveDescription serves the description: as it is, as JSON, and as a page.
func serveDescription(e *echo.Echo) error {
	forms, err := renderDescription()
	if err != nil {
		return err
	}
	sum := sha256.Sum256([]byte(docsStyle))
	styled := "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
		"'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
	e.GET("/openapi.yaml", serveStatic("application/yaml", bare, description.YAML))
	e.GET("/openapi.json", serveStatic("application/json", bare, forms.json))
	e.GET("/docs", serveStatic("text/html; charset=utf-8", styled, forms.page))
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
