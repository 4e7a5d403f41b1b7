package api

import (
	"net/http"
	"regexp"

	"github.com/labstack/echo/v4"

	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
)

var parameter = regexp.MustCompile(`:([a-z]+)`)

// Routes are the methods and paths that a handler of New serves, paths written as in the
// description.
func Routes(h http.Handler) (routes []string) {
	for _, r := range h.(withHead).Routes() {
		if r.Method != echo.RouteNotFound {
			routes = append(routes, r.Method+" "+parameter.ReplaceAllString(r.Path, "{$1}"))
		}
	}
	return routes
}

// Status returns the status of answers to errors of a code, 0 if it is not known.
func Status(code errs.Code) int { return answers[code].status }
